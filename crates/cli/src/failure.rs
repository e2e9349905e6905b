//! What ends the command before its work: one line and an exit status.

use legato_base::SystemError;
use std::fmt::Display;
use std::io;

/// A command could not start what it was asked to start.
pub(crate) const EXIT_REFUSED: u8 = 2;
/// The same of `legato run`, whose status is otherwise its program's: few programs have this one, which
/// is also that of env(1), nice(1) and docker for failures of their own.
pub(crate) const EXIT_RUN_REFUSED: u8 = 125;
/// The program exists and cannot be executed (as shells have it, POSIX 2.8.2).
pub(crate) const EXIT_NOT_EXECUTABLE: u8 = 126;
/// There is no such program.
pub(crate) const EXIT_NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended the program.
pub(crate) const EXIT_SIGNAL_BASE: u8 = 128;

/// One line for the user, and the exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    /// None: what the command says when it is refused.
    pub(crate) code: Option<u8>,
    /// Empty if there is nobody to tell.
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn refused(text: impl Display) -> Self {
        Self {
            code: None,
            text: text.to_string(),
        }
    }

    /// For a call that the system refused: `doing` says what it was for. Whose fault it is and what to do
    /// depends on the error.
    pub(crate) fn system(doing: impl Display, error: impl Into<io::Error>) -> Self {
        Self::refused(format_args!("{doing}: {}", advised(&error.into())))
    }
}

/// What the system has said, by its name; Rust shows its number.
pub(crate) fn by_name(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(
        || error.to_string(),
        |number| SystemError(number).to_string(),
    )
}

/// That, and what can be done about it.
pub(crate) fn advised(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(
        || format!("{error}; see docs/troubleshooting.md"),
        |number| SystemError(number).advised().to_string(),
    )
}
