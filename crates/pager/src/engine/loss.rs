//! A node is gone, or a copy is bad, and there is no other: the page is lost. It is never zeros
//! and never an older value; whoever touches it gets SIGBUS, and everybody else goes on.

use super::{Pager, PagerEvent};
use crate::entry::Location;
use crate::frames::FrameState;
use crate::{FillError, Kernel, NodeEnd, NodeIndex, SpacePage};

impl<K: Kernel> Pager<K> {
    /// Pages that were only there are lost, and no others (P-27).
    pub(super) fn handle_node_lost(&mut self, node: NodeIndex, why: NodeEnd) {
        let mut lost = 0;
        let mut rewrite = alloc::vec::Vec::new();
        for (page, entry) in self.table.iter_mut() {
            let gone = entry
                .far
                .is_some_and(|slot| self.store.extents.locate(slot).is_none());
            if !gone {
                continue;
            }
            entry.far = None;
            match entry.location() {
                Location::Far => {
                    entry.set_location(Location::Lost);
                    lost += 1;
                }
                // The content is here: it goes to another node. Pages that have arrived count as never
                // written; operations in flight have failed or will, and decide then.
                Location::InFrame(frame) => {
                    if self.frames.state(frame) == FrameState::Done(page) {
                        rewrite.push((page, frame));
                    }
                }
                Location::Resident | Location::Kept | Location::Lost => {}
            }
        }
        for (page, frame) in rewrite {
            self.queue_write(page, frame);
        }
        self.counters.pages_lost += lost;
        self.events.push_back(PagerEvent::NodeLost {
            node,
            pages: lost,
            why,
        });
    }

    /// The page's only copy is gone or bad.
    pub(super) fn lose_page(&mut self, page: SpacePage) {
        let Some(entry) = self.table.entry_mut(page) else {
            return;
        };
        entry.set_location(Location::Lost);
        let far = entry.far.take();
        self.counters.pages_lost += 1;
        self.release_far(far);
    }

    /// Lets the touch of a lost page fail. False while the address space must settle first.
    pub(super) fn poison(&mut self, page: SpacePage) -> bool {
        match self.kernel.poison(page) {
            Ok(()) => true,
            Err(FillError::Again | FillError::NoMemory) => false,
            Err(_) => {
                self.kernel.wake(page);
                true
            }
        }
    }
}
