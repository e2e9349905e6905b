//! Sets of small numbers, a bit for each, in which the next number is found by whole words. Words in
//! which there is none are passed over 64 at a time.

use alloc::boxed::Box;
use alloc::vec;

/// A set of numbers below `end`.
#[derive(Debug)]
pub(crate) struct BitSet {
    words: Box<[u64]>,
    /// A bit for each word in which there are any.
    filled: Box<[u64]>,
    end: u32,
    count: u32,
}

impl BitSet {
    /// None of the numbers below `end`.
    pub(crate) fn new(end: u32) -> Self {
        let none = |bits: u32| vec![0; bits.div_ceil(u64::BITS) as usize].into_boxed_slice();
        Self {
            words: none(end),
            filled: none(end.div_ceil(u64::BITS)),
            end,
            count: 0,
        }
    }

    /// All numbers below `end`.
    pub(crate) fn full(end: u32) -> Self {
        let mut set = Self::new(end);
        (0..end).for_each(|number| set.insert(number));
        set
    }

    pub(crate) const fn end(&self) -> u32 {
        self.end
    }

    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        let (word, bit) = place(number);
        self.words[word] & bit != 0
    }

    pub(crate) fn insert(&mut self, number: u32) {
        let (word, bit) = place(number);
        self.count += u32::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
        let (filled, bit) = place(word as u32);
        self.filled[filled] |= bit;
    }

    pub(crate) fn remove(&mut self, number: u32) {
        let (word, bit) = place(number);
        self.count -= u32::from(self.words[word] & bit != 0);
        self.words[word] &= !bit;
        if self.words[word] == 0 {
            let (filled, bit) = place(word as u32);
            self.filled[filled] &= !bit;
        }
    }

    /// The first number from `from` to before `end` that is in the set.
    pub(crate) fn next_in(&self, from: u32, end: u32) -> Option<u32> {
        if from >= end {
            return None;
        }
        // In the word of `from`, or else in the next in which there are any.
        let next_word = (from / u64::BITS + 1) * u64::BITS;
        let mut found = first_set(from, next_word, |word| self.words[word]);
        if found == next_word {
            let words = end.div_ceil(u64::BITS);
            let word = first_set(next_word / u64::BITS, words, |word| self.filled[word]);
            found = first_set(word * u64::BITS, end, |word| self.words[word]);
        }
        (found < end).then_some(found)
    }

    /// The first number from `from` on that is not in the set, or `end`.
    pub(crate) fn next_out(&self, from: u32, end: u32) -> u32 {
        first_set(from, end, |word| !self.words[word])
    }
}

/// The first bit from `from` on that is set, or `end`.
fn first_set(from: u32, end: u32, word_at: impl Fn(usize) -> u64) -> u32 {
    let mut at = from;
    while at < end {
        let (word, bit) = place(at);
        let rest = word_at(word) & !(bit - 1);
        let base = at - at % u64::BITS;
        if rest != 0 {
            return end.min(base + rest.trailing_zeros());
        }
        at = base + u64::BITS;
    }
    end
}

const fn place(number: u32) -> (usize, u64) {
    ((number / u64::BITS) as usize, 1 << (number % u64::BITS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::Random;
    use std::collections::BTreeSet;

    #[test]
    fn the_next_number_is_found_wherever_it_is() {
        let mut random = Random::from_seed(1);
        for end in [1, 63, 64, 65, 4096, 4097, 20_000] {
            let (mut set, mut numbers) = (BitSet::new(end), BTreeSet::new());
            // From almost empty to almost full.
            for round in 0..2000 {
                let number = random.below(u64::from(end)) as u32;
                if random.below(2000) < round {
                    set.insert(number);
                    numbers.insert(number);
                } else {
                    set.remove(number);
                    numbers.remove(&number);
                }
                let [from, to] = [(); 2].map(|()| random.below(u64::from(end) + 1) as u32);
                let in_range = numbers.range(from..to.max(from)).next().copied();
                assert_eq!(set.next_in(from, to), in_range, "{from} to {to} of {end}");
                let out = (from..to).find(|number| !numbers.contains(number));
                let expected = out.unwrap_or(to);
                assert_eq!(set.next_out(from, to), expected, "{from} to {to} of {end}");
                assert_eq!(set.count() as usize, numbers.len());
            }
        }
    }
}
