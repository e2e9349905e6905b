//! Who uses the memory that the agent serves: the program, and other processes that share it.
//!
//! A process shares another's memory if it was made by clone(2) with CLONE_VM and without CLONE_THREAD:
//! a child of vfork(2) until it executes a program, or one that is meant to share it for good. It may
//! outlive the program, or what the program executes. No event tells of such a process, so it is looked
//! for; the last word has the kernel, which knows whether anybody else uses the caller's memory.

use super::proc::numbers_in;
use super::program::{Program, is_readable, same_memory, threads_of};
use super::system_call::system_call;
use alloc::vec::Vec;
use legato_base::{Duration, Time};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// From one look for sharers to the next, while the program runs.
const LOOK: Duration = Duration::from_millis(250);
/// On a machine with many processes a look may take no more than this part of the time.
const LOOK_SHARE: u64 = 100;
/// Looks for processes that were made while others were being killed.
const KILL_LOOKS_MAX: u32 = 16;

/// A process that shares the memory of another.
#[derive(Debug)]
pub struct Sharer {
    of: Pid,
    pid: Pid,
    pidfd: OwnedFd,
}

impl Sharer {
    /// All processes that share the memory of `process`, as far as they may be looked at.
    pub fn all_of(process: Pid) -> Vec<Self> {
        let found = sharers_of(process, true).into_iter();
        found.filter_map(|pid| Self::open(process, pid)).collect()
    }

    /// None if the processes do not share their memory.
    fn open(of: Pid, pid: Pid) -> Option<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let sharer = Self { of, pid, pidfd };
        // The number may have been another process's until now.
        sharer.shares().then_some(sharer)
    }

    fn shares(&self) -> bool {
        !is_readable(self.pidfd.as_fd()) && shares_memory(self.of, self.pid)
    }

    pub fn kill(&self) {
        // Fails only when the process has ended already.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// The processes that use the caller's memory, other than the caller.
#[derive(Debug)]
pub(super) struct Users {
    program: Program,
    /// The program has ended, or runs another image.
    program_left: bool,
    sharers: Vec<Sharer>,
    look_at: Time,
}

impl Users {
    pub(super) const fn new(program: Program) -> Self {
        Self {
            program,
            program_left: false,
            sharers: Vec::new(),
            look_at: Time::ZERO,
        }
    }

    /// Looks who is there; `now` is the clock. True if the sharers are others than before.
    pub(super) fn look(&mut self, now: impl Fn() -> Time) -> bool {
        self.program_left = self.program_left || !self.program.uses_this_memory();
        let before = self.sharers.len();
        self.sharers.retain(Sharer::shares);
        let some_left = self.sharers.len() < before;
        let begin = now();
        if !self.seem_gone() && begin < self.look_at {
            return some_left;
        }
        let some_came = self.find();
        let took = now().since(begin);
        self.look_at = begin
            + LOOK.max(Duration::from_nanos(
                took.as_nanos().saturating_mul(LOOK_SHARE),
            ));
        some_left || some_came
    }

    /// Adds the sharers that are not known yet. True if there are any.
    fn find(&mut self) -> bool {
        let known = self.sharers.len();
        let (own, thoroughly) = (getpid(), self.seem_gone());
        for pid in sharers_of(own, thoroughly) {
            let is_known = self.sharers.iter().any(|sharer| sharer.pid == pid);
            if !is_known && (self.program_left || pid != self.program.pid()) {
                self.sharers.extend(Sharer::open(own, pid));
            }
        }
        self.sharers.len() > known
    }

    /// The processes that share the program's memory, as of the last look.
    pub(super) fn sharers(&self) -> Vec<Pid> {
        self.sharers.iter().map(|sharer| sharer.pid).collect()
    }

    /// True if nobody was seen at the last look.
    pub(super) fn seem_gone(&self) -> bool {
        self.program_left && self.sharers.is_empty()
    }

    /// True if nobody uses this memory but the caller, which must have no other thread.
    pub(super) fn are_gone(&self) -> bool {
        self.seem_gone() && is_alone()
    }

    /// Descriptors that become readable when a user ends.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let program = (!self.program_left).then(|| self.program.fd());
        let sharers = self.sharers.iter().map(|sharer| sharer.pidfd.as_fd());
        program.into_iter().chain(sharers)
    }

    /// Kills everybody who uses this memory.
    pub(super) fn kill(&self) {
        if !self.program_left {
            self.program.kill();
        }
        let mut killed = Vec::new();
        for _ in 0..KILL_LOOKS_MAX {
            let mut new = Sharer::all_of(getpid());
            new.retain(|sharer| !killed.contains(&sharer.pid));
            if new.is_empty() {
                return;
            }
            new.iter().for_each(Sharer::kill);
            killed.extend(new.iter().map(|sharer| sharer.pid));
        }
    }
}

/// Other processes that share the memory of `process`; `thoroughly`, also those whose first thread has
/// ended. Those of whom this must not be asked are not among them.
fn sharers_of(process: Pid, thoroughly: bool) -> Vec<Pid> {
    let shares = |pid: &Pid| match thoroughly {
        true => shares_memory(process, *pid),
        false => same_memory(process, *pid) == Ok(true),
    };
    numbers_in(".")
        .filter(|pid| *pid != process)
        .filter(shares)
        .collect()
}

/// True if a process has the address space of `one`, by any of its threads: the first one may have
/// ended, and has none then.
fn shares_memory(one: Pid, process: Pid) -> bool {
    match same_memory(one, process) {
        Ok(false) => threads_of(process)
            .into_iter()
            .any(|thread| !thread.is_first() && same_memory(one, thread.id) == Ok(true)),
        answer => answer == Ok(true),
    }
}

/// True if no other process uses the caller's memory; false also if the caller has another thread.
/// Where a filter of system calls does not let it be asked, what was seen must do.
pub(super) fn is_alone() -> bool {
    const SYS_UNSHARE: i64 = 272;
    const CLONE_VM: i64 = 0x100;
    // The kernel cannot give the caller memory of its own, and refuses (EINVAL) unless the caller has
    // that already (`check_unshare_flags` in kernel/fork.c). Nothing changes either way.
    // SAFETY: takes an integer, and changes nothing.
    let answer = unsafe { system_call(SYS_UNSHARE, [CLONE_VM]) };
    answer != Err(Errno::INVAL)
}
