//! Processes of this very program, which it starts for a run of its own.

use crate::failure::Failure;
use legato_base::Duration;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};
use signal_hook::consts::SIGXFSZ;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::Arc;

/// From now on writing more than RLIMIT_FSIZE is an error (EFBIG), and does not end the process by a signal,
/// without a word and, at a memory node, with all of its pages. Programs that are executed have the signal
/// as before: they inherit no handler.
pub(crate) fn survive_file_size_limit() {
    let is_ignored = std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| ignored_signals(&status) >> (SIGXFSZ - 1) & 1 == 1);
    if !is_ignored {
        // It fails for signals that cannot be handled.
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }
}

/// The mask of ignored signals, bit N-1 for signal N (`SigIgn`, proc_pid_status(5)).
pub(crate) fn ignored_signals(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// A child that runs a subcommand. Its owner is told when it has been reaped.
#[derive(Debug)]
pub(crate) struct OwnProcess {
    pid: Pid,
    handle: OwnedFd,
    ended: bool,
}

impl OwnProcess {
    /// To run a subcommand, in a process group of its own: the terminal's signals are for the program,
    /// which may still need its memory.
    pub(crate) fn command(subcommand: &str) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("legato").arg(subcommand).process_group(0);
        command
    }

    /// Starts such a command.
    pub(crate) fn start(command: &mut Command) -> std::io::Result<(Self, Child)> {
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        let ended = false;
        Ok((Self { pid, handle, ended }, child))
    }

    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    /// A child has been reaped. True if it was this one.
    pub(crate) fn handle_child_ended(&mut self, pid: Pid) -> bool {
        self.ended |= pid == self.pid;
        pid == self.pid
    }

    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if !self.ended {
            // ESRCH: it has ended by itself meanwhile.
            let _ = pidfd_send_signal(&self.handle, signal);
        }
    }

    /// Waits for its end, and kills it when that takes longer than `patience`.
    pub(crate) fn end(&mut self, patience: Duration) {
        if self.ended {
            return;
        }
        if !wait_readable(&self.handle, patience) {
            self.signal(Signal::KILL);
        }
        // Fails only if it has been reaped.
        let _ = waitpid(Some(self.pid), WaitOptions::empty());
        self.ended = true;
    }
}

/// Gives a process that was started as /proc/self/exe, which would be its name, the usual one.
pub(crate) fn take_name() -> Result<(), Failure> {
    rustix::thread::set_name(c"legato")
        .map_err(|error| Failure::system("cannot set the process's name", error))
}

/// True if there is something to read, or its end, within the time.
pub(crate) fn wait_readable(descriptor: &impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit.to_std()).ok();
    let mut descriptors = [PollFd::new(descriptor, PollFlags::IN)];
    loop {
        match poll(&mut descriptors, limit.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.is_ok_and(|ready| ready > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        assert_eq!(
            ignored_signals("Name:\tx\nSigIgn:\t0000000000001001\n"),
            0x1001
        );
        assert_eq!(ignored_signals("Name:\tx\n"), 0);
    }
}
