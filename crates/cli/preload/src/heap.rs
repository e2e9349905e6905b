//! The agent's heap, in the agent's own reservation. Never far memory, never the program's.
//!
//! What it has counts as local memory, so pages that are not in use go back to the system wherever they
//! lie: small blocks share slabs with others of their size, larger ones have pages of their own.
//! (Allocators that can do without a C library give memory back at the end of the heap, or by whole
//! segments, and the page table of a large program leaves something in each.)

mod pages;
mod slabs;
#[cfg(test)]
mod tests;

use core::alloc::{GlobalAlloc, Layout};
use core::fmt;
use core::ptr::null_mut;
use legato_base::{Bytes, PAGE_SIZE};
use pages::Pages;
use rustix::io::Errno;
use slabs::{Class, Slabs};
use spin::Mutex;

/// The global allocator of the shared object. Only the agent allocates; a second user would spin
/// until the first is done.
pub(crate) struct AgentHeap(Mutex<Heap>);

struct Heap {
    pages: Pages,
    slabs: Slabs,
}

/// A block that nobody has used yet.
struct Block {
    start: *mut u8,
    is_zeros: bool,
}

/// Where blocks of a layout come from.
enum Source {
    Slab(Class),
    /// So many pages.
    Pages(u32),
}

impl Source {
    /// None for what there is not: more than the address space, or an alignment beyond pages.
    fn of(layout: Layout) -> Option<Self> {
        if let Some(class) = Class::of(layout) {
            return Some(Self::Slab(class));
        }
        let pages = layout.size().div_ceil(PAGE_SIZE);
        let pages = u32::try_from(pages).ok()?;
        (layout.align() <= PAGE_SIZE).then_some(Self::Pages(pages))
    }
}

impl fmt::Debug for AgentHeap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentHeap")
    }
}

// SAFETY: what it points to is the heap's memory, which is nobody else's and bound to no thread.
unsafe impl Send for Heap {}

impl AgentHeap {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Heap {
            pages: Pages::new(),
            slabs: Slabs::new(),
        }))
    }

    /// Gives the heap its memory.
    ///
    /// # Safety
    /// `size` bytes from `start` on must be inaccessible private memory that nobody else uses, for as long
    /// as the heap or a block of it is used.
    pub(crate) unsafe fn open(&self, start: u64, size: u64) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.0.lock().pages.open(start, size) }
    }

    fn take(&self, layout: Layout) -> Option<Block> {
        let source = Source::of(layout)?;
        self.0.lock().take(&source)
    }
}

impl Heap {
    fn take(&mut self, source: &Source) -> Option<Block> {
        match *source {
            Source::Slab(class) => {
                let start = self.slabs.take(class, &mut self.pages)?;
                Some(Block {
                    start,
                    is_zeros: false,
                })
            }
            Source::Pages(count) => {
                let pages = self.pages.take(count, 1)?;
                Some(Block {
                    start: self.pages.address(pages.first),
                    is_zeros: pages.are_zeros,
                })
            }
        }
    }

    /// # Safety
    /// The block must have come from this source, and nobody may use it any more.
    unsafe fn give_back(&mut self, block: *mut u8, source: &Source) {
        match *source {
            // SAFETY: the caller's promise.
            Source::Slab(class) => unsafe { self.slabs.give_back(block, class, &mut self.pages) },
            Source::Pages(count) => self.pages.give_back(self.pages.holding(block), count),
        }
    }

    /// Gives a block that has `old` another size where it is, if that can be.
    fn resize(&mut self, block: *mut u8, old: &Source, new: &Source) -> bool {
        match (old, new) {
            (Source::Slab(old), Source::Slab(new)) => old == new,
            (&Source::Pages(old), &Source::Pages(new)) => {
                let first = self.pages.holding(block);
                if new < old {
                    self.pages.give_back(first + new, old - new);
                }
                new <= old || self.pages.take_these(first + old, new - old).is_some()
            }
            _ => false,
        }
    }
}

impl legato_pager::uffd::agent::AgentHeap for AgentHeap {
    fn bytes(&self) -> [Bytes; 2] {
        let [now, peak] = self.0.lock().pages.with_memory();
        [now, peak].map(|pages| Bytes::pages(u64::from(pages)))
    }
}

// SAFETY: blocks in use are apart: slabs and larger blocks have pages of their own, and the blocks of a
// slab are apart. They are as large and as aligned as their source says, and stay where they are.
unsafe impl GlobalAlloc for AgentHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout).map_or(null_mut(), |block| block.start)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(Block { start, is_zeros }) = self.take(layout) else {
            return null_mut();
        };
        if !is_zeros {
            // SAFETY: the block has as many bytes.
            unsafe { start.write_bytes(0, layout.size()) };
        }
        start
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(source) = Source::of(layout) {
            // SAFETY: the caller's promise, as the layout is the one that it came by.
            unsafe { self.0.lock().give_back(block, &source) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let new = Layout::from_size_align(size, layout.align());
        let (Some(old), Some(new)) = (Source::of(layout), new.ok().and_then(Source::of)) else {
            return null_mut();
        };
        let mut heap = self.0.lock();
        if heap.resize(block, &old, &new) {
            return block;
        }
        let Some(Block { start: moved, .. }) = heap.take(&new) else {
            return null_mut();
        };
        // SAFETY: both have as many bytes, and they are apart; the old one is the caller's to give up.
        unsafe {
            core::ptr::copy_nonoverlapping(block, moved, size.min(layout.size()));
            heap.give_back(block, &old);
        }
        moved
    }
}
