//! `legato-uffd`: lets a process of an ordinary user have a userfaultfd that tells of forks.
//!
//! The kernel asks CAP_SYS_PTRACE for that of whoever calls UFFDIO_API, and of nobody else. `legato allow-users`
//! installs this program with that one capability, which it uses for this one call: on a userfaultfd that a process of
//! its caller's user has made, for the features that Legato uses. It is asked once, by `legato run` or `legato doctor` at
//! the other end of its standard input, and ends.
#![forbid(unsafe_code)]

use legato_base::wire::handshake::{REQUEST_SIZE, answer, parse_request};
use legato_pager::uffd::{handshake_for, is_userfaultfd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};
use rustix::process::getuid;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::ExitCode;

const USAGE: &[u8] =
    b"legato: legato-uffd is started by legato run; see legato allow-users --help\n";

fn main() -> ExitCode {
    let input = std::io::stdin();
    let Some((features, userfaultfd)) = receive(input.as_fd()) else {
        // Whoever does not read it has the status.
        let _ = rustix::io::write(std::io::stderr().as_fd(), USAGE);
        return ExitCode::from(2);
    };
    let result = check(&userfaultfd).and_then(|()| handshake_for(userfaultfd.as_fd(), features));
    let errno = result.map_or_else(|errno| errno.raw_os_error().unsigned_abs(), |()| 0);
    // Whoever does not wait for it does without.
    let _ = send(input.as_fd(), &answer(errno), SendFlags::NOSIGNAL);
    ExitCode::SUCCESS
}

/// The request, with the one descriptor that belongs to it.
fn receive(socket: BorrowedFd<'_>) -> Option<(u64, OwnedFd)> {
    // A byte more, so that the beginning of what is longer is not taken for a request.
    let mut bytes = [0; REQUEST_SIZE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return None;
    }
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let features = parse_request(&bytes[..received.bytes])?;
    let userfaultfd = descriptors.pop()?;
    descriptors.is_empty().then_some((features, userfaultfd))
}

/// Each userfaultfd is a file of whoever has made it (an inode of its own, since Linux 5.12). Before, all of them were
/// root's, and nobody is served.
fn check(userfaultfd: &OwnedFd) -> Result<(), Errno> {
    if !is_userfaultfd(userfaultfd.as_fd()) {
        return Err(Errno::BADF);
    }
    match rustix::fs::fstat(userfaultfd)?.st_uid == getuid().as_raw() {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}
