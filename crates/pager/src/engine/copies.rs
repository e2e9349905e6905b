//! What parent and forked children share leaves each of them, and is the same each time. It is written
//! once: who comes later has the copy of who came first.

use super::Pager;
use crate::entry::{Location, SlotRef};
use crate::frames::FrameState;
use crate::{FrameIndex, FrameMemory, Kernel, SpaceId, SpacePage};
use core::iter::once;
use legato_base::{PAGE_SIZE, PageChecksum};

/// So many other address spaces are asked for a copy of a page, the program's and the oldest children's.
/// Each costs a look into the table for each page that leaves.
const ASKED_MAX: usize = 8;

/// A copy of another space's page.
#[derive(Clone, Copy, Debug)]
enum Copy {
    /// In a slot, and good.
    Far(SlotRef),
    /// In a frame, from which it will be written.
    InFrame(FrameIndex),
    /// Kept for this page.
    Kept(SpacePage),
}

impl<K: Kernel> Pager<K> {
    /// A page has left into a frame. If there is a copy of it already it has that from now on; false if not.
    pub(super) fn share_copy(
        &mut self,
        page: SpacePage,
        frame: FrameIndex,
        checksum: PageChecksum,
    ) -> bool {
        let spaces = once(SpaceId::OWN).chain(self.children.alive.keys().copied());
        let others = spaces.filter(|&space| space != page.space());
        let copy = others
            .take(ASKED_MAX)
            .find_map(|space| self.copy_at(SpacePage::new(space, page.page()), frame, checksum));
        let Some(copy) = copy else {
            return false;
        };
        let (location, far) = match copy {
            Copy::Far(slot) => {
                self.store.extents.share(slot);
                self.frames.finish(frame, page);
                (Location::InFrame(frame), Some(slot))
            }
            Copy::InFrame(other) => {
                let (kept, frames) = (&mut self.children.kept, self.kernel.frames());
                frames.page(frame, |content| kept.keep(page, other, content));
                self.frames.release(frame);
                (Location::Kept, None)
            }
            Copy::Kept(other) => {
                self.children.kept.share(page, other);
                self.frames.release(frame);
                (Location::Kept, None)
            }
        };
        let Some(entry) = self.table.entry_mut(page) else {
            unreachable!("invariant: a page that has left is in the table");
        };
        entry.set_location(location);
        let before = core::mem::replace(&mut entry.far, far);
        self.release_far(before);
        true
    }

    /// The copy of another page, if it is what a frame holds.
    fn copy_at(&self, other: SpacePage, frame: FrameIndex, checksum: PageChecksum) -> Option<Copy> {
        let entry = self.table.entry(other)?;
        let far = entry.far.filter(|&slot| self.is_written(slot, checksum));
        if let Some(slot) = far {
            return Some(Copy::Far(slot));
        }
        match entry.location() {
            Location::InFrame(at) => {
                let is_victim = matches!(
                    self.frames.state(at),
                    FrameState::Queued(_) | FrameState::Writing(Some(_))
                );
                let is_same = is_victim && self.frames.checksum(at) == checksum;
                is_same.then_some(Copy::InFrame(at))
            }
            Location::Kept => {
                let is_kept = |content: &[u8; PAGE_SIZE]| self.children.kept.is_in(other, content);
                let is_same = self.kernel.frames().page(frame, is_kept);
                is_same.then_some(Copy::Kept(other))
            }
            Location::Resident | Location::Far | Location::Lost => None,
        }
    }
}
