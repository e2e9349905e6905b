//! How long to wait before the next attempt to connect.

use legato_base::{Duration, Random};

/// Before the second attempt.
const FIRST: Duration = Duration::from_millis(10);
/// It doubles until here.
const LAST: Duration = Duration::from_secs(1);
/// [`FIRST`], doubled so often, is no less than [`LAST`].
const DOUBLINGS_MAX: u32 = 7;

/// Doubles with each attempt. Up to a half of each wait is left to chance, so that those who lost
/// one peer at one moment do not come back at one moment (P-67).
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    random: Random,
    attempts: u32,
}

impl Backoff {
    pub(super) fn from_seed(seed: u64) -> Self {
        Self {
            random: Random::from_seed(seed),
            attempts: 0,
        }
    }

    pub(super) fn next(&mut self) -> Duration {
        let doubled = FIRST.as_nanos() << self.attempts.min(DOUBLINGS_MAX);
        self.attempts = self.attempts.saturating_add(1);
        let most = doubled.min(LAST.as_nanos());
        Duration::from_nanos(most / 2 + self.random.below(most / 2 + 1))
    }

    /// The peer has answered: what comes next is another trouble.
    pub(super) const fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    // P-67
    #[test]
    fn waits_double_from_ten_milliseconds_to_a_second_and_begin_again() {
        for seed in 0..100 {
            let mut backoff = Backoff::from_seed(seed);
            for most in [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000] {
                let wait = backoff.next();
                assert!(wait >= Duration::from_millis(most / 2), "{wait} of {most}");
                assert!(wait <= Duration::from_millis(most), "{wait} of {most}");
            }
            backoff.reset();
            assert!(backoff.next() <= FIRST);
        }
    }

    #[test]
    fn two_sessions_do_not_come_back_together() {
        let waits = |seed| {
            let mut backoff = Backoff::from_seed(seed);
            (0..8).map(|_| backoff.next()).collect::<Vec<_>>()
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }
}
