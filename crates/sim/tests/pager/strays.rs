//! Pages that are resident and that the pager does not know.

use super::families;
use legato_base::{Duration, PageNumber};
use legato_pager::PageRange;
use legato_sim::world::{Defect, Failure, FailureKind, Operation, World, WorldConfig};

const CACHE: u64 = 512;
const START: u64 = 0x1000;

/// A program with twice its cache of memory, and so much of it that was used last.
fn filled(defect: Option<Defect>) -> (World, PageRange, PageRange) {
    let mut world = World::new(WorldConfig {
        cache_pages: CACHE,
        defect,
        ..WorldConfig::default()
    })
    .unwrap();
    let all = world.map(START, 2 * CACHE).unwrap();
    world.write_all(all, |page| page).unwrap();
    let part = PageRange::new(all.start, CACHE * 3 / 4);
    for _ in 0..2 {
        world.read_all(0, part).unwrap();
    }
    (world, all, part)
}

fn present(world: &World, range: PageRange) -> u64 {
    let pages = (range.start.0..range.end().0).map(PageNumber);
    pages.filter(|&page| world.is_present(page)).count() as u64
}

/// Lost: pages that MADV_FREE had left and that were in use again, without a write that the agent could
/// see, were nobody's, and stayed local for ever.
#[test]
fn pages_that_nobody_knows_are_found_when_too_little_can_leave() {
    let (mut world, all, part) = filled(None);
    world.perform(0, Operation::Free(part)).unwrap();
    for page in (part.start.0..part.end().0).map(PageNumber) {
        world.perform(0, Operation::Pin(page)).unwrap();
        world.perform(0, Operation::Unpin(page)).unwrap();
    }
    // Nothing was found while the program grew, so it was not looked again at once.
    world.pass(Duration::from_secs(5)).unwrap();
    let before = present(&world, part);
    assert!(before > CACHE / 2, "{before}");
    let rest = PageRange::new(part.end(), all.count - part.count);
    for _ in 0..8 {
        world.read_all(1, rest).unwrap();
    }
    assert!(world.counters().pages_found_again >= before / 2);
    assert!(present(&world, part) < before / 4);
    world.read_all(2, part).unwrap();
    world.perform(0, Operation::Unmap(all)).unwrap();
    world.finish().unwrap();
}

/// Lost: pages that were in use again after MADV_FREE were forgotten when they got new addresses.
#[test]
fn pages_used_again_after_madv_free_can_leave_from_where_they_move() {
    let (mut world, all, part) = filled(None);
    world.perform(0, Operation::Free(part)).unwrap();
    world.write_all(part, |page| page + (1 << 32)).unwrap();
    let (from, to) = (part, PageNumber(START * 8));
    let grow = 0;
    world
        .perform(0, Operation::Remap { from, to, grow })
        .unwrap();
    let moved = PageRange::new(to, part.count);
    let before = present(&world, moved);
    let found = world.counters().pages_found_again;
    // Longer than the pager waits before it takes them for used.
    world.pass(Duration::from_millis(1500)).unwrap();
    let rest = PageRange::new(part.end(), all.count - part.count);
    for _ in 0..2 {
        world.read_all(1, rest).unwrap();
    }
    // But for those that were written unseen.
    let found = world.counters().pages_found_again - found;
    assert!(found < before / 4, "{found} of {before}");
    let after = present(&world, moved);
    assert!(after < before / 2, "{after} of {before}");
    world.read_all(2, moved).unwrap();
    world.perform(0, Operation::Unmap(moved)).unwrap();
    world.perform(0, Operation::Unmap(rest)).unwrap();
    world.finish().unwrap();
}

