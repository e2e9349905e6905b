//! What is said: on standard output what was asked for, on standard error all else.

use crate::failure::{EXIT_SIGNAL_BASE, Failure};
use signal_hook::consts::SIGPIPE;
use std::fmt::Display;
use std::io::{ErrorKind, Write as _};

/// Writes whole lines: what has no end of a line gets one.
pub(crate) fn print(text: impl Display) -> Result<(), Failure> {
    let mut text = text.to_string();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    write(text.as_bytes())
}

/// Writes at once. Where nobody reads any more, as after `head`, the command ends without a word, with the
/// status of a program that SIGPIPE has ended.
pub(crate) fn write(bytes: &[u8]) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    let written = output.write_all(bytes).and_then(|()| output.flush());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure {
            code: Some(EXIT_SIGNAL_BASE + SIGPIPE as u8),
            text: String::new(),
        },
        _ => Failure::system("standard output cannot be written", error),
    })
}

/// Lines on standard error. That nobody reads them is no reason to end, or to leave things undone.
pub(crate) fn tell(text: impl Display) {
    let text = text.to_string();
    let lines: String = text
        .lines()
        .map(|line| format!("legato: {line}\n"))
        .collect();
    let _ = std::io::stderr().write_all(lines.as_bytes());
}
