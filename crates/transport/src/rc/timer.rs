//! When a timer ends.

use legato_base::{Duration, Time};

/// Time without an answer after which packets are sent again (IB spec 9.7.6.1.3).
pub(super) fn timeout(code: u8) -> Option<Duration> {
    (code != 0).then(|| Duration::from_nanos(4096 << (code & 31)))
}

/// When a timer that starts now ends.
pub(super) fn deadline(now: Time, timeout: Option<Duration>) -> Time {
    timeout.map_or(Time::NEVER, |timeout| now + timeout)
}
