use super::*;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use legato_base::PageNumber;

/// Children are numbers here.
type Message = super::Message<u32>;
type Order = super::Order<u32>;
type Batch = super::Batch<u32>;

const PLACE: PageRange = PageRange::new(PageNumber(10), 4);
const ELSEWHERE: PageNumber = PageNumber(20);
const SOURCE: PageRange = PageRange::new(PageNumber(30), 4);

fn range(start: u64, count: u64) -> PageRange {
    PageRange::new(PageNumber(start), count)
}

fn moved(from: PageRange, to: PageNumber) -> Message {
    Message::Remapped {
        from,
        to,
        kept: false,
    }
}

fn removed(range: PageRange, unmapped: bool) -> Message {
    Message::Removed { range, unmapped }
}

fn fault(page: u64) -> Message {
    Message::Fault {
        page: PageNumber(page),
        protected: false,
        thread: 0,
    }
}

fn names(messages: &[Message]) -> Vec<String> {
    let name = |message| format!("{message:?}");
    messages.iter().map(name).collect()
}

fn batch(messages: Vec<Message>, sequence: Sequence) -> Batch {
    Batch {
        messages,
        sequence,
        ..Batch::default()
    }
}

/// Each of another thread, and none missing.
fn simultaneous(messages: Vec<Message>) -> Batch {
    batch(messages, Sequence::Simultaneous)
}

/// A space with memory at PLACE and SOURCE.
struct Space {
    order: Order,
    armed: RangeSet,
    /// What mappings have grown to.
    grown: RangeSet,
}

impl Space {
    fn new() -> Self {
        let mut armed = RangeSet::default();
        armed.insert(PLACE);
        armed.insert(SOURCE);
        let order = Order::default();
        let grown = RangeSet::default();
        Self {
            order,
            armed,
            grown,
        }
    }

    /// What is accepted, one after the other, of these and of what waits.
    fn read(&mut self, messages: Vec<Message>, changing: bool) -> Vec<String> {
        let one_by_one = messages.into_iter();
        let incomplete = one_by_one.map(|message| batch(vec![message], Sequence::Incomplete));
        incomplete.for_each(|batch| self.order.receive(batch, Time::ZERO));
        let mut accepted = Vec::new();
        while let Some(message) = self.order.next(
            &self.armed,
            || changing,
            |page| Some(self.grown.contains(page)),
        ) {
            message.follow_in_armed(&mut self.armed);
            accepted.push(format!("{message:?}"));
        }
        accepted
    }

    /// The same with the echoes of all moves, so that no event is missing.
    fn settle(&mut self, messages: Vec<Message>) -> Vec<String> {
        assert!(self.read(messages, true).is_empty());
        let echoes = self.order.echoes.clone().into_iter();
        self.read(echoes.map(|from| removed(from, true)).collect(), false)
    }

    fn settled(messages: Vec<Message>) -> Vec<String> {
        Self::new().settle(messages)
    }
}

#[test]
fn a_move_and_all_after_it_waits_until_no_event_is_missing() {
    let mut space = Space::new();
    let others = || vec![removed(range(11, 1), false), fault(11)];
    assert_eq!(space.read(others(), true), names(&others()));
    let all = || {
        vec![
            moved(SOURCE, ELSEWHERE),
            fault(20),
            removed(range(40, 1), true),
        ]
    };
    assert_eq!(space.settle(all()), names(&all()));
}

#[test]
fn without_end_nothing_waits() {
    let mut space = Space::new();
    let mut all = vec![moved(SOURCE, ELSEWHERE)];
    all.extend((0..WAITING_MAX as u64).map(fault));
    assert_eq!(space.read(all, true).len(), WAITING_MAX + 1);
}

#[test]
fn a_place_is_given_up_before_something_comes_there() {
    for given_up in [
        || moved(PLACE, ELSEWHERE),
        || removed(PLACE, true),
        || removed(range(8, 8), true),
    ] {
        let order = Space::settled(vec![moved(SOURCE, PLACE.start), fault(11), given_up()]);
        let expected = [given_up(), moved(SOURCE, PLACE.start), fault(11)];
        assert_eq!(order, names(&expected));
    }
}

