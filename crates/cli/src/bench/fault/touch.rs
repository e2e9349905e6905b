//! The program that is measured: it fills memory, touches every page of it, and knows nothing of
//! where the memory is.

use crate::args::{BenchTouchArguments, TouchOrder};
use crate::failure::Failure;
use legato_base::Random;
use std::fmt::Write as _;
use std::time::Instant;

/// Of 64 bits.
const PAGE_WORDS: usize = 512;
/// The rest of a page is zeros: two to one is about what compressors make of programs' memory.
const RANDOM_WORDS: usize = PAGE_WORDS / 2;
const PAGE_SIZE: usize = PAGE_WORDS * size_of::<u64>();
const SEED: u64 = 1;

/// Prints what a touch took in each round, in nanoseconds, on one line.
pub(crate) fn run(arguments: &BenchTouchArguments) -> Result<u8, Failure> {
    let pages = arguments.bytes.whole_pages() as usize;
    if pages == 0 {
        return Err(Failure::refused("--bytes is less than a page"));
    }
    let mut memory = vec![0_u64; (pages + 1) * PAGE_WORDS];
    // The allocator's header comes first; a touch is one page of the machine, not two halves.
    let begin = memory.as_ptr().align_offset(PAGE_SIZE);
    let memory = &mut memory[begin..begin + pages * PAGE_WORDS];
    let mut random = Random::from_seed(SEED);
    fill(memory, &mut random);
    let mut order: Vec<u32> = (0..pages as u32).collect();
    let mut line = String::new();
    for _ in 0..arguments.rounds {
        if arguments.order == TouchOrder::Random {
            shuffle(&mut order, &mut random);
        }
        let begin = Instant::now();
        if let Some(page) = first_wrong(memory, &order) {
            return Err(Failure {
                code: 1,
                text: format!("page {page} does not hold what was written to it"),
            });
        }
        let touch_ns = begin.elapsed().as_nanos() as f64 / pages as f64;
        // Writing to a String does not fail.
        let _ = write!(line, "{touch_ns:.1} ");
    }
    println!("{}", line.trim_end());
    Ok(0)
}

fn fill(memory: &mut [u64], random: &mut Random) {
    for (number, page) in memory.chunks_exact_mut(PAGE_WORDS).enumerate() {
        page[..RANDOM_WORDS].fill_with(|| random.next_u64());
        page[0] = word_of(number);
    }
}

/// Touches the pages in this order.
fn first_wrong(memory: &[u64], order: &[u32]) -> Option<usize> {
    let pages = order.iter().map(|&page| page as usize);
    pages
        .into_iter()
        .find(|&page| memory[page * PAGE_WORDS] != word_of(page))
}

/// Of one page only, because the factor is odd.
const fn word_of(page: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Fisher and Yates: every order is as likely.
fn shuffle(pages: &mut [u32], random: &mut Random) {
    for last in (1..pages.len()).rev() {
        pages.swap(last, random.below(last as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_touched_once_and_a_wrong_one_is_found() {
        let mut memory = vec![0; 64 * PAGE_WORDS];
        let mut random = Random::from_seed(3);
        fill(&mut memory, &mut random);
        let mut order: Vec<u32> = (0..64).collect();
        shuffle(&mut order, &mut random);
        assert_ne!(order, (0..64).collect::<Vec<_>>());
        assert_eq!(first_wrong(&memory, &order), None);
        memory[17 * PAGE_WORDS] = word_of(18);
        assert_eq!(first_wrong(&memory, &order), Some(17));
        order.sort_unstable();
        assert_eq!(order, (0..64).collect::<Vec<_>>());
    }

    #[test]
    fn half_of_a_page_is_zeros() {
        let mut memory = vec![0; 8 * PAGE_WORDS];
        fill(&mut memory, &mut Random::from_seed(3));
        let zeros = memory.iter().filter(|&&word| word == 0).count();
        assert_eq!(zeros, memory.len() / 2);
    }
}
