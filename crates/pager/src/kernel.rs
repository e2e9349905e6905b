//! What the pager needs from an operating system. Linux implements it in `uffd`, the simulator
//! with a model.

use crate::{FrameIndex, Incoming};
use alloc::vec::Vec;
use core::num::NonZeroU64;
use legato_base::wire::slot::SLOT_HEADER_SIZE;
use legato_base::{Duration, PAGE_SIZE, PageNumber};
use legato_verbs::ScatterGatherEntry;

/// An address space: the agent's own program, or a forked child that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpaceId(pub u32);

impl SpaceId {
    /// The program's own address space, which is the agent's too.
    pub const OWN: Self = Self(0);
    /// Ids are below this.
    pub const END: u32 = 1 << (u64::BITS - PAGE_BITS);
}

/// A page number has at most this many bits: addresses have 57 (five-level page tables, Intel SDM
/// volume 3A, section 4.5), and pages 12.
const PAGE_BITS: u32 = 45;

/// A page of one of the address spaces that a pager serves.
///
/// Packed, because there is one for each local page in the queues; plus one, so that an optional one
/// takes no more room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpacePage(NonZeroU64);

impl SpacePage {
    /// # Panics
    /// If the space id is not below [`SpaceId::END`] or the page is no user-space page.
    pub const fn new(space: SpaceId, page: PageNumber) -> Self {
        assert!(space.0 < SpaceId::END && page.0 >> PAGE_BITS == 0);
        Self::from_bits((space.0 as u64) << PAGE_BITS | page.0)
    }

    pub const fn space(self) -> SpaceId {
        SpaceId((self.bits() >> PAGE_BITS) as u32)
    }

    pub const fn page(self) -> PageNumber {
        PageNumber(self.bits() & ((1 << PAGE_BITS) - 1))
    }

    /// The page `n` further on in the same space. The last page of a space is never mapped.
    #[must_use]
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0.saturating_add(n))
    }

    /// True if this page comes right after another.
    pub const fn follows(self, before: Self) -> bool {
        self.bits() == before.bits() + 1
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0.get() - 1
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(bits))
    }
}

impl core::fmt::Debug for SpacePage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{:#x}", self.space().0, self.page().0)
    }
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

    /// The pages that have any of the bytes from one address up to another.
    pub const fn of_bytes(start: u64, end: u64) -> Self {
        let first = PageNumber::containing(start);
        let after = PageNumber::containing(end + PAGE_SIZE as u64 - 1);
        Self::new(first, after.0 - first.0)
    }

    /// Where a page of the range is when the range is moved. None of other pages.
    pub fn moved(self, page: PageNumber, to: PageNumber) -> Option<PageNumber> {
        let is_within = self.contains(page);
        is_within.then(|| to.plus(page.0 - self.start.0))
    }

    /// The page after the last.
    pub const fn end(self) -> PageNumber {
        PageNumber(self.start.0 + self.count)
    }

    pub const fn contains(self, page: PageNumber) -> bool {
        self.start.0 <= page.0 && page.0 < self.end().0
    }

    /// The pages that are in both.
    pub fn common(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        (start < end).then(|| Self::new(start, end.0 - start.0))
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.common(other).is_some()
    }

    /// All of an address space.
    pub const ALL: Self = Self::new(PageNumber(0), (1 << PAGE_BITS) - 1);
}

/// A range that a pager takes charge of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    pub space: SpaceId,
    pub range: PageRange,
    /// Its pages that are resident, in order.
    pub resident: Vec<PageNumber>,
}

/// Why a page did not move out of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvictError {
    #[error("the address space is changing: read its events first")]
    Again,
    #[error("the page is held by a device or the kernel")]
    Pinned,
    #[error("the page cannot leave its mapping")]
    Fixed,
    #[error("the page is locked in memory or sealed, and so are {more} pages after it")]
    Locked { more: u32 },
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
    #[error("the frame has no memory")]
    Empty,
    #[error("the address space is gone")]
    SpaceGone,
    #[error("the mapping cannot take a moved page; copy it")]
    CopyOnly,
    #[error("the system has no memory left")]
    NoMemory,
}

/// Neighbouring pages that are to leave their address space for neighbouring frames, and what became of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    pub page: SpacePage,
    pub frame: FrameIndex,
    pub count: u32,
    /// The pager has filled each of these pages: its mapping was registered then, and what has become of
    /// that since was announced.
    pub filled: bool,
    /// So many have left, from the first on.
    pub moved: u32,
    /// Why not the next. None before the end of the run: it was not tried.
    pub error: Option<EvictError>,
}

impl Departure {
    pub const fn new(page: SpacePage, frame: FrameIndex, count: u32) -> Self {
        Self {
            page,
            frame,
            count,
            filled: false,
            moved: 0,
            error: None,
        }
    }

    /// The same run, of pages that the pager has filled.
    #[must_use]
    pub(crate) const fn of_filled(mut self, filled: bool) -> Self {
        self.filled = filled;
        self
    }

    pub(crate) const fn range(&self) -> PageRange {
        PageRange::new(self.page.page(), self.count as u64)
    }

    /// Moves one run after the other, until the address space must settle.
    pub fn one_by_one(
        runs: &mut [Self],
        mut move_out: impl FnMut(&Self) -> (u32, Result<(), EvictError>),
    ) {
        for run in runs {
            let (moved, result) = move_out(run);
            run.moved = moved;
            run.error = result.err();
            if run.error == Some(EvictError::Again) {
                break;
            }
        }
    }
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

