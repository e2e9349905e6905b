//! The program changes its address space.

use super::{Pager, PagerEvent, PagerFabric, SpaceEvent};
use crate::entry::{Location, PageEntry};
use crate::frames::FrameState;
use crate::{Kernel, PageRange, SpaceId, SpacePage};
use legato_base::PageNumber;

impl<K: Kernel> Pager<K> {
    /// Handles an event. Events must be handled in the order in which the kernel gave them, and
    /// before any fault that was read after them.
    pub(super) fn handle_space_event(&mut self, event: SpaceEvent, net: &PagerFabric<'_>) {
        match event {
            SpaceEvent::Removed { space, range } => self.remove(space, range),
            SpaceEvent::Remapped { space, from, to } => self.remap(space, from, to),
            SpaceEvent::Forked { parent, child } => self.fork(parent, child, net.now),
        }
    }

    /// The range's content is no longer wanted, wherever it is.
    pub(super) fn remove(&mut self, space: SpaceId, range: PageRange) {
        self.strays.leave_out(space, range);
        while let Some(part) = self.table.take_first(space, range) {
            for (page, entry) in part {
                self.abandon(page, entry);
            }
        }
        self.forget_faults(space, range);
    }

    /// The first page of a range whose content the pager alone has. Zeros that have not reached the
    /// program are none: a thread may touch what was moved before the pager knows of the move.
    fn first_out(&self, space: SpaceId, range: PageRange) -> Option<SpacePage> {
        let is_out =
            |entry: &PageEntry| entry.location() != Location::Resident && !entry.is_zeros();
        self.table
            .range(space, range)
            .find(|(_, entry)| is_out(entry))
            .map(|(page, _)| page)
    }

    /// Faults that waited for what the range was are void: the mapping may be gone. Whoever still
    /// waits faults again. One call for all of them: a range has a million pages, and few that wait.
    fn forget_faults(&mut self, space: SpaceId, range: PageRange) {
        self.waiting.forget_range(space, range);
        self.kernel.wake_range(space, range);
    }

    /// Gives up everything that an entry held.
    fn abandon(&mut self, page: SpacePage, entry: PageEntry) {
        self.release_far(entry.far);
        match entry.location() {
            Location::Kept => self.children.kept.forget(page),
            Location::Resident => self.candidates.leave(),
            Location::Far | Location::Lost => {}
            Location::InFrame(frame) => match self.frames.state(frame) {
                // An operation may still touch the frame; it comes back when that is quiet.
                FrameState::Fetching { .. } | FrameState::Writing(_) => self.frames.disown(frame),
                FrameState::Hollow(_) => self.frames.emptied(frame),
                _ => self.frames.release(frame),
            },
        }
    }

    /// Pages keep their content and get new addresses.
    fn remap(&mut self, space: SpaceId, from: PageRange, to: PageNumber) {
        let target = PageRange::new(to, from.count);
        // What was there went first, with an announcement of its own. If pages are left there that only
        // the pager has, events are missing or in the wrong order.
        if let Some(page) = self.first_out(space, target) {
            self.events.push_back(PagerEvent::MovedOver { page });
        }
        self.remove(space, target);
        self.strays.relocate(space, from, to);
        // Linux refuses a move onto a part of itself.
        while let Some(part) = self.table.take_first(space, from) {
            for (page, entry) in part {
                let target = SpacePage::new(space, to).plus(page.page().0 - from.start.0);
                self.relocate(page, entry, target);
            }
        }
        // Whoever waited for the old address finds no mapping there.
        self.forget_faults(space, from);
    }

    /// A page of which the table knows nothing any more has got a new address.
    fn relocate(&mut self, page: SpacePage, mut entry: PageEntry, target: SpacePage) {
        match entry.location() {
            Location::Resident => {
                entry.stamp = self.candidates.relocate(target);
            }
            Location::InFrame(frame) => self.frames.rename(frame, target),
            Location::Kept => self.children.kept.relocate(page, target),
            Location::Far | Location::Lost => {}
        }
        self.table.insert(target, entry);
    }
}
