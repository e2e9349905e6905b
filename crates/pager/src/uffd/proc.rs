//! /proc, where process ids are what the calling process takes them for: a program in a pid namespace of its own
//! may have the /proc of another one, where they are other processes.

use alloc::string::String;
use core::sync::atomic::{AtomicI32, Ordering};
use legato_base::SystemError;
use rustix::fd::{BorrowedFd, IntoRawFd as _, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, getpid};

/// A /proc that is nowhere to be seen; -1 as long as /proc will do.
static OWN: AtomicI32 = AtomicI32::new(-1);

/// There is no such /proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its /proc is not that of its pid namespace, or not there, and another one cannot be had ({}); mount proc at /proc",
    SystemError(.0.raw_os_error())
)]
pub(super) struct NoProc(Errno);

/// Makes sure that there is one, before anything else of this module is used by the calling process.
pub(super) fn enter() -> Result<(), NoProc> {
    if is_own() {
        return Ok(());
    }
    let new = new().map_err(NoProc)?;
    // As long as the process lives.
    OWN.store(new.into_raw_fd(), Ordering::Relaxed);
    Ok(())
}

/// Is /proc that of the calling process's pid namespace?
pub fn is_own() -> bool {
    let own = alloc::format!("{}", getpid().as_raw_nonzero());
    let itself = rustix::fs::readlink("/proc/self", alloc::vec::Vec::new());
    itself.is_ok_and(|itself| itself.as_bytes() == own.as_bytes())
}

/// Makes a /proc of the calling process's pid namespace. Takes CAP_SYS_ADMIN.
fn new() -> Result<OwnedFd, Errno> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
}

/// Opens what is there by this path, which does not begin with `/proc/`.
pub(super) fn open(path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    with(path, |directory, path| {
        rustix::fs::openat(directory, path, flags | OFlags::CLOEXEC, Mode::empty())
    })
}

pub(super) fn stat(path: &str) -> Result<Stat, Errno> {
    with(path, |directory, path| {
        rustix::fs::statat(directory, path, AtFlags::empty())
    })
}

/// The ids that name entries of a directory; none if it cannot be read.
pub(super) fn numbers_in(directory: &str) -> impl Iterator<Item = Pid> + use<> {
    let entries = open(directory, OFlags::RDONLY | OFlags::DIRECTORY)
        .and_then(|directory| rustix::fs::Dir::read_from(&directory));
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str().ok()?.parse().ok()?))
}

/// The first 4096 bytes of a file, or all if it is shorter. None if it is not there.
pub(super) fn beginning_of(path: &str) -> Option<String> {
    let file = open(path, OFlags::RDONLY).ok()?;
    let mut bytes = [0u8; 4096];
    let length = rustix::io::read(&file, &mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

fn with<T>(path: &str, look: impl FnOnce(BorrowedFd<'_>, &str) -> T) -> T {
    match OWN.load(Ordering::Relaxed) {
        -1 => look(CWD, &alloc::format!("/proc/{path}")),
        own => {
            // SAFETY: it is never closed.
            look(unsafe { BorrowedFd::borrow_raw(own) }, path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proc_that_is_nowhere_to_be_seen_shows_this_process() {
        assert!(is_own());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let name = |directory: BorrowedFd<'_>, path: &str| {
            let file = rustix::fs::openat(directory, path, flags, Mode::empty()).unwrap();
            let mut bytes = [0; 64];
            let length = rustix::io::read(&file, &mut bytes).unwrap();
            bytes[..length].to_vec()
        };
        use rustix::fd::AsFd as _;
        let path = alloc::format!("{}/comm", getpid().as_raw_nonzero());
        assert_eq!(
            name(new().unwrap().as_fd(), &path),
            with(&path, |directory, path| name(directory, path))
        );
    }
}
