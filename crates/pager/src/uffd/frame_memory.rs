//! The bytes of frames and headers.

use super::Layout;
use crate::{FrameIndex, FrameMemory};
use legato_base::PAGE_SIZE;
use legato_base::wire::slot::SLOT_HEADER_SIZE;
use legato_verbs::{MemoryRegion, ScatterGatherEntry};

/// Frames at their addresses, and the regions that cover them.
#[derive(Debug)]
pub(super) struct LinuxFrames {
    layout: Layout,
    pages: MemoryRegion,
    headers: MemoryRegion,
}

impl LinuxFrames {
    /// The regions must cover all frames and all headers of the layout.
    pub(super) const fn new(layout: Layout, pages: MemoryRegion, headers: MemoryRegion) -> Self {
        Self {
            layout,
            pages,
            headers,
        }
    }
}

impl FrameMemory for LinuxFrames {
    fn page<R>(&self, frame: FrameIndex, read: impl FnOnce(&[u8; PAGE_SIZE]) -> R) -> R {
        let address = self.layout.frame(frame.0) as *const [u8; PAGE_SIZE];
        // SAFETY: the pager passes only frames that have memory and that no operation which may
        // write is using; the borrow of self keeps it from changing that meanwhile.
        read(unsafe { &*address })
    }

    fn page_mut<R>(
        &mut self,
        frame: FrameIndex,
        write: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R,
    ) -> R {
        let address = self.layout.frame(frame.0) as *mut [u8; PAGE_SIZE];
        // SAFETY: as above, and the borrow is exclusive.
        write(unsafe { &mut *address })
    }

    fn header<R>(&self, frame: FrameIndex, read: impl FnOnce(&[u8; SLOT_HEADER_SIZE]) -> R) -> R {
        let address = self.layout.header(frame.0) as *const [u8; SLOT_HEADER_SIZE];
        // SAFETY: headers are always mapped; use as for pages.
        read(unsafe { &*address })
    }

    fn set_header(&mut self, frame: FrameIndex, header: &[u8; SLOT_HEADER_SIZE]) {
        let address = self.layout.header(frame.0) as *mut [u8; SLOT_HEADER_SIZE];
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { *address = *header };
    }

    fn copy_page(&mut self, from: FrameIndex, to: FrameIndex) {
        if from == to {
            return;
        }
        let source = self.layout.frame(from.0) as *const u8;
        let target = self.layout.frame(to.0) as *mut u8;
        // SAFETY: as for `page` and `page_mut`; two frames do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(source, target, PAGE_SIZE) };
    }

    fn entries(&self, frame: FrameIndex) -> [ScatterGatherEntry; 2] {
        let page = u64::from(frame.0) * PAGE_SIZE as u64;
        let header = u64::from(frame.0) * SLOT_HEADER_SIZE as u64;
        [
            self.headers.entry(header, SLOT_HEADER_SIZE as u32),
            self.pages.entry(page, PAGE_SIZE as u32),
        ]
    }
}
