//! Asks the helper.

use super::INSTALLED;
use crate::own_process::wait_readable;
use crate::run::control;
use legato_base::timeouts::HELPER_ANSWER;
use legato_base::wire::handshake::{ANSWER_SIZE, parse_answer, request};
use legato_pager::uffd::Privileged;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};

/// `legato-uffd`, where root has installed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Helper;

impl Privileged for Helper {
    fn device(&self) -> Option<OwnedFd> {
        None
    }

    fn handshake(&self, context: BorrowedFd<'_>, features: u64) -> Result<(), Errno> {
        match ask(context, features) {
            Some(0) => Ok(()),
            Some(errno) => Err(Errno::from_raw_os_error(errno.cast_signed())),
            None => Err(Errno::PERM),
        }
    }
}

/// None if it is not there, or does not answer.
fn ask(userfaultfd: BorrowedFd<'_>, features: u64) -> Option<u32> {
    let kind = SocketType::SEQPACKET;
    let (socket, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).ok()?;
    let mut command = Command::new(INSTALLED);
    command
        .env_clear()
        .stdin(other)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    // Its end would not be seen otherwise.
    drop(command);
    let asked = control::send(socket.as_fd(), &request(features), &[userfaultfd]);
    let mut bytes = [0; ANSWER_SIZE + 1];
    let answer = (asked && wait_readable(&socket, HELPER_ANSWER))
        .then(|| control::receive(socket.as_fd(), &mut bytes, RecvFlags::DONTWAIT));
    // It has ended or is of no use. Both fail only if it has ended.
    let _ = child.kill();
    let _ = child.wait();
    let (length, _) = answer?.ok()?;
    parse_answer(&bytes[..length]).filter(|errno| i32::try_from(*errno).is_ok())
}
