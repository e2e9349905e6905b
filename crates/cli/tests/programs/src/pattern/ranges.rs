//! Calls that change mappings whose pages are mostly far away.

use super::world::{BLOCK, Failure, World};
use crate::Arena;

pub(crate) fn discard(world: &World) -> Result<(), Failure> {
    world.on_all_threads(&|thread| {
        let mut random = world.random(2000 + thread);
        for _ in 0..200 {
            world.count_operation();
            let pages = 1 + random.below(BLOCK);
            let run = world.own_run(thread, pages, &mut random);
            world.arena.advise(run.start, pages, libc::MADV_DONTNEED)?;
            for page in run {
                world.set_zeros(page);
                if random.ratio(1, 2) {
                    // Zeros at once; the others must still be zeros when all pages are verified.
                    world.verify(page)?;
                    world.write(page);
                }
            }
        }
        Ok(())
    })
}

/// A mapping of its own, filled, and then pushed out by a walk over the arena.
fn far_region(world: &World) -> Result<Arena, Failure> {
    let region = Arena::new(world.arena.pages() / 8)?;
    (0..region.pages()).for_each(|page| region.fill(page, 1));
    world.verify_all()?;
    Ok(region)
}

/// Version 1 up to `written`, zeros beyond.
fn check(world: &World, region: &Arena, written: u64) -> Result<(), Failure> {
    world.count_operation();
    for page in 0..region.pages() {
        region.check(page, u32::from(page < written))?;
    }
    Ok(())
}

pub(crate) fn remap(world: &World) -> Result<(), Failure> {
    let mut region = far_region(world)?;
    let pages = region.pages();
    region.resize(pages * 2)?;
    check(world, &region, pages)?;
    region.resize(pages / 2)?;
    check(world, &region, pages / 2)?;
    // What was cut off may not come back.
    region.resize(pages)?;
    check(world, &region, pages / 2)?;
    world.verify_all()?;
    region.relocate()?;
    check(world, &region, pages / 2)?;
    for page in 0..pages {
        region.fill(page, 2);
    }
    world.verify_all()?;
    region.relocate()?;
    for page in 0..pages {
        region.check(page, 2)?;
    }
    Ok(())
}

pub(crate) fn unmap(world: &World) -> Result<(), Failure> {
    let mut region = far_region(world)?;
    let pages = region.pages();
    let hole = pages / 4..pages / 2;
    region.replace(hole.start, hole.end - hole.start)?;
    for page in 0..pages {
        world.count_operation();
        region.check(page, u32::from(!hole.contains(&page)))?;
    }
    region.replace(0, pages)?;
    check(world, &region, 0)?;
    // Many small holes, so that mappings are split and joined again.
    (0..pages).for_each(|page| region.fill(page, 3));
    world.verify_all()?;
    for page in (0..pages).step_by(64) {
        region.replace(page, 1)?;
    }
    for page in 0..pages {
        region.check(page, if page % 64 == 0 { 0 } else { 3 })?;
    }
    Ok(())
}

pub(crate) fn protect(world: &World) -> Result<(), Failure> {
    let region = far_region(world)?;
    let pages = region.pages();
    region.protect(libc::PROT_READ)?;
    check(world, &region, pages)?;
    world.verify_all()?;
    region.protect(libc::PROT_NONE)?;
    region.protect(libc::PROT_READ | libc::PROT_WRITE)?;
    check(world, &region, pages)?;
    (0..pages).for_each(|page| region.fill(page, 2));
    for page in 0..pages {
        region.check(page, 2)?;
    }
    Ok(())
}
