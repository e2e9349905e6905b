//! xoshiro256** (Blackman and Vigna, 2018), seeded through SplitMix64.
//!
//! Written here and not taken from a crate because a seed must mean the same history for ever:
//! the stream may not change with a dependency.

use crate::secret::SecureRandom;
use alloc::boxed::Box;

/// A deterministic source of randomness.
#[derive(Clone, Debug)]
pub struct Random {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    /// For simulations: whoever sees a few numbers can compute all the others.
    Xoshiro([u64; 4]),
    /// For what strangers must not guess.
    Secure(Box<SecureRandom>),
}

impl Random {
    pub fn from_seed(seed: u64) -> Self {
        let mut mixer = seed;
        let mut next = || {
            mixer = mixer.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = mixer;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        };
        Self {
            source: Source::Xoshiro([next(), next(), next(), next()]),
        }
    }

    /// Numbers that nobody can guess who has seen others of them.
    pub fn from_secure(random: SecureRandom) -> Self {
        Self {
            source: Source::Secure(Box::new(random)),
        }
    }

    pub fn next_u64(&mut self) -> u64 {
        let state = match &mut self.source {
            Source::Xoshiro(state) => state,
            Source::Secure(random) => return random.next_u64(),
        };
        let result = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= t;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// A number in `0..bound`, without modulo bias worth speaking of (Lemire's multiply).
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no element");
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        (wide >> 64) as u64
    }

    /// True `numerator` times out of `denominator`.
    pub fn ratio(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// An independent stream, so that one part drawing more does not change what another draws.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        match &mut self.source {
            Source::Xoshiro(_) => Self::from_seed(self.next_u64()),
            Source::Secure(random) => Self::from_secure(random.fork()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut random = Random::from_seed(42);
        assert_eq!(
            [random.next_u64(), random.next_u64(), random.next_u64()],
            [
                1_546_998_764_402_558_742,
                6_990_951_692_964_543_102,
                12_544_586_762_248_559_009
            ]
        );
    }

    #[test]
    fn below_stays_below() {
        let mut random = Random::from_seed(7);
        assert!((0..10_000).all(|_| random.below(3) < 3));
    }
}
