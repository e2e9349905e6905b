//! One simulated address space: its mappings, the pages that are present, and what its
//! userfaultfd has to say.

use legato_base::{PAGE_SIZE, PageNumber};
use legato_pager::{PageRange, SpaceEvent, SpaceId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A page's bytes.
pub(super) type Content = Box<[u8; PAGE_SIZE]>;

/// An address space.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    pub(super) mapped: BTreeSet<u64>,
    pub(super) registered: BTreeSet<u64>,
    pub(super) present: BTreeMap<u64, Content>,
    pub(super) poisoned: BTreeSet<u64>,
    pub(super) pinned: BTreeSet<u64>,
    /// Events that the pager has not read.
    pub(super) events: VecDeque<SpaceEvent>,
    /// Events read so far, and reported so far: who caused one waits until it is read.
    pub(super) events_read: u64,
    pub(super) events_reported: u64,
    /// Faults that the pager has not read, one for each thread.
    pub(super) faults: VecDeque<u64>,
    pub(super) ended: bool,
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
        self.present.insert(page, Box::new([0; PAGE_SIZE]));
        Access::Page
    }

    /// While an event is unread, nothing can be moved (`mmap_changing` in fs/userfaultfd.c).
    pub(super) fn is_changing(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the number that `events_read` must reach before its cause goes on.
    pub(super) fn report(&mut self, event: SpaceEvent) -> u64 {
        self.events.push_back(event);
        self.events_reported += 1;
        self.events_reported
    }

    /// Drops content: `madvise`'s second half, and the first of unmapping.
    pub(super) fn zap(&mut self, range: PageRange) {
        for page in range.start.0..range.end().0 {
            self.present.remove(&page);
            self.poisoned.remove(&page);
        }
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
            self.pinned.remove(&page);
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
            if let Some(content) = self.present.remove(&old) {
                self.present.insert(new, content);
            }
            for set in [&mut self.registered, &mut self.poisoned, &mut self.pinned] {
                if set.remove(&old) {
                    set.insert(new);
                }
            }
            registered |= self.registered.contains(&new);
        }
        for new in to + from.count..to + from.count + grow {
            self.mapped.insert(new);
            if registered {
                self.registered.insert(new);
            }
        }
        registered
    }

    /// What `fork` copies.
    pub(super) fn copy(&self) -> Self {
        Self {
            mapped: self.mapped.clone(),
            registered: self.registered.clone(),
            present: self.present.clone(),
            poisoned: self.poisoned.clone(),
            ..Self::default()
        }
    }

    /// Whoever waits for a page tries again; unread messages of theirs vanish.
    pub(super) fn wake(&mut self, page: u64) {
        self.faults.retain(|&waiting| waiting != page);
    }

    /// Runs of mapped pages that are not registered, at most `length_max` long.
    pub(super) fn unregistered(&self, length_max: u64) -> Vec<PageRange> {
        runs(self.mapped.difference(&self.registered), length_max)
    }

    /// Runs of mapped pages.
    pub(super) fn mappings(&self) -> Vec<PageRange> {
        runs(&self.mapped, u64::MAX)
    }
}

fn runs<'a>(pages: impl IntoIterator<Item = &'a u64>, length_max: u64) -> Vec<PageRange> {
    let mut runs: Vec<PageRange> = Vec::new();
    for &page in pages {
        match runs.last_mut() {
            Some(run) if run.end().0 == page && run.count < length_max => run.count += 1,
            _ => runs.push(PageRange::new(PageNumber(page), 1)),
        }
    }
    runs
}

/// A message of one space's userfaultfd.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) events: Vec<SpaceEvent>,
    pub(super) faults: Vec<(SpaceId, u64)>,
}
