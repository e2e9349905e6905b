//! The round trip of one queue pair, and the timers that follow from it (RFC 6298, RFC 8985).

use legato_base::Duration;

/// Timeouts are not shorter (RFC 6298, 2.4, has a second, Linux 200 ms): a process that shares two
/// processors with others waits for its turn for some ten milliseconds, in which it answers nobody.
/// They are for what neither a gap nor a probe has found.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(30);
/// Timeouts are not longer: a peer that comes back is found within so much.
pub const TIMEOUT_MAX: Duration = Duration::from_millis(1000);
/// Probes are not sent earlier. One too early costs a packet, so they may be bolder than timeouts.
pub const PROBE_MIN: Duration = Duration::from_millis(2);
/// Clock granularity G of RFC 6298: packets that came together are looked at together.
const GRANULARITY: u64 = 100_000;

/// Smoothed round trip and its variation, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip {
    measured: Option<Measured>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Measured {
    smoothed: u64,
    variation: u64,
    shortest: u64,
}

impl RoundTrip {
    /// Takes a sample: never of a packet that was sent twice (Karn's algorithm, RFC 6298, 3).
    pub fn sample(&mut self, time: Duration) {
        let nanos = time.as_nanos();
        self.measured = Some(match self.measured {
            None => Measured {
                smoothed: nanos,
                variation: nanos / 2,
                shortest: nanos,
            },
            // alpha = 1/8, beta = 1/4 (RFC 6298, 2.3).
            Some(old) => Measured {
                smoothed: old.smoothed - old.smoothed / 8 + nanos / 8,
                variation: old.variation - old.variation / 4 + old.smoothed.abs_diff(nanos) / 4,
                shortest: old.shortest.min(nanos),
            },
        });
    }

    /// `SRTT`; None before the first sample.
    pub fn smoothed(&self) -> Option<Duration> {
        self.measured
            .map(|measured| Duration::from_nanos(measured.smoothed))
    }

    /// What answers sooner is not the answer.
    pub fn shortest(&self) -> Duration {
        self.measured.map_or(Duration::ZERO, |measured| {
            Duration::from_nanos(measured.shortest)
        })
    }

    /// How long to wait for an answer after `expired` timeouts in a row; `first` without a sample.
    pub fn timeout(&self, first: Duration, expired: u32) -> Duration {
        let once = self.measured.map_or(first, |measured| {
            let spread = GRANULARITY.max(measured.variation.saturating_mul(4));
            Duration::from_nanos(measured.smoothed.saturating_add(spread))
        });
        let once = once.as_nanos().max(TIMEOUT_MIN.as_nanos());
        let times = 1_u64 << expired.min(16);
        Duration::from_nanos(once.saturating_mul(times).min(TIMEOUT_MAX.as_nanos()))
    }

    /// When the oldest packet is sent once more though no timeout has expired (RFC 8985, 7.2): the
    /// end of a message has nothing behind it by which the peer could notice that it is missing. None
    /// without a sample.
    pub fn probe(&self) -> Option<Duration> {
        let measured = self.measured?;
        let twice = measured.smoothed.saturating_mul(2);
        let spread = measured.variation.saturating_mul(4);
        let late = twice.max(measured.smoothed.saturating_add(spread));
        Some(Duration::from_nanos(late.max(PROBE_MIN.as_nanos())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(34);

    #[test]
    fn the_timeout_follows_the_round_trip() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.timeout(FIRST, 0), FIRST);
        assert_eq!(round_trip.probe(), None);
        for _ in 0..100 {
            round_trip.sample(Duration::from_micros(50));
        }
        assert_eq!(round_trip.timeout(FIRST, 0), TIMEOUT_MIN);
        assert_eq!(round_trip.probe(), Some(PROBE_MIN));
        for _ in 0..100 {
            round_trip.sample(Duration::from_millis(40));
        }
        let timeout = round_trip.timeout(FIRST, 0).as_millis();
        assert!((40..=41).contains(&timeout), "{timeout}");
        assert_eq!(round_trip.probe().unwrap().as_millis(), 79);
        assert_eq!(round_trip.shortest(), Duration::from_micros(50));
    }

    #[test]
    fn a_jump_widens_the_timeout_at_once() {
        let mut round_trip = RoundTrip::default();
        for _ in 0..100 {
            round_trip.sample(Duration::from_millis(1));
        }
        round_trip.sample(Duration::from_millis(101));
        // SRTT 13.5, RTTVAR 25.
        assert_eq!(round_trip.timeout(FIRST, 0).as_millis(), 113);
    }

    #[test]
    fn timeouts_double_up_to_a_second() {
        let mut round_trip = RoundTrip::default();
        round_trip.sample(Duration::from_micros(10));
        let timeouts: std::vec::Vec<u64> = (0..9)
            .map(|n| round_trip.timeout(FIRST, n).as_millis())
            .collect();
        assert_eq!(timeouts, [30, 60, 120, 240, 480, 960, 1000, 1000, 1000]);
        assert_eq!(round_trip.timeout(FIRST, u32::MAX), TIMEOUT_MAX);
    }

    #[test]
    fn nothing_overflows() {
        let mut round_trip = RoundTrip::default();
        for nanos in [0, u64::MAX, 0, u64::MAX] {
            round_trip.sample(Duration::from_nanos(nanos));
            assert!(round_trip.timeout(FIRST, 3) <= TIMEOUT_MAX);
            assert!(round_trip.probe().is_some());
        }
    }
}
