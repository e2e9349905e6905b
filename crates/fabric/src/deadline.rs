//! When something is over for whoever waits for it.

use legato_base::{Duration, Time};

/// It is put off when this side did not look: who answers stood still perhaps for as long. But it is by the
/// longest such time, not by their sum: a side that always looks late gets its outcomes too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    given: Time,
    put_off: Duration,
}

impl Deadline {
    pub(crate) const NEVER: Self = Self::at(Time::NEVER);

    pub(crate) const fn at(given: Time) -> Self {
        Self {
            given,
            put_off: Duration::ZERO,
        }
    }

    pub(crate) fn time(self) -> Time {
        self.given + self.put_off
    }

    pub(crate) fn has_passed(self, now: Time) -> bool {
        self.time() <= now
    }

    /// P-13: so that an outcome has a bound however often this is called.
    pub(crate) fn put_off(&mut self, time: Duration) {
        self.put_off = self.put_off.max(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_put_off_by_the_longest_of_all_times() {
        let mut deadline = Deadline::at(Time::from_nanos(100));
        for (late, passes) in [(30, 130), (20, 130), (30, 130), (31, 131)] {
            deadline.put_off(Duration::from_nanos(late));
            assert_eq!(deadline.time(), Time::from_nanos(passes));
        }
        assert!(!deadline.has_passed(Time::from_nanos(130)));
        assert!(deadline.has_passed(Time::from_nanos(131)));
    }

    #[test]
    fn never_stays_never() {
        let mut deadline = Deadline::NEVER;
        deadline.put_off(Duration::from_secs(1));
        assert_eq!(deadline.time(), Time::NEVER);
    }
}
