//! Threads that wait for pages.

use super::Fault;
use crate::{PageRange, SpaceId, SpacePage};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use legato_base::Time;

/// Who waits, and since when.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// For a frame, a slot of a queue, or their address space to settle.
    pub(super) stalled: VecDeque<Fault>,
    /// In children that are out of the pager's reach and have had their part.
    pub(super) out_of_reach: VecDeque<Fault>,
    /// When the first thread began to wait for a page that is on its way.
    demands: BTreeMap<SpacePage, Time>,
    /// When the threads began to wait whose pages have entered since this was last asked.
    served: Vec<Time>,
}

impl Waiting {
    /// True if nobody waits for anything but pages that are on their way.
    pub(super) fn is_empty(&self) -> bool {
        self.stalled.is_empty() && self.out_of_reach.is_empty()
    }

    /// The page of a fault is on its way.
    pub(super) fn expect(&mut self, fault: Fault) {
        self.demands.entry(fault.page).or_insert(fault.at);
    }

    /// A page is in its address space.
    pub(super) fn entered(&mut self, page: SpacePage) {
        self.served.extend(self.demands.remove(&page));
    }

    pub(super) fn has_served(&self) -> bool {
        !self.served.is_empty()
    }

    /// Since when threads have waited that have been served since the last call.
    pub(super) fn take_served(&mut self) -> impl Iterator<Item = Time> {
        self.served.drain(..)
    }

    /// A page is not on its way any more: whoever waits for it is served anew.
    pub(super) fn start_again(&mut self, page: SpacePage, now: Time) {
        if let Some(at) = self.demands.remove(&page) {
            let at = at.min(now);
            self.stalled.push_back(Fault { page, at });
        }
    }

    /// A page is not on its way any more, and nobody waits for it.
    pub(super) fn forget(&mut self, page: SpacePage) {
        self.demands.remove(&page);
    }

    /// Nobody waits for a page of a range.
    pub(super) fn forget_range(&mut self, space: SpaceId, range: PageRange) {
        let first = SpacePage::new(space, range.start);
        let pages = first..first.plus(range.count);
        self.stalled.retain(|fault| !pages.contains(&fault.page));
        self.out_of_reach
            .retain(|fault| !pages.contains(&fault.page));
        self.demands.extract_if(pages, |_, _| true).for_each(drop);
    }
}
