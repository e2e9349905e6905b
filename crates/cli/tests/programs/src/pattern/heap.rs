//! The program's heap, as the C library manages it: small blocks from the break, large ones that
//! grow by mremap.

use super::world::{Failure, World};

/// Bytes of the small blocks: 100 words, so that pages hold parts of several.
const WORDS_SMALL: usize = 100;

pub(crate) fn run(world: &World) -> Result<(), Failure> {
    let mut random = world.random(3000);
    let blocks_max = world.arena.pages() as usize;
    let mut blocks: Vec<(u64, Box<[u64; WORDS_SMALL]>)> = Vec::new();
    let mut next = 0;
    for _ in 0..3 {
        while blocks.len() < blocks_max {
            next += 1;
            blocks.push((next, Box::new([next; WORDS_SMALL])));
        }
        while blocks.len() > blocks_max / 4 {
            world.count_operation();
            let index = random.below(blocks.len() as u64) as usize;
            let (expected, block) = blocks.swap_remove(index);
            check(&block[..], expected)?;
        }
        // SAFETY: gives free memory back to the kernel; touches no block in use.
        unsafe { libc::malloc_trim(0) };
    }
    for (expected, block) in &blocks {
        check(&block[..], *expected)?;
    }
    grow(world)
}

fn check(block: &[u64], expected: u64) -> Result<(), Failure> {
    match block.iter().all(|word| *word == expected) {
        true => Ok(()),
        false => Err(Failure::Result("a block of the heap lost its content")),
    }
}

/// One block that grows to an eighth of the arena and shrinks again.
fn grow(world: &World) -> Result<(), Failure> {
    let words = world.arena.pages() as usize * 512 / 8;
    let mut block: Vec<u64> = Vec::new();
    let right = |block: &[u64]| {
        block
            .iter()
            .enumerate()
            .all(|(index, word)| *word == index as u64 ^ 0x5A5A)
    };
    for index in 0..words {
        block.push(index as u64 ^ 0x5A5A);
    }
    if !right(&block) {
        return Err(Failure::Result("a growing block lost its content"));
    }
    block.truncate(words / 3);
    block.shrink_to_fit();
    match right(&block) {
        true => Ok(()),
        false => Err(Failure::Result("a shrunk block lost its content")),
    }
}
