//! Private anonymous memory, mapped and changed by hand.

use crate::page::{WORDS, Wrong, check_page, fill_page};
use legato_base::PAGE_SIZE;
use std::io;
use std::sync::atomic::AtomicU64;

/// A system call that failed.
pub type CallError = io::Error;

/// Turns the -1 of a system call into its error, with the name of the call.
pub fn check_call(name: &str, result: isize) -> Result<usize, CallError> {
    usize::try_from(result).map_err(|_| {
        let error = CallError::last_os_error();
        CallError::new(error.kind(), format!("{name}: {error}"))
    })
}

/// One mapping. Its words are atomics, so that several threads may look at it at once and a wrong
/// content is a value to report, never undefined behaviour.
#[derive(Debug)]
pub struct Arena {
    base: *mut libc::c_void,
    pages: u64,
}

// SAFETY: the memory is only reached as atomics or by address in system calls.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

impl Arena {
    /// Maps `pages` new pages.
    pub fn new(pages: u64) -> Result<Self, CallError> {
        let length = pages as usize * PAGE_SIZE;
        // SAFETY: a new mapping, where the kernel chooses.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), length, READ_WRITE, PRIVATE, -1, 0) };
        check_call("mmap", base as isize)?;
        Ok(Self { base, pages })
    }

    /// Gives the last pages away: they stay in the same mapping, and are another's to use.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn split_off(&mut self, pages: u64) -> Self {
        assert!(pages < self.pages, "{pages} of {} pages", self.pages);
        self.pages -= pages;
        let base = self.base.wrapping_byte_add(self.length());
        Self { base, pages }
    }

    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// In bytes.
    pub fn length(&self) -> usize {
        self.pages as usize * PAGE_SIZE
    }

    /// The address of a page, for system calls.
    pub fn address(&self, page: u64) -> *mut libc::c_void {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        self.base.wrapping_byte_add(page as usize * PAGE_SIZE)
    }

    pub fn words(&self, page: u64) -> &[AtomicU64] {
        // SAFETY: the page is inside the mapping, which lives as long as self, and is aligned.
        unsafe { core::slice::from_raw_parts(self.address(page).cast(), WORDS) }
    }

    pub fn fill(&self, page: u64, version: u32) {
        fill_page(self.words(page), page, version);
    }

    pub fn check(&self, page: u64, version: u32) -> Result<(), Wrong> {
        check_page(self.words(page), page, version)
    }

    /// `madvise` over `pages` pages from `first` on.
    pub fn advise(&self, first: u64, pages: u64, advice: libc::c_int) -> Result<(), CallError> {
        assert!(first + pages <= self.pages, "a range inside the mapping");
        // SAFETY: the range is inside the mapping, and its content may change: it is atomics.
        let result =
            unsafe { libc::madvise(self.address(first), pages as usize * PAGE_SIZE, advice) };
        check_call("madvise", result as isize).map(drop)
    }

    /// `mprotect` over the whole mapping.
    pub fn protect(&self, protection: libc::c_int) -> Result<(), CallError> {
        // SAFETY: the mapping is ours; who touches it against its protection gets the signal.
        let result = unsafe { libc::mprotect(self.base, self.length(), protection) };
        check_call("mprotect", result as isize).map(drop)
    }

    /// Grows or shrinks the mapping; it may move.
    pub fn resize(&mut self, pages: u64) -> Result<(), CallError> {
        let length = pages as usize * PAGE_SIZE;
        // SAFETY: self is borrowed mutably, so no reference into the old place is alive.
        let base = unsafe { libc::mremap(self.base, self.length(), length, libc::MREMAP_MAYMOVE) };
        check_call("mremap", base as isize)?;
        (self.base, self.pages) = (base, pages);
        Ok(())
    }

    /// Moves the mapping onto a new place.
    pub fn relocate(&mut self) -> Result<(), CallError> {
        let target = Self::new(self.pages)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: no reference into the old place is alive, and the target is a mapping of ours
        // that nobody else knows and that is forgotten below.
        let base =
            unsafe { libc::mremap(self.base, self.length(), self.length(), flags, target.base) };
        check_call("mremap", base as isize)?;
        self.base = base;
        core::mem::forget(target);
        Ok(())
    }

    /// Unmaps `pages` pages from `first` on and maps new ones at the same place.
    pub fn replace(&mut self, first: u64, pages: u64) -> Result<(), CallError> {
        assert!(first + pages <= self.pages, "a range inside the mapping");
        let (address, length) = (self.address(first), pages as usize * PAGE_SIZE);
        // SAFETY: self is borrowed mutably, so no reference into the range is alive.
        check_call("munmap", unsafe { libc::munmap(address, length) } as isize)?;
        let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: the range was ours a moment ago; NOREPLACE fails if it went to somebody else.
        let base = unsafe { libc::mmap(address, length, READ_WRITE, flags, -1, 0) };
        check_call("mmap", base as isize).map(drop)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: nobody borrows from a value that is dropped.
        unsafe { libc::munmap(self.base, self.length()) };
    }
}
