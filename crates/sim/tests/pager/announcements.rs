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

/// What a forked child reads of a range, if the fork is done while something else is not announced yet,
/// or the other way round.
fn forked_beside(operation: Operation, fork_is_late: bool, inherited: PageRange) {
    let (mut world, _) = filled(None);
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
    world.read_all(thread, inherited).unwrap();
}

/// Zeros in the child: it had them where they had been moved, and the fork was announced first.
#[test]
fn m14_a_child_has_what_was_moved_before_its_fork() {
    let from = PageRange::new(PageNumber(START), 64);
    forked_beside(moved(from, ELSEWHERE), false, PageRange::new(ELSEWHERE, 64));
}

#[test]
fn m14_a_child_has_what_was_moved_after_its_fork() {
    let from = PageRange::new(PageNumber(START), 64);
    forked_beside(moved(from, ELSEWHERE), true, from);
}

#[test]
fn m14_a_child_has_what_was_unmapped_after_its_fork() {
    let range = PageRange::new(PageNumber(START), 64);
    forked_beside(Operation::Unmap(range), true, range);
}

/// Zeros in the child: `madvise` was announced first, and drops when that was read.
#[test]
fn m14_a_child_has_what_was_dropped_after_its_fork() {
    let range = PageRange::new(PageNumber(START), 64);
    forked_beside(Operation::DontNeed(range), true, range);
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
