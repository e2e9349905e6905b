//! A second holder of the userfaultfds of a run, a process of its own.
//!
//! Evicted pages stay missing as long as somebody holds the userfaultfd; when the last holder is gone
//! they read as zeros. The agent holds it, and the supervisor for when the agent dies first. Whoever
//! kills a supervisor that has no time for its agents (it is stopped, say) after an agent has died would
//! take the last one away: a parent-death signal comes only after a dying process's descriptors are
//! closed (`do_exit` in kernel/exit.c). So this process holds them too, and outlives the supervisor.

use super::control;
use super::directory;
use super::held::Held;
use super::processes::has_ended;
use crate::args::KeepArguments;
use crate::failure::Failure;
use crate::own_process::{self, OwnProcess};
use legato_base::Duration;
use legato_pager::uffd::{HeldMemory, raise_descriptor_limit};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;

/// How often it is looked whether the memory of processes that have been killed is gone; no event tells.
const GONE_LOOK: Duration = Duration::from_millis(10);

/// In the byte that comes with a userfaultfd: which descriptors follow that, in this order.
const HAS_AGENT: u8 = 1;
const HAS_PROGRAM: u8 = 2;

/// The process, as the supervisor has it. It is ended when this is dropped: then nothing may be left that
/// could read an evicted page.
#[derive(Debug)]
pub(crate) struct Keeper {
    process: OwnProcess,
    socket: OwnedFd,
}

impl Keeper {
    /// The directory of the run is removed with the last that is left of it.
    pub(crate) fn start(directory: &Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::system("cannot start the process that holds far memory", error)
        };
        let flags = SocketFlags::CLOEXEC;
        let (socket, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|error| failed(error.into()))?;
        let mut command = OwnProcess::command("keep");
        command
            .arg(directory)
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

    /// Has it hold a userfaultfd, of the `program` or of a child that has no agent of its own; `agent`
    /// serves it. From then on it is held, whether or not the process has run meanwhile. False if that
    /// cannot be now.
    pub(crate) fn hold(
        &self,
        userfaultfd: BorrowedFd<'_>,
        agent: Option<BorrowedFd<'_>>,
        program: Option<BorrowedFd<'_>>,
    ) -> bool {
        let flag = |party: &Option<_>, flag| if party.is_some() { flag } else { 0 };
        let kind = flag(&agent, HAS_AGENT) | flag(&program, HAS_PROGRAM);
        let descriptors = std::iter::once(userfaultfd).chain(agent).chain(program);
        control::send(
            self.socket.as_fd(),
            &[kind],
            &descriptors.collect::<Vec<_>>(),
        )
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.process.end(Duration::ZERO);
    }
}

/// Who has to do with memory that the keeper holds.
#[derive(Debug)]
struct Parties {
    agent: Option<OwnedFd>,
    program: Option<OwnedFd>,
}

impl Parties {
    /// An agent that lives serves its memory, whatever has become of the supervisor.
    fn are_without_agent(&self) -> bool {
        self.agent.as_ref().is_none_or(has_ended)
    }
}

/// The process itself. Its standard input is the supervisor's socket; when that ends, so do the programs,
/// and this process once nothing can read an evicted page (P-30). Whoever else uses memory whose agent is
/// gone is unknown here, and gets SIGBUS when it touches a far page.
pub(crate) fn run(arguments: &KeepArguments) -> Result<u8, Failure> {
    own_process::take_name()?;
    // Without a lock the directory may be removed before that, by another run.
    let _lock = directory::lock(&arguments.directory);
    raise_descriptor_limit();
    let mut held = receive_all(std::io::stdin().as_fd());
    held.sift();
    for (_, parties) in held.iter_mut() {
        if let Some(handle) = &parties.program {
            // ESRCH: it has ended, which was the purpose.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
    while !held.is_empty() {
        std::thread::sleep(GONE_LOOK.to_std());
        held.sift();
        let unserved = held
            .iter_mut()
            .filter(|(_, parties)| parties.are_without_agent());
        let forked: Vec<HeldMemory> = unserved
            .flat_map(|(memory, _)| memory.refuse_accesses())
            .collect();
        for memory in forked {
            let (agent, program) = (None, None);
            held.push(memory, Parties { agent, program });
        }
    }
    directory::remove(&arguments.directory);
    Ok(0)
}

/// What there is to hold when the supervisor is gone.
fn receive_all(socket: BorrowedFd<'_>) -> Held<Parties> {
    let mut held = Held::new();
    loop {
        let mut kind = [0];
        match control::receive(socket, &mut kind, RecvFlags::empty()) {
            Err(Errno::INTR) => {}
            Ok((1.., descriptors)) => {
                let mut descriptors = descriptors.into_iter();
                let Some(userfaultfd) = descriptors.next() else {
                    continue;
                };
                let mut party = |flag| (kind[0] & flag != 0).then(|| descriptors.next()).flatten();
                let (agent, program) = (party(HAS_AGENT), party(HAS_PROGRAM));
                held.push(HeldMemory::new(userfaultfd), Parties { agent, program });
            }
            Ok(_) | Err(_) => return held,
        }
    }
}
