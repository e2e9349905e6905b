//! Forks that were read together with what other threads have done.

use super::*;

const CHILD: u32 = 7;

fn forked() -> Message {
    Message::Forked { child: CHILD }
}

impl Space {
    /// What is accepted of messages that were read at once, when the child has inherited all of these.
    fn read_with_fork(&mut self, messages: Vec<Message>, inherited: &[PageRange]) -> Vec<String> {
        let mapped = self.mapped_after(&messages);
        self.receive_fork(messages, &mapped, inherited);
        self.settle(Vec::new())
    }

    /// Messages were read at once, when these were mapped, and the child has inherited those.
    fn receive_fork(&mut self, messages: Vec<Message>, mapped: &RangeSet, inherited: &[PageRange]) {
        let is_there = |page| inherited.iter().any(|range| range.contains(page));
        let mut pages = pages_in_question(&messages, &self.armed);
        let given_up = pages_given_up(&messages, &self.armed, || mapped.clone());
        pages.extend(given_up);
        let pages = pages.into_iter().map(|page| (page, is_there(page)));
        let batch = Batch {
            inheritances: vec![pages.collect()],
            ..simultaneous(messages)
        };
        self.order.receive(batch, Time::ZERO);
    }

    fn mapped_after(&self, messages: &[Message]) -> RangeSet {
        let mut mapped = self.armed.clone();
        for message in messages {
            let (gone, new) = (message.vacated(), message.arrival());
            gone.into_iter().for_each(|range| mapped.remove(range));
            new.into_iter().for_each(|range| mapped.insert(range));
        }
        mapped
    }
}

#[test]
fn m14_a_child_has_what_moved_before_its_fork_where_it_is_and_else_where_it_was() {
    let elsewhere = PageRange::new(ELSEWHERE, PLACE.count);
    let both = || [moved(PLACE, ELSEWHERE), forked()];
    for turned in [false, true] {
        let read = || {
            let mut messages = Vec::from(both());
            if turned {
                messages.reverse();
            }
            messages
        };
        let before = Space::new().read_with_fork(read(), &[elsewhere, SOURCE]);
        assert_eq!(before, names(&both()));
        let after = Space::new().read_with_fork(read(), &[PLACE, SOURCE]);
        assert_eq!(after, names(&[forked(), moved(PLACE, ELSEWHERE)]));
    }
}

#[test]
fn m14_a_child_has_what_was_unmapped_after_its_fork() {
    // More than what is registered.
    let all = range(8, 4);
    let read = || vec![removed(all, true), forked()];
    let after = Space::new().read_with_fork(read(), &[PLACE, SOURCE]);
    assert_eq!(after, names(&[forked(), removed(all, true)]));
    let before = Space::new().read_with_fork(read(), &[range(12, 2), SOURCE]);
    assert_eq!(before, names(&read()));
}

/// PLACE moves away, SOURCE moves there, and somewhere in between is the fork.
#[test]
fn m14_a_fork_comes_between_moves_through_one_place() {
    let moves = || [moved(PLACE, ELSEWHERE), moved(SOURCE, PLACE.start)];
    let elsewhere = PageRange::new(ELSEWHERE, PLACE.count);
    let inherited = [
        vec![PLACE, SOURCE],
        vec![elsewhere, SOURCE],
        vec![elsewhere, PLACE],
    ];
    for (place, inherited) in inherited.into_iter().enumerate() {
        let [first, second] = moves();
        let read = vec![second, forked(), first];
        let mut expected = Vec::from(moves());
        expected.insert(place, forked());
        let accepted = Space::new().read_with_fork(read, &inherited);
        assert_eq!(accepted, names(&expected));
    }
}

/// SOURCE moves onto PLACE, which is announced in two readings; the fork is read with the first one.
#[test]
fn m14_a_fork_comes_after_a_move_of_which_only_the_beginning_was_read() {
    let changes = || [removed(PLACE, true), moved(SOURCE, PLACE.start)];
    for is_before in [true, false] {
        let mut space = Space::new();
        let [unmapped, moves] = changes();
        // The parent has moved SOURCE already.
        let mut mapped = RangeSet::default();
        mapped.insert(PLACE);
        let inherited = [PLACE, SOURCE];
        let inherited = &inherited[..if is_before { 1 } else { 2 }];
        space.receive_fork(vec![forked(), unmapped], &mapped, inherited);
        space.order.receive(simultaneous(vec![moves]), Time::ZERO);
        let mut expected = Vec::from(changes());
        expected.insert(if is_before { 2 } else { 0 }, forked());
        assert_eq!(space.settle(Vec::new()), names(&expected));
    }
}

/// A fork that nothing was read with is accepted at once.
#[test]
fn m14_a_fork_by_itself_does_not_wait() {
    let space = Space::new();
    let pages = pages_in_question(&[forked(), fault(10)], &space.armed);
    assert!(pages.is_empty());
    let pages = pages_in_question(&[moved(PLACE, ELSEWHERE)], &space.armed);
    assert!(pages.is_empty());
}

#[test]
fn m14_a_child_has_what_is_dropped_after_its_fork() {
    let mut space = Space::new();
    let messages = vec![fault(10), removed(PLACE, false), forked()];
    space.order.receive(simultaneous(messages), Time::ZERO);
    let expected = [forked(), fault(10), removed(PLACE, false)];
    assert_eq!(space.read(Vec::new(), true), names(&expected));
}
