//! Pages that are resident and that the pager does not know: it took charge of their range, or
//! `madvise` announced that it would drop them and they are in use all the same.

use super::Pager;
use crate::entry::{Location, PageEntry};
use crate::replacement::Queued;
use crate::{Kernel, PageRange, SpaceId, SpacePage};
use legato_base::{Duration, PageNumber, Time};

/// From a write to a page whose dropping was announced until the page counts as in use. What
/// `madvise` announces it does a moment after its event was read, and nothing says when it has:
/// microseconds later unless its thread gets no CPU. A page that left in between would come back
/// with what was to be dropped.
const ADOPT_AFTER: Duration = Duration::from_secs(1);

/// A page to adopt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adoption {
    due: Time,
    pub(super) page: SpacePage,
}

impl<K: Kernel> Pager<K> {
    /// The program wrote to a page that was present when its dropping was announced: so it was not
    /// dropped (MADV_FREE), and is in use again.
    pub(super) fn handle_written(&mut self, page: SpacePage, now: Time) {
        if self.table.entry(page).is_none() && self.kernel.can_evict(page.space()) {
            let due = now + ADOPT_AFTER;
            self.adoptions.push_back(Adoption { due, page });
        }
    }

    /// Adopts what is due, unless something is being dropped at this moment: then later.
    pub(super) fn adopt_written(&mut self, now: Time) {
        while let Some(&Adoption { due, page }) = self.adoptions.front() {
            if due > now {
                return;
            }
            self.adoptions.pop_front();
            if self.kernel.may_be_dropping(page.space()) {
                let due = now + ADOPT_AFTER;
                self.adoptions.push_back(Adoption { due, page });
            } else if self.kernel.is_registered(page)
                && let Some(queued) = self.adopt(page)
            {
                self.candidates.queues.inserted(queued);
            }
        }
    }

    /// The range was announced again, or is gone.
    pub(super) fn forget_adoptions(&mut self, space: SpaceId, range: PageRange) {
        self.adoptions
            .retain(|&Adoption { page, .. }| page.space() != space || !range.contains(page.page()));
    }

    /// The range's pages have got new addresses.
    pub(super) fn relocate_adoptions(&mut self, space: SpaceId, from: PageRange, to: PageNumber) {
        for Adoption { page, .. } in &mut self.adoptions {
            if page.space() == space
                && let Some(moved) = from.moved(page.page(), to)
            {
                *page = SpacePage::new(space, moved);
            }
        }
    }

    /// A page that was resident before the pager was in charge of it; None if it is known.
    pub(super) fn adopt(&mut self, page: SpacePage) -> Option<Queued> {
        if self.table.entry(page).is_some() {
            return None;
        }
        let stamp = self.candidates.next_stamp();
        let location = Location::Resident;
        let entry = PageEntry {
            location,
            far: None,
            prefetched: false,
            unseen: true,
            returning: false,
            stamp,
        };
        self.table.insert(page, entry);
        self.candidates.count += 1;
        Some(Queued { page, stamp })
    }
}