#[test]
fn nothing_is_moved_from_where_nothing_is() {
    // What took over the end of PLACE was moved on before PLACE itself was announced.
    let large = range(8, 6);
    let mut space = Space::new();
    space.armed.insert(range(8, 2));
    let order = space.settle(vec![moved(large, PageNumber(50)), moved(PLACE, ELSEWHERE)]);
    let expected = [moved(PLACE, ELSEWHERE), moved(large, PageNumber(50))];
    assert_eq!(order, names(&expected));
}

#[test]
fn the_end_of_the_old_place_is_nothing_new() {
    let mut space = Space::new();
    let order = space.settle(vec![moved(PLACE, ELSEWHERE), moved(SOURCE, PLACE.start)]);
    assert_eq!(order.len(), 2);
    assert!(space.armed.overlaps(PLACE) && !space.armed.overlaps(SOURCE));
    // Somebody unmaps what the second move has brought.
    assert_eq!(space.read(vec![removed(PLACE, true)], false).len(), 1);
    assert!(!space.armed.overlaps(PLACE));
}

/// One thread, twice MREMAP_DONTUNMAP from the same place: the second announcement is read while the
/// first waits.
#[test]
fn moves_that_keep_their_old_places_stay_in_order() {
    let part = range(31, 2);
    let mut space = Space::new();
    assert!(space.read(vec![moved(SOURCE, ELSEWHERE)], true).is_empty());
    let order = space.read(vec![moved(part, PageNumber(50))], false);
    let keeping = |from, to| Message::Remapped {
        from,
        to,
        kept: true,
    };
    let expected = [keeping(SOURCE, ELSEWHERE), keeping(part, PageNumber(50))];
    assert_eq!(order, names(&expected));
    // What is unmapped afterwards is no echo.
    let unmapped = || vec![removed(SOURCE, true)];
    assert_eq!(space.read(unmapped(), false), names(&unmapped()));
}

#[test]
fn a_moves_echo_does_not_end_what_it_moved() {
    let all = vec![
        moved(SOURCE, PLACE.start),
        removed(SOURCE, true),
        removed(PLACE, true),
    ];
    let expected = [removed(PLACE, true), moved(SOURCE, PLACE.start)];
    assert_eq!(Space::settled(all), names(&expected));
}

#[test]
fn what_goes_on_from_a_place_is_what_came_there() {
    let came = || moved(range(30, 5), PLACE.start);
    let further = || moved(range(10, 5), PageNumber(50));
    // Not as large as what came: what was there before.
    let given_up = || moved(PLACE, ELSEWHERE);
    let all = vec![came(), further(), given_up()];
    let expected = [given_up(), came(), further()];
    assert_eq!(Space::settled(all), names(&expected));
}

#[test]
fn one_thread_after_another_is_in_order() {
    let all = || {
        vec![
            moved(PLACE, ELSEWHERE),
            moved(SOURCE, PLACE.start),
            removed(PLACE, false),
            moved(PLACE, SOURCE.start),
            moved(range(20, 4), PLACE.start),
        ]
    };
    assert_eq!(Space::settled(all()), names(&all()));
}

/// What is known to be mapped may be too much (a mapping has gone while it was being registered): where
/// nothing is missing, nothing is repaired by it.
#[test]
fn m16_what_is_complete_is_taken_as_it_was_read() {
    let all = || {
        vec![
            moved(SOURCE, PLACE.start),
            removed(SOURCE, true),
            moved(range(10, 5), PageNumber(50)),
            removed(range(10, 5), true),
        ]
    };
    let accepted = |sequence: Sequence| {
        let mut space = Space::new();
        for message in all() {
            space
                .order
                .receive(batch(vec![message], sequence), Time::ZERO);
        }
        space.read(Vec::new(), false)
    };
    let [first, _, second, _] = <[Message; 4]>::try_from(all()).unwrap();
    let complete = accepted(Sequence::Simultaneous);
    assert_eq!(complete, names(&[first, second]));
    assert_ne!(accepted(Sequence::Incomplete), complete);
}

