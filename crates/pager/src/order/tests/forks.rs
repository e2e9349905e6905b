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
        self.ask_and_receive(simultaneous(messages), mapped, inherited);
    }

    fn ask_and_receive(&mut self, mut batch: Batch, mapped: &RangeSet, inherited: &[PageRange]) {
        let is_there = |page| inherited.iter().any(|range| range.contains(page));
        let ask = |_: &mut u32, pages: &[PageNumber]| {
            Some(pages.iter().map(|&page| (page, is_there(page))).collect())
        };
        let mapped = || mapped.clone();
        let (order, armed) = (&mut self.order, &self.armed);
        assert!(order.ask_children(&mut batch, armed, mapped, ask));
        order.receive(batch, Time::ZERO);
    }

    fn mapped_after(&self, messages: &[Message]) -> RangeSet {
        let mut mapped = self.armed.clone();
        for message in messages {
            message.follow_in_armed(&mut mapped);
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

/// A fork that nothing was read with is accepted at once, and no child is asked.
#[test]
fn m14_a_fork_by_itself_does_not_wait() {
    for messages in [vec![forked(), fault(10)], vec![moved(PLACE, ELSEWHERE)]] {
        let mut space = Space::new();
        let mut batch = simultaneous(messages);
        let asked = |_: &mut u32, _: &[PageNumber]| panic!("a child is asked");
        let mapped = || panic!("the parent is looked at");
        assert!(
            space
                .order
                .ask_children(&mut batch, &space.armed, mapped, asked)
        );
        let is_fork = batch.messages.len() == 2;
        space.order.receive(batch, Time::ZERO);
        assert_eq!(space.read(Vec::new(), true).is_empty(), !is_fork);
    }
}

const CALM: fn(Message) -> Batch = |message| batch(vec![message], Sequence::AtOnce);

/// These are read one by one, PLACE's unmapping and a fork among them: the fork comes first of all or last, as
/// its child says.
fn fork_beside_an_unmapping(read: &[Message]) {
    let others = read.iter().filter(|message| message.child().is_none());
    let others: Vec<Message> = others.cloned().collect();
    for is_before in [false, true] {
        let mut space = Space::new();
        let inherited = [SOURCE, PLACE];
        let inherited = &inherited[..if is_before { 1 } else { 2 }];
        let mapped = space.mapped_after(&[removed(PLACE, true)]);
        for message in read {
            space.ask_and_receive(CALM(message.clone()), &mapped, inherited);
            assert!(space.read(Vec::new(), true).is_empty());
        }
        let mut expected = others.clone();
        expected.insert(if is_before { others.len() } else { 0 }, forked());
        assert_eq!(space.read(Vec::new(), false), names(&expected));
    }
}

/// While no thread moves memory, what is there is read: the fork may be announced later.
#[test]
fn m14_a_child_has_what_was_unmapped_after_its_fork_and_read_before() {
    fork_beside_an_unmapping(&[removed(PLACE, true), fault(30), forked()]);
}

/// And the other way round.
#[test]
fn m14_a_child_does_not_have_what_was_unmapped_before_its_fork_and_read_after() {
    fork_beside_an_unmapping(&[forked(), removed(PLACE, true)]);
}

/// So many mappings that are registered, each apart from the others.
fn space_of_places(count: u64) -> (Space, Vec<PageRange>) {
    let places: Vec<PageRange> = (0..count).map(|place| range(100 + 4 * place, 2)).collect();
    let mut space = Space::new();
    places.iter().for_each(|&place| space.armed.insert(place));
    (space, places)
}

/// Two forks and more places than are tried at a time: the second fork does not tie them together.
#[test]
fn m14_each_of_two_forks_comes_where_its_child_says() {
    let (mut space, places) = space_of_places(25);
    let unmapped: Vec<Message> = places.iter().map(|&place| removed(place, true)).collect();
    let mapped = space.mapped_after(&unmapped);
    for message in unmapped.clone() {
        space.ask_and_receive(CALM(message), &mapped, &[]);
    }
    let other = || Message::Forked { child: CHILD + 1 };
    space.ask_and_receive(CALM(forked()), &mapped, &places);
    space.ask_and_receive(CALM(other()), &mapped, &places[5..]);
    let (first, rest) = unmapped.split_at(5);
    let expected = [vec![forked()], first.to_vec(), vec![other()], rest.to_vec()].concat();
    assert_eq!(space.read(Vec::new(), false), names(&expected));
}

/// A chain of moves through one place that is longer than what is tried at a time.
#[test]
fn m14_a_fork_comes_into_a_long_chain_of_moves() {
    let places: Vec<PageRange> = (0..25).map(|place| range(100 + 4 * place, 4)).collect();
    let mut space = Space::new();
    space.armed.insert(places[0]);
    let moves: Vec<Message> = places
        .windows(2)
        .map(|pair| moved(pair[0], pair[1].start))
        .collect();
    for before in [0, 3, 12, 24] {
        let mut space = Space {
            order: Order::default(),
            armed: space.armed.clone(),
            ..Space::new()
        };
        let mut mapped = RangeSet::default();
        mapped.insert(places[24]);
        // One thread's, of which each was read by itself, and the fork last.
        for message in moves.clone() {
            let batch = batch(vec![message], Sequence::Incomplete);
            space.ask_and_receive(batch, &mapped, &[]);
        }
        space.ask_and_receive(CALM(forked()), &mapped, &[places[before]]);
        let mut expected = moves.clone();
        expected.insert(before, forked());
        space.order.echoes.clear();
        let accepted: Vec<String> = space.read(Vec::new(), false);
        assert_eq!(accepted, names(&expected), "{before}");
    }
}

/// What was unmapped has grown again from the mapping before it, so the child has it either way.
#[test]
fn m14_what_a_mapping_has_grown_over_tells_nothing_of_a_fork() {
    for has_grown in [true, false] {
        let mut space = Space::new();
        let mapped = space.mapped_after(&[removed(PLACE, true)]);
        for message in [removed(PLACE, true), forked()] {
            space.ask_and_receive(CALM(message), &mapped, &[PLACE, SOURCE]);
        }
        if has_grown {
            space.grown.insert(PLACE);
        }
        let mut expected = [removed(PLACE, true), forked()];
        expected.rotate_left(usize::from(!has_grown));
        assert_eq!(space.read(Vec::new(), false), names(&expected));
    }
}

/// A mapping that has grown was moved. What comes to a place by a move is no mapping that has grown to there.
#[test]
fn m14_what_had_grown_unseen_and_moved_comes_where_the_child_has_it() {
    let elsewhere = PageRange::new(ELSEWHERE, PLACE.count);
    let both = [forked(), moved(PLACE, ELSEWHERE)];
    for is_before in [true, false] {
        let mut space = Space::new();
        space.armed.remove(PLACE);
        space.grown.insert(elsewhere);
        let inherited = if is_before { elsewhere } else { PLACE };
        let mut expected = both.clone();
        expected.rotate_left(usize::from(is_before));
        let accepted = space.read_with_fork(both.to_vec(), &[inherited, SOURCE]);
        assert_eq!(accepted, names(&expected), "{is_before}");
    }
}

/// Two unmappings of one thread that overlap, and a fork after both.
#[test]
fn m14_a_fork_comes_after_all_that_was_unmapped_before_it() {
    let all = range(100, 100);
    let mut space = Space::new();
    space.armed.insert(all);
    let unmapped = [removed(range(100, 10), true), removed(all, true)];
    let mapped = space.mapped_after(&unmapped);
    let all = [unmapped[0].clone(), unmapped[1].clone(), forked()];
    for message in all.clone() {
        space.ask_and_receive(CALM(message), &mapped, &[]);
    }
    assert_eq!(space.read(Vec::new(), false), names(&all));
}

/// What `madvise` drops waits for nobody.
#[test]
fn what_is_dropped_does_not_wait() {
    let mut space = Space::new();
    space.order.receive(CALM(removed(PLACE, false)), Time::ZERO);
    let accepted = space.read(Vec::new(), true);
    assert_eq!(accepted, names(&[removed(PLACE, false)]));
}

/// Each place is explained by itself, however many there are.
#[test]
fn m14_a_fork_beside_many_unmappings_comes_after_those_that_the_child_does_not_have() {
    let (mut space, places) = space_of_places(40);
    let unmapped: Vec<Message> = places.iter().map(|&place| removed(place, true)).collect();
    let mapped = space.mapped_after(&unmapped);
    let (inherited, gone): (Vec<_>, Vec<_>) =
        places.iter().partition(|place| place.start.0 % 3 > 0);
    for message in unmapped.into_iter().chain([forked()]) {
        space.ask_and_receive(CALM(message), &mapped, &inherited);
    }
    let of = |places: Vec<PageRange>| places.into_iter().map(|place| removed(place, true));
    let expected: Vec<Message> = of(gone)
        .chain([forked()])
        .chain(of(inherited.clone()))
        .collect();
    assert_eq!(space.read(Vec::new(), false), names(&expected));
}

#[test]
fn m14_a_child_has_what_is_dropped_after_its_fork() {
    let mut space = Space::new();
    let messages = vec![fault(10), removed(PLACE, false), forked()];
    space.order.receive(simultaneous(messages), Time::ZERO);
    let expected = [forked(), fault(10), removed(PLACE, false)];
    assert_eq!(space.read(Vec::new(), true), names(&expected));
}

#[test]
fn the_first_change_of_a_page_tells_what_was_before() {
    let range = |start| PageRange::new(PageNumber(start), 4);
    let changes = [
        Message::Remapped {
            from: range(10),
            to: PageNumber(20),
            kept: false,
        },
        Message::Removed {
            range: range(20),
            unmapped: true,
        },
        Message::Removed {
            range: range(30),
            unmapped: false,
        },
    ];
    let was_there = |page| was_there::<u32>(&changes, PageNumber(page));
    assert_eq!(was_there(11), Some(true));
    assert_eq!(was_there(21), Some(false));
    assert_eq!(was_there(31), None);
}
