//! The agent's own memory: one reservation in the program's address space, so that telling it
//! from the program's is one comparison. Nothing of it is inherited by `fork` or dumped.

use super::Userfaultfd;
use super::features::Features;
use super::opening::OpenError;
use crate::PageRange;
use legato_base::wire::slot::SLOT_HEADER_SIZE;
use legato_base::{PAGE_SIZE, PageNumber};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Bytes of address space in the reservation.
pub const RESERVATION: u64 = 16 << 30;
/// Where the agent's stack begins and how many bytes it has. The page below is never accessible.
pub const STACK_OFFSET: u64 = 64 << 10;
pub const STACK_SIZE: u64 = 512 << 10;
/// The same of the task that drops pages.
const DROPPER_STACK_OFFSET: u64 = 640 << 10;
const DROPPER_STACK_SIZE: u64 = 64 << 10;
/// Where frames, headers and trash begin.
const FRAMES_OFFSET: u64 = 1 << 20;
/// Where the heap begins; it goes on to the end. It holds the page table, about 1.2 % of far
/// memory, so it is enough for 1000 GiB.
pub const HEAP_OFFSET: u64 = 4 << 30;
/// Where pages are moved to be thrown away: `madvise` on the frames themselves would announce
/// itself to the agent and wait for it.
const TRASH_PAGES: u64 = 1024;
/// Pages of zeros, for as many frames at a time. Only read, they share one page of the kernel's.
const ZERO_PAGES: u32 = 64;
/// Pages that are copied on their way out at a time: as many as the pager evicts in one batch.
const BOUNCE_PAGES: u64 = 128;

/// Of an area where they are put when they are taken away, with a page between two.
const AREA_PAGES: u64 = BOUNCE_PAGES + 1;

/// Where the parts are.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    base: u64,
    frames: u64,
    frame_count: u32,
    headers: u64,
    trash: u64,
    zeros: u64,
    bounce: u64,
    end: u64,
}

