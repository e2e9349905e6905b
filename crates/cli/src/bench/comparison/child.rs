//! Running one program to its end, or to the user's.

use crate::failure::by_name;
use crate::own_process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long one may take to end when it is told to.
const STOP_MAX: legato_base::Duration = legato_base::Duration::from_secs(5);

/// Why a run gave no figure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChildError {
    #[error("interrupted")]
    Interrupted,
    #[error("did not end within {0} s")]
    TooLong(u32),
    #[error("could not be run: {}", by_name(.0))]
    System(#[from] std::io::Error),
    #[error("failed: {0}")]
    Failed(ExitStatus),
    #[error("printed no figure")]
    NoFigure,
}

/// The signals by which a user ends this command. They are taken from the start, so that swap
/// areas and groups are never left behind.
#[derive(Debug)]
pub(crate) struct Interrupt(UnixStream);

/// A program that ended with success.
#[derive(Debug)]
pub(crate) struct Ended {
    /// From its start to its end.
    pub(crate) took: Duration,
    /// Of a command that has it piped.
    pub(crate) stdout: Option<ChildStdout>,
}

enum Outcome {
    Ended,
    Interrupted,
    TimedOut,
}

impl Interrupt {
    pub(crate) fn take() -> std::io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Self(read))
    }

    /// Runs a program that has so many seconds. What it prints goes where the command says.
    pub(crate) fn run(&self, command: &mut Command, seconds_max: u32) -> Result<Ended, ChildError> {
        let begin = Instant::now();
        // A group of its own: what the terminal sends reaches this process, which ends the other.
        let mut child = command.stdin(Stdio::null()).process_group(0).spawn()?;
        let waited = self.watch(&child, seconds_max);
        let took = begin.elapsed();
        if !matches!(waited, Ok(Outcome::Ended)) {
            end(&mut child)?;
        }
        match waited? {
            Outcome::Interrupted => return Err(ChildError::Interrupted),
            Outcome::TimedOut => return Err(ChildError::TooLong(seconds_max)),
            Outcome::Ended => {}
        }
        let status = child.wait()?;
        if !status.success() {
            return Err(ChildError::Failed(status));
        }
        let stdout = child.stdout.take();
        Ok(Ended { took, stdout })
    }

    /// What a signal wrote is never read: one is enough for all that is still to come.
    fn watch(&self, child: &Child, seconds_max: u32) -> std::io::Result<Outcome> {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let timeout = Timespec {
            tv_sec: seconds_max.into(),
            tv_nsec: 0,
        };
        loop {
            let mut ready = [
                PollFd::new(&self.0, PollFlags::IN),
                PollFd::new(&process, PollFlags::IN),
            ];
            match poll(&mut ready, Some(&timeout)) {
                Ok(0) => return Ok(Outcome::TimedOut),
                Ok(_) if !ready[0].revents().is_empty() => return Ok(Outcome::Interrupted),
                Ok(_) => return Ok(Outcome::Ended),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// SIGTERM first: `legato run` passes it on and takes its memory nodes down. To the whole group: what
/// a program started would outlive it.
fn end(child: &mut Child) -> std::io::Result<()> {
    let pid = Pid::from_child(child);
    // It has not been waited for: the number is still its own.
    kill_process_group(pid, Signal::TERM)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    // Where it has ended, some of its group may go on.
    own_process::wait_readable(&process, STOP_MAX);
    kill_process_group(pid, Signal::KILL)?;
    child.wait().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        command
    }

    #[test]
    fn a_child_gives_what_it_printed_or_its_failure() {
        let interrupt = Interrupt::take().unwrap();
        let ended = interrupt.run(&mut shell("echo 3.5"), 60).unwrap();
        let printed = std::io::read_to_string(ended.stdout.unwrap()).unwrap();
        assert_eq!(printed, "3.5\n");
        let failed = interrupt.run(&mut shell("exit 4"), 60).unwrap_err();
        assert!(matches!(failed, ChildError::Failed(status) if status.code() == Some(4)));
    }

    /// The pipe closes when the last process that holds it has gone.
    #[test]
    fn a_child_that_takes_too_long_goes_with_all_it_started() {
        let interrupt = Interrupt::take().unwrap();
        let (mut read, write) = std::io::pipe().unwrap();
        let mut command = shell("sleep 1000 & wait");
        command.stdout(write);
        let error = interrupt.run(&mut command, 0).unwrap_err();
        assert!(matches!(error, ChildError::TooLong(0)), "{error}");
        // It holds the other end too.
        drop(command);
        assert_eq!(read.read(&mut [0]).unwrap(), 0);
    }
}
