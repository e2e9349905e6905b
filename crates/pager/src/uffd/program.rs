//! The program that the agent serves: is it there, and is its memory still the agent's?

use super::proc::{self, beginning_of, numbers_in};
use super::system_call::system_call;
use alloc::string::String;
use alloc::vec::Vec;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal};

/// What Linux lets a process have unless `fs.nr_open` says otherwise.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// The program, by process id and by a descriptor that names it even after it has ended.
#[derive(Debug)]
pub(super) struct Program {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Program {
    pub(super) fn open(pid: Pid) -> Result<Self, Errno> {
        Ok(Self {
            pid,
            pidfd: rustix::process::pidfd_open(pid, PidfdFlags::empty())?,
        })
    }

    pub(super) const fn pid(&self) -> Pid {
        self.pid
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// False once the program has ended or runs another image.
    pub(super) fn uses_this_memory(&self) -> bool {
        !is_readable(self.pidfd.as_fd()) && shares_memory(rustix::process::getpid(), self.pid)
    }

    pub(super) fn kill(&self) {
        // Fails only when the program has ended already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

/// True if a read would not block, or the other end is gone.
pub(super) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(ready) if ready > 0)
}

/// True if two processes have one address space. The first thread of a process may end before the
/// others do, and has no address space then; so if need be every thread is asked for. Where it may
/// not be asked (the program has changed its user, say) the answer is yes: the end of the process
/// is seen all the same.
pub(super) fn shares_memory(one: Pid, process: Pid) -> bool {
    let shares = |task| same_memory(one, task).unwrap_or_else(|error| error != Errno::SRCH);
    shares(process)
        || threads_of(process)
            .into_iter()
            .any(|thread| !thread.is_first() && shares(thread.id))
}

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) process: Pid,
    pub(super) id: Pid,
}

impl Thread {
    /// True for the one that the process began with.
    pub(super) fn is_first(self) -> bool {
        self.id == self.process
    }

    /// The id that the thread calls itself by: that in the innermost namespace that it is in (NSpid of
    /// proc_pid_status(5)). None if it is gone.
    pub(super) fn own_id(self) -> Option<u32> {
        let status = self.file("status")?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))?;
        line.split_ascii_whitespace().last()?.parse().ok()
    }

    /// The beginning of a file of the thread in /proc. None if the thread is gone.
    pub(super) fn file(self, name: &str) -> Option<String> {
        let [process, id] = [self.process, self.id].map(Pid::as_raw_pid);
        beginning_of(&alloc::format!("{process}/task/{id}/{name}"))
    }

    /// How long the thread has run, in nanoseconds (Documentation/scheduler/sched-stats.rst). None if it
    /// is gone.
    pub(super) fn run_time(self) -> Option<u64> {
        let times = self.file("schedstat")?;
        times.split_ascii_whitespace().next()?.parse().ok()
    }
}

/// The threads of a process; none of one that is gone.
pub(super) fn threads_of(process: Pid) -> Vec<Thread> {
    numbers_in(&alloc::format!("{}/task", process.as_raw_nonzero()))
        .map(|id| Thread { process, id })
        .collect()
}

/// Other than the first one: they are directories in that of a process's threads.
pub(super) fn has_threads(process: Pid) -> bool {
    const LINKS_OF_ONE: u64 = 3;
    let path = alloc::format!("{}/task", process.as_raw_nonzero());
    proc::stat(&path).is_ok_and(|directory| directory.st_nlink > LINKS_OF_ONE)
}

/// The threads of several processes.
pub(super) fn threads_of_all(processes: &[Pid]) -> Vec<Thread> {
    processes.iter().copied().flat_map(threads_of).collect()
}

/// `kcmp(2)` with KCMP_VM: have both processes one address space?
///
/// # Errors
/// When one of them is gone, or its memory is none of the caller's business.
pub fn same_memory(one: Pid, other: Pid) -> Result<bool, Errno> {
    const SYS_KCMP: i64 = 312;
    const KCMP_VM: i64 = 1;
    let [first, second] = [one, other].map(|pid| i64::from(pid.as_raw_nonzero().get()));
    // SAFETY: kcmp takes integers and touches no memory of ours.
    let order = unsafe { system_call(SYS_KCMP, [first, second, KCMP_VM, 0, 0]) }?;
    // 1, 2 and 3 are orders of different objects.
    Ok(order == 0 && has_memory(one))
}

/// False for a task that has ended and is still listed, and for one of the kernel's. To kcmp(2) all of
/// these are alike.
fn has_memory(task: Pid) -> bool {
    let size = || beginning_of(&alloc::format!("{}/statm", task.as_raw_nonzero()));
    task == rustix::process::getpid() || size().is_some_and(|pages| !pages.starts_with("0 "))
}

/// Lets the calling process have as many descriptors as the system allows, whatever limit it has
/// inherited.
pub fn raise_descriptor_limit() {
    let inherited = rustix::process::getrlimit(Resource::Nofile);
    raise(
        Resource::Nofile,
        inherited.maximum.map(|limit| limit.max(DESCRIPTORS_MAX)),
    );
}

/// Lets the calling process have as much of something as the system allows.
pub(super) fn raise_limit(resource: Resource) {
    match resource {
        // The system has a maximum.
        Resource::Nofile => raise_descriptor_limit(),
        _ => raise(resource, None),
    }
}

fn raise(resource: Resource, wanted: Option<u64>) {
    let set = |maximum| {
        let limit = Rlimit {
            current: maximum,
            maximum,
        };
        rustix::process::setrlimit(resource, limit)
    };
    if set(wanted).is_err() {
        // Without CAP_SYS_RESOURCE that is all. It cannot fail: the maximum stays.
        let _ = set(rustix::process::getrlimit(resource).maximum);
    }
}

/// Closes every descriptor that came along from the program. Otherwise a pipe whose writer has ended would
/// never end for its reader.
pub(super) fn close_all() {
    const SYS_CLOSE_RANGE: i64 = 436;
    // SAFETY: the descriptors are copies that the agent got by being cloned; no Rust object owns
    // any of them. It fails only for a range that is none.
    let _ = unsafe { system_call(SYS_CLOSE_RANGE, [0, i64::from(u32::MAX), 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A child that has ended and is not reaped.
    fn ended() -> (Child, Pid) {
        let child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        while !is_readable(pidfd.as_fd()) {
            std::thread::yield_now();
        }
        (child, pid)
    }

    /// Whoever kills what shares the memory of a process that has just ended must hit no stranger.
    #[test]
    fn processes_that_have_ended_share_no_memory() {
        let (mut first, one) = ended();
        let (mut second, other) = ended();
        assert_eq!(same_memory(one, other), Ok(false));
        let own = rustix::process::getpid();
        assert_eq!(same_memory(own, own), Ok(true));
        first.wait().unwrap();
        second.wait().unwrap();
    }
}
