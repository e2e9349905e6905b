//! A second holder of the userfaultfds of a run, a process of its own.
//!
//! Evicted pages stay missing as long as somebody holds the userfaultfd; when the last holder is gone
//! they read as zeros. The agent holds it, and the supervisor for when the agent dies first. Whoever
//! kills a supervisor that has no time for its agents (it is stopped, say) after an agent has died would
//! take the last one away: a parent-death signal comes only after a dying process's descriptors are
//! closed (`do_exit` in kernel/exit.c). So this process holds them too, and outlives the supervisor.

use super::held::Held;
use crate::failure::Failure;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getrlimit, pidfd_open,
    pidfd_send_signal, setrlimit, waitpid,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A userfaultfd, and the program whose memory it is for.
const DESCRIPTORS_MAX: usize = 2;
/// How often it is looked whether the memory of processes that have been killed is gone; no event tells.
const GONE_LOOK: Duration = Duration::from_millis(10);

/// The process, as the supervisor has it. It is ended when this is dropped: then nothing may be left that
/// could read an evicted page.
#[derive(Debug)]
pub(crate) struct Keeper {
    pid: Pid,
    handle: OwnedFd,
    socket: OwnedFd,
    ended: bool,
}

impl Keeper {
    pub(crate) fn start() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::system("cannot start the process that holds far memory", error)
        };
        let flags = SocketFlags::CLOEXEC;
        let (socket, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| failed(error.into()))?;
        let child = Command::new("/proc/self/exe")
            .arg0("legato")
            .arg("keep")
            .stdin(other)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The terminal's signals are for the program.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let pid = Pid::from_child(&child);
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        Ok(Self {
            pid,
            handle,
            socket,
            ended: false,
        })
    }

    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    /// A child has been reaped; it may have been this one.
    pub(crate) fn handle_child_ended(&mut self, pid: Pid) {
        self.ended |= pid == self.pid;
    }

    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Has it hold a userfaultfd, of the `program` or of a child that has no agent of its own. From then
    /// on it is held, whether or not the process has run meanwhile. False if that cannot be now.
    pub(crate) fn hold(
        &self,
        userfaultfd: BorrowedFd<'_>,
        program: Option<BorrowedFd<'_>>,
    ) -> bool {
        let descriptors: Vec<BorrowedFd<'_>> =
            std::iter::once(userfaultfd).chain(program).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors))
            && sendmsg(&self.socket, &[IoSlice::new(&[0])], &mut ancillary, flags).is_ok()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if !self.ended {
            // Both fail only if it has ended by itself.
            let _ = pidfd_send_signal(&self.handle, Signal::KILL);
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

/// The process itself. Its standard input is the supervisor's socket; when that ends, so do the programs,
/// and this process once nothing can read an evicted page. What their agents served besides waits for its
/// pages then: it is unknown here, and can be killed.
pub(crate) fn run() -> Result<u8, Failure> {
    // It was started as /proc/self/exe, which would be its name.
    rustix::thread::set_name(c"legato")
        .map_err(|error| Failure::system("cannot set the process's name", error))?;
    let limit = getrlimit(Resource::Nofile);
    // It can only fail to be raised.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
    let mut held = receive_all(std::io::stdin().as_fd());
    held.sift();
    for (_, program) in held.iter_mut() {
        if let Some(handle) = program {
            // ESRCH: it has ended, which was the purpose.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
    while !held.is_empty() {
        std::thread::sleep(GONE_LOOK);
        held.sift();
    }
    Ok(0)
}

/// What there is to hold when the supervisor is gone.
fn receive_all(socket: BorrowedFd<'_>) -> Held<Option<OwnedFd>> {
    let mut held = Held::new();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            Ok(received) if received.bytes > 0 => {}
            Ok(_) | Err(_) => return held,
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut rights) = message
                && let Some(userfaultfd) = rights.next()
            {
                held.push(userfaultfd, rights.next());
            }
        }
    }
}
