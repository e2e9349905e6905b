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
pub(crate) const MEASURE_INTERVAL_MAX: Duration = Duration::from_millis(20);

/// No more victims are kept, in pages: 3 GiB, the part of a cache of 30 GiB.
const VICTIMS_MAX: u64 = 3 << 18;

/// No limit is smaller, whatever share of a run's memory a process has.
const LIMIT_MIN: Bytes = Bytes::kib(512);

/// The limit, divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Pages that the limit never exceeds.
    pub cache: u64,
    /// Pages that the program, its victim list and the agent may have together.
    pub limit: u64,
    /// Kept unused below the limit, for memory that grows unseen.
    pub headroom: u64,
    /// Pages that may come before others must leave: eviction keeps so much room for them.
    pub reserve: u64,
}

impl Budget {
    pub fn new(cache: Bytes) -> Self {
        let cache = cache.whole_pages();
        Self::divide(cache, cache)
    }

    /// The same cache with another limit. Frames are provided for the whole cache.
    #[must_use]
    pub fn with_limit(&self, limit: Bytes) -> Self {
        let limit = limit.max(LIMIT_MIN).whole_pages();
        Self::divide(self.cache, limit.min(self.cache))
    }

    fn divide(cache: u64, limit: u64) -> Self {
        // A limit below CACHE_MIN is a share: in the smallest one, too, most must be left.
        Self {
            cache,
            limit,
            headroom: (limit / 32).clamp((limit / 4).min(128), 4096),
            reserve: (limit / 64).clamp((limit / 16).min(32), 1024),
        }
    }

    /// What measured memory is steered to.
    pub const fn target(&self) -> u64 {
        self.limit - self.headroom
    }

    /// Frames to provide: room for the victims, the reserve and what is in flight. In flight is what the
    /// nodes can take in, which does not grow with the cache.
    pub fn frames(&self) -> u32 {
        let in_flight = (self.cache * 3 / 20).clamp(1024, 16_384);
        u32::try_from(victims_of(self.cache) + in_flight).expect("invariant: both are bounded")
    }

    /// So many frames' memory is dropped together: each time costs a flush of the TLBs.
    pub const fn drop_batch(&self) -> u64 {
        self.reserve / 4
    }

    /// Frames with memory that are kept ready for pages that come.
    pub const fn frames_ready(&self) -> u64 {
        self.reserve / 2
    }

    /// Victims whose far copy is good and that are kept all the same, as the only sign of which
    /// pages are still in use: a tenth, as in S3-FIFO's small queue.
    pub fn victims_kept(&self) -> u64 {
        victims_of(self.limit)
    }

    /// When to measure again, if `resident` pages were there now.
    pub fn measure_after(&self, resident: u64) -> Duration {
        let room = (self.limit + self.headroom).saturating_sub(resident);
        let fill = Duration::from_micros(room / FILL_PAGES_PER_MICROSECOND / 2);
        fill.clamp(MEASURE_INTERVAL_MIN, MEASURE_INTERVAL_MAX)
    }
}

/// The victims' part of so many pages.
fn victims_of(pages: u64) -> u64 {
    (pages / 10).min(VICTIMS_MAX)
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
    fn a_share_divides_as_a_cache_of_its_size_and_keeps_the_frames() {
        let whole = Budget::new(Bytes::gib(1));
        let share = whole.with_limit(Bytes::mib(64));
        let own = Budget::new(Bytes::mib(64));
        let parts = |budget: &Budget| (budget.limit, budget.headroom, budget.reserve);
        assert_eq!(parts(&share), parts(&own));
        assert_eq!(share.frames(), whole.frames());
        assert_eq!(whole.with_limit(Bytes::gib(7)), whole);
        assert_eq!(share.with_limit(Bytes::gib(1)), whole);
    }

    #[test]
    fn the_smallest_share_leaves_most_to_the_program() {
        let budget = Budget::new(Bytes::gib(1)).with_limit(Bytes(0));
        assert_eq!(budget.limit, LIMIT_MIN.whole_pages());
        assert!(budget.drop_batch() > 1);
        assert!(budget.headroom + budget.reserve + budget.victims_kept() < budget.limit / 2);
    }

    #[test]
    fn frames_are_enough_for_the_victims_and_for_as_many_pages_in_flight_whatever_the_cache() {
        for mib in [8, 64, 512, 1536, 3 << 10, 64 << 10, 1 << 20] {
            let budget = Budget::new(Bytes::mib(mib));
            let spare = u64::from(budget.frames()) - budget.victims_kept();
            assert!(spare >= budget.reserve + 512, "{mib} MiB: {spare}");
        }
    }

    #[test]
    fn the_smallest_cache_has_room_for_its_parts() {
        let budget = Budget::new(CACHE_MIN);
        assert!(budget.headroom + budget.reserve + budget.victims_kept() < budget.limit / 2);
    }
}
