//! What several threads do at once is announced in another order than it was done.

use legato_base::{Duration, PageNumber};
use legato_pager::{PageRange, PagerEvent};
use legato_sim::world::{
    Defect, Failure, FailureKind, Operation, Outcome, World, WorldConfig, run,
};

const CACHE: u64 = 768;
const START: u64 = 0x1000;
const ELSEWHERE: PageNumber = PageNumber(0x10_0000);
const LATE: Duration = Duration::from_millis(1);

/// A program whose first pages are far.
fn filled(defect: Option<Defect>) -> (World, PageRange) {
    let config = WorldConfig {
        defect,
        ..WorldConfig::default()
    };
    let mut world = World::new(config).unwrap();
    let range = world.map(START, 3 * CACHE).unwrap();
    world.write_all(range, |page| page).unwrap();
    assert!((0..128).any(|page| !world.is_present(range.start.plus(page))));
    (world, range)
}

const fn moved(from: PageRange, to: PageNumber) -> Operation {
    Operation::Remap { from, to, grow: 0 }
}

fn move_through_one_place(defect: Option<Defect>) -> Result<(), Failure> {
    let (mut world, range) = filled(defect);
    let [first, second] = [0, 64].map(|start| PageRange::new(range.start.plus(start), 64));
    world.begin_late(1, moved(first, ELSEWHERE), LATE)?;
    world.perform(0, moved(second, first.start))?;
    world.wait_for(1)?;
    world.read_all(0, first)?;
    world.read_all(0, PageRange::new(ELSEWHERE, 64))
}

/// Zeros: the second move was announced first, and the first one seemed to empty its target.
#[test]
fn m16_memory_moves_to_a_place_that_is_not_announced_as_given_up() {
    move_through_one_place(None).unwrap();
    let failure = move_through_one_place(Some(Defect::ReadAsDone)).unwrap_err();
    let is_noticed = matches!(
        failure.kind,
        FailureKind::WrongData { .. } | FailureKind::GaveUp(PagerEvent::MovedOver { .. })
    );
    assert!(is_noticed, "{failure}");
}

/// Whether threads have moved memory lately: then nothing is read as long as one of them may be late.
#[derive(Clone, Copy, Debug)]
enum Lately {
    Moved,
    Calm,
}

/// A thread of a child whose fork is done while something else is not announced yet, or the other way
/// round.
fn forked_beside(operation: Operation, fork_is_late: bool, lately: Lately) -> (World, usize) {
    let (mut world, _) = filled(None);
    if matches!(lately, Lately::Calm) {
        world.pass(Duration::from_secs(2)).unwrap();
    }
    if fork_is_late {
        world.begin_late(0, Operation::Fork, LATE).unwrap();
        world.perform(1, operation).unwrap();
    } else {
        world.begin_late(1, operation, LATE).unwrap();
        world.begin(0, Operation::Fork);
    }
    let Outcome::Child(child) = world.wait_for(0).unwrap() else {
        panic!("no child");
    };
    while world.thread_of(child).is_none() {
        world.pass(LATE).unwrap();
    }
    let thread = world.thread_of(child).unwrap();
    (world, thread)
}

const FIRST: PageRange = PageRange::new(PageNumber(START), 64);
const ALWAYS: [Lately; 2] = [Lately::Moved, Lately::Calm];

/// Zeros in the child: it had them where they had been moved, and the fork was announced first.
#[test]
fn m14_a_child_has_what_was_moved_before_its_fork() {
    for lately in ALWAYS {
        let (mut world, child) = forked_beside(moved(FIRST, ELSEWHERE), false, lately);
        world
            .read_all(child, PageRange::new(ELSEWHERE, 64))
            .unwrap();
    }
}

#[test]
fn m14_a_child_has_what_was_moved_after_its_fork() {
    for lately in ALWAYS {
        let (mut world, child) = forked_beside(moved(FIRST, ELSEWHERE), true, lately);
        world.read_all(child, FIRST).unwrap();
    }
}

/// Zeros in the child: while nobody moves memory, what can be read is read, and the fork was not there yet.
#[test]
fn m14_a_child_has_what_was_unmapped_after_its_fork() {
    for lately in ALWAYS {
        let (mut world, child) = forked_beside(Operation::Unmap(FIRST), true, lately);
        world.read_all(child, FIRST).unwrap();
    }
}

/// The same, the other way round: what the child maps there is new.
#[test]
fn m14_a_child_does_not_have_what_was_unmapped_before_its_fork() {
    for lately in ALWAYS {
        let (mut world, child) = forked_beside(Operation::Unmap(FIRST), false, lately);
        world.perform(child, Operation::Map(FIRST)).unwrap();
        world.read_all(child, FIRST).unwrap();
    }
}

/// Zeros in the child: `madvise` was announced first, and drops when that was read. While nobody moves
/// memory the two are not told apart: the child may have it or not.
#[test]
fn m14_a_child_has_what_was_dropped_after_its_fork() {
    let (mut world, child) = forked_beside(Operation::DontNeed(FIRST), true, Lately::Moved);
    for page in FIRST.start.0..FIRST.end().0 {
        let found = world.perform(child, Operation::Read(PageNumber(page)));
        assert_eq!(found.unwrap(), Outcome::Value(page));
    }
}

/// One seed of about 25 shows it: which, changes with whatever the pager does at another time.
#[test]
fn what_is_taken_as_done_as_it_was_read_is_caught() {
    let is_wrong = |seed| {
        let config = WorldConfig {
            seed,
            steps: 20_000,
            defect: Some(Defect::ReadAsDone),
            ..WorldConfig::default()
        };
        let failure = run(config).err();
        failure.is_some_and(|failure| matches!(failure.kind, FailureKind::WrongData { .. }))
    };
    assert!((1070..2070).any(is_wrong));
}
