//! How much local memory there may be, and when to look again.
//!
//! Memory that the pager is not in charge of grows without telling it: the program touches fresh
//! pages at the kernel's speed. So the pager stays a headroom below the limit and measures at
//! least twice within the time in which the program could fill it.

use legato_base::{Bytes, Duration};

/// The smallest limit that leaves the agent room to work in.
pub const CACHE_MIN: Bytes = Bytes::mib(8);

/// Pages that a program can touch for the first time per microsecond, on two cores: about twice
/// what was measured for the kernel's anonymous fault (360,000 a second on each).
const FILL_PAGES_PER_MICROSECOND: u64 = 2;

/// Between two measurements at least: below this the measuring costs more than it saves.
const MEASURE_INTERVAL_MIN: Duration = Duration::from_micros(400);
/// And at most: programs also grow slowly.
const MEASURE_INTERVAL_MAX: Duration = Duration::from_millis(20);

/// The limit, divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Pages that the program, its victim list and the agent may have together.
    pub limit: u64,
    /// Kept unused below the limit, for memory that grows unseen.
    pub headroom: u64,
    /// Free frames that eviction keeps ready for faults.
    pub reserve: u64,
}

impl Budget {
    pub fn new(cache: Bytes) -> Self {
        let limit = cache.whole_pages();
        Self {
            limit,
            headroom: (limit / 32).clamp(128, 4096),
            reserve: (limit / 64).clamp(32, 1024),
        }
    }

    /// What measured memory is steered to.
    pub const fn target(&self) -> u64 {
        self.limit - self.headroom
    }

    /// Frames to provide: room for the reserve, the victims, and what is in flight.
    pub fn frames(&self) -> u32 {
        let frames = (self.limit / 4).clamp(1024, 32_768);
        u32::try_from(frames).unwrap_or(32_768)
    }

    /// Victims whose far copy is good and that are kept all the same, as the only sign of which
    /// pages are still in use: a tenth, as in S3-FIFO's small queue.
    pub const fn victims_kept(&self) -> u64 {
        self.limit / 10
    }

    /// When to measure again, if `resident` pages were there now.
    pub fn measure_after(&self, resident: u64) -> Duration {
        let room = (self.limit + self.headroom).saturating_sub(resident);
        let fill = Duration::from_micros(room / FILL_PAGES_PER_MICROSECOND / 2);
        fill.clamp(MEASURE_INTERVAL_MIN, MEASURE_INTERVAL_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_measures_more_often_the_nearer_the_limit_is() {
        let budget = Budget::new(Bytes::gib(1));
        assert_eq!(budget.measure_after(0), MEASURE_INTERVAL_MAX);
        assert!(budget.measure_after(budget.target()) < Duration::from_millis(3));
        assert_eq!(budget.measure_after(budget.limit * 2), MEASURE_INTERVAL_MIN);
    }

    #[test]
    fn the_smallest_cache_has_room_for_its_parts() {
        let budget = Budget::new(CACHE_MIN);
        assert!(budget.headroom + budget.reserve + budget.victims_kept() < budget.limit / 2);
    }
}
