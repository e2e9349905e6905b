//! The program that the agent serves: is it there, and is its memory still the agent's?

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

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

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// False once the program has ended or runs another image: then nobody uses this address
    /// space but the agent, and forked children theirs.
    pub(super) fn uses_this_memory(&self) -> bool {
        !is_readable(self.pidfd.as_fd()) && shares_memory(self.pid)
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

/// `kcmp(2)` with KCMP_VM: 0 if both processes have one address space. Where it may not be asked
/// (the program has changed its user, say) the answer is yes: the end of the process is seen all
/// the same.
fn shares_memory(pid: Pid) -> bool {
    const SYS_KCMP: i64 = 312;
    const KCMP_VM: i64 = 1;
    let own = i64::from(rustix::process::getpid().as_raw_nonzero().get());
    let other = i64::from(pid.as_raw_nonzero().get());
    let result: i64;
    // SAFETY: kcmp takes integers and touches no memory of ours; the registers are those that the
    // x86-64 system call convention changes.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") SYS_KCMP => result,
            in("rdi") own,
            in("rsi") other,
            in("rdx") KCMP_VM,
            in("r10") 0i64,
            in("r8") 0i64,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    // 1 and 2 are orders of different objects; negative values are errors.
    !matches!(result, 1..=3) && result != -i64::from(Errno::SRCH.raw_os_error())
}

/// Closes every descriptor that came along from the program, but for those named. Otherwise a
/// pipe whose writer has ended would never end for its reader.
pub(super) fn close_all_but(keep: &[BorrowedFd<'_>]) {
    let mut keep: alloc::vec::Vec<u32> = keep
        .iter()
        .filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok())
        .collect();
    keep.sort_unstable();
    let mut first = 0;
    for fd in keep {
        if fd > first {
            close_range(first, fd - 1);
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    const SYS_CLOSE_RANGE: i64 = 436;
    // SAFETY: the descriptors are copies that the agent got by being cloned; no Rust object owns
    // any of them.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") SYS_CLOSE_RANGE => _,
            in("rdi") i64::from(first),
            in("rsi") i64::from(last),
            in("rdx") 0i64,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
}
