//! The shortest round trip of the last seconds: that of an empty path.

use legato_base::{Duration, Time};

/// A path may change, so what was measured counts for one to two of these.
const SPAN: Duration = Duration::from_secs(10);

/// A minimum over a sliding time, in two pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shortest {
    began: Time,
    current: Option<u64>,
    before: Option<u64>,
}

impl Shortest {
    pub(super) fn sample(&mut self, now: Time, nanos: u64) {
        if self.current.is_none() || now.since(self.began) >= SPAN {
            self.began = now;
            self.before = self.current.take();
        }
        self.current = Some(self.current.map_or(nanos, |old| old.min(nanos)));
    }

    /// The shortest of a whole span; zero before one is over. What is measured in a shorter time may be
    /// the queue of others.
    pub(super) fn settled(&self) -> u64 {
        self.before.map_or(0, |_| self.get())
    }

    /// Zero before the first sample.
    pub(super) fn get(&self) -> u64 {
        match (self.current, self.before) {
            (Some(current), Some(before)) => current.min(before),
            (one, other) => one.or(other).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minimum_is_forgotten_in_time() {
        let at = |secs| Time::ZERO + Duration::from_secs(secs);
        let mut shortest = Shortest::default();
        assert_eq!(shortest.get(), 0);
        shortest.sample(at(1), 5);
        shortest.sample(at(2), 9);
        assert_eq!((shortest.get(), shortest.settled()), (5, 0));
        shortest.sample(at(12), 8);
        assert_eq!((shortest.get(), shortest.settled()), (5, 5));
        shortest.sample(at(23), 7);
        assert_eq!(shortest.get(), 7);
    }
}
