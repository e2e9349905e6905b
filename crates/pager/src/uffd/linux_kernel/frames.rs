//! Memory for frames, and back to the system.

use super::LinuxKernel;
use crate::uffd::{Layout, system_call};
use crate::{FrameIndex, FrameMemory};
use legato_base::PAGE_SHIFT;
use rustix::mm::Advice;

const SYS_PRCTL: i64 = 157;
/// `include/uapi/linux/prctl.h`, since Linux 6.4.
const PR_GET_MEMORY_MERGE: i64 = 68;

impl LinuxKernel {
    /// Keeps the kernel from merging the agent's pages with others of the same content, where the program has all
    /// of its memory merged (PR_SET_MEMORY_MERGE): merged pages do not move (UFFDIO_MOVE).
    pub(in crate::uffd) fn keep_own_unmerged(&self) {
        // SAFETY: integers. Older kernels do not know the option.
        let merged = unsafe { system_call(SYS_PRCTL, [PR_GET_MEMORY_MERGE, 0, 0, 0, 0]) };
        if merged != Ok(1) {
            return;
        }
        let (start, length) = (
            self.layout.range().start.address(),
            self.layout.range().count << PAGE_SHIFT,
        );
        // SAFETY: the agent's own memory, whose content stays. It fails only where there is no memory for what was
        // merged, and is tried again.
        let _ = unsafe {
            rustix::mm::madvise(start as *mut _, length as usize, Advice::LinuxUnmergeable)
        };
    }

    pub(in crate::uffd) fn give_memory(&mut self, frame: FrameIndex, count: u32) -> u32 {
        if !self.features.can_move() {
            for added in 0..count {
                // Writing is what gives memory to a page.
                self.frames
                    .page_mut(FrameIndex(frame.0 + added), |page| page.fill(0));
            }
            return count;
        }
        let mut added = 0;
        while added < count {
            let batch = (count - added).min(Layout::zero_pages());
            let (to, bytes) = (
                self.layout.frame(frame.0 + added),
                u64::from(batch) << PAGE_SHIFT,
            );
            // SAFETY: the frames are empty and the agent's own.
            let (copied, _) = unsafe { self.own.context.copy(to, self.layout.zeros(), bytes) };
            added += (copied >> PAGE_SHIFT) as u32;
            if copied < bytes {
                break;
            }
        }
        added
    }

    pub(in crate::uffd) fn take_memory(&mut self, frame: FrameIndex, count: u32) -> u32 {
        if !self.features.can_move() {
            let (start, length) = (self.layout.frame(frame.0), (count as usize) << PAGE_SHIFT);
            // SAFETY: the frames are free and the agent's own. They are not registered, so this
            // waits for nobody.
            let emptied =
                unsafe { rustix::mm::madvise(start as *mut _, length, Advice::LinuxDontNeed) };
            return if emptied.is_ok() { count } else { 0 };
        }
        let mut dropped = 0;
        while dropped < count {
            let batch = (count - dropped).min(Layout::trash_pages());
            let from = self.layout.frame(frame.0 + dropped);
            let bytes = u64::from(batch) << PAGE_SHIFT;
            // SAFETY: the frames are free and the trash is empty; both are the agent's own.
            let (moved, _) = unsafe {
                self.trash
                    .move_pages(self.layout.trash(), from, bytes, false)
            };
            // SAFETY: what is in the trash is nobody's. Its userfaultfd reports no events, so
            // this waits for nobody.
            let emptied = unsafe {
                rustix::mm::madvise(
                    self.layout.trash() as *mut _,
                    bytes as usize,
                    Advice::LinuxDontneedLocked,
                )
            };
            dropped += (moved >> PAGE_SHIFT) as u32;
            if moved < bytes || emptied.is_err() {
                break;
            }
        }
        dropped
    }
}
