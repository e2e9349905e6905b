//! Random reads, writes and re-reads by all threads, on pages of their own, on locked pages and on
//! atomic counters.

use super::world::{Failure, World};
use legato_base::Random;
use std::sync::atomic::Ordering::Relaxed;

pub(crate) fn run(world: &World) -> Result<(), Failure> {
    world.on_all_threads(&|thread| {
        let mut random = world.random(thread);
        for _ in 0..world.operations / world.threads {
            operate(world, thread, &mut random)?;
        }
        Ok(())
    })
}

/// One operation of one thread.
pub(crate) fn operate(world: &World, thread: u64, random: &mut Random) -> Result<(), Failure> {
    world.count_operation();
    let page = world.own_page(thread, random);
    match random.below(10) {
        0..=3 => world.verify(page)?,
        4..=5 => {
            // Written over without a look at what was there.
            world.write(page);
        }
        6..=7 => {
            world.verify(page)?;
            world.write(page);
            world.verify(page)?;
        }
        8 => world.write_shared(random)?,
        _ => world.add(random),
    }
    Ok(())
}

/// Flips one bit behind the model's back.
pub(crate) fn damage(world: &World) -> Result<(), Failure> {
    let page = world.own_page(0, &mut world.random(7000));
    world.arena.words(page)[300].fetch_xor(1 << 40, Relaxed);
    Ok(())
}