    /// Reads what waits.
    fn read(&mut self) -> Incoming;

    /// True if [`Self::read`] has something to do already.
    fn has_backlog(&self) -> bool;

    /// True if pages can leave this address space. In a forked child nobody can move them until
    /// a task of Legato's runs there.
    fn can_evict(&self, space: SpaceId) -> bool;

    /// Moves `count` pages of an address space into empty frames, in order. Returns how many
    /// moved, and why not the next. A moved page is gone from its space at once: its next touch
    /// faults.
    fn move_out(
        &mut self,
        page: SpacePage,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>);

    /// As [`Self::move_out`], for several runs, where that is cheaper in one go.
    fn move_out_runs(&mut self, runs: &mut [Departure])
    where
        Self: Sized,
    {
        Departure::one_by_one(runs, |run| self.move_out(run.page, run.frame, run.count));
    }

    /// True if pages leave this address space with their memory, and can come back with it. False if
    /// they are copied.
    fn moves_memory(&self, space: SpaceId) -> bool;

    /// Moves `count` frames into an address space that memory is moved in, and wakes whoever waits
    /// there. Returns how many moved, and why not the next.
    fn move_in(
        &mut self,
        frame: FrameIndex,
        page: SpacePage,
        count: u32,
    ) -> (u32, Result<(), FillError>);

    /// As [`Self::move_in`], into any address space; the frames keep their memory.
    fn copy_in(
        &mut self,
        frame: FrameIndex,
        page: SpacePage,
        count: u32,
    ) -> (u32, Result<(), FillError>);

    /// Maps a page of zeros and wakes whoever waits there.
    ///
    /// # Errors
    /// Then nothing was changed.
    fn zero_in(&mut self, page: SpacePage) -> Result<(), FillError>;

    /// Gives memory to `count` empty frames; returns how many got it.
    fn add_frames(&mut self, frame: FrameIndex, count: u32) -> u32;

    /// Takes the memory of `count` frames away; returns how many of them, from the first on, have
    /// none any more.
    fn drop_frames(&mut self, frame: FrameIndex, count: u32) -> u32;

    /// Lets the threads that wait for a page try again.
    fn wake(&mut self, page: SpacePage) {
        self.wake_range(page.space(), PageRange::new(page.page(), 1));
    }

    /// Lets the threads that wait for any page of a range try again.
    fn wake_range(&mut self, space: SpaceId, range: PageRange);

    /// Makes every access to the page fail with SIGBUS (EFAULT in system calls).
    ///
    /// # Errors
    /// [`FillError::Again`], or what makes it unnecessary.
    fn poison(&mut self, page: SpacePage) -> Result<(), FillError>;

    /// Local pages of all address spaces now, the agent's own and its frames included; a page
    /// that several of them share counts once.
    fn resident_pages(&mut self) -> u64;

    /// The processor time that the threads of all address spaces have had. None if nobody can tell.
    fn processor_time(&self) -> Option<Duration>;

    /// From now on whoever waits for this kernel is woken when [`Self::processor_time`] grows, within
    /// a tick of the processor (1 to 10 ms); or not any more. False if that cannot be had.
    fn wake_when_run(&mut self, wanted: bool) -> bool;

    /// Takes charge of more memory, about `pages` resident pages of it, in the spaces that pages
    /// can leave: from then on every missing page there faults to the pager. Pushes nothing when
    /// there is nothing left to take charge of, or nothing that can be said yet. Returns how long that
    /// took, which grows with the number of mappings.
    fn register_more(&mut self, pages: u64, into: &mut Vec<Charge>) -> Duration;

    /// Lets the system drop memory of which the program allows that, for nothing else can leave.
    fn drop_droppable(&mut self) {}

    /// Pushes what [`Self::register_more`] has registered and could not say yet, because the address
    /// space was changing. Its pages fault to the pager already.
    fn finish_registering(&mut self, into: &mut Vec<Charge>);

    /// Pages of a range that only map the shared page of zeros, because they were read and never
    /// written. They are no memory yet, but a write makes them memory without a fault.
    fn zero_mapped(&mut self, space: SpaceId, range: PageRange) -> Vec<PageNumber> {
        let _ = (space, range);
        Vec::new()
    }

    /// True while the program changes an address space and waits until that was read: nothing can leave
    /// or come meanwhile.
    fn is_changing(&self) -> bool {
        false
    }

    /// True if a missing page there faults to the pager.
    fn is_registered(&self, page: SpacePage) -> bool;

    /// Notes who may be about to drop what was announced in a space.
    fn note_dropping(&mut self, space: SpaceId);

    /// True once everybody has done so who was noted last.
    fn has_dropped_all(&mut self, space: SpaceId) -> bool;

    /// Pushes resident pages of a space, in order from a page on, that are where the pager is in charge;
    /// some thousand at most. Returns where to go on: None at the end, or if nothing can be told now.
    fn residents_from(
        &mut self,
        space: SpaceId,
        from: PageNumber,
        into: &mut Vec<PageNumber>,
    ) -> Option<PageNumber>;

    /// False once the space's last process is gone.
    fn space_alive(&mut self, space: SpaceId) -> bool;

    /// Forgets an address space whose last process is gone. Its own the pager outlives when
    /// forked children do: then the memory is given back.
    fn close_space(&mut self, space: SpaceId);
}
