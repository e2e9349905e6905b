//! How a program has ended.

use crate::failure::{EXIT_RUN_REFUSED, EXIT_SIGNAL_BASE};
use rustix::process::WaitStatus;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It did not start, because its agent could not, or the run was ended for want of another one; that has said why.
    Refused,
    Exited(u8),
    /// By the signal of this number.
    Killed(u8),
}

impl Outcome {
    /// Of a process that has ended.
    pub(crate) fn of(status: WaitStatus) -> Self {
        let number = |of: Option<i32>| of.and_then(|number| u8::try_from(number).ok());
        match (
            number(status.exit_status()),
            number(status.terminating_signal()),
        ) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Killed(signal),
            (None, None) => Self::Exited(u8::MAX),
        }
    }

    /// What `legato run` returns.
    pub(crate) const fn exit_status(self) -> u8 {
        match self {
            Self::Refused => EXIT_RUN_REFUSED,
            Self::Exited(code) => code,
            Self::Killed(signal) => EXIT_SIGNAL_BASE.saturating_add(signal),
        }
    }

    pub(crate) const fn signal(self) -> Option<u8> {
        match self {
            Self::Killed(signal) => Some(signal),
            Self::Refused | Self::Exited(_) => None,
        }
    }
}
