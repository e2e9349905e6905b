//! What the simulated world found in the pager, each as small as it gets.

use super::scene::{self, START};
use legato_base::{Duration, PageNumber};
use legato_pager::{PageRange, SpaceId};
use legato_sim::provider::SimNetworkConfig;
use legato_sim::world::{Operation, Outcome, World, WorldConfig, run};

const CACHE: u64 = 512;

fn filled(config: WorldConfig, pages: u64) -> (World, PageRange) {
    let config = WorldConfig {
        cache_pages: CACHE,
        ..config
    };
    scene::filled(config, pages)
}

fn slow(bytes_per_second: u64) -> WorldConfig {
    let network = SimNetworkConfig {
        bytes_per_second: Some(bytes_per_second),
        ..WorldConfig::default().network
    };
    WorldConfig {
        network,
        ..WorldConfig::default()
    }
}

/// Lost: the pager took the page for missing for ever and stopped the program.
#[test]
fn a_page_that_enters_before_madvise_drops_it_is_zeros_again() {
    let (mut world, range) = filled(WorldConfig::default(), 2 * CACHE);
    for round in 0..60u64 {
        let part = PageRange::new(range.start.plus(round * 8), 8);
        world.begin(1, Operation::DontNeed(part));
        for page in part.start.0..part.end().0 {
            world
                .perform(0, Operation::Write(PageNumber(page), page + (1 << 32)))
                .unwrap();
        }
        world.wait_for(1).unwrap();
        world.read_all(2, part).unwrap();
    }
    world.perform(0, Operation::Unmap(range)).unwrap();
    world.finish().unwrap();
}

/// Lost: local memory grew past its limit while nothing could leave, because new pages of
/// mappings that the pager was not in charge of never waited.
#[test]
fn memory_that_is_not_registered_cannot_outgrow_the_limit() {
    let (mut world, range) = filled(slow(10_000_000), 2 * CACHE);
    let other = world.map(START * 8, CACHE).unwrap();
    world.write_all(other, |page| page).unwrap();
    assert!(world.counters().faults_stalled > 0);
    world.perform(0, Operation::Unmap(range)).unwrap();
    world.perform(0, Operation::Unmap(other)).unwrap();
    world.finish().unwrap();
}

/// P-25, P-26. Lost: a page whose write was under way came back, left again unchanged, counted as clean, and
/// was dropped; then the write failed.
#[test]
fn a_page_that_leaves_again_before_its_write_has_ended_is_written_again() {
    let mut config = WorldConfig::default();
    // 4 x 0.54 s.
    config.network.timeout = 17;
    let (mut world, range) = filled(config, 3000);
    // The first extent, of 2048 slots, is on the first node: the last pages are on the other.
    let elsewhere = PageRange::new(range.start.plus(2500), 450);
    let written: Vec<PageNumber> = (0..8).map(|step| range.start.plus(step * 10)).collect();
    for &page in &written {
        world
            .perform(0, Operation::Write(page, page.0 + (1 << 32)))
            .unwrap();
    }
    world.freeze_node(0);
    let hits = world.counters().faults_victim_hit;
    for _ in 0..2 {
        world.read_all(0, elsewhere).unwrap();
        for &page in &written {
            world.perform(0, Operation::Read(page)).unwrap();
        }
    }
    assert!(
        world.counters().faults_victim_hit > hits,
        "some were on their way to the frozen node"
    );
    world.read_all(0, elsewhere).unwrap();
    world.kill_node(0);
    world.pass(Duration::from_millis(100)).unwrap();
    for &page in &written {
        let outcome = world.perform(0, Operation::Read(page)).unwrap();
        assert_eq!(outcome, Outcome::Value(page.0 + (1 << 32)));
    }
    world.perform(0, Operation::Unmap(range)).unwrap();
    world.finish().unwrap();
}

fn fork(world: &mut World) -> (SpaceId, usize) {
    let Outcome::Child(child) = world.perform(0, Operation::Fork).unwrap() else {
        panic!("fork makes a child");
    };
    (child, world.thread_of(child).unwrap())
}

fn first_absent(world: &World, range: PageRange) -> PageNumber {
    (range.start.0..range.end().0)
        .map(PageNumber)
        .find(|&page| !world.is_present(page))
        .unwrap()
}

