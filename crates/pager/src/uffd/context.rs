//! One userfaultfd: opening it, its ioctls with errors as values, and its messages.

use super::abi;
use super::features::{self, FeatureError, Features};
use alloc::vec::Vec;
use legato_base::{PAGE_SIZE, PageNumber};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::mm::UserfaultfdFlags;

/// Why there is no userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error(
        "no right to use userfaultfd in full mode: run as root, or give the user read and write \
         access to /dev/userfaultfd (setfacl -m u:USER:rw /dev/userfaultfd), or set the sysctl \
         vm.unprivileged_userfaultfd to 1"
    )]
    NotPermitted,
    #[error("this kernel has no userfaultfd (CONFIG_USERFAULTFD)")]
    NotSupported,
    #[error(transparent)]
    Feature(#[from] FeatureError),
    #[error("the kernel refused userfaultfd (errno {0})")]
    System(i32),
}

/// A userfaultfd of the calling task's address space, or one that the kernel made for a child.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
}

/// A message: a missing page, or a change of the address space.
#[derive(Debug)]
pub(super) enum Message {
    /// If `protected`, the page was there when the thread touched it, but write-protected.
    Fault {
        page: PageNumber,
        protected: bool,
    },
    Forked {
        child: Userfaultfd,
    },
    Remapped {
        from: u64,
        to: u64,
        length: u64,
    },
    /// The range reads zero until it is written; if `unmapped`, it is no longer registered.
    Removed {
        start: u64,
        end: u64,
        unmapped: bool,
    },
}

impl Userfaultfd {
    /// What this kernel can do, but for the features that are masked.
    pub(super) fn probe(masked: u64) -> Result<Features, OpenError> {
        // The features are fixed by the first successful API call, so they are asked for on a
        // descriptor that is thrown away (ioctl_userfaultfd(2)).
        let probe = open_descriptor()?;
        let mut api = abi::Api {
            api: abi::UFFD_API,
            ..abi::Api::default()
        };
        // SAFETY: the API handshake changes no memory.
        unsafe { abi::uffdio_api(probe.as_fd(), &mut api) }.map_err(system)?;
        Ok(features::choose(api.features & !masked)?)
    }

    /// Full mode (faults of the kernel included), with the events that keep the table true.
    pub(super) fn open_with_events(features: Features) -> Result<Self, OpenError> {
        Self::open(features.wanted)
    }

    /// Without events: for memory of the agent's own.
    pub(super) fn open_plain(features: Features) -> Result<Self, OpenError> {
        Self::open(features.wanted & abi::FEATURE_MOVE)
    }

