//! Running one toucher to its end, or to the user's.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

/// A toucher that takes longer than this hangs: the slowest disk serves it in a fifth.
const RUN_SECONDS_MAX: i64 = 300;
/// How long one may take to end when it is told to.
const STOP_SECONDS_MAX: i64 = 5;

/// Why a run gave no figure.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    #[error("interrupted")]
    Interrupted,
    #[error("did not end within {RUN_SECONDS_MAX} s")]
    TooLong,
    #[error("could not be run: {0}")]
    System(#[from] std::io::Error),
    #[error("failed: {0}")]
    Failed(ExitStatus),
    #[error("printed no figure")]
    NoFigure,
}

/// The signals by which a user ends this command. They are taken from the start, so that swap
/// areas and groups are never left behind.
#[derive(Debug)]
pub(super) struct Interrupt(UnixStream);

enum Outcome {
    Ended,
    Interrupted,
    TimedOut,
}

impl Interrupt {
    pub(super) fn take() -> std::io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Self(read))
    }

    /// What a signal wrote is never read: one is enough for all that is still to come.
    fn wait(&self, process: &OwnedFd, seconds: i64) -> std::io::Result<Outcome> {
        let timeout = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        loop {
            let mut ready = [
                PollFd::new(&self.0, PollFlags::IN),
                PollFd::new(process, PollFlags::IN),
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

    /// Runs a toucher. Returns the nanoseconds of a touch in each of its passes.
    pub(super) fn run(&self, mut command: Command) -> Result<Vec<f64>, ChildError> {
        // A group of its own: what the terminal sends reaches this process, which ends the other.
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let waited = self.watch(&child);
        if !matches!(waited, Ok(Outcome::Ended)) {
            end(&mut child)?;
        }
        match waited? {
            Outcome::Interrupted => return Err(ChildError::Interrupted),
            Outcome::TimedOut => return Err(ChildError::TooLong),
            Outcome::Ended => {}
        }
        let status = child.wait()?;
        if !status.success() {
            return Err(ChildError::Failed(status));
        }
        // One line and not all there is: a process that outlives the toucher would hold the pipe.
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or(ChildError::NoFigure)?).read_line(&mut line)?;
        figures(&line).ok_or(ChildError::NoFigure)
    }

    fn watch(&self, child: &Child) -> std::io::Result<Outcome> {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        self.wait(&process, RUN_SECONDS_MAX)
    }
}

/// SIGTERM first: `legato run` passes it on and takes its memory nodes down.
fn end(child: &mut Child) -> std::io::Result<()> {
    let pid = Pid::from_child(child);
    // It has not been waited for: the number is still its own.
    kill_process(pid, Signal::TERM)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec {
        tv_sec: STOP_SECONDS_MAX,
        tv_nsec: 0,
    };
    if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)) != Ok(1) {
        child.kill()?;
    }
    child.wait().map(drop)
}

fn figures(line: &str) -> Option<Vec<f64>> {
    let figures: Option<Vec<f64>> = line
        .split_whitespace()
        .map(|word| word.parse().ok())
        .collect();
    figures.filter(|figures| !figures.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_a_line_of_numbers() {
        assert_eq!(figures("12.5 7.0\n"), Some(vec![12.5, 7.0]));
        assert_eq!(figures("\n"), None);
        assert_eq!(figures("no numbers\n"), None);
    }

    #[test]
    fn a_child_gives_its_figures_or_its_failure() {
        let interrupt = Interrupt::take().unwrap();
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        assert_eq!(interrupt.run(shell("echo 3.5")).unwrap(), [3.5]);
        let failed = interrupt.run(shell("exit 4")).unwrap_err();
        assert!(matches!(failed, ChildError::Failed(status) if status.code() == Some(4)));
        let silent = interrupt.run(shell("true")).unwrap_err();
        assert!(matches!(silent, ChildError::NoFigure), "{silent}");
    }
}
