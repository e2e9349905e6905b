//! The agent's heap: dlmalloc over the agent's own reservation. Never far memory, never the
//! program's.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use dlmalloc::{Allocator, Dlmalloc};
use rustix::mm::{Advice, MprotectFlags};

/// The reservation's heap part as the allocator's operating system: it grows and shrinks at its
/// end.
pub(crate) struct ReservedPages {
    /// Address of the next byte not handed out, and of the end; zero until the heap is opened.
    next: AtomicU64,
    end: AtomicU64,
}

impl ReservedPages {
    /// Takes back what was handed out from `start` to `end`, if nothing was handed out behind it.
    fn take_back(&self, start: u64, end: u64) -> bool {
        if self.next.load(Ordering::Relaxed) != end {
            return false;
        }
        // SAFETY: the allocator gives these pages up. They are not registered with any
        // userfaultfd, so this waits for nobody.
        let emptied = unsafe {
            rustix::mm::madvise(
                start as *mut _,
                (end - start) as usize,
                Advice::LinuxDontNeed,
            )
        };
        if emptied.is_ok() {
            self.next.store(start, Ordering::Relaxed);
        }
        emptied.is_ok()
    }
}

// SAFETY: `alloc` hands out zeroed, exclusive pages; what is taken back is emptied, so that it is
// zeros when it is handed out again.
unsafe impl Allocator for ReservedPages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let size = size.next_multiple_of(legato_base::PAGE_SIZE);
        let start = self.next.load(Ordering::Relaxed);
        let end = start + size as u64;
        if start == 0 || end > self.end.load(Ordering::Relaxed) {
            return (core::ptr::null_mut(), 0, 0);
        }
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: inside the reservation and beyond everything handed out.
        if unsafe { rustix::mm::mprotect(start as *mut _, size, access) }.is_err() {
            return (core::ptr::null_mut(), 0, 0);
        }
        self.next.store(end, Ordering::Relaxed);
        (start as *mut u8, size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        core::ptr::null_mut()
    }

    fn free_part(&self, start: *mut u8, old: usize, new: usize) -> bool {
        self.take_back(start as u64 + new as u64, start as u64 + old as u64)
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
        self.take_back(start as u64, start as u64 + size as u64)
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        legato_base::PAGE_SIZE
    }
}

/// The global allocator of the shared object. Only the agent allocates; a second user would spin
/// until the first is done.
pub(crate) struct AgentHeap {
    busy: AtomicBool,
    inner: UnsafeCell<Dlmalloc<ReservedPages>>,
}

impl fmt::Debug for AgentHeap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentHeap")
    }
}

// SAFETY: `inner` is used only between taking and releasing `busy`.
unsafe impl Sync for AgentHeap {}

impl AgentHeap {
    pub(crate) const fn new() -> Self {
        let pages = ReservedPages {
            next: AtomicU64::new(0),
            end: AtomicU64::new(0),
        };
        Self {
            busy: AtomicBool::new(false),
            inner: UnsafeCell::new(Dlmalloc::new_with_allocator(pages)),
        }
    }

    /// Gives the heap its memory: `size` bytes of inaccessible address space at `start`.
    pub(crate) fn open(&self, start: u64, size: u64) {
        self.with(|heap| {
            let pages = heap.allocator();
            pages.next.store(start, Ordering::Relaxed);
            pages.end.store(start + size, Ordering::Relaxed);
        });
    }

    fn with<T>(&self, use_heap: impl FnOnce(&mut Dlmalloc<ReservedPages>) -> T) -> T {
        while self.busy.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        // SAFETY: `busy` was free and is ours until it is released below.
        let result = use_heap(unsafe { &mut *self.inner.get() });
        self.busy.store(false, Ordering::Release);
        result
    }
}

// SAFETY: dlmalloc's contract is GlobalAlloc's, and access is exclusive.
unsafe impl GlobalAlloc for AgentHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above, and the pointer came from here.
        self.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        self.with(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), size) })
    }
}

/// A line of text in fixed memory, for when the heap cannot be relied on.
#[derive(Debug)]
pub(crate) struct FixedLine {
    bytes: [u8; 512],
    length: usize,
}

impl Default for FixedLine {
    fn default() -> Self {
        Self {
            bytes: [0; 512],
            length: 0,
        }
    }
}

impl FixedLine {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Without a character that was cut in half at the end.
    pub(crate) fn as_str(&self) -> &str {
        let bytes = self.as_bytes();
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
        }
    }
}

impl fmt::Write for FixedLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        if taken < text.len() {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}
