//! One userfaultfd: its ioctls with errors as values.

use super::abi;
use super::message::{MESSAGE_SIZE, Message, parse_all};
use super::system_call::system_call;
use crate::PageRange;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use legato_base::{PAGE_SHIFT, PAGE_SIZE, PageNumber};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

/// A userfaultfd of the calling task's address space, or one that the kernel made for a child.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
}

impl Userfaultfd {
    /// Features have been agreed upon.
    pub(super) const fn from_descriptor(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Is this a userfaultfd of the calling task's address space?
    ///
    /// # Errors
    /// EAGAIN while its address space is changing.
    pub(super) fn is_of_this_space(&self) -> Result<bool, Errno> {
        // MOVE within the highest page. It looks first whether the address
        // space is changing (EAGAIN), then whose it is (EINVAL), then for mappings (ENOENT).
        // SAFETY: where nothing is mapped nothing can be moved.
        let (_, result) =
            unsafe { self.move_pages(HIGHEST_PAGE, HIGHEST_PAGE, PAGE_SIZE as u64, false) };
        match result {
            Err(Errno::NOENT) => Ok(true),
            Err(Errno::AGAIN) => Err(Errno::AGAIN),
            _ => Ok(false),
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Registers a range for missing faults, and if `protectable` for write protection.
    ///
    /// # Safety
    /// From now on the caller must answer every fault in the range, with the right content.
    pub(super) unsafe fn register(
        &self,
        start: u64,
        length: u64,
        protectable: bool,
    ) -> Result<(), Errno> {
        let protect = if protectable {
            abi::REGISTER_MODE_WP
        } else {
            0
        };
        let mut register = abi::Register {
            range: abi::Range { start, len: length },
            mode: abi::REGISTER_MODE_MISSING | protect,
            ioctls: 0,
        };
        // SAFETY: registering changes no content; the caller answers for the faults.
        unsafe { abi::uffdio_register(self.fd(), &mut register) }
    }

    /// Is all of a range in one mapping, and that registered?
    ///
    /// # Errors
    /// EAGAIN while the address space is changing.
    pub(super) fn is_registered(&self, range: PageRange) -> Result<bool, Errno> {
        let mut nothing = abi::Fill {
            range: abi::Range {
                start: range.start.address(),
                len: range.count << PAGE_SHIFT,
            },
            mode: 0,
            done: 0,
        };
        // The kernel looks first whether the address space is changing (EAGAIN), then for the mapping
        // (ENOENT; mfill_atomic in mm/userfaultfd.c).
        // SAFETY: CONTINUE is for shared memory, and refused for private memory (EINVAL). No shared
        // memory is ever registered.
        match unsafe { abi::uffdio_continue(self.fd(), &mut nothing) } {
            Err(Errno::AGAIN) => Err(Errno::AGAIN),
            Err(Errno::NOENT) => Ok(false),
            _ => Ok(true),
        }
    }

    /// Ends what [`Self::register`] began; announces nothing.
    ///
    /// # Safety
    /// What is missing in the range reads zero from now on.
    pub(super) unsafe fn unregister(&self, start: u64, len: u64) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { abi::uffdio_unregister(self.fd(), &mut abi::Range { start, len }) }
    }

    /// Moves pages within the address space. Returns the bytes moved, and why not more.
    ///
    /// # Safety
    /// Both ranges must be the caller's to change: what was at `src` is missing afterwards.
    pub(super) unsafe fn move_pages(
        &self,
        dst: u64,
        src: u64,
        length: u64,
        wake: bool,
    ) -> (u64, Result<(), Errno>) {
        let mode = if wake { 0 } else { abi::MOVE_MODE_DONTWAKE };
        let mut transfer = abi::Transfer {
            dst,
            src,
            len: length,
            mode,
            done: 0,
        };
        // SAFETY: the caller's promise.
        let result = unsafe { abi::uffdio_move(self.fd(), &mut transfer) };
        let (done, result) = progress(transfer.done, length, result);
        if result.is_ok() {
            return (done, result);
        }
        match moved_uncounted(dst + done, src + done, length - done) {
            0 => (done, result),
            more if done + more == length => (length, Ok(())),
            more => (done + more, Err(Errno::AGAIN)),
        }
    }

    /// Copies pages from the agent's memory into missing ones, and wakes who waits there.
    ///
    /// # Safety
    /// `src` must be readable for `length` bytes, and its content right for `dst`.
    pub(super) unsafe fn copy(&self, dst: u64, src: u64, length: u64) -> (u64, Result<(), Errno>) {
        let mut transfer = abi::Transfer {
            dst,
            src,
            len: length,
            mode: 0,
            done: 0,
        };
        // SAFETY: the caller's promise.
        let result = unsafe { abi::uffdio_copy(self.fd(), &mut transfer) };
        progress(transfer.done, length, result)
    }

    /// Maps a page of zeros where one is missing, and wakes who waits there.
    ///
    /// # Safety
    /// Zeros must be the right content.
    pub(super) unsafe fn zero(&self, page: PageNumber) -> Result<(), Errno> {
        let mut fill = fill(page);
        // SAFETY: the caller's promise.
        unsafe { abi::uffdio_zeropage(self.fd(), &mut fill) }
    }

    /// Makes accesses to a missing page fail, and wakes who waits there.
    pub(super) fn poison(&self, page: PageNumber) -> Result<(), Errno> {
        let mut fill = fill(page);
        // SAFETY: poisoning a missing page takes no content away; accesses then fail, loudly.
        unsafe { abi::uffdio_poison(self.fd(), &mut fill) }
    }

    /// Lets whoever waits for the page try again.
    pub(super) fn wake(&self, page: PageNumber) -> Result<(), Errno> {
        self.wake_range(page.address(), PAGE_SIZE as u64)
    }

    /// Lets whoever waits in a range try again.
    pub(super) fn wake_range(&self, start: u64, len: u64) -> Result<(), Errno> {
        // SAFETY: waking changes no memory.
        unsafe { abi::uffdio_wake(self.fd(), &mut abi::Range { start, len }) }
    }

    /// Write-protects the pages of a range that are there: a thread that writes to one waits. Where pages can
    /// be marked, those that are missing become marked.
    pub(super) fn protect(&self, start: u64, length: u64) -> Result<(), Errno> {
        write_protect(self.fd(), start, length, abi::WRITEPROTECT_MODE_WP)
    }

    /// Ends the write protection of a range, and wakes who waits there.
    pub(super) fn unprotect(&self, start: u64, length: u64) -> Result<(), Errno> {
        write_protect(self.fd(), start, length, 0)
    }

    /// Marks missing pages of a range, so that the kernel calls them swapped out. Touching one is
    /// announced as before. COPY fills a marked page; MOVE, ZEROPAGE and POISON refuse it (EEXIST), and so
    /// does MOVE from it (EFAULT).
    pub(super) fn mark(&self, range: PageRange) -> Result<(), Errno> {
        self.protect(range.start.address(), range.count << PAGE_SHIFT)
    }

    /// Takes the marks of a range away. Wakes nobody.
    pub(super) fn unmark(&self, start: u64, length: u64) -> Result<(), Errno> {
        let mode = abi::WRITEPROTECT_MODE_DONTWAKE;
        write_protect(self.fd(), start, length, mode)
    }

    /// Lets everybody who waits for any page try again. Costs nothing while nobody waits.
    pub(super) fn wake_all(&self) {
        // Fails only when the address space is gone.
        let _ = self.wake_range(LOWEST_ADDRESS, HIGHEST_ADDRESS - LOWEST_ADDRESS);
    }

    /// False once the address space is gone.
    pub(super) fn is_alive(&self) -> bool {
        // The kernel looks for the address space (ESRCH) before it looks for the range. A page is
        // protected only while the agent is about to evict it, so this ends no protection that
        // anybody relies on.
        self.unprotect(LOWEST_ADDRESS, PAGE_SIZE as u64) != Err(Errno::SRCH)
    }

    /// False once the address space is gone. Disturbs nothing, whoever asks. Kernels before 5.13 do not
    /// tell: true.
    pub(super) fn has_address_space(&self) -> bool {
        let mut nothing = fill(PageNumber::containing(LOWEST_ADDRESS));
        // The kernel looks for the address space (ESRCH) before it looks for the range.
        // SAFETY: CONTINUE is for shared memory, and refused for private memory. No shared memory is
        // ever registered, so whatever is at this address stays as it is.
        let result = unsafe { abi::uffdio_continue(self.fd(), &mut nothing) };
        result != Err(Errno::SRCH)
    }

    /// True while an event that somebody waits with has not been read. (Just after it was read too.)
    pub(super) fn is_changing(&self) -> bool {
        is_changing(self.fd())
    }

    /// Reads up to so many of the messages that wait, without blocking. The kernel hands out faults
    /// first, then changes, the oldest announcement first; here changes come first, because a fault may
    /// already be about the changed address space.
    pub(super) fn read(&self, count: usize, into: &mut Vec<Message>) -> Result<(), Errno> {
        let mut buffer = [MaybeUninit::uninit(); MESSAGE_SIZE * MESSAGES_MAX];
        let room = MESSAGE_SIZE * count.min(MESSAGES_MAX);
        match rustix::io::read(&self.fd, &mut buffer[..room]) {
            Ok((messages, _)) => parse_all(messages, into),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error),
        }
        into.sort_by_key(|message| !message.is_change());
        Ok(())
    }

    /// Reads one message if one waits, so that no other thread is let go on.
    pub(super) fn read_one(&self) -> Option<Message> {
        let mut buffer = [0u8; MESSAGE_SIZE];
        let length = rustix::io::read(&self.fd, &mut buffer).ok()?;
        if length == MESSAGE_SIZE {
            Message::parse(&buffer)
        } else {
            None
        }
    }
}

const fn fill(page: PageNumber) -> abi::Fill {
    let range = abi::Range {
        start: page.address(),
        len: PAGE_SIZE as u64,
    };
    abi::Fill {
        range,
        mode: 0,
        done: 0,
    }
}

/// As [`Userfaultfd::is_changing`].
pub(super) fn is_changing(context: BorrowedFd<'_>) -> bool {
    // The kernel looks for that before it looks at the range, and refuses an empty one (EINVAL) before it
    // looks for the mapping (`userfaultfd_writeprotect` in fs/userfaultfd.c).
    write_protect(context, LOWEST_ADDRESS, 0, 0) == Err(Errno::AGAIN)
}

fn write_protect(context: BorrowedFd<'_>, start: u64, len: u64, mode: u64) -> Result<(), Errno> {
    let mut protect = abi::WriteProtect {
        range: abi::Range { start, len },
        mode,
    };
    // SAFETY: no content changes. A thread may have to wait, for us.
    unsafe { abi::uffdio_writeprotect(context, &mut protect) }
}

/// Lowest address that a range may have: vm.mmap_min_addr is at most this by default.
const LOWEST_ADDRESS: u64 = 0x10000;

/// End of the user's half of the address space with four-level page tables, less the guard page
/// (Documentation/arch/x86/x86_64/mm.rst).
const HIGHEST_ADDRESS: u64 = 0x7fff_ffff_f000;
/// Nothing maps it.
pub(super) const HIGHEST_PAGE: u64 = HIGHEST_ADDRESS - PAGE_SIZE as u64;

/// Messages that are read at once.
pub(super) const MESSAGES_MAX: usize = 64;

/// Bytes from the beginning of a range that UFFDIO_MOVE has moved without saying so. When a page cannot
/// be moved for a moment (it is being migrated, or locked), Linux 6.18 tries again and then forgets that
/// it has succeeded: it moves the same page once more, finds the target full, and refuses
/// (mm/userfaultfd.c, `move_pages`). A page that is at the target and has gone from the source has been
/// moved.
pub(super) fn moved_uncounted(dst: u64, src: u64, length: u64) -> u64 {
    let pages = (length >> PAGE_SHIFT).min(UNCOUNTED_MAX as u64) as usize;
    let (mut there, mut left) = ([0u8; UNCOUNTED_MAX], [0u8; UNCOUNTED_MAX]);
    if !are_present(dst, &mut there[..pages]) || !are_present(src, &mut left[..pages]) {
        return 0;
    }
    let moved = |&(there, left): &(&u8, &u8)| there & 1 == 1 && left & 1 == 0;
    let moved = there[..pages]
        .iter()
        .zip(&left[..pages])
        .take_while(moved)
        .count();
    (moved as u64) << PAGE_SHIFT
}

/// Pages that one page table maps, beyond which UFFDIO_MOVE counts what it has done.
const UNCOUNTED_MAX: usize = 512;

/// Sets bit 0 for each page that is mapped to memory; false where there is no mapping.
fn are_present(address: u64, pages: &mut [u8]) -> bool {
    const SYS_MINCORE: i64 = 27;
    let length = (pages.len() << PAGE_SHIFT) as i64;
    let arguments = [address.cast_signed(), length, pages.as_mut_ptr() as i64];
    // SAFETY: mincore(2) writes a byte for each page of the range, which is as many as there are.
    unsafe { system_call(SYS_MINCORE, arguments) }.is_ok()
}

/// Bytes done and error of a transfer. The structure holds the bytes, or a negative errno when
/// there were none; a short transfer fails with EAGAIN, whatever stopped it.
fn progress(done: i64, length: u64, result: Result<(), Errno>) -> (u64, Result<(), Errno>) {
    (u64::try_from(done).unwrap_or(0).min(length), result)
}
