//! How much local memory all address spaces use together, and how much processor time.
//!
//! RssAnon is cheap to read, but counts a page that is shared after a fork once for each process.
//! Pss_Anon counts it once in the sum, but the kernel walks all page tables for it. So it is read
//! now and then, and what RssAnon has changed by since is added.

use super::{Child, LinuxKernel};
use crate::uffd::agent::now;
use crate::{PageRange, SpaceId};
use alloc::vec::Vec;
use legato_base::{Duration, PageNumber, Time};

/// Share of the time that may go into walking page tables: a fifth.
const REST: u64 = 4;
const REST_MIN: Duration = Duration::from_micros(500);
const REST_MAX: Duration = Duration::from_millis(200);

/// Pages of address space that are looked at in one go: about half a millisecond's work.
const LOOKED_AT: u64 = 1 << 18;

/// The last exact sum.
#[derive(Debug, Default)]
pub(super) struct Shared {
    taken: Option<Taken>,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    /// Sum of Pss_Anon.
    proportional: u64,
    /// Sum of RssAnon then.
    resident: u64,
    again_at: Time,
}

impl Shared {
    /// An address space has come or gone.
    pub(super) const fn forget(&mut self) {
        self.taken = None;
    }
}

impl LinuxKernel {
    /// None while other processes are served too: each has a clock of its own.
    pub(super) fn count_processor_time(&self) -> Option<Duration> {
        let is_alone = self.children.is_empty() && self.sharers.is_empty() && !self.own.closed;
        let clock = self.processor_clock.as_ref().filter(|_| is_alone);
        clock?.time()
    }

    pub(super) fn count_resident(&mut self) -> u64 {
        let own = self.own_rss.count(&self.residency).unwrap_or(0);
        let hands = self
            .children
            .values()
            .filter_map(|child| child.hand.as_ref());
        let mut resident = own;
        let mut hands_found = false;
        for hand in hands {
            hands_found = true;
            resident += hand.residency.anonymous_pages().unwrap_or(0);
        }
        if !hands_found {
            return own;
        }
        let time = now();
        let taken = match self.shared.taken {
            Some(taken) if time < taken.again_at => taken,
            _ => {
                let proportional = self.count_proportional();
                let cost = now().since(time);
                let rest = Duration::from_nanos(cost.as_nanos() * REST).clamp(REST_MIN, REST_MAX);
                let taken = Taken {
                    proportional,
                    resident,
                    again_at: now() + rest,
                };
                self.shared.taken = Some(taken);
                taken
            }
        };
        // A child without a hand shares pages too, and is not in the sum; but what is in one
        // address space is in memory.
        (taken.proportional + resident)
            .saturating_sub(taken.resident)
            .max(own)
    }

    /// Resident pages where the pager is in charge, from a page on; some thousand at most. Returns where
    /// to go on. None if nothing can be told: what was read and not followed is not what is there.
    pub(super) fn residents_in_charge(
        &self,
        space: SpaceId,
        from: PageNumber,
        into: &mut Vec<PageNumber>,
    ) -> Option<PageNumber> {
        if self.is_unsettled_in(space) {
            return None;
        }
        let charged = &self.space(space)?.ranges.charged;
        let range = charged.range_from(from)?;
        let range = PageRange::new(range.start, range.count.min(LOOKED_AT));
        self.residency_of(space)?.first_pages_in(range, into).ok()
    }

    fn count_proportional(&self) -> u64 {
        let hands = self
            .children
            .values()
            .filter_map(|child: &Child| child.hand.as_ref());
        core::iter::once(&self.residency)
            .chain(hands.map(|hand| &hand.residency))
            .filter_map(|residency| residency.proportional_pages())
            .sum()
    }
}
