//! The pages of the heap: which are in use, and which of the others have memory.

use core::ops::Range;
use legato_base::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, MprotectFlags};

/// Pages of a slab, which begins at a multiple of them.
pub(super) const SLAB_PAGES: u32 = 4;
const WORD_PAGES: u32 = u64::BITS;
/// The heap becomes accessible by so many pages.
const STEP: u32 = 256;
/// So many pages that are not in use may have memory. Emptying one, and having it again, costs more than
/// most blocks are used for.
const DIRTY_MAX: u32 = 128;

/// What is known of as many pages as a word has bits.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Word {
    used: u64,
    /// Those that are not in use, and have memory.
    dirty: u64,
}

/// What is known of a slab.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct SlabState {
    /// The neighbours in the list of those that have room. They are numbered from 1 there; 0 is none.
    pub(super) next: u32,
    pub(super) previous: u32,
    /// The first free block that was in use before: its place in units of 16 bytes, from 1; 0 is none. In
    /// it is the place of the next.
    pub(super) free: u16,
    /// Where what has never been in use begins, in units of 16 bytes.
    pub(super) fresh: u16,
    /// Blocks in use.
    pub(super) used: u16,
}

/// Pages that have been taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) first: u32,
    pub(super) are_zeros: bool,
}

/// Three arrays, of which the beginnings are accessible: words, states of slabs, and the pages.
#[derive(Debug)]
pub(super) struct Pages {
    words: *mut Word,
    slabs: *mut SlabState,
    start: *mut u8,
    count: u32,
    accessible: u32,
    /// All pages before this one are in use.
    free_from: u32,
    used: u32,
    /// The most of used and dirty ones so far.
    peak: u32,
    dirty: u32,
    /// With so many it is time to empty them.
    empty_at: u32,
}

impl Pages {
    /// None.
    pub(super) const fn new() -> Self {
        Self {
            words: core::ptr::null_mut(),
            slabs: core::ptr::null_mut(),
            start: core::ptr::null_mut(),
            count: 0,
            accessible: 0,
            free_from: 0,
            used: 0,
            peak: 0,
            dirty: 0,
            empty_at: DIRTY_MAX,
        }
    }

    /// # Safety
    /// As for the heap.
    pub(super) unsafe fn open(&mut self, start: u64, size: u64) -> Result<(), Errno> {
        let slab_bytes = u64::from(SLAB_PAGES) * PAGE_SIZE as u64;
        let word_bytes = u64::from(WORD_PAGES) * PAGE_SIZE as u64;
        let round = |bytes: u64| bytes.next_multiple_of(PAGE_SIZE as u64);
        let words = round(size / word_bytes * size_of::<Word>() as u64);
        let slabs = round(size / slab_bytes * size_of::<SlabState>() as u64);
        let first = (start + words + slabs).next_multiple_of(slab_bytes);
        let rest = (start + size).saturating_sub(first) / PAGE_SIZE as u64;
        self.words = core::ptr::with_exposed_provenance_mut(start as usize);
        self.slabs = core::ptr::with_exposed_provenance_mut((start + words) as usize);
        self.start = core::ptr::with_exposed_provenance_mut(first as usize);
        self.count = u32::try_from(rest).map_err(|_| Errno::INVAL)? / STEP * STEP;
        self.make_accessible(STEP)
    }

    /// Pages that have memory, or will when they are written: now, and at most so far.
    pub(super) const fn with_memory(&self) -> [u32; 2] {
        [self.used + self.dirty, self.peak]
    }

    pub(super) const fn address(&self, page: u32) -> *mut u8 {
        self.start.wrapping_add(page as usize * PAGE_SIZE)
    }

    /// The page of a block.
    pub(super) fn holding(&self, block: *mut u8) -> u32 {
        ((block.addr() - self.start.addr()) / PAGE_SIZE) as u32
    }

    /// The state of a slab that has been taken.
    pub(super) fn slab(&mut self, first_page: u32) -> &mut SlabState {
        debug_assert!(first_page < self.accessible, "page {first_page}");
        // SAFETY: of accessible pages the states are so too. Any bytes are a state, and `self` is borrowed
        // for as long as it is.
        unsafe { &mut *self.slabs.add((first_page / SLAB_PAGES) as usize) }
    }

    /// The lowest pages in a row that are free, from a multiple of `align` on.
    pub(super) fn take(&mut self, count: u32, align: u32) -> Option<Taken> {
        let mut first = self.free_from;
        loop {
            first = self.next(first..self.accessible, false);
            first = first.next_multiple_of(align);
            let end = first.checked_add(count).filter(|&end| end <= self.count)?;
            let used = self.next(first..end.min(self.accessible).max(first), true);
            if used >= end.min(self.accessible) {
                break;
            }
            first = used + 1;
        }
        self.take_these(first, count)
    }

