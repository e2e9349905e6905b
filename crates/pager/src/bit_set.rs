//! Sets of small numbers, a bit for each, in which the next number is found by whole words.

use alloc::boxed::Box;
use alloc::vec;

/// A set of numbers below `end`.
#[derive(Debug)]
pub(crate) struct BitSet {
    words: Box<[u64]>,
    end: u32,
    count: u32,
}

impl BitSet {
    /// None of the numbers below `end`.
    pub(crate) fn new(end: u32) -> Self {
        Self {
            words: vec![0; end.div_ceil(u64::BITS) as usize].into_boxed_slice(),
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
    }

    pub(crate) fn remove(&mut self, number: u32) {
        let (word, bit) = place(number);
        self.count -= u32::from(self.words[word] & bit != 0);
        self.words[word] &= !bit;
    }

    /// The first number from `from` to before `end` that is in the set.
    pub(crate) fn next_in(&self, from: u32, end: u32) -> Option<u32> {
        let found = first_set(from, end, |word| self.words[word]);
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