    fn open(wanted: u64) -> Result<Self, OpenError> {
        let fd = open_descriptor()?;
        let mut api = abi::Api {
            api: abi::UFFD_API,
            features: wanted,
            ioctls: 0,
        };
        // SAFETY: as above.
        unsafe { abi::uffdio_api(fd.as_fd(), &mut api) }.map_err(system)?;
        Ok(Self { fd })
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
        progress(transfer.done, length, result)
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

    /// Write-protects the pages of a range that are there. A thread that writes to one waits.
    pub(super) fn protect(&self, start: u64, length: u64) -> Result<(), Errno> {
        self.write_protect(start, length, abi::WRITEPROTECT_MODE_WP)
    }

    /// Ends the write protection of a range, and wakes who waits there.
    pub(super) fn unprotect(&self, start: u64, length: u64) -> Result<(), Errno> {
        self.write_protect(start, length, 0)
    }

    fn write_protect(&self, start: u64, len: u64, mode: u64) -> Result<(), Errno> {
        let mut protect = abi::WriteProtect {
            range: abi::Range { start, len },
            mode,
        };
        // SAFETY: no content changes. A thread may have to wait, for us.
        unsafe { abi::uffdio_writeprotect(self.fd(), &mut protect) }
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

    /// Reads the messages that wait, without blocking: changes first, then faults, because a
    /// fault may already be about the changed address space (the kernel hands out faults first).
    pub(super) fn read(&self, into: &mut Vec<Message>) -> Result<(), Errno> {
        let mut buffer = [0u8; MESSAGE_SIZE * MESSAGES_MAX];
        let length = match rustix::io::read(&self.fd, &mut buffer) {
            Ok(length) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error),
        };
        into.extend(
            buffer[..length]
                .chunks_exact(MESSAGE_SIZE)
                .filter_map(parse),
        );
        into.sort_by_key(|message| matches!(message, Message::Fault { .. }));
        Ok(())
    }

    /// Reads one message if one waits, so that no other thread is let go on.
    pub(super) fn read_one(&self) -> Option<Message> {
        let mut buffer = [0u8; MESSAGE_SIZE];
        let length = rustix::io::read(&self.fd, &mut buffer).ok()?;
        if length == MESSAGE_SIZE {
            parse(&buffer)
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

/// Lowest address that a range may have: vm.mmap_min_addr is at most this by default.
const LOWEST_ADDRESS: u64 = 0x10000;

/// End of the user's half of the address space with four-level page tables, less the guard page
/// (Documentation/arch/x86/x86_64/mm.rst).
const HIGHEST_ADDRESS: u64 = 0x7fff_ffff_f000;

/// `struct uffd_msg` is packed, 32 bytes: an event byte, then from byte 8 three words.
const MESSAGE_SIZE: usize = 32;
const MESSAGES_MAX: usize = 64;

fn parse(message: &[u8]) -> Option<Message> {
    let word = |index: usize| -> u64 {
        let start = 8 + index * 8;
        // A message has 32 bytes and index is at most 2.
        message[start..start + 8]
            .iter()
            .rev()
            .fold(0, |word, &byte| (word << 8) | u64::from(byte))
    };
    match message[0] {
        0x12 => Some(Message::Fault {
            page: PageNumber::containing(word(1)),
            protected: word(0) & abi::PAGEFAULT_FLAG_WP != 0,
        }),
        0x13 => {
            let fd = i32::try_from(word(0) & 0xFFFF_FFFF).ok()?;
            // SAFETY: the kernel has just installed this descriptor in our table for us.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            Some(Message::Forked {
                child: Userfaultfd { fd },
            })
        }
        0x14 => Some(Message::Remapped {
            from: word(0),
            to: word(1),
            length: word(2),
        }),
        event @ (0x15 | 0x16) => Some(Message::Removed {
            start: word(0),
            end: word(1),
            unmapped: event == 0x16,
        }),
        _ => None,
    }
}

/// Bytes done and error of a transfer. The structure holds the bytes, or a negative errno when
/// there were none; a short transfer fails with EAGAIN, whatever stopped it.
fn progress(done: i64, length: u64, result: Result<(), Errno>) -> (u64, Result<(), Errno>) {
    (u64::try_from(done).unwrap_or(0).min(length), result)
}

/// Prefers the device, whose permissions an administrator can grant one user; then the system
/// call, which needs privilege or a sysctl.
fn open_descriptor() -> Result<OwnedFd, OpenError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(device) = rustix::fs::open("/dev/userfaultfd", flags, Mode::empty()) {
        // SAFETY: USERFAULTFD_IOC_NEW takes flags by value and returns a new descriptor.
        let made = unsafe { rustix::ioctl::ioctl(&device, NewUserfaultfd) };
        if let Ok(fd) = made {
            return Ok(fd);
        }
    }
    // SAFETY: a new descriptor; nothing is registered with it yet.
    unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) }
        .map_err(system)
}

fn system(error: Errno) -> OpenError {
    match error {
        Errno::PERM | Errno::ACCESS => OpenError::NotPermitted,
        Errno::NOSYS => OpenError::NotSupported,
        other => OpenError::System(other.raw_os_error()),
    }
}

/// `USERFAULTFD_IOC_NEW`: `_IO(0xAA, 0x00)` with O_CLOEXEC and O_NONBLOCK by value.
struct NewUserfaultfd;

// SAFETY: the argument is an integer, not a pointer, and the return value is a new descriptor.
unsafe impl Ioctl for NewUserfaultfd {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        rustix::ioctl::opcode::none(0xAA, 0x00)
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        core::ptr::without_provenance_mut(flags.bits() as usize)
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the kernel has just made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(output) })
    }
}
