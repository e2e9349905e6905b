//! The bytes of frames and headers.

use super::Layout;
use crate::{FrameIndex, FrameMemory};
use legato_base::PAGE_SIZE;
use legato_base::wire::slot::SLOT_HEADER_SIZE;
use legato_verbs::{MemoryRegion, ScatterGatherEntry};

/// Frames at their addresses, and the regions that cover them.
#[derive(Debug)]
pub struct LinuxFrames {
    layout: Layout,
    pages: MemoryRegion,
    headers: MemoryRegion,
}

impl LinuxFrames {
    /// The regions must cover all frames and all headers of the layout.
    pub(super) const fn new(layout: Layout, pages: MemoryRegion, headers: MemoryRegion) -> Self {
        Self { layout, pages, headers }
    }
}

impl FrameMemory for LinuxFrames {
    fn page(&self, frame: FrameIndex) -> &[u8; PAGE_SIZE] {
        let address = self.layout.frame(frame.0) as *const [u8; PAGE_SIZE];
        // SAFETY: the pager passes only frames that have memory and that no operation which may
        // write is using; the borrow of self keeps it from changing that meanwhile.
        unsafe { &*address }
    }

    fn page_mut(&mut self, frame: FrameIndex) -> &mut [u8; PAGE_SIZE] {
        let address = self.layout.frame(frame.0) as *mut [u8; PAGE_SIZE];
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { &mut *address }
    }

    fn header(&self, frame: FrameIndex) -> &[u8; SLOT_HEADER_SIZE] {
        let address = self.layout.header(frame.0) as *const [u8; SLOT_HEADER_SIZE];
        // SAFETY: headers are always mapped; use as for pages.
        unsafe { &*address }
    }

    fn header_mut(&mut self, frame: FrameIndex) -> &mut [u8; SLOT_HEADER_SIZE] {
        let address = self.layout.header(frame.0) as *mut [u8; SLOT_HEADER_SIZE];
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { &mut *address }
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
