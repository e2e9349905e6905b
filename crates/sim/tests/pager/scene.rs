//! How scenarios begin and end.

use legato_base::PageNumber;
use legato_pager::PageRange;
use legato_sim::world::{Operation, Outcome, World, WorldConfig};

/// The first page of the program's memory.
pub(super) const START: u64 = 0x1000;

/// A world with `pages` pages, each written with a value of its own.
pub(super) fn filled(config: WorldConfig, pages: u64) -> (World, PageRange) {
    let mut world = World::new(config).unwrap();
    let range = world.map(START, pages).unwrap();
    world.write_all(range, |page| page).unwrap();
    (world, range)
}

pub(super) fn read(world: &mut World, thread: usize, page: u64) -> Outcome {
    world
        .perform(thread, Operation::Read(PageNumber(page)))
        .unwrap()
}

/// Nothing may be left of these ranges.
pub(super) fn end(mut world: World, ranges: &[PageRange]) {
    for &range in ranges {
        world.perform(0, Operation::Unmap(range)).unwrap();
    }
    world.finish().unwrap();
}
