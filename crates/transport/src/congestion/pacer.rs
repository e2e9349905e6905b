//! Spaces what a window would let out at once.

use legato_base::{Duration, Time};

/// Bytes that may go at once: what one system call sends (`UDP_SEGMENT`). Smaller windows are never
/// spaced.
pub const BURST: u64 = 1 << 16;

/// A token bucket of [`BURST`] bytes that is filled with the window's rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pacer {
    /// When the bucket was, or will be, empty.
    empty_at: Time,
    paused_until: Time,
}

impl Pacer {
    /// So many nanoseconds take `bytes` where a window of `window` bytes takes a round trip. The rate
    /// is 5/4 of the window's, or twice while it doubles, so that the window and not the pacer decides
    /// (Linux: `tcp_pacing_ca_ratio`, `tcp_pacing_ss_ratio`).
    fn time(bytes: u64, window: u64, round_trip: Duration, doubling: bool) -> Duration {
        let (times, parts) = if doubling { (1, 2) } else { (4, 5) };
        let nanos = u128::from(bytes) * u128::from(round_trip.as_nanos()) * times;
        Duration::from_nanos((nanos / (u128::from(window.max(1)) * parts)) as u64)
    }

    /// May something be sent now, or when? An empty bucket is half filled first, so that packets still
    /// go in batches.
    pub(super) fn check(
        &self,
        now: Time,
        window: u64,
        round_trip: Duration,
        doubling: bool,
    ) -> Result<(), Time> {
        if now < self.paused_until {
            return Err(self.paused_until);
        }
        if self.empty_at <= now || window <= BURST {
            return Ok(());
        }
        let half = Self::time(BURST / 2, window, round_trip, doubling);
        // The filling of an emptied bucket ends before its debt does by all but the overdraft.
        Err(self.empty_at + half)
    }

    /// A full queue has time to become shorter before packets come to it again.
    pub(super) fn pause(&mut self, until: Time) {
        self.paused_until = until;
    }

    /// `bytes` were sent.
    pub(super) fn sent(
        &mut self,
        now: Time,
        bytes: u64,
        window: u64,
        round_trip: Duration,
        doubling: bool,
    ) {
        if window <= BURST {
            return;
        }
        let full = Self::time(BURST, window, round_trip, doubling);
        let earliest = Time::from_nanos(now.as_nanos().saturating_sub(full.as_nanos()));
        let time = Self::time(bytes, window, round_trip, doubling);
        self.empty_at = self.empty_at.max(earliest) + time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 4 * BURST;
    const ROUND_TRIP: Duration = Duration::from_micros(500);
    const PACKET: u64 = 4096;

    /// Sends whenever it may for so long. Returns the bytes of each burst.
    fn run(time: Duration) -> std::vec::Vec<u64> {
        let mut pacer = Pacer::default();
        let mut now = Time::from_nanos(1_000_000_000);
        let end = now + time;
        let mut bursts = std::vec::Vec::new();
        while now < end {
            let mut burst = 0;
            let later = loop {
                match pacer.check(now, WINDOW, ROUND_TRIP, false) {
                    Ok(()) => pacer.sent(now, PACKET, WINDOW, ROUND_TRIP, false),
                    Err(later) => break later,
                }
                burst += PACKET;
            };
            bursts.push(burst);
            assert!(later > now);
            now = later;
        }
        bursts
    }

    #[test]
    fn bursts_are_of_a_batch_at_most_and_of_half_a_batch_at_least() {
        let bursts = run(Duration::from_millis(10));
        assert!(bursts.iter().all(|&burst| burst <= BURST + PACKET));
        assert!(bursts.iter().all(|&burst| burst >= BURST / 2));
        let sum: u64 = bursts.iter().sum();
        // 5/4 of a window in each of 20 round trips.
        let expected = 20 * WINDOW * 5 / 4;
        assert!(sum.abs_diff(expected) < expected / 20, "{sum} {expected}");
    }

    #[test]
    fn small_windows_are_not_spaced() {
        let mut pacer = Pacer::default();
        let now = Time::from_nanos(5);
        for _ in 0..100 {
            assert_eq!(pacer.check(now, BURST, ROUND_TRIP, false), Ok(()));
            pacer.sent(now, PACKET, BURST, ROUND_TRIP, false);
        }
    }
}
