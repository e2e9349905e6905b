//! Opens userfaultfds: by the right of the calling process, or with what another one can do for it.
//!
//! A userfaultfd belongs to the memory of whoever makes it, for which access to /dev/userfaultfd is enough. Which
//! features it may have is decided by the rights of whoever calls UFFDIO_API on it: events of forks take
//! CAP_SYS_PTRACE (`userfaultfd_api` in fs/userfaultfd.c).

use super::abi;
use super::context::Userfaultfd;
use super::features::{self, FeatureError, Features, Mask};
use legato_base::SystemError;
use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::mm::UserfaultfdFlags;

/// Why there is no userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error(
        "no right to a userfaultfd that tells of forks; run as root (CAP_SYS_PTRACE), or let root allow it to \
         others, once (legato allow-users)"
    )]
    NotPermitted,
    #[error("this kernel has no userfaultfd (CONFIG_USERFAULTFD); use one that has it")]
    NotSupported,
    #[error(transparent)]
    Feature(#[from] FeatureError),
    #[error("the kernel refused userfaultfd: {}", SystemError(*.0).advised())]
    System(i32),
}

/// A process with more rights.
pub trait Privileged {
    /// /dev/userfaultfd; None if it cannot have it either.
    fn device(&self) -> Option<OwnedFd>;

    /// Calls UFFDIO_API.
    ///
    /// # Errors
    /// The kernel's.
    fn handshake(&self, context: BorrowedFd<'_>, features: u64) -> Result<(), Errno>;
}

/// Opens userfaultfds of the calling task's address space.
pub(super) struct Opener<'a> {
    mask: Mask,
    other: Option<&'a dyn Privileged>,
}

impl<'a> Opener<'a> {
    /// By the calling process's own right.
    pub(super) const fn new(mask: Mask) -> Self {
        Self { mask, other: None }
    }

    /// Whatever the calling process may not do, the other does.
    pub(super) const fn with(mask: Mask, other: &'a dyn Privileged) -> Self {
        Self {
            mask,
            other: Some(other),
        }
    }

    /// Chooses from what this kernel can do, but for the features that are masked.
    pub(super) fn probe(&self) -> Result<Features, OpenError> {
        Ok(features::choose(self.offered()?, self.mask)?)
    }

    /// Asks what this kernel offers.
    pub(super) fn offered(&self) -> Result<u64, OpenError> {
        // The features are fixed by the first successful API call, so they are asked for on a
        // descriptor that is thrown away (ioctl_userfaultfd(2)).
        let probe = self.new_descriptor()?;
        handshake(probe.as_fd(), 0).map_err(system)
    }

    /// Are there userfaultfds with all events for the calling process?
    pub(super) fn may_open(&self) -> Result<(), OpenError> {
        self.open(features::REQUIRED).map(drop)
    }

    /// Full mode (faults of the kernel included), with the events that keep the table true.
    pub(super) fn open_with_events(&self, features: Features) -> Result<Userfaultfd, OpenError> {
        self.open(features.wanted)
    }

    /// Without events: for memory of the agent's own.
    pub(super) fn open_plain(&self, features: Features) -> Result<Userfaultfd, OpenError> {
        self.open(features.wanted & abi::FEATURE_MOVE)
    }

    pub(super) fn open(&self, wanted: u64) -> Result<Userfaultfd, OpenError> {
        let context = self.new_descriptor()?;
        let result = match (handshake(context.as_fd(), wanted), self.other) {
            (Err(Errno::PERM), Some(other)) => other.handshake(context.as_fd(), wanted),
            (result, _) => result.map(drop),
        };
        result.map_err(system)?;
        Ok(Userfaultfd::from_descriptor(context))
    }

    /// Prefers the device, whose permissions an administrator can grant one user; then the system
    /// call, which needs privilege or a sysctl.
    fn new_descriptor(&self) -> Result<OwnedFd, OpenError> {
        let by_other = |error| {
            let other = self.other.filter(|_| !self.mask.device);
            let device = other.and_then(Privileged::device);
            device.map_or(Err(error), |device| new_context(&device))
        };
        open_device(self.mask)
            .or_else(|_| open_by_system_call(self.mask))
            .or_else(by_other)
            .map_err(system)
    }
}

/// For another process.
///
/// # Errors
/// The kernel's.
pub fn device() -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open("/dev/userfaultfd", flags, Mode::empty())
}

/// Calls UFFDIO_API for another process, with features that it wants.
///
/// # Errors
/// The kernel's; EBADF for what is no userfaultfd, EINVAL for features that are not used here.
pub fn handshake_for(context: BorrowedFd<'_>, features: u64) -> Result<(), Errno> {
    if !is_userfaultfd(context) {
        return Err(Errno::BADF);
    }
    if features & !features::USED != 0 {
        return Err(Errno::INVAL);
    }
    handshake(context, features).map(drop)
}

/// Which file this is, the kernel says and nobody else.
pub fn is_userfaultfd(descriptor: BorrowedFd<'_>) -> bool {
    let path = alloc::format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let name = rustix::fs::readlink(path, alloc::vec::Vec::new());
    name.is_ok_and(|name| name.as_bytes() == b"anon_inode:[userfaultfd]")
}

/// Returns the features that the kernel offers.
fn handshake(context: BorrowedFd<'_>, features: u64) -> Result<u64, Errno> {
    let mut api = abi::Api {
        api: abi::UFFD_API,
        features,
        ioctls: 0,
    };
    // SAFETY: the API handshake changes no memory.
    unsafe { abi::uffdio_api(context, &mut api) }?;
    Ok(api.features)
}

/// Through /dev/userfaultfd (Linux 6.1).
pub(super) fn open_device(mask: Mask) -> Result<OwnedFd, Errno> {
    if mask.device {
        return Err(Errno::NOENT);
    }
    new_context(&device()?)
}

fn new_context(device: &OwnedFd) -> Result<OwnedFd, Errno> {
    // SAFETY: USERFAULTFD_IOC_NEW takes flags by value and returns a new descriptor.
    unsafe { rustix::ioctl::ioctl(device, NewUserfaultfd) }
}

pub(super) fn open_by_system_call(mask: Mask) -> Result<OwnedFd, Errno> {
    if mask.system_call {
        return Err(Errno::PERM);
    }
    // SAFETY: a new descriptor; nothing is registered with it yet.
    unsafe { rustix::mm::userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) }
}

pub(super) fn system(error: Errno) -> OpenError {
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
