//! How many faults wait to be read.

use super::Userfaultfd;
use core::cell::OnceCell;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// What the kernel tells of one userfaultfd in /proc.
#[derive(Debug, Default)]
pub(super) struct FaultCount {
    /// Open from the first time on: to open it costs five times as much as to read it.
    file: OnceCell<OwnedFd>,
}

impl FaultCount {
    /// Of this userfaultfd, which must be the same each time (`userfaultfd_show_fdinfo`).
    pub(super) fn read(&self, context: &Userfaultfd) -> usize {
        self.try_read(context).unwrap_or(0)
    }

    fn try_read(&self, context: &Userfaultfd) -> Option<usize> {
        if self.file.get().is_none() {
            // There is none yet.
            let _ = self.file.set(open(context).ok()?);
        }
        let mut text = [0u8; 512];
        // Who reads from the beginning is told how it is now (`seq_read_iter` in fs/seq_file.c).
        let length = rustix::io::pread(self.file.get()?, &mut text, 0).ok()?;
        let text = core::str::from_utf8(&text[..length]).ok()?;
        let mut lines = text.lines();
        let count = lines.find_map(|line| line.strip_prefix("pending:"))?;
        count.trim().parse().ok()
    }
}

fn open(context: &Userfaultfd) -> Result<OwnedFd, Errno> {
    let path = alloc::format!("self/fdinfo/{}", context.fd().as_raw_fd());
    super::proc::open(&path, OFlags::RDONLY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uffd::message::Message;
    use crate::uffd::opening::Opener;
    use crate::uffd::{Mask, abi};
    use legato_base::{PAGE_SIZE, PageNumber};
    use rustix::mm::{MapFlags, ProtFlags};

    /// A page that is registered and missing.
    fn missing(context: &Userfaultfd) -> PageNumber {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let anywhere = core::ptr::null_mut();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address = unsafe { rustix::mm::mmap_anonymous(anywhere, PAGE_SIZE, access, flags) };
        let page = PageNumber::containing(address.unwrap() as u64);
        // SAFETY: the page is missing, and this test gives it.
        unsafe { context.register(page.address(), PAGE_SIZE as u64, false) }.unwrap();
        page
    }

    #[test]
    fn faults_are_counted_until_they_are_read_and_events_are_not_faults() {
        let context = Opener::new(Mask::default())
            .open(abi::FEATURE_EVENT_UNMAP)
            .unwrap();
        let count = FaultCount::default();
        let page = missing(&context);
        assert_eq!(count.read(&context), 0);
        std::thread::scope(|scope| {
            // SAFETY: the page is mapped, and zeros are given for it below.
            scope.spawn(|| unsafe { core::ptr::read_volatile(page.address() as *const u8) });
            while count.read(&context) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(count.read(&context), 1, "it is only looked at");
            assert!(!context.is_changing());
            let fault = context.read_one();
            assert!(matches!(fault, Some(Message::Fault { page: at, .. }) if at == page));
            assert_eq!(count.read(&context), 0);
            // SAFETY: nothing was ever in the page.
            unsafe { context.zero(page) }.unwrap();
        });
        std::thread::scope(|scope| {
            // SAFETY: the page is this test's, and nobody touches it any more.
            scope.spawn(|| unsafe { rustix::mm::munmap(page.address() as *mut _, PAGE_SIZE) });
            while !context.is_changing() {
                std::thread::yield_now();
            }
            assert_eq!(count.read(&context), 0);
            while context.read_one().is_none() {
                std::thread::yield_now();
            }
        });
        assert!(!context.is_changing());
    }
}
