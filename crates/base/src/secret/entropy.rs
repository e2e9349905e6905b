//! Randomness that nobody can guess who sees some of it.

use super::SECRET_LENGTH;
use core::fmt;
use snow::params::CipherChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};
use zeroize::Zeroize as _;

/// Bytes drawn at a time.
const POOL: usize = 224;
/// Behind each sealed message.
const TAG: usize = 16;

/// ChaCha20 whose key is replaced by its own output each time (fast key erasure, Bernstein 2017): who
/// reads its state learns nothing of what it gave before. From the same seed it gives the same (P-82).
#[derive(Clone)]
pub struct SecureRandom {
    key: [u8; SECRET_LENGTH],
    pool: [u8; POOL],
    /// Bytes of the pool that nobody has.
    left: usize,
}

impl SecureRandom {
    /// In production the seed is the kernel's (getrandom(2)).
    pub const fn from_seed(seed: [u8; SECRET_LENGTH]) -> Self {
        Self {
            key: seed,
            pool: [0; POOL],
            left: 0,
        }
    }

    pub fn fill(&mut self, into: &mut [u8]) {
        for piece in into.chunks_mut(POOL) {
            if self.left < piece.len() {
                self.refill();
            }
            let taken = &mut self.pool[POOL - self.left..][..piece.len()];
            piece.copy_from_slice(taken);
            taken.zeroize();
            self.left -= piece.len();
        }
    }

    pub fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// An independent stream.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        let mut seed = [0; SECRET_LENGTH];
        self.fill(&mut seed);
        Self::from_seed(seed)
    }

    fn refill(&mut self) {
        let Some(mut cipher) = DefaultResolver.resolve_cipher(&CipherChoice::ChaChaPoly) else {
            unreachable!("snow is built with this cipher")
        };
        cipher.set(&self.key);
        let mut stream = [0; SECRET_LENGTH + POOL + TAG];
        // A key is used once, so the nonce may always be the same.
        cipher.encrypt(0, &[], &[0; SECRET_LENGTH + POOL], &mut stream);
        self.key.copy_from_slice(&stream[..SECRET_LENGTH]);
        self.pool
            .copy_from_slice(&stream[SECRET_LENGTH..SECRET_LENGTH + POOL]);
        self.left = POOL;
        stream.zeroize();
    }
}

impl Drop for SecureRandom {
    fn drop(&mut self) {
        self.key.zeroize();
        self.pool.zeroize();
    }
}

impl fmt::Debug for SecureRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecureRandom")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn what_was_given_is_not_in_the_state_any_more() {
        let mut random = SecureRandom::from_seed([3; 32]);
        let mut first = [0; 32];
        random.fill(&mut first);
        assert!(!random.pool.windows(32).any(|bytes| bytes == first));
        assert_ne!(random.key, [3; 32]);
        assert_ne!(random.key, first);
    }

    // P-82
    #[test]
    fn seeds_and_forks_have_streams_of_their_own_that_do_not_repeat() {
        let mut seen = BTreeSet::new();
        let mut one = SecureRandom::from_seed([1; 32]);
        let mut fork = one.fork();
        let mut other = SecureRandom::from_seed([2; 32]);
        for _ in 0..1000 {
            assert!(seen.insert(one.next_u64()));
            assert!(seen.insert(fork.next_u64()));
            assert!(seen.insert(other.next_u64()));
        }
        let mut again = SecureRandom::from_seed([1; 32]);
        let mut same = again.fork();
        assert!(seen.contains(&again.next_u64()) && seen.contains(&same.next_u64()));
    }

    #[test]
    fn any_length_can_be_drawn() {
        for length in [0, 1, 31, POOL - 1, POOL, POOL + 1, 3 * POOL + 5] {
            let mut bytes = alloc::vec![0; length];
            SecureRandom::from_seed([5; 32]).fill(&mut bytes);
            let zeros = bytes.iter().filter(|byte| **byte == 0).count();
            assert!(zeros * 16 <= length.max(64), "{length}: {zeros} zeros");
        }
    }
}
