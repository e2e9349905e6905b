//! One simulated address space: its mappings, the pages that are present, and what its
//! userfaultfd has to say.

use super::announcements::Announcements;
use super::physical::{Page, PhysicalMemory};
use legato_base::{PageNumber, Time};
use legato_pager::order::Order;
use legato_pager::{PageRange, RangeSet, SpaceId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An address space.
#[derive(Debug, Default)]
pub(super) struct Space {
    pub(super) mapped: BTreeSet<u64>,
    pub(super) registered: BTreeSet<u64>,
    /// Pages whose presence was reported to the pager when it took charge of them.
    pub(super) charged: BTreeSet<u64>,
    /// Pages that were registered and not reported yet, and whether they may be reported as resident.
    pub(super) found: BTreeMap<u64, bool>,
    /// Registered pages that were announced as dropped before the pager was in charge of them: they may
    /// still be there.
    pub(super) dropped: BTreeSet<u64>,
    pub(super) memory: PhysicalMemory,
    pub(super) present: BTreeMap<u64, Page>,
    pub(super) poisoned: BTreeSet<u64>,
    pub(super) pinned: BTreeSet<u64>,
    /// Locked: they can be neither moved nor dropped.
    pub(super) locked: BTreeSet<u64>,
    /// Their content may go at any time, until they are written (MADV_FREE).
    pub(super) lazy: BTreeSet<u64>,
    /// What threads have announced as dropped, and have not dropped yet.
    pub(super) dropping: Vec<Dropping>,
    /// Of these, those that it is waited for.
    pub(super) awaited: Vec<u64>,
    /// Pages that MADV_FREE left, and that were used again before the agent could see it.
    pub(super) strays: BTreeSet<u64>,
    /// Changes that the pager has not read.
    pub(super) announcements: Announcements,
    /// What it has read and not accepted.
    pub(super) order: Order<SpaceId>,
    /// What is registered, as far as what was accepted tells.
    pub(super) armed: RangeSet,
    /// What the pager is in charge of, as far as what was accepted tells: of what a child inherits nothing
    /// yet.
    pub(super) in_charge: RangeSet,
    /// The pager has heard of it.
    pub(super) known: bool,
    /// Faults that the pager has not read, one for each thread.
    pub(super) faults: VecDeque<u64>,
    pub(super) ended: bool,
    /// Pages can leave.
    pub(super) attached: bool,
    /// Nobody will ever see to it that pages can leave.
    pub(super) unattachable: bool,
}

/// An announcement that is not carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropping {
    event: u64,
    pub(super) range: PageRange,
}

/// What an access does.
#[derive(Debug)]
pub(super) enum Access {
    Page,
    /// The thread waits; the pager is told.
    Fault,
    BusError,
    SegmentationFault,
}

impl Space {
    /// Touches a page as hardware and kernel do it: present pages are there, unregistered ones
    /// are filled with zeros, registered ones fault.
    pub(super) fn touch(&mut self, page: u64) -> Access {
        if !self.mapped.contains(&page) {
            return Access::SegmentationFault;
        }
        if self.present.contains_key(&page) {
            return Access::Page;
        }
        if self.poisoned.contains(&page) {
            return Access::BusError;
        }
        if self.registered.contains(&page) {
            self.faults.push_back(page);
            return Access::Fault;
        }
        self.present.insert(page, self.memory.zeros());
        Access::Page
    }

    /// While an event is unread, or was just read, nothing can be moved.
    pub(super) fn is_changing(&self, now: Time) -> bool {
        self.announcements.is_changing(now)
    }

    /// True if every change that was announced has been followed.
    pub(super) fn is_followed(&self, now: Time) -> bool {
        !self.is_changing(now) && !self.order.has_waiting()
    }

    /// `madvise` has announced that it will drop a range.
    pub(super) fn begin_dropping(&mut self, event: u64, range: PageRange) {
        self.dropping.push(Dropping { event, range });
    }

    /// It has done so.
    pub(super) fn end_dropping(&mut self, range: PageRange) {
        let place = self.dropping.iter().position(|drop| drop.range == range);
        place.map(|place| self.dropping.swap_remove(place));
    }

    /// True of a page that may be there only because a thread has not dropped it yet; the pager knows of
    /// that.
    pub(super) fn is_being_dropped(&self, page: u64) -> bool {
        let is_read = |drop: &&Dropping| self.announcements.is_over(drop.event);
        let mut read = self.dropping.iter().filter(is_read);
        read.any(|drop| drop.range.contains(PageNumber(page)))
    }

    /// It will be asked whether all is dropped that has been announced by now.
    pub(super) fn note_dropping(&mut self) {
        self.awaited = self.dropping.iter().map(|drop| drop.event).collect();
    }

    pub(super) fn has_dropped_all(&self) -> bool {
        let mut awaited = self.awaited.iter();
        awaited.all(|event| self.dropping.iter().all(|drop| drop.event != *event))
    }