    /// Takes pages, if all of them are free.
    pub(super) fn take_these(&mut self, first: u32, count: u32) -> Option<Taken> {
        let end = first.checked_add(count).filter(|&end| end <= self.count)?;
        if end > self.accessible && self.make_accessible(end.next_multiple_of(STEP)).is_err()
            || self.next(first..end, true) < end
        {
            return None;
        }
        if first == self.free_from {
            self.free_from = end;
        }
        let mut dirty = 0;
        self.each_word(first..end, |word, bits| {
            word.used |= bits;
            dirty += (word.dirty & bits).count_ones();
            word.dirty &= !bits;
        });
        self.dirty -= dirty;
        self.used += count;
        self.peak = self.peak.max(self.used + self.dirty);
        Some(Taken {
            first,
            are_zeros: dirty == 0,
        })
    }

    pub(super) fn give_back(&mut self, first: u32, count: u32) {
        self.each_word(first..first + count, |word, bits| {
            word.used &= !bits;
            word.dirty |= bits;
        });
        self.free_from = self.free_from.min(first);
        self.used -= count;
        self.dirty += count;
        if self.dirty > self.empty_at {
            self.empty();
        }
    }

    /// Gives the memory of all pages that are not in use back to the system.
    fn empty(&mut self) {
        let mut page = 0;
        while page < self.accessible {
            let Word { used: _, dirty } = *self.word(page);
            let bits = dirty & u64::MAX << (page % WORD_PAGES);
            if bits == 0 {
                page = (page / WORD_PAGES + 1) * WORD_PAGES;
                continue;
            }
            let first = page / WORD_PAGES * WORD_PAGES + bits.trailing_zeros();
            let count = (dirty >> (first % WORD_PAGES)).trailing_ones();
            page = first + count;
            // SAFETY: nothing in them is used. No userfaultfd is registered for them, so this waits for
            // nobody.
            let emptied = unsafe {
                rustix::mm::madvise(
                    self.address(first).cast(),
                    count as usize * PAGE_SIZE,
                    Advice::LinuxDontNeed,
                )
            };
            if emptied.is_ok() {
                self.each_word(first..page, |word, bits| word.dirty &= !bits);
                self.dirty -= count;
            }
        }
        // What is locked stays.
        self.empty_at = self.dirty + DIRTY_MAX;
    }

    fn make_accessible(&mut self, end: u32) -> Result<(), Errno> {
        let words = end.div_ceil(WORD_PAGES) as usize * size_of::<Word>();
        let slabs = end.div_ceil(SLAB_PAGES) as usize * size_of::<SlabState>();
        let parts = [
            (self.words.cast(), words),
            (self.slabs.cast(), slabs),
            (self.start, end as usize * PAGE_SIZE),
        ];
        for (start, length) in parts {
            let access = MprotectFlags::READ | MprotectFlags::WRITE;
            // SAFETY: inside the heap's memory; what is accessible already stays so.
            unsafe {
                rustix::mm::mprotect(start.cast(), length.next_multiple_of(PAGE_SIZE), access)
            }?;
        }
        self.accessible = end;
        Ok(())
    }

    fn word(&mut self, page: u32) -> &mut Word {
        debug_assert!(page < self.accessible, "page {page}");
        // SAFETY: of accessible pages the words are so too. Any bytes are a word, and `self` is borrowed for
        // as long as it is.
        unsafe { &mut *self.words.add((page / WORD_PAGES) as usize) }
    }

    /// Every word of accessible pages, and which of its bits are theirs.
    fn each_word(&mut self, pages: Range<u32>, mut change: impl FnMut(&mut Word, u64)) {
        let mut page = pages.start;
        while page < pages.end {
            let offset = page % WORD_PAGES;
            let count = (WORD_PAGES - offset).min(pages.end - page);
            change(self.word(page), u64::MAX >> (WORD_PAGES - count) << offset);
            page += count;
        }
    }

    /// The first of some accessible pages that is in use, or that is not; their end if there is none.
    fn next(&mut self, pages: Range<u32>, used: bool) -> u32 {
        let mut page = pages.start;
        while page < pages.end {
            let word = self.word(page).used;
            let wanted = if used { word } else { !word };
            let bits = wanted & u64::MAX << (page % WORD_PAGES);
            let base = page / WORD_PAGES * WORD_PAGES;
            if bits != 0 {
                return pages.end.min(base + bits.trailing_zeros());
            }
            page = base + WORD_PAGES;
        }
        pages.end
    }
}
