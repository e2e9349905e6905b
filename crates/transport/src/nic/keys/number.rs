//! The upper 24 bits of keys: where a key's object is, in an order that only the seed tells.

use legato_base::Random;

/// Bits of a half, and of the whole index.
const HALF_BITS: u32 = 12;
pub(super) const INDEX_BITS: u32 = 2 * HALF_BITS;
const HALF_MASK: u32 = (1 << HALF_BITS) - 1;

/// A permutation of the numbers below 2^24: a Feistel network, which can be undone whatever its
/// rounds compute. It keeps peers from reaching a region by counting; it is no cryptography.
#[derive(Clone, Debug)]
pub(super) struct Permutation {
    rounds: [u32; 4],
}

impl Permutation {
    pub(super) fn new(random: &mut Random) -> Self {
        Self {
            rounds: [(); 4].map(|()| (random.next_u64() >> 32) as u32),
        }
    }

    /// The index of a slot. Both are below 2^24.
    pub(super) fn index(&self, slot: u32) -> u32 {
        let mut halves = (slot >> HALF_BITS & HALF_MASK, slot & HALF_MASK);
        for round in self.rounds {
            halves = (halves.1, halves.0 ^ mix(halves.1, round));
        }
        halves.0 << HALF_BITS | halves.1
    }

    /// The slot of an index.
    pub(super) fn slot(&self, index: u32) -> u32 {
        let mut halves = (index >> HALF_BITS & HALF_MASK, index & HALF_MASK);
        for round in self.rounds.into_iter().rev() {
            halves = (halves.1 ^ mix(halves.0, round), halves.0);
        }
        halves.0 << HALF_BITS | halves.1
    }
}

/// Twelve bits that depend on all of `half` and `round`.
const fn mix(half: u32, round: u32) -> u32 {
    (half ^ round).wrapping_mul(0x9E37_79B1) >> (u32::BITS - HALF_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn each_slot_has_its_own_index() {
        let permutation = Permutation::new(&mut Random::from_seed(3));
        let mut seen = vec![false; 1 << INDEX_BITS];
        for slot in 0..1 << INDEX_BITS {
            let index = permutation.index(slot);
            assert!(!core::mem::replace(&mut seen[index as usize], true));
            assert_eq!(permutation.slot(index), slot);
        }
    }
}
