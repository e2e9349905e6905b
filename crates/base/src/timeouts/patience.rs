use crate::{Duration, Time};

/// How long one has waited, as far as one ran: who was stopped for an hour has not waited for an
/// hour, and what is waited for may have come meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    waited: Duration,
    step: Duration,
    seen: Time,
}

impl Patience {
    /// Begins to wait, and will look again within `step`: what goes beyond that between two looks does
    /// not count.
    pub const fn new(step: Duration, now: Time) -> Self {
        Self {
            waited: Duration::ZERO,
            step,
            seen: now,
        }
    }

    /// Looks.
    pub fn waited(&mut self, now: Time) -> Duration {
        self.waited = self.waited + now.since(self.seen).min(self.step);
        self.seen = now;
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(1);

    #[test]
    fn who_looks_in_time_has_waited_for_as_long_as_it_was() {
        let begin = Time::from_nanos(7);
        let mut patience = Patience::new(STEP, begin);
        for millis in [0, 500, 500, 1_500, 2_400] {
            let time = Duration::from_millis(millis);
            assert_eq!(patience.waited(begin + time), time);
        }
    }

    #[test]
    fn who_was_stopped_has_not_waited_meanwhile() {
        let begin = Time::from_nanos(7);
        let mut patience = Patience::new(STEP, begin);
        let later = begin + Duration::from_secs(3600);
        assert_eq!(patience.waited(later), STEP);
        assert_eq!(patience.waited(later + STEP), STEP + STEP);
    }
}