impl Layout {
    /// Reserves the address space; nothing of it has memory yet.
    ///
    /// # Errors
    /// The kernel's, for want of address space.
    pub fn reserve() -> Result<u64, Errno> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                RESERVATION as usize,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the reservation is ours.
            unsafe { rustix::mm::madvise(base, RESERVATION as usize, advice) }?;
        }
        Ok(base as u64)
    }

    /// Lays out frames, headers and trash in a reservation.
    ///
    /// # Panics
    /// If they do not fit below the heap.
    pub fn new(base: u64, frame_count: u32) -> Self {
        let page = PAGE_SIZE as u64;
        let frames = base + FRAMES_OFFSET;
        let headers = frames + u64::from(frame_count) * page;
        let header_bytes = u64::from(frame_count) * SLOT_HEADER_SIZE as u64;
        let trash = headers + header_bytes.next_multiple_of(page);
        let zeros = trash + TRASH_PAGES * page;
        let bounce = zeros + u64::from(ZERO_PAGES) * page;
        let end = bounce + BOUNCE_PAGES * page;
        assert!(
            end <= base + HEAP_OFFSET,
            "invariant: the frames end below the heap"
        );
        Self {
            base,
            frames,
            frame_count,
            headers,
            trash,
            zeros,
            bounce,
            end,
        }
    }

    /// The whole reservation: never far, never evicted.
    pub const fn range(&self) -> PageRange {
        PageRange::new(
            PageNumber::containing(self.base),
            RESERVATION >> legato_base::PAGE_SHIFT,
        )
    }

    pub(super) const fn frame(&self, index: u32) -> u64 {
        self.frames + ((index as u64) << legato_base::PAGE_SHIFT)
    }

    pub(super) const fn frame_bytes(&self) -> u64 {
        (self.frame_count as u64) << legato_base::PAGE_SHIFT
    }

    pub(super) const fn header(&self, index: u32) -> u64 {
        self.headers + index as u64 * SLOT_HEADER_SIZE as u64
    }

    pub(super) const fn header_bytes(&self) -> u64 {
        self.frame_count as u64 * SLOT_HEADER_SIZE as u64
    }

    pub(super) const fn trash(&self) -> u64 {
        self.trash
    }

    /// Pages that stay zero: what new frames are filled with.
    pub(super) const fn zeros(&self) -> u64 {
        self.zeros
    }

    pub(super) const fn zero_pages() -> u32 {
        ZERO_PAGES
    }

    /// Where pages are read to that leave by being copied.
    pub(super) const fn bounce(&self) -> u64 {
        self.bounce
    }

    pub(super) const fn bounce_pages() -> u32 {
        BOUNCE_PAGES as u32
    }

    /// An area for as many pages as the bounce pages. Nothing is accessible there, and no area is used
    /// for anything else. None after the last.
    pub(super) const fn area(&self, index: u32) -> Option<PageRange> {
        let start = self.end + index as u64 * AREA_PAGES * PAGE_SIZE as u64;
        let area = PageRange::new(PageNumber::containing(start), AREA_PAGES);
        if area.end().address() <= self.base + HEAP_OFFSET {
            Some(area)
        } else {
            None
        }
    }

    /// Makes a part of an area again what it was, whatever is there.
    ///
    /// # Safety
    /// What is there must be the agent's, and registered nowhere.
    pub(super) unsafe fn clear_area(&self, range: PageRange) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { reserve_at(range, MapFlags::FIXED) }
    }

    /// Reserves a part of an area again, unless something is there.
    pub(super) fn fill_area(&self, range: PageRange) -> Result<(), Errno> {
        // SAFETY: nothing is replaced.
        unsafe { reserve_at(range, MapFlags::FIXED_NOREPLACE) }
    }

    /// The top of the stack of the task that drops pages.
    pub(super) const fn dropper_stack_top(&self) -> u64 {
        self.base + DROPPER_STACK_OFFSET + DROPPER_STACK_SIZE
    }

    /// Makes frames, headers, trash and the dropper's stack usable, and if pages are moved registers frames
    /// and trash, each with the userfaultfd that moves pages there. All of it at once: each part is a mapping,
    /// and a program may have taken all others (`vm.max_map_count`) when it is wanted.
    pub(super) fn activate(
        &self,
        main: &Userfaultfd,
        trash: &Userfaultfd,
        features: Features,
    ) -> Result<(), OpenError> {
        let length = self.end - self.frames;
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        let stack = (self.base + DROPPER_STACK_OFFSET, DROPPER_STACK_SIZE);
        for (start, length) in [stack, (self.frames, length)] {
            // SAFETY: the range is inside the reservation, and nothing is in it yet.
            unsafe { rustix::mm::mprotect(start as *mut _, length as usize, access) }
                .map_err(system)?;
        }
        // A huge page under one frame would give memory to 511 others, and MOVE would have to split
        // it. Refused only by kernels that have no huge pages.
        // SAFETY: as above.
        let _ = unsafe {
            rustix::mm::madvise(
                self.frames as *mut _,
                length as usize,
                Advice::LinuxNoHugepage,
            )
        };
        if !features.can_move() {
            return Ok(());
        }
        // SAFETY: frames are touched only while they have memory, so they never fault; the trash
        // is never touched.
        unsafe {
            main.register(self.frames, self.frame_bytes(), false)
                .map_err(system)?;
            let trash_bytes = TRASH_PAGES << legato_base::PAGE_SHIFT;
            trash
                .register(self.trash, trash_bytes, false)
                .map_err(system)?;
        }
        Ok(())
    }

    /// Pages that fit in the trash.
    pub(super) const fn trash_pages() -> u32 {
        TRASH_PAGES as u32
    }
}

/// # Safety
/// What is replaced must be the agent's.
unsafe fn reserve_at(range: PageRange, how: MapFlags) -> Result<(), Errno> {
    let start = range.start.address() as *mut _;
    let length = (range.count as usize) << legato_base::PAGE_SHIFT;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | how;
    // SAFETY: the caller's promise.
    unsafe {
        rustix::mm::mmap_anonymous(start, length, ProtFlags::empty(), flags)?;
        rustix::mm::madvise(start, length, Advice::LinuxDontFork)?;
        rustix::mm::madvise(start, length, Advice::LinuxDontDump)
    }
}

const fn system(error: Errno) -> OpenError {
    OpenError::System(error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;
    use legato_base::Bytes;

    #[test]
    fn the_largest_cache_has_its_frames_below_the_heap_and_areas_behind_them() {
        let layout = Layout::new(0, Budget::new(Bytes::gib(1 << 20)).frames());
        assert!(layout.area(1000).is_some());
    }
}
