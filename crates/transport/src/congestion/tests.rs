//! The window and the share of a queue pair, sample by sample.

use super::*;

const MTU: u32 = 4096;

/// A window and its clock: each round trip is a sample, and the window is full in each.
struct Rounds {
    window: Window,
    now: Time,
}

impl Rounds {
    fn new() -> Self {
        Self {
            window: Window::new(MTU),
            now: Time::from_nanos(1_000_000),
        }
    }

    fn run(&mut self, rounds: u32, micros: u64) -> u32 {
        for _ in 0..rounds {
            let time = Duration::from_micros(micros);
            self.now = self.now + time;
            self.window.full();
            self.window.sample(self.now, time);
        }
        self.window.packets()
    }
}

#[test]
fn a_window_doubles_until_there_is_a_queue() {
    let mut rounds = Rounds::new();
    assert_eq!(rounds.window.packets(), INITIAL_BYTES / MTU);
    assert_eq!(rounds.run(3, 100), 8 * INITIAL_BYTES / MTU);
    rounds.run(2, 900);
    assert!(!rounds.window.is_starting());
    assert_eq!(Rounds::new().run(100, 100), MOST_BYTES / MTU);
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut rounds = Rounds::new();
    for _ in 0..100 {
        rounds.now = rounds.now + Duration::from_micros(100);
        rounds.window.sample(rounds.now, Duration::from_micros(100));
    }
    assert_eq!(rounds.window.packets(), INITIAL_BYTES / MTU);
    // Nor does a peer that stands still take anything from it.
    for _ in 0..100 {
        rounds.now = rounds.now + Duration::from_millis(20);
        rounds.window.sample(rounds.now, Duration::from_millis(20));
        rounds.window.timed_out(rounds.now);
    }
    assert_eq!(rounds.window.packets(), INITIAL_BYTES / MTU);
}

#[test]
fn a_single_late_answer_takes_nothing() {
    let mut rounds = Rounds::new();
    let full = rounds.run(10, 100);
    for _ in 0..50 {
        rounds.run(7, 20_000);
        rounds.run(1, 100);
    }
    assert_eq!(rounds.window.packets(), full);
}

#[test]
fn a_queue_that_stands_cuts_down_to_the_target() {
    let mut rounds = Rounds::new();
    let full = rounds.run(10, 100);
    let cut = rounds.run(12, 3_000);
    assert!(cut < full / 2 && cut > FLOOR, "{cut}");
}

/// A queue that does not become shorter though nothing more can be taken from the window is that of
/// others, who go by loss.
#[test]
fn a_queue_of_others_is_met_with_their_means() {
    let mut rounds = Rounds::new();
    rounds.run(10, 100);
    rounds.run(40, 8_000);
    assert!(rounds.window.competes());
    let before = rounds.run(10, 8_000);
    assert!(before > 4 * FLOOR, "{before}");
    rounds.window.lost(rounds.now);
    let after = rounds.window.packets();
    assert!(after >= before * 6 / 10 && after <= before * 7 / 10);
    // When they have gone it sees the queue run dry.
    rounds.run(60, 200);
    assert!(!rounds.window.competes());
}

#[test]
fn after_two_seconds_it_looks_whether_it_is_alone() {
    let mut rounds = Rounds::new();
    rounds.run(10, 100);
    rounds.run(40, 8_000);
    assert!(rounds.window.competes());
    // The queue is its own from now on: as long as the window is.
    for _ in 0..2_000 {
        let micros = 50 * u64::from(rounds.window.packets());
        rounds.run(1, micros);
    }
    assert!(!rounds.window.competes());
}

#[test]
fn loss_without_a_queue_costs_little_and_with_one_much() {
    let mut rounds = Rounds::new();
    let full = rounds.run(10, 100);
    rounds.window.lost(rounds.now);
    assert_eq!(rounds.window.packets(), full - full / 16);
    // Once in a round trip.
    rounds.window.lost(rounds.now);
    assert_eq!(rounds.window.packets(), full - full / 16);
    rounds.run(1, 900);
    let before = rounds.window.packets();
    rounds.window.lost(rounds.now + Duration::from_millis(2));
    assert!(rounds.window.packets() <= before * 71 / 100);
}

#[test]
fn much_loss_is_congestion_whatever_the_delay() {
    let mut rounds = Rounds::new();
    rounds.run(10, 100);
    for _ in 0..40 {
        rounds.window.delivered(20);
        // All in one round trip, which cuts once.
        rounds.window.lost(rounds.now);
    }
    let before = rounds.window.packets();
    rounds.window.lost(rounds.now + Duration::from_millis(1));
    assert!(rounds.window.packets() <= before * 71 / 100);
}

#[test]
fn rare_marks_cut_less_than_many() {
    let mut rounds = Rounds::new();
    let full = rounds.run(10, 100);
    rounds.window.marked(rounds.now);
    let first = rounds.window.packets();
    assert!(first <= full * 8 / 10 && first >= full / 2, "{first}");
    // A hundred round trips without one.
    let before = rounds.run(100, 100);
    rounds.window.marked(rounds.now);
    let after = rounds.window.packets();
    assert!(after >= before * 9 / 10, "{before} {after}");
}

#[test]
fn no_number_breaks_a_window() {
    let mut window = Window::new(1);
    for nanos in [0, 1, u64::MAX, 5, u64::MAX / 2, 0] {
        for now in [0, u64::MAX, 7, u64::MAX / 3] {
            let now = Time::from_nanos(now);
            window.full();
            window.used(u32::MAX);
            window.delivered(u32::MAX);
            window.sample(now, Duration::from_nanos(nanos));
            window.lost(now);
            window.marked(now);
            window.timed_out(now);
            assert!(window.packets() >= FLOOR && window.packets() <= MOST_BYTES);
        }
    }
}

#[test]
fn a_queue_pair_has_its_share_whatever_others_have_under_way() {
    let mut path = Path::new(MTU);
    let now = Time::from_nanos(1);
    let requests = |requests| Flight {
        requests,
        answers: 0,
    };
    path.account(Flight::default(), requests(16));
    let room = |path: &mut Path, own| path.admits(now, Direction::Requests, own);
    assert_eq!(room(&mut path, 16), Admission::Full);
    // Half of the window is the second one's.
    assert_eq!(room(&mut path, 0), Admission::Room(8));
    path.account(Flight::default(), requests(8));
    assert_eq!(room(&mut path, 8), Admission::Full);
    // The other direction is another window.
    let answers = path.admits(now, Direction::Answers, 0);
    assert_eq!(answers, Admission::Room(16));
    path.account(requests(16), Flight::default());
    assert_eq!(room(&mut path, 8), Admission::Room(8));
}

#[test]
fn a_free_path_keeps_nothing_back() {
    let mut path = Path::free(MTU);
    let all = Flight {
        requests: 1 << 20,
        answers: 1 << 20,
    };
    path.account(Flight::default(), all);
    let now = Time::from_nanos(1);
    path.sent(now, Direction::Requests, 1 << 20);
    let room = path.admits(now, Direction::Requests, 1 << 20);
    assert_eq!(room, Admission::Room(u32::MAX));
    assert_eq!(path.piece().0, u32::MAX);
}