/// Lost: the program was stopped, because a page that came for a child that had just ended could
/// not be mapped anywhere.
#[test]
fn a_child_may_end_while_its_page_is_on_its_way() {
    let mut config = WorldConfig::default();
    config.network.latency = Duration::from_micros(500);
    let (mut world, range) = filled(config, 3 * CACHE);
    world.pass(Duration::from_millis(50)).unwrap();
    for round in 0..8u64 {
        let (space, child) = fork(&mut world);
        let page = first_absent(&world, range).plus(round);
        let fetched = world.counters().pages_fetched;
        world.begin(child, Operation::Read(page));
        world.pass(Duration::from_micros(300)).unwrap();
        world.kill_process(space);
        world.pass(Duration::from_millis(5)).unwrap();
        assert!(world.counters().pages_fetched > fetched, "it was fetched");
    }
    world.perform(0, Operation::Unmap(range)).unwrap();
    world.finish().unwrap();
}

/// Lost: a page that a child had inherited was written with the checksum of the page whose frame
/// it got, and rejected when it came back. It takes a frame that is free again while its old place
/// in the queue of writes is still there: seeds that come to that, with the fewest steps.
#[test]
fn a_kept_page_is_written_with_its_own_checksum() {
    for (seed, steps) in [(71, 3000), (104, 3000), (297, 2500)] {
        run(WorldConfig {
            seed,
            steps,
            ..WorldConfig::default()
        })
        .unwrap();
    }
}

/// Lost: pages that were in use again after `madvise(MADV_FREE)` were nobody's, and stayed local
/// for ever.
#[test]
fn pages_used_again_after_madv_free_can_leave() {
    let (mut world, range) = filled(WorldConfig::default(), 3 * CACHE);
    let part = PageRange::new(range.start, CACHE / 2);
    world.write_all(part, |page| page + (1 << 32)).unwrap();
    world.perform(0, Operation::Free(part)).unwrap();
    world.write_all(part, |page| page + (1 << 33)).unwrap();
    let present = |world: &World| {
        let pages = part.start.0..part.end().0;
        pages
            .filter(|&page| world.is_present(PageNumber(page)))
            .count() as u64
    };
    // Longer than the pager waits before it takes them for used.
    world.pass(Duration::from_secs(5)).unwrap();
    let rest = PageRange::new(part.end(), range.count - part.count);
    for _ in 0..3 {
        world.read_all(1, rest).unwrap();
    }
    // A write now and then is faster than the agent's look.
    assert!(present(&world) < part.count / 4, "{}", present(&world));
    world.read_all(2, part).unwrap();
    world.perform(0, Operation::Unmap(range)).unwrap();
    world.finish().unwrap();
}

/// Lost: pages that `madvise` dropped after others had come to their places were candidates until they
/// were to leave and were not there. When they were used again they were none, and stayed for ever.
#[test]
fn pages_that_are_dropped_late_and_used_again_can_leave() {
    let (mut world, range) = filled(WorldConfig::default(), 3 * CACHE);
    let part = PageRange::new(range.start, 16);
    let rest = PageRange::new(part.end(), range.count - part.count);
    world.begin(1, Operation::DontNeed(part));
    world.starve(1, Duration::from_millis(10));
    world.write_all(part, |page| page + (1 << 32)).unwrap();
    world.wait_for(1).unwrap();
    let present = |world: &World| {
        let pages = (part.start.0..part.end().0).map(PageNumber);
        pages.filter(|&page| world.is_present(page)).count()
    };
    assert_eq!(present(&world), 0, "dropped");
    // They are to leave.
    world.read_all(2, rest).unwrap();
    world.write_all(part, |page| page + (1 << 33)).unwrap();
    assert_ne!(present(&world), 0, "in use");
    for _ in 0..2 {
        world.read_all(2, rest).unwrap();
    }
    // One may be locked for a moment when it is to leave.
    assert!(present(&world) < 4, "{} stayed", present(&world));
    world.read_all(0, part).unwrap();
    world.perform(0, Operation::Unmap(range)).unwrap();
    world.finish().unwrap();
}
