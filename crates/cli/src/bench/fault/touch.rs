//! The program that is measured: it fills memory, touches every page of it, and knows nothing of
//! where the memory is.

use crate::args::{BenchTouchArguments, TouchAccess, TouchOrder};
use crate::failure::Failure;
use crate::output::print;
use legato_base::Random;
use std::fmt::Write as _;
use std::thread;
use std::time::Instant;

/// Of 64 bits.
const PAGE_WORDS: usize = 512;
/// The rest of a page is zeros: two to one is about what compressors make of programs' memory.
const RANDOM_WORDS: usize = PAGE_WORDS / 2;
const PAGE_SIZE: usize = PAGE_WORDS * size_of::<u64>();
const SEED: u64 = 1;

/// Prints what a touch took in each pass, in nanoseconds, on one line: the time of the pass divided by
/// the touches of all threads together.
pub(crate) fn run(arguments: &BenchTouchArguments) -> Result<u8, Failure> {
    let threads = arguments.threads as usize;
    let part_pages = arguments.bytes.whole_pages() as usize / threads;
    if part_pages == 0 {
        return Err(Failure::refused(
            "--bytes is less than a page per thread; give more",
        ));
    }
    let pages = part_pages * threads;
    let mut memory = vec![0_u64; (pages + 1) * PAGE_WORDS];
    // The allocator's header comes first; a touch is one page of the machine, not two halves.
    let begin = memory.as_ptr().align_offset(PAGE_SIZE);
    let memory = &mut memory[begin..begin + pages * PAGE_WORDS];
    let mut random = Random::from_seed(SEED);
    fill(memory, &mut random);
    let mut parts: Vec<Part<'_>> = memory
        .chunks_exact_mut(part_pages * PAGE_WORDS)
        .enumerate()
        .map(|(number, memory)| Part::new(memory, number * part_pages))
        .collect();
    let mut line = String::new();
    for _ in 0..arguments.passes {
        if arguments.order == TouchOrder::Random {
            for part in &mut parts {
                shuffle(&mut part.order, &mut random);
            }
        }
        let begin = Instant::now();
        if let Some(page) = touch_all(&mut parts, arguments.access) {
            return Err(Failure {
                code: Some(1),
                text: format!(
                    "page {page} does not hold what was written to it; that is a defect of Legato; please report it"
                ),
            });
        }
        let touch_ns = begin.elapsed().as_nanos() as f64 / pages as f64;
        // Writing to a String does not fail.
        let _ = write!(line, "{touch_ns:.1} ");
    }
    print(line.trim_end())?;
    Ok(0)
}

fn fill(memory: &mut [u64], random: &mut Random) {
    for (number, page) in memory.chunks_exact_mut(PAGE_WORDS).enumerate() {
        page[..RANDOM_WORDS].fill_with(|| random.next_u64());
        page[0] = word_of(number, 0);
    }
}

/// The pages that one thread touches.
struct Part<'a> {
    memory: &'a mut [u64],
    /// The number of its first page.
    first: usize,
    order: Vec<u32>,
    /// How often each page was written since it was filled.
    version: u64,
}

impl<'a> Part<'a> {
    fn new(memory: &'a mut [u64], first: usize) -> Self {
        let order = (0..(memory.len() / PAGE_WORDS) as u32).collect();
        Self {
            memory,
            first,
            order,
            version: 0,
        }
    }

    /// Touches every page once. Returns the first that does not hold what it should.
    fn touch(&mut self, access: TouchAccess) -> Option<usize> {
        let next = self.version + u64::from(access == TouchAccess::Write);
        for &page in &self.order {
            let number = self.first + page as usize;
            let word = &mut self.memory[page as usize * PAGE_WORDS];
            if *word != word_of(number, self.version) {
                return Some(number);
            }
            if access == TouchAccess::Write {
                *word = word_of(number, next);
            }
        }
        self.version = next;
        None
    }
}

/// One thread for each part, of which this is one.
fn touch_all(parts: &mut [Part<'_>], access: TouchAccess) -> Option<usize> {
    let (own, others) = parts.split_first_mut()?;
    thread::scope(|scope| {
        let others: Vec<_> = others
            .iter_mut()
            .map(|part| scope.spawn(move || part.touch(access)))
            .collect();
        let wrong = own.touch(access);
        // A thread that panics has said so, and ends this one too.
        let others = others.into_iter().map(|other| other.join());
        others.fold(wrong, |wrong, other| {
            wrong.or(other.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    })
}

/// Of one page only in the same version, because the factor is odd.
const fn word_of(page: usize, version: u64) -> u64 {
    (page as u64 + 1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(version)
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
        let (low, high) = memory.split_at_mut(40 * PAGE_WORDS);
        let mut parts = [Part::new(low, 0), Part::new(high, 40)];
        shuffle(&mut parts[0].order, &mut random);
        assert_ne!(parts[0].order, (0..40).collect::<Vec<_>>());
        for access in [TouchAccess::Read, TouchAccess::Write, TouchAccess::Write] {
            assert_eq!(touch_all(&mut parts, access), None);
        }
        assert_eq!(parts[1].memory[0], word_of(40, 2));
        parts[1].memory[17 * PAGE_WORDS] = word_of(57, 1);
        assert_eq!(touch_all(&mut parts, TouchAccess::Read), Some(57));
        parts[0].order.sort_unstable();
        assert_eq!(parts[0].order, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn half_of_a_page_is_zeros() {
        let mut memory = vec![0; 8 * PAGE_WORDS];
        fill(&mut memory, &mut Random::from_seed(3));
        let zeros = memory.iter().filter(|&&word| word == 0).count();
        assert_eq!(zeros, memory.len() / 2);
    }
}
