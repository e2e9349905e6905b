//! Memory that comes and goes for many rounds. Then the program waits, so that others can count
//! what is left.

use crate::ground::{Case, Checked, Failure, Ground, Outcome, call, ensure};
use legato_base::{PAGE_SIZE, Random};
use legato_test_programs::Arena;
use std::collections::VecDeque;

pub(crate) const CASES: &[(&str, Case)] = &[
    ("grow-and-shrink", grow_and_shrink),
    ("part-crowds-then-waits", crowds_then_waits),
    ("part-forks-then-waits", forks_then_waits),
    ("part-rounds-then-waits", rounds_then_waits),
];

/// One round: a mapping that grows, moves and shrinks, pieces of heap, and the end of the heap.
fn round(random: &mut Random, held: &mut Vec<Vec<u64>>, number: u32) -> Checked {
    let pages = 32 + random.below(480);
    let mut region = Arena::new(pages)?;
    (0..pages).for_each(|page| region.fill(page, number));
    region.resize(pages + 64)?;
    (0..pages)
        .step_by(7)
        .try_for_each(|page| region.check(page, number))?;
    region.resize(pages / 2)?;
    region.check(pages / 2 - 1, number)?;
    region.advise(0, 8, libc::MADV_DONTNEED)?;
    region.replace(8, 8)?;
    region.check(9, 0)?;
    if pages > 40 {
        region.check(17, number)?;
    }
    // Some of the heap's pieces are large enough to be mappings of their own.
    let words = 1 << (6 + random.below(12));
    held.push(vec![u64::from(number); words]);
    if held.len() > 24 {
        let index = random.below(held.len() as u64) as usize;
        let piece = held.swap_remove(index);
        let right = piece.windows(2).all(|two| two[0] == two[1]);
        ensure!(right, "a piece of the heap has changed");
    }
    let grown = 64 * PAGE_SIZE as isize;
    let old = call!(sbrk(grown))?;
    let at = core::ptr::with_exposed_provenance_mut::<u64>(old.next_multiple_of(8));
    // SAFETY: the heap has just grown there, by more than a word.
    unsafe { at.write_volatile(u64::from(number)) };
    // The library may have used more of it meanwhile; then it stays.
    if call!(sbrk(0))? == old + grown as usize {
        call!(sbrk(-grown))?;
    }
    Ok(())
}

fn all_rounds(ground: &Ground) -> Checked {
    let mut random = Random::from_seed(19);
    let mut held = Vec::new();
    for number in 1..=ground.rounds {
        round(&mut random, &mut held, number as u32)?;
        if number % 16 == 0 {
            ground.press(1024);
        }
    }
    Ok(())
}

fn grow_and_shrink(ground: &Ground) -> Result<Outcome, Failure> {
    all_rounds(ground)?;
    Ok(Outcome::Passed)
}

/// Says `ready` and reads a line.
fn wait_for_line() -> Checked {
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// Some rounds first, so that everything that stays is there; then all of them.
fn rounds_then_waits(ground: &Ground) -> Result<Outcome, Failure> {
    let few = Ground::new(1024, false, 0, 20)?;
    all_rounds(&few)?;
    ground.press_all();
    wait_for_line()?;
    all_rounds(ground)?;
    wait_for_line()?;
    Ok(Outcome::Passed)
}

fn forks_then_waits(ground: &Ground) -> Result<Outcome, Failure> {
    all_children(ground, 1)
}

fn crowds_then_waits(ground: &Ground) -> Result<Outcome, Failure> {
    all_children(ground, 8)
}

/// Forks one child after the other, of which each reads a page of as much memory as there is of other
/// memory, and some write it. So many are alive at a time.
fn all_children(ground: &Ground, alive: usize) -> Result<Outcome, Failure> {
    let region = ground.far_region(ground.pages())?;
    let mut random = Random::from_seed(20);
    let mut children = VecDeque::new();
    wait_for_line()?;
    for round in 0..ground.rounds {
        let page = random.below(region.pages());
        let child = crate::forked::fork("child", || {
            region.check(page, 1)?;
            if round % 8 == 0 {
                region.fill(page, 2);
            }
            Ok(())
        })?;
        children.push_back(child);
        if children.len() == alive {
            children.pop_front().map_or(Ok(()), crate::forked::reap)?;
        }
    }
    children.into_iter().try_for_each(crate::forked::reap)?;
    wait_for_line()?;
    crate::ground::check(&region, 1)?;
    Ok(Outcome::Passed)
}