    /// Drops content: `madvise`'s second half, and the first of unmapping.
    pub(super) fn zap(&mut self, range: PageRange) {
        for page in range.start.0..range.end().0 {
            self.present.remove(&page);
            self.poisoned.remove(&page);
            self.lazy.remove(&page);
            self.strays.remove(&page);
            // A device goes on with the page that it knows; what comes here next is another.
            self.pinned.remove(&page);
        }
    }

    /// `MADV_FREE`, once it was announced: the kernel may drop what is there, or may not.
    pub(super) fn free(&mut self, range: PageRange) {
        for page in range.start.0..range.end().0 {
            self.poisoned.remove(&page);
            if self.present.contains_key(&page) {
                self.lazy.insert(page);
            }
        }
    }

    /// True if all of a range that is mapped may be dropped: `madvise` refuses locked memory.
    pub(super) fn is_droppable(&self, range: PageRange) -> bool {
        self.locked
            .range(range.start.0..range.end().0)
            .next()
            .is_none()
    }

    /// True if the pager is told when the range changes.
    pub(super) fn is_watched(&self, range: PageRange) -> bool {
        self.registered
            .range(range.start.0..range.end().0)
            .next()
            .is_some()
    }

    pub(super) fn map(&mut self, range: PageRange) {
        self.mapped.extend(range.start.0..range.end().0);
    }

    /// True if any of it was registered: then there is an event.
    pub(super) fn unmap(&mut self, range: PageRange) -> bool {
        self.zap(range);
        let mut registered = false;
        for page in range.start.0..range.end().0 {
            self.mapped.remove(&page);
            self.locked.remove(&page);
            self.charged.remove(&page);
            self.found.remove(&page);
            self.dropped.remove(&page);
            registered |= self.registered.remove(&page);
        }
        registered
    }

    /// Moves mappings and pages; the new pages behind them are part of the same mapping.
    pub(super) fn remap(&mut self, from: PageRange, to: u64, grow: u64) -> bool {
        let mut registered = false;
        for step in 0..from.count {
            let (old, new) = (from.start.0 + step, to + step);
            self.mapped.remove(&old);
            self.mapped.insert(new);
            // Found again where it is now.
            self.found.remove(&old);
            if let Some(content) = self.present.remove(&old) {
                self.present.insert(new, content);
            }
            for set in [
                &mut self.registered,
                &mut self.charged,
                &mut self.dropped,
                &mut self.poisoned,
                &mut self.pinned,
                &mut self.locked,
                &mut self.lazy,
                &mut self.strays,
            ] {
                if set.remove(&old) {
                    set.insert(new);
                }
            }
            registered |= self.registered.contains(&new);
        }
        self.grow(PageRange::new(PageNumber(to + from.count), grow));
        registered
    }

    /// The mapping that ends where `new` begins grows, in place: nobody is told.
    pub(super) fn grow(&mut self, new: PageRange) {
        let last = new.start.0 - 1;
        let pages = new.start.0..new.end().0;
        self.mapped.extend(pages.clone());
        for set in [&mut self.registered, &mut self.locked] {
            if set.contains(&last) {
                set.extend(pages.clone());
            }
        }
    }

    /// What `fork` copies.
    pub(super) fn copy(&self) -> Self {
        Self {
            mapped: self.mapped.clone(),
            registered: self.registered.clone(),
            memory: self.memory.clone(),
            present: self
                .present
                .iter()
                .map(|(&number, page)| (number, self.copy_page(number, page)))
                .collect(),
            poisoned: self.poisoned.clone(),
            lazy: self.lazy.clone(),
            ..Self::default()
        }
    }

    /// A page that a device holds is not shared: the parent must keep the one that the device
    /// knows (`copy_present_page` in mm/memory.c).
    fn copy_page(&self, number: u64, page: &Page) -> Page {
        if self.pinned.contains(&number) {
            page.duplicate()
        } else {
            page.clone()
        }
    }

    /// Whoever waits for a page of a range tries again; unread messages of theirs vanish.
    pub(super) fn wake(&mut self, range: PageRange) {
        self.faults
            .retain(|&waiting| !range.contains(PageNumber(waiting)));
    }

    pub(super) fn mapped(&self) -> RangeSet {
        let mut mapped = RangeSet::new();
        self.mappings()
            .into_iter()
            .for_each(|range| mapped.insert(range));
        mapped
    }

    /// Runs of mapped pages.
    pub(super) fn mappings(&self) -> Vec<PageRange> {
        runs(&self.mapped, u64::MAX)
    }
}

pub(super) fn runs<'a>(
    pages: impl IntoIterator<Item = &'a u64>,
    length_max: u64,
) -> Vec<PageRange> {
    let mut runs: Vec<PageRange> = Vec::new();
    for &page in pages {
        match runs.last_mut() {
            Some(run) if run.end().0 == page && run.count < length_max => run.count += 1,
            _ => runs.push(PageRange::new(PageNumber(page), 1)),
        }
    }
    runs
}
