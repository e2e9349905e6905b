//! The program changes its address space.

use super::{Pager, PagerEvent, PagerFabric, SpaceEvent};
use crate::entry::{Location, PageEntry};
use crate::frames::FrameState;
use crate::{Kernel, PageRange, SpaceId, SpacePage};
use alloc::vec::Vec;
use legato_base::PageNumber;

/// Pages that are forgotten or get new addresses together.
const AT_A_TIME: usize = 4096;

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
        self.forget_stalled(space, range);
        self.strays.leave_out(space, range);
        while let Some(part) = self.take_part(space, range) {
            for (page, entry) in part {
                self.abandon(page, entry);
                self.waiting.forget(page);
                self.kernel.wake(page);
            }
        }
    }

    /// Takes the first entries of a range out of the table: a list of all of them would be larger than the
    /// table. None if there are none.
    fn take_part(
        &mut self,
        space: SpaceId,
        range: PageRange,
    ) -> Option<Vec<(SpacePage, PageEntry)>> {
        let part = self.table.take_first(space, range, AT_A_TIME);
        (!part.is_empty()).then_some(part)
    }

    /// The first page of a range whose content the pager alone has. Zeros that have not reached the
    /// program are none: a thread may touch what was moved before the pager knows of the move.
    fn first_out(&self, space: SpaceId, range: PageRange) -> Option<SpacePage> {
        let is_out = |entry: &PageEntry| {
            entry.location != Location::Resident && !(entry.unseen && entry.far.is_none())
        };
        self.table
            .range(space, range)
            .find(|(_, entry)| is_out(entry))
            .map(|(page, _)| page)
    }

    /// Faults that waited for what the range was are void: the mapping may be gone. Whoever still
    /// waits faults again.
    pub(super) fn forget_stalled(&mut self, space: SpaceId, range: PageRange) {
        let kernel = &mut self.kernel;
        self.waiting.retain(|fault| {
            let void = fault.page.space() == space && range.contains(fault.page.page());
            if void {
                kernel.wake(fault.page);
            }
            !void
        });
    }

    /// Gives up everything that an entry held.
    fn abandon(&mut self, page: SpacePage, entry: PageEntry) {
        self.release_far(entry.far);
        match entry.location {
            Location::Kept => {
                self.children.kept.remove(&page);
            }
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
        self.forget_stalled(space, from);
        let target = PageRange::new(to, from.count);
        // What was there went first, with an announcement of its own. If pages are left there that only
        // the pager has, events are missing or in the wrong order.
        if let Some(page) = self.first_out(space, target) {
            self.events.push_back(PagerEvent::MovedOver { page });
        }
        self.remove(space, target);
        self.strays.relocate(space, from, to);
        // Linux refuses a move onto a part of itself.
        while let Some(part) = self.take_part(space, from) {
            for (page, entry) in part {
                let target = SpacePage::new(space, to).plus(page.page().0 - from.start.0);
                self.relocate(page, entry, target);
            }
        }
    }

    /// A page of which the table knows nothing any more has got a new address.
    fn relocate(&mut self, page: SpacePage, mut entry: PageEntry, target: SpacePage) {
        match entry.location {
            Location::Resident => {
                entry.stamp = self.candidates.relocate(target);
            }
            Location::InFrame(frame) => self.frames.rename(frame, target),
            Location::Kept => {
                let content = self.children.kept.remove(&page);
                self.children
                    .kept
                    .extend(content.map(|content| (target, content)));
            }
            Location::Far | Location::Lost => {}
        }
        self.table.insert(target, entry);
        self.waiting.forget(page);
        // Whoever waited for the old address finds no mapping there.
        self.kernel.wake(page);
    }
}
