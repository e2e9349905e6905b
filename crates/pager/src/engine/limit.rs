//! The share of the run's local memory: it comes from outside and changes while the program runs.

use super::Pager;
use crate::Kernel;
use legato_base::{Bytes, Time};

/// What a pager uses, as far as it knows: memory is measured now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagerUsage {
    /// Local memory of every address space served, and the pager's own.
    pub resident: Bytes,
    /// The limit that the pager works with.
    pub limit: Bytes,
    /// With so much more, what waits now could go on.
    pub step: Bytes,
    /// Pages must leave before others can come.
    pub full: bool,
    /// Threads wait and nothing that is local can leave.
    pub starving: bool,
    /// For some time more has been local than the limit, and nothing of it can leave.
    pub stuck: bool,
    /// Goes up with every page that came or left on demand.
    pub traffic: u64,
    /// Address spaces served.
    pub spaces: u32,
}

impl<K: Kernel> Pager<K> {
    /// How much may be local from now on; never more than the cache that the pager was made with.
    /// What is above it leaves in the coming turns.
    pub fn set_limit(&mut self, limit: Bytes) {
        self.budget = self.budget.with_limit(limit);
        self.note_share();
        self.stop_resting();
        self.local.measure_at = Time::ZERO;
    }

    pub fn usage(&self) -> PagerUsage {
        // Of a limit that leaves enough for what is local.
        let resident = Bytes::pages(self.local.pages);
        let limit = Bytes::pages(self.budget.limit);
        let enough = self.budget.with_limit(resident.max(limit));
        let step = enough.headroom + 2 * enough.reserve;
        PagerUsage {
            resident,
            limit,
            step: Bytes::pages(step),
            full: self.is_pressed(),
            starving: self.shortage.is_starving,
            stuck: self.is_stuck(),
            traffic: self.traffic(),
            spaces: 1 + u32::try_from(self.children.alive.len()).unwrap_or(u32::MAX - 1),
        }
    }

    /// True while more memory than the limit may still be granted.
    pub(super) const fn may_get_more(&self) -> bool {
        self.budget.limit < self.budget.cache
    }

    pub(super) const fn traffic(&self) -> u64 {
        self.counters.faults + self.counters.pages_evicted
    }

    fn note_share(&mut self) {
        let share = Bytes::pages(self.budget.limit).0;
        self.counters.share_bytes_current = share;
        self.counters.share_bytes_peak = self.counters.share_bytes_peak.max(share);
    }
}
