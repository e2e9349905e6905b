//! What the pager needs from an operating system. Linux implements it in `uffd`, the simulator
//! with a model.

use crate::FrameIndex;
use alloc::vec::Vec;
use legato_base::wire::slot::SLOT_HEADER_SIZE;
use legato_base::{PAGE_SIZE, PageNumber};
use legato_verbs::ScatterGatherEntry;

/// An address space: the agent's own program, or a forked child that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpaceId(pub u32);

impl SpaceId {
    /// The program's own address space, the only one that pages are evicted from.
    pub const OWN: Self = Self(0);
}

/// Pages `start .. start + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageRange {
    pub start: PageNumber,
    pub count: u64,
}

impl PageRange {
    pub const fn new(start: PageNumber, count: u64) -> Self {
        Self { start, count }
    }

    /// The page after the last.
    pub const fn end(self) -> PageNumber {
        PageNumber(self.start.0 + self.count)
    }

    pub const fn contains(self, page: PageNumber) -> bool {
        self.start.0 <= page.0 && page.0 < self.end().0
    }
}

/// Why a page did not move out of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvictError {
    #[error("the address space is changing: read its events first")]
    Again,
    #[error("the page is held by a device or the kernel")]
    Pinned,
    #[error("the page cannot leave its mapping: locked, or not writable")]
    Fixed,
    #[error("no page is there")]
    Absent,
}

/// Why a page did not get into the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    #[error("the address space is changing: read its events first")]
    Again,
    #[error("a page is there already")]
    Present,
    #[error("the mapping is gone")]
    Gone,
    #[error("the address space is gone")]
    SpaceGone,
    #[error("the mapping cannot take a moved page; copy it")]
    CopyOnly,
    #[error("the system has no memory left")]
    NoMemory,
}

/// The bytes of frames: local memory that pages pass through, registered with the provider.
///
/// The bytes are lent to closures and never returned as references: a NIC may own them again
/// right after.
pub trait FrameMemory {
    fn page<R>(&self, frame: FrameIndex, read: impl FnOnce(&[u8; PAGE_SIZE]) -> R) -> R;
    fn page_mut<R>(
        &mut self,
        frame: FrameIndex,
        write: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R,
    ) -> R;
    fn header<R>(&self, frame: FrameIndex, read: impl FnOnce(&[u8; SLOT_HEADER_SIZE]) -> R) -> R;
    fn set_header(&mut self, frame: FrameIndex, header: &[u8; SLOT_HEADER_SIZE]);
    /// Copies the page in one frame to another.
    fn copy_page(&mut self, from: FrameIndex, to: FrameIndex);
    /// Header and page of the frame, as a work request names them.
    fn entries(&self, frame: FrameIndex) -> [ScatterGatherEntry; 2];
}

/// The operating system. No call blocks on anything that the pager itself must do.
pub trait Kernel {
    type Frames: FrameMemory;

    fn frames(&self) -> &Self::Frames;
    fn frames_mut(&mut self) -> &mut Self::Frames;

    /// Moves `count` pages of the program into empty frames, in order. Returns how many moved,
    /// and why not the next. A moved page is gone from the program at once: its next touch faults.
    fn move_out(
        &mut self,
        page: PageNumber,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>);

    /// True if [`Self::move_in`] takes the frames' memory along. False if it copies: the frames
    /// keep their memory then.
    fn moves_memory(&self) -> bool {
        true
    }

    /// Moves `count` frames into the program and wakes whoever waits there. Returns how many
    /// moved, and why not the next.
    fn move_in(
        &mut self,
        frame: FrameIndex,
        page: PageNumber,
        count: u32,
    ) -> (u32, Result<(), FillError>);

    /// Copies a frame into an address space and wakes whoever waits there. The frame keeps its
    /// memory.
    ///
    /// # Errors
    /// Then nothing was changed.
    fn copy_in(
        &mut self,
        space: SpaceId,
        frame: FrameIndex,
        page: PageNumber,
    ) -> Result<(), FillError>;

    /// Maps a page of zeros and wakes whoever waits there.
    ///
    /// # Errors
    /// Then nothing was changed.
    fn zero_in(&mut self, space: SpaceId, page: PageNumber) -> Result<(), FillError>;

    /// Gives memory to `count` empty frames; returns how many got it.
    fn add_frames(&mut self, frame: FrameIndex, count: u32) -> u32;

    /// Takes the memory of `count` frames away; returns how many of them, from the first on, have
    /// none any more.
    fn drop_frames(&mut self, frame: FrameIndex, count: u32) -> u32;

    /// Lets the threads that wait for a page try again.
    fn wake(&mut self, space: SpaceId, page: PageNumber);

    /// Makes every access to the page fail with SIGBUS (EFAULT in system calls).
    ///
    /// # Errors
    /// [`FillError::Again`], or what makes it unnecessary.
    fn poison(&mut self, space: SpaceId, page: PageNumber) -> Result<(), FillError>;

    /// Local pages of the program now, the agent's own and its frames included.
    fn resident_pages(&mut self) -> u64;

    /// Takes charge of more of the program's memory, about `pages` resident pages of it: from
    /// then on every missing page there faults to the pager. Pushes the ranges and, for each, the
    /// pages that are resident. Pushes nothing when there is nothing left to take charge of.
    fn register_more(&mut self, pages: u64, into: &mut Vec<(PageRange, Vec<PageNumber>)>);

    /// Pages of a range that only map the shared page of zeros, because they were read and never
    /// written. They are no memory yet, but a write makes them memory without a fault.
    fn zero_mapped(&mut self, range: PageRange) -> Vec<PageNumber> {
        let _ = range;
        Vec::new()
    }

    /// True if a missing page there faults to the pager.
    fn is_registered(&self, page: PageNumber) -> bool;

    /// False once the space's last process is gone.
    fn space_alive(&mut self, space: SpaceId) -> bool;

    /// Forgets an address space.
    fn close_space(&mut self, space: SpaceId);
}
