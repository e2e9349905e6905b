//! Frames as bytes of registered regions: what the pager writes is what the NIC sends, whenever it
//! gets round to it.

use crate::provider::RegionMemory;
use legato_base::PAGE_SIZE;
use legato_base::wire::slot::SLOT_HEADER_SIZE;
use legato_pager::{FrameIndex, FrameMemory};
use legato_verbs::{MemoryRegion, ScatterGatherEntry};
use std::cell::RefCell;
use std::rc::Rc;

/// What a frame holds after its memory has moved away: using it shows as wrong data.
const SCRIBBLE: u8 = 0xDB;

/// A region and its bytes, which the NIC shares.
#[derive(Clone, Debug)]
pub struct Registered {
    pub region: MemoryRegion,
    pub bytes: Rc<RefCell<RegionMemory>>,
}

/// The bytes of all frames and their headers.
#[derive(Debug)]
pub struct SimFrames {
    pages: Registered,
    headers: Registered,
    /// Frames that have memory.
    backed: Vec<bool>,
    /// Frames whose memory was moved out of the program: somebody may still refer to it.
    foreign: Vec<bool>,
    backed_count: u64,
}

impl SimFrames {
    /// The regions must have room for `frames` pages and headers.
    pub fn new(frames: u32, pages: Registered, headers: Registered) -> Self {
        Self {
            pages,
            headers,
            backed: vec![false; frames as usize],
            foreign: vec![false; frames as usize],
            backed_count: 0,
        }
    }

    /// Frames that have memory.
    pub(super) const fn backed(&self) -> u64 {
        self.backed_count
    }

    /// A page moves into an empty frame.
    pub(super) fn put(&mut self, frame: u32, content: &[u8; PAGE_SIZE]) {
        assert!(!self.backed[frame as usize], "frame {frame} is not empty");
        self.backed[frame as usize] = true;
        self.backed_count += 1;
        let start = frame as usize * PAGE_SIZE;
        self.pages.bytes.borrow_mut()[start..start + PAGE_SIZE].copy_from_slice(content);
    }

    /// The frame's page moves away, and its memory with it.
    pub(super) fn take(&mut self, frame: u32) -> Box<[u8; PAGE_SIZE]> {
        let content = self.page(FrameIndex(frame), |page| Box::new(*page));
        self.backed[frame as usize] = false;
        self.foreign[frame as usize] = false;
        self.backed_count -= 1;
        let start = frame as usize * PAGE_SIZE;
        self.pages.bytes.borrow_mut()[start..start + PAGE_SIZE].fill(SCRIBBLE);
        content
    }

    /// For a defect: every page that is in a frame is in the one before too.
    pub(super) fn mix_up(&mut self) {
        let mut bytes = self.pages.bytes.borrow_mut();
        bytes.copy_within(PAGE_SIZE.., 0);
    }

    /// The frame's memory came from the program by a move.
    pub(super) fn mark_foreign(&mut self, frame: u32) {
        self.foreign[frame as usize] = true;
    }

    /// Where a frame begins that may be written.
    fn writable_offset(&self, frame: FrameIndex) -> usize {
        assert!(
            !self.foreign[frame.0 as usize],
            "frame {} has memory that was the program's",
            frame.0
        );
        self.offset(frame)
    }

    fn offset(&self, frame: FrameIndex) -> usize {
        assert!(
            self.backed[frame.0 as usize],
            "frame {} has no memory",
            frame.0
        );
        frame.0 as usize * PAGE_SIZE
    }
}

impl FrameMemory for SimFrames {
    fn page<R>(&self, frame: FrameIndex, read: impl FnOnce(&[u8; PAGE_SIZE]) -> R) -> R {
        let start = self.offset(frame);
        let bytes = self.pages.bytes.borrow();
        read(
            bytes[start..]
                .first_chunk()
                .expect("the region covers every frame"),
        )
    }

    fn page_mut<R>(
        &mut self,
        frame: FrameIndex,
        write: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R,
    ) -> R {
        let start = self.writable_offset(frame);
        let mut bytes = self.pages.bytes.borrow_mut();
        write(
            bytes[start..]
                .first_chunk_mut()
                .expect("the region covers every frame"),
        )
    }

    fn header<R>(&self, frame: FrameIndex, read: impl FnOnce(&[u8; SLOT_HEADER_SIZE]) -> R) -> R {
        let bytes = self.headers.bytes.borrow();
        let start = frame.0 as usize * SLOT_HEADER_SIZE;
        read(
            bytes[start..]
                .first_chunk()
                .expect("the region covers every header"),
        )
    }

    fn set_header(&mut self, frame: FrameIndex, header: &[u8; SLOT_HEADER_SIZE]) {
        let start = frame.0 as usize * SLOT_HEADER_SIZE;
        let mut bytes = self.headers.bytes.borrow_mut();
        bytes[start..start + SLOT_HEADER_SIZE].copy_from_slice(header);
    }

    fn copy_page(&mut self, from: FrameIndex, to: FrameIndex) {
        let (from, to) = (self.offset(from), self.writable_offset(to));
        self.pages
            .bytes
            .borrow_mut()
            .copy_within(from..from + PAGE_SIZE, to);
    }

    fn entries(&self, frame: FrameIndex) -> [ScatterGatherEntry; 2] {
        let header = u64::from(frame.0) * SLOT_HEADER_SIZE as u64;
        let page = u64::from(frame.0) * PAGE_SIZE as u64;
        [
            self.headers.region.entry(header, SLOT_HEADER_SIZE as u32),
            self.pages.region.entry(page, PAGE_SIZE as u32),
        ]
    }
}
