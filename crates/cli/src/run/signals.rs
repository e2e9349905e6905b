//! Signals as events of the supervisor's loop.
//!
//! A terminal sends its signals to the whole foreground process group: the program has them
//! already. What another process sends to the supervisor alone is passed on. The two are told
//! apart by `si_code` (`sigaction(2)`).

use crate::own_process::ignored_signals;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::Cause;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

const FORWARDED: [(i32, Signal); 6] = [
    (SIGHUP, Signal::HUP),
    (SIGINT, Signal::INT),
    (SIGQUIT, Signal::QUIT),
    (SIGTERM, Signal::TERM),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
];

/// What a signal means to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalEvent {
    ChildEnded,
    /// The terminal sent it to the program too.
    FromTerminal(Signal),
    /// Sent to the supervisor alone.
    FromProcess(Signal, Option<Pid>),
}

/// The signals that the supervisor takes. A handler is set back to the default by `execve(2)`,
/// so the program starts as if nobody had asked for them.
#[derive(Debug)]
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, WithOrigin>,
}

impl Signals {
    /// Signals that were ignored on entry (`nohup`) stay ignored, for the program as well.
    pub(crate) fn take() -> std::io::Result<Self> {
        let ignored = ignored_signals(&std::fs::read_to_string("/proc/self/status")?);
        let forwarded = FORWARDED.iter().map(|&(number, _)| number);
        let wanted = forwarded.filter(|&number| ignored & (1 << (number - 1)) == 0);
        let (read, write) = UnixStream::pair()?;
        let all = wanted.chain([SIGCHLD]);
        let delivery = SignalDelivery::with_pipe(read, write, WithOrigin::default(), all)?;
        Ok(Self { delivery })
    }

    pub(crate) fn poll(&mut self) -> Vec<SignalEvent> {
        self.delivery
            .pending()
            .filter_map(|origin| {
                let sender = origin
                    .process
                    .and_then(|process| Pid::from_raw(process.pid));
                classify(origin.signal, origin.cause, sender)
            })
            .collect()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

fn classify(number: i32, cause: Cause, sender: Option<Pid>) -> Option<SignalEvent> {
    if number == SIGCHLD {
        return Some(SignalEvent::ChildEnded);
    }
    let &(_, signal) = FORWARDED.iter().find(|(known, _)| *known == number)?;
    if cause == Cause::Kernel {
        return Some(SignalEvent::FromTerminal(signal));
    }
    Some(SignalEvent::FromProcess(signal, sender))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_the_terminal_are_not_those_of_a_process() {
        let sender = Pid::from_raw(7);
        let sent = Cause::Sent(signal_hook::low_level::siginfo::Sent::User);
        assert_eq!(
            classify(SIGINT, Cause::Kernel, None),
            Some(SignalEvent::FromTerminal(Signal::INT))
        );
        assert_eq!(
            classify(SIGINT, sent, sender),
            Some(SignalEvent::FromProcess(Signal::INT, sender))
        );
        assert_eq!(
            classify(SIGCHLD, sent, sender),
            Some(SignalEvent::ChildEnded)
        );
        assert_eq!(classify(signal_hook::consts::SIGWINCH, sent, sender), None);
    }
}