/// One thread moves memory onto a registered mapping, which it announces first. Another moves to where
/// that memory was, and its move is read with the first one's first announcement.
#[test]
fn m11_a_move_that_is_announced_in_two_readings_came_before_what_came_to_its_old_place() {
    let mut space = Space::new();
    let first = vec![
        removed(range(20, 4), true),
        moved(range(40, 4), SOURCE.start),
    ];
    let second = vec![moved(SOURCE, ELSEWHERE), removed(range(40, 4), true)];
    for messages in [first, second, vec![removed(SOURCE, true)]] {
        space.order.receive(simultaneous(messages), Time::ZERO);
    }
    let expected = [
        removed(range(20, 4), true),
        moved(SOURCE, ELSEWHERE),
        moved(range(40, 4), SOURCE.start),
    ];
    assert_eq!(space.read(Vec::new(), false), names(&expected));
}

/// As soon as a thread's announcement has been read it goes on, and announces more before the agent has
/// read enough. What it did in the place that memory was moved to came after the move.
#[test]
fn m14_what_one_thread_announces_at_once_stays_in_order() {
    let all = || {
        vec![
            moved(SOURCE, ELSEWHERE),
            removed(SOURCE, true),
            removed(range(20, 1), true),
            removed(range(21, 1), false),
        ]
    };
    let mut space = Space::new();
    let batch = batch(all(), Sequence::AsDone);
    space.order.receive(batch, Time::ZERO);
    let [first, _, third, last] = <[Message; 4]>::try_from(all()).unwrap();
    assert_eq!(space.read(Vec::new(), false), names(&[first, third, last]));
}

/// The kernel hands out faults first, and they are read alone while threads may move memory.
#[test]
fn m16_faults_read_alone_do_not_mean_that_something_is_missing() {
    let mut space = Space::new();
    let batch = batch(vec![fault(10)], Sequence::Incomplete);
    space.order.receive(batch, Time::ZERO);
    assert!(!space.order.incomplete);
}

/// A neighbour has grown to where the mapping was, and was cut there, before that was read.
#[test]
fn m16_what_is_cut_off_after_a_move_takes_nothing_of_it() {
    let all = || vec![moved(PLACE, ELSEWHERE), removed(range(12, 4), true)];
    let mut space = Space::new();
    space.order.receive(simultaneous(all()), Time::ZERO);
    assert_eq!(space.read(Vec::new(), false), {
        let mut expected = all();
        expected[0] = Message::Remapped {
            from: PLACE,
            to: ELSEWHERE,
            kept: true,
        };
        names(&expected)
    });
}

#[test]
fn a_place_that_is_never_given_up_is_taken() {
    let all = || vec![moved(SOURCE, PLACE.start), fault(10)];
    assert_eq!(Space::settled(all()), names(&all()));
}

mod forks;
mod threads;

/// A message that is put back keeps its place before what was read with it, and tells of what comes after it.
#[test]
fn what_is_put_back_comes_first_again_when_no_event_is_missing() {
    let mut order = Order::default();
    let (gone, comes) = (removed(PLACE, true), moved(SOURCE, PLACE.start));
    let read = batch(vec![gone.clone(), comes.clone()], Sequence::AsDone);
    order.receive(read, Time::ZERO);
    let armed = RangeSet::default();
    let next = |order: &mut Order, changing: bool| order.next(&armed, || changing, |_| Some(false));
    assert_eq!(next(&mut order, true), Some(gone.clone()));
    assert!(order.brings_to(range(13, 4)) && !order.brings_to(range(14, 4)));
    order.put_back(gone.clone());
    assert_eq!(next(&mut order, true), None);
    assert!(order.has_waiting() && order.brings_to(PLACE));
    assert_eq!(next(&mut order, false), Some(gone));
    assert!(order.brings_to(PLACE));
    assert!(next(&mut order, false).is_some_and(|message| message.is_move()));
    assert!(!order.brings_to(PLACE) && next(&mut order, false).is_none());
}