/// The simulated kernel knew of a move in a child before the pager could have read of it, so that what
/// was in use again there was nobody's.
#[test]
fn pages_of_a_child_are_used_again_where_they_were_until_their_move_is_read() {
    let (mut world, all) = families::filled(families::config(), 2 * CACHE);
    let child = families::fork_attached(&mut world);
    // Until the pager has taken charge of the child's memory.
    world.read_all(child, all).unwrap();
    let part = PageRange::new(all.start, CACHE / 8);
    world.read_all(child, part).unwrap();
    world.perform(child, Operation::Free(part)).unwrap();
    for page in (part.start.0..part.end().0).map(PageNumber) {
        let write = Operation::Write(page, page.0 + (1 << 32));
        world.perform(child, write).unwrap();
    }
    let (from, to) = (part, PageNumber(START * 8));
    let grow = 0;
    // Longer than the pager waits before it takes them for used.
    let late = Duration::from_millis(1500);
    let remap = Operation::Remap { from, to, grow };
    world.begin_late(child, remap, late).unwrap();
    world.wait_for(child).unwrap();
    // So that what is resident is compared with what is known.
    let rest = PageRange::new(part.end(), all.count - part.count);
    for thread in [0, child] {
        world.read_all(thread, rest).unwrap();
    }
    world
        .read_all(child, PageRange::new(to, part.count))
        .unwrap();
    world.perform(child, Operation::Exit).unwrap();
    world.perform(0, Operation::Unmap(all)).unwrap();
    world.finish().unwrap();
}

/// A thread has announced that it drops most of what is local, and gets no processor for that; the
/// others need room.
fn drops_late(defect: Option<Defect>) -> Result<(), Failure> {
    let (mut world, all, part) = filled(defect);
    world.begin(1, Operation::DontNeed(part));
    world.starve(1, Duration::from_secs(3));
    world.pass(Duration::from_millis(1))?;
    let rest = PageRange::new(part.end(), all.count - part.count);
    while world.is_busy(1) {
        world.read_all(0, rest)?;
    }
    world.read_all(0, part)?;
    world.perform(0, Operation::Unmap(all))?;
    world.finish().map(drop)
}

/// If they left before they are dropped, they would come back with what they held.
#[test]
fn m17_what_is_being_dropped_is_not_found() {
    drops_late(None).unwrap();
    let failure = drops_late(Some(Defect::DroppingForgotten)).unwrap_err();
    assert!(
        matches!(failure.kind, FailureKind::WrongData { .. }),
        "{failure}"
    );
}

/// The thread that drops what is local gets no processor for longer than the pager waits with what is
/// used meanwhile. Returns how many pages have left before they were dropped: what else is in them
/// would come back with them.
fn left_while_they_are_dropped(
    defect: Option<Defect>,
    use_all: impl Fn(&mut World, PageRange) -> Result<(), Failure>,
) -> usize {
    let (mut world, all, part) = filled(defect);
    world.begin(1, Operation::DontNeed(part));
    world.starve(1, Duration::from_secs(3));
    // It announces within two.
    world.pass(Duration::from_millis(5)).unwrap();
    let pages = (part.start.0..part.end().0).map(PageNumber);
    let local: Vec<PageNumber> = pages.filter(|&page| world.is_present(page)).collect();
    assert!(local.len() as u64 > CACHE / 2);
    use_all(&mut world, part).unwrap();
    world.pass(Duration::from_millis(1500)).unwrap();
    assert!(world.is_busy(1));
    let rest = PageRange::new(part.end(), all.count - part.count);
    world.read_all(0, rest).unwrap();
    assert!(world.is_busy(1));
    let left = local.into_iter().filter(|&page| !world.is_present(page));
    left.count()
}

#[test]
fn m17_what_is_written_while_it_is_dropped_stays_until_that_is_over() {
    let write = |world: &mut World, part| world.write_all(part, |page| page + (1 << 32));
    assert_eq!(left_while_they_are_dropped(None, write), 0);
    let forgotten = Some(Defect::DroppingForgotten);
    assert!(left_while_they_are_dropped(forgotten, write) > 0);
}

/// Wrong data: zeros that were brought ahead of a fault found a page there that was being dropped, which
/// was taken for them, and could leave.
#[test]
fn m17_what_is_found_where_zeros_were_to_go_stays_until_it_is_dropped() {
    let read = |world: &mut World, part| world.read_all(0, part);
    assert_eq!(left_while_they_are_dropped(None, read), 0);
}
