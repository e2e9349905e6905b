//! Numbers in an order that only the seed tells: of keys and of queue pairs.

use alloc::vec::Vec;
use legato_base::Random;

/// Bits of a half, and of the whole number.
const HALF_BITS: u32 = 12;
pub(crate) const BITS: u32 = 2 * HALF_BITS;
const HALVES: usize = 1 << HALF_BITS;
const HALF_MASK: u32 = HALVES as u32 - 1;
const ROUNDS: usize = 4;

/// A permutation of the numbers below 2^24, whose values strangers do not find by counting on from one that
/// they know (P-82): a Feistel network whose four rounds are functions that were
/// drawn. Who knows some of its values finds no other by them that he would not find by chance (Luby and
/// Rackoff, SIAM Journal on Computing 17(2), 1988), if the drawing cannot be guessed.
#[derive(Clone, Debug)]
pub(crate) struct Permutation {
    /// Twelve bits for each half, round after round.
    drawn: Vec<u16>,
}

impl Permutation {
    pub(crate) fn new(random: &mut Random) -> Self {
        let mut drawn = Vec::with_capacity(ROUNDS * HALVES);
        while drawn.len() < ROUNDS * HALVES {
            let bytes = random.next_u64().to_le_bytes();
            let parts = bytes.as_chunks::<2>().0.iter();
            drawn.extend(parts.map(|part| u16::from_le_bytes(*part) & HALF_MASK as u16));
        }
        Self { drawn }
    }

    /// The value of a number. Both are below 2^24.
    pub(crate) fn value(&self, number: u32) -> u32 {
        let mut halves = split(number);
        for round in 0..ROUNDS {
            halves = (halves.1, halves.0 ^ self.mix(round, halves.1));
        }
        halves.0 << HALF_BITS | halves.1
    }

    /// The number of a value.
    pub(crate) fn number(&self, value: u32) -> u32 {
        let mut halves = split(value);
        for round in (0..ROUNDS).rev() {
            halves = (halves.1 ^ self.mix(round, halves.0), halves.0);
        }
        halves.0 << HALF_BITS | halves.1
    }

    fn mix(&self, round: usize, half: u32) -> u32 {
        let drawn = self.drawn.get(round * HALVES + half as usize);
        drawn.map_or(0, |drawn| u32::from(*drawn))
    }
}

const fn split(number: u32) -> (u32, u32) {
    (number >> HALF_BITS & HALF_MASK, number & HALF_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn each_number_has_a_value_of_its_own() {
        let permutation = Permutation::new(&mut Random::from_seed(3));
        let mut seen = vec![false; 1 << BITS];
        for number in 0..1 << BITS {
            let value = permutation.value(number);
            assert!(!core::mem::replace(&mut seen[value as usize], true));
            assert_eq!(permutation.number(value), number);
        }
    }

    /// P-82: the difference of two values says nothing of the next one's.
    #[test]
    fn steps_do_not_come_again() {
        let permutation = Permutation::new(&mut Random::from_seed(4));
        let value = |number| permutation.value(number);
        let mut steps: Vec<u32> = (0..4096)
            .map(|number| value(number + 1).wrapping_sub(value(number)))
            .collect();
        steps.sort_unstable();
        steps.dedup();
        // Of 4096 drawn from 2^25 about one pair is equal by chance in four.
        assert!(steps.len() > 4090, "{}", steps.len());
    }
}
