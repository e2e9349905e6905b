//! The program changes its address space.

use super::{Pager, PagerFabric, SpaceEvent};
use crate::entry::{Location, PageEntry, WriteBack};
use crate::replacement::Queued;
use crate::{Kernel, PageRange, SpaceId};
use legato_base::PageNumber;

impl<K: Kernel> Pager<K> {
    /// Handles an event. Events must be handled in the order in which the kernel gave them, and
    /// before any fault that was read after them.
    pub fn handle_space_event(&mut self, event: SpaceEvent, net: &PagerFabric<'_>) {
        match event {
            SpaceEvent::Removed {
                space: SpaceId::OWN,
                range,
            } => self.remove(range),
            SpaceEvent::Remapped {
                space: SpaceId::OWN,
                from,
                to,
            } => self.remap(from, to),
            SpaceEvent::Removed { space, range } => self.remove_in_child(space, range),
            SpaceEvent::Remapped { space, from, to } => self.remap_in_child(space, from, to),
            SpaceEvent::Forked { parent, child } => self.fork(parent, child, net.now),
        }
    }

    /// The range's content is no longer wanted, wherever it is.
    fn remove(&mut self, range: PageRange) {
        self.forget_stalled(SpaceId::OWN, range);
        for (page, entry) in self.table.remove_range(range) {
            self.abandon(entry);
            self.demands.remove(&page);
            self.kernel.wake(SpaceId::OWN, page);
        }
    }

    /// Faults that waited for what the range was are void: the mapping may be gone. Whoever still
    /// waits faults again.
    pub(super) fn forget_stalled(&mut self, space: SpaceId, range: PageRange) {
        let kernel = &mut self.kernel;
        self.stalled.retain(|fault| {
            let void = fault.space == space && range.contains(fault.page);
            if void {
                kernel.wake(space, fault.page);
            }
            !void
        });
    }

    /// Gives up everything that an entry held.
    fn abandon(&mut self, entry: PageEntry) {
        self.release_far(entry.far);
        match entry.location {
            Location::Resident => self.tracked -= 1,
            Location::Far | Location::Lost => {}
            // An operation may still touch the frame; it comes back when that is quiet.
            Location::Fetching { frame, .. }
            | Location::Victim {
                frame,
                write_back: WriteBack::InFlight,
            } => {
                self.owners[frame.0 as usize] = None;
            }
            Location::Victim {
                frame,
                write_back: WriteBack::Queued,
            }
            | Location::Arrived { frame, .. } => self.release_frame(frame),
            Location::Victim {
                frame,
                write_back: WriteBack::Done,
            } => {
                self.done_count -= 1;
                self.release_frame(frame);
            }
        }
    }

    /// Pages keep their content and get new addresses.
    fn remap(&mut self, from: PageRange, to: PageNumber) {
        self.forget_stalled(SpaceId::OWN, from);
        let moved = self.table.remove_range(from);
        self.remove(PageRange::new(to, from.count));
        for (page, mut entry) in moved {
            let target = PageNumber(to.0 + (page.0 - from.start.0));
            match entry.location {
                Location::Resident => {
                    entry.stamp = self.next_stamp();
                    self.replacement.inserted(Queued {
                        page: target,
                        stamp: entry.stamp,
                    });
                }
                Location::Victim { frame, .. }
                | Location::Fetching { frame, .. }
                | Location::Arrived { frame, .. } => self.own(frame, target),
                Location::Far | Location::Lost => {}
            }
            self.table.insert(target, entry);
            self.demands.remove(&page);
            // Whoever waited for the old address finds no mapping there.
            self.kernel.wake(SpaceId::OWN, page);
        }
    }
}
