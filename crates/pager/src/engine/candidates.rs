//! Resident pages that the pager knows: each has one place from which it can be chosen to leave.

use crate::SpacePage;
use crate::entry::{Location, PageEntry};
use crate::replacement::{Queued, Replacement};
use crate::table::PageTable;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Where a page was before it was resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Far, nowhere, or not known.
    New,
    /// In the victim list: it left while it was in use.
    Victim,
    /// Nowhere, and it only maps the kernel's page of zeros.
    Zeros,
}

#[derive(Debug)]
pub(super) struct Candidates {
    queues: Box<dyn Replacement>,
    /// In no queue, because they could not leave when they were to.
    unmovable: VecDeque<Queued>,
    /// Those that only map the kernel's page of zeros, to be taken out soon.
    zero_mapped: Vec<Queued>,
    count: u64,
    last_stamp: u32,
}

impl Candidates {
    pub(super) fn new(queues: Box<dyn Replacement>) -> Self {
        Self {
            queues,
            unmovable: VecDeque::new(),
            zero_mapped: Vec::new(),
            count: 0,
            last_stamp: 0,
        }
    }

    /// So many pages in the table are resident.
    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// A page is resident from now on. Returns the stamp that tells its place from those that it had
    /// before.
    pub(super) fn enter(&mut self, page: SpacePage, origin: Origin) -> u32 {
        self.count += 1;
        let queued = self.stamped(page);
        match origin {
            Origin::New => self.queues.inserted(queued),
            Origin::Victim => self.queues.returned(queued),
            Origin::Zeros => self.zero_mapped.push(queued),
        }
        queued.stamp
    }

    /// A resident page has got this address. Returns its new stamp.
    pub(super) fn relocate(&mut self, to: SpacePage) -> u32 {
        let queued = self.stamped(to);
        self.queues.inserted(queued);
        queued.stamp
    }

    /// A page is resident no more. Its place is void.
    pub(super) const fn leave(&mut self) {
        self.count -= 1;
    }

    const fn stamped(&mut self, page: SpacePage) -> Queued {
        self.last_stamp = self.last_stamp.wrapping_add(1);
        let stamp = self.last_stamp;
        Queued { page, stamp }
    }

    /// A page is fetched again, so many evictions after its own.
    pub(super) fn handle_refault(&mut self, page: SpacePage, distance: u32) {
        self.queues.refaulted(page, distance);
    }

    /// Takes up to `count` pages out of the queues.
    pub(super) fn choose(&mut self, count: u64, table: &PageTable<PageEntry>) -> Vec<Queued> {
        let mut valid = |queued: Queued| is_candidate(table, queued);
        let mut victims = Vec::new();
        self.queues.choose(count as usize, &mut valid, &mut victims);
        victims
    }

    /// Puts pages back that were chosen.
    pub(super) fn queue_again(&mut self, victims: &[Queued]) {
        for &victim in victims {
            self.queues.inserted(victim);
        }
    }

    /// A page that was chosen could not leave.
    pub(super) fn set_aside(&mut self, queued: Queued) {
        self.unmovable.push_back(queued);
    }

    /// Lets up to `count` pages be chosen again that could not leave.
    pub(super) fn take_back(&mut self, count: usize) {
        for queued in self.unmovable.drain(..count.min(self.unmovable.len())) {
            self.queues.inserted(queued);
        }
    }

    /// Takes up to `count` pages out that could not leave, to be tried again.
    pub(super) fn take_unmovable(
        &mut self,
        count: usize,
        table: &PageTable<PageEntry>,
    ) -> Vec<Queued> {
        let first = count.min(self.unmovable.len());
        taken(self.unmovable.drain(..first), table)
    }

    /// How many could not leave.
    pub(super) fn unmovable(&self) -> u64 {
        self.unmovable.len() as u64
    }

    /// True if some only map zeros.
    pub(super) const fn has_zero_mapped(&self) -> bool {
        !self.zero_mapped.is_empty()
    }

    /// Takes out up to `count` of those that only map zeros.
    pub(super) fn take_zero_mapped(
        &mut self,
        count: usize,
        table: &PageTable<PageEntry>,
    ) -> Vec<Queued> {
        let first = count.min(self.zero_mapped.len());
        taken(self.zero_mapped.drain(..first), table)
    }

    /// Every place that stands for a page, or has stood for one.
    pub(super) fn places(&self) -> impl Iterator<Item = Queued> {
        let places = self.queues.places().iter();
        let others = self.unmovable.iter().chain(&self.zero_mapped);
        places.chain(others).copied()
    }
}

/// Of places that were taken out, those that still stand for pages.
fn taken(places: impl Iterator<Item = Queued>, table: &PageTable<PageEntry>) -> Vec<Queued> {
    places
        .filter(|&queued| is_candidate(table, queued))
        .collect()
}

/// True if a place in a queue still stands for a resident page.
pub(super) fn is_candidate(table: &PageTable<PageEntry>, queued: Queued) -> bool {
    table
        .entry(queued.page)
        .is_some_and(|entry| entry.location() == Location::Resident && entry.stamp == queued.stamp)
}
