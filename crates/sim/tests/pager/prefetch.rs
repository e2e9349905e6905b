//! Pages come before they are asked for, in windows, and windows in parts.

use super::scene::{self, end, read};
use legato_base::{PageNumber, Random};
use legato_pager::PageRange;
use legato_sim::world::{Operation, World, WorldConfig};

/// So much that the reserve has room for a window.
const CACHE: u64 = 8192;
const WINDOW: u64 = 64;
const PART: u64 = 32;
const PART_BESIDE_OTHERS: u64 = 4;

/// A program with twice its cache of memory.
fn filled() -> (World, PageRange) {
    let config = WorldConfig {
        cache_pages: CACHE,
        ..WorldConfig::default()
    };
    scene::filled(config, 2 * CACHE)
}

/// How much of a walk was prefetched, and the faults that it took.
fn walk(world: &mut World, range: PageRange) -> (u64, u64) {
    let before = world.counters();
    world.read_all(0, range).unwrap();
    let after = world.counters();
    (
        after.pages_prefetched - before.pages_prefetched,
        after.faults - before.faults,
    )
}

#[test]
fn a_window_is_brought_in_parts() {
    let (mut world, range) = filled();
    world.take_most_ahead();
    let (prefetched, faults) = walk(&mut world, PageRange::new(range.start, CACHE / 2));
    assert_eq!(world.take_most_ahead(), PART);
    // The faulting page, and the first page of each part as the thread may be faster.
    assert!(
        faults * WINDOW / 3 < prefetched,
        "{faults} faults for {prefetched} pages"
    );
    end(world, &[range]);
}

/// Waited: threads that faulted while another one walked on, for all of its window.
#[test]
fn a_part_is_short_while_other_threads_fault() {
    let (mut world, range) = filled();
    let walked = PageRange::new(range.start, CACHE / 2);
    let mut random = Random::from_seed(3);
    let others = CACHE;
    read(&mut world, 1, walked.end().0 + random.below(others));
    world.take_most_ahead();
    let before = world.counters().pages_prefetched;
    for page in walked.start.0..walked.end().0 {
        world.begin(0, Operation::Read(PageNumber(page)));
        if page % 8 == 0 {
            read(&mut world, 1, walked.end().0 + random.below(others));
        }
        world.wait_for(0).unwrap();
    }
    assert!(world.take_most_ahead() <= PART_BESIDE_OTHERS);
    let prefetched = world.counters().pages_prefetched - before;
    assert!(prefetched > walked.count / 2, "{prefetched}");
    end(world, &[range]);
}

/// Slow: each page that was there already ended the window, and what had been brought in it was taken for
/// unused, so that windows became shorter.
#[test]
fn pages_that_are_there_already_do_not_end_a_window() {
    let (mut world, range) = filled();
    let walked = PageRange::new(range.start, CACHE / 2);
    for page in (walked.start.0..walked.end().0).step_by(8) {
        read(&mut world, 0, page);
    }
    let (prefetched, faults) = walk(&mut world, walked);
    assert!(prefetched > CACHE / 4);
    assert!(
        faults * 16 < prefetched,
        "{faults} faults for {prefetched} pages"
    );
    end(world, &[range]);
}
