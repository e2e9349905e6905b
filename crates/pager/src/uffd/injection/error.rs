//! What can go wrong, and whose fault it is.

use super::ObjectError;
use legato_base::SystemError;
use rustix::io::Errno;

/// Why nothing was injected. The process runs on as if nothing had been tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InjectionError {
    #[error(
        "the system does not let legato into it (another user, privileges of its own, or \
         kernel.yama.ptrace_scope above 1); run it as the user of legato run, or allow it"
    )]
    NotPermitted,
    #[error("another process traces it; end that, or let it trace something else")]
    TracedByAnother,
    #[error("it has ended, or runs another program now")]
    Gone,
    #[error("32-bit programs cannot run on far memory; use a 64-bit build")]
    ThirtyTwoBit,
    #[error("none of its threads could be stopped; let one go on")]
    Busy,
    #[error("it has filtered its system calls (seccomp); start it without that filter")]
    Filtered,
    #[error("no system call instruction was found in it; please report it")]
    NoSystemCallInstruction,
    #[error("{call} was refused inside it: {}", SystemError(*.errno).advised())]
    CallRefused { call: Call, errno: i32 },
    #[error("the agent's object is damaged: {0}; install legato again")]
    Object(#[from] ObjectError),
    #[error("the agent cannot be started: {}", SystemError(*.0).advised())]
    NotStarted(i32),
    #[error(
        "its agent could not reach legato run, or was sent away; let the program see the directory of the run \
         (LEGATO_CONTROL names a file in it), or start legato run where the program is"
    )]
    AgentRefused,
    #[error("the agent's object does not know this entry; please report it")]
    UnknownEntry,
    #[error("the agent's entry ended by signal {0}; please report it")]
    Crashed(i32),
    #[error("tracing it failed: {}", SystemError(*.0).advised())]
    Tracing(i32),
}

/// A system call that the process makes for its tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Map,
    Advise,
    /// Not a call: the tracer's access to the memory.
    Memory,
}

impl core::fmt::Display for Call {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Map => "mmap",
            Self::Advise => "madvise",
            Self::Memory => "access to memory",
        })
    }
}

impl InjectionError {
    /// Of a request to a thread that is traced already.
    pub(super) const fn of_tracer(error: Errno) -> Self {
        match error {
            // The thread is not there, or not stopped any more: it was killed.
            Errno::SRCH | Errno::CHILD => Self::Gone,
            other => Self::Tracing(other.raw_os_error()),
        }
    }

    pub(super) const fn of_memory(error: Errno) -> Self {
        Self::CallRefused {
            call: Call::Memory,
            errno: error.raw_os_error(),
        }
    }
}
