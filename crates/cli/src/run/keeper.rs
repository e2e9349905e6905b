//! A second holder of the userfaultfds of a run, a process of its own.
//!
//! Evicted pages stay missing as long as somebody holds the userfaultfd; when the last holder is gone
//! they read as zeros. The agent holds it, and the supervisor for when the agent dies first. Whoever
//! kills a supervisor that has no time for its agents (it is stopped, say) after an agent has died would
//! take the last one away: a parent-death signal comes only after a dying process's descriptors are
//! closed (`do_exit` in kernel/exit.c). So this process holds them too, and outlives the supervisor.

use super::control;
use super::held::Held;
use crate::failure::Failure;
use crate::own_process::{self, OwnProcess};
use legato_base::Duration;
use legato_pager::uffd::raise_descriptor_limit;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Stdio;

/// How often it is looked whether the memory of processes that have been killed is gone; no event tells.
const GONE_LOOK: Duration = Duration::from_millis(10);

/// The process, as the supervisor has it. It is ended when this is dropped: then nothing may be left that
/// could read an evicted page.
#[derive(Debug)]
pub(crate) struct Keeper {
    process: OwnProcess,
    socket: OwnedFd,
}

impl Keeper {
    pub(crate) fn start() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::system("cannot start the process that holds far memory", error)
        };
        let flags = SocketFlags::CLOEXEC;
        let (socket, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| failed(error.into()))?;
        let mut command = OwnProcess::command("keep");
        command
            .stdin(other)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let (process, _) = OwnProcess::start(&mut command).map_err(failed)?;
        Ok(Self { process, socket })
    }

    pub(crate) const fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// A child has been reaped; it may have been this one.
    pub(crate) fn handle_child_ended(&mut self, pid: Pid) {
        self.process.handle_child_ended(pid);
    }

    pub(crate) const fn has_ended(&self) -> bool {
        self.process.has_ended()
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
        control::send(self.socket.as_fd(), &[0], &descriptors)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.process.end(Duration::ZERO);
    }
}

/// The process itself. Its standard input is the supervisor's socket; when that ends, so do the programs,
/// and this process once nothing can read an evicted page (P-30). What their agents served besides waits for
/// its pages then: it is unknown here, and can be killed.
pub(crate) fn run() -> Result<u8, Failure> {
    own_process::take_name()?;
    raise_descriptor_limit();
    let mut held = receive_all(std::io::stdin().as_fd());
    held.sift();
    for (_, program) in held.iter_mut() {
        if let Some(handle) = program {
            // ESRCH: it has ended, which was the purpose.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
    while !held.is_empty() {
        std::thread::sleep(GONE_LOOK.to_std());
        held.sift();
    }
    Ok(0)
}

/// What there is to hold when the supervisor is gone.
fn receive_all(socket: BorrowedFd<'_>) -> Held<Option<OwnedFd>> {
    let mut held = Held::new();
    loop {
        match control::receive(socket, &mut [0], RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            Ok((1.., descriptors)) => {
                let mut descriptors = descriptors.into_iter();
                if let Some(userfaultfd) = descriptors.next() {
                    held.push(userfaultfd, descriptors.next());
                }
            }
            Ok(_) | Err(_) => return held,
        }
    }
}
