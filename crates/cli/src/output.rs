//! What is said: on standard output what was asked for, on standard error all else.

use crate::failure::{EXIT_SIGNAL_BASE, Failure};
use rustix::termios::tcgetwinsize;
use signal_hook::consts::SIGPIPE;
use std::fmt::Display;
use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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

/// Is there a line of [`show`] on the terminal?
static LIVE: AtomicBool = AtomicBool::new(false);
/// Erases from the cursor to the end of the line (ECMA-48, EL).
const ERASE: &str = "\x1b[K";

/// Lines on standard error. That nobody reads them is no reason to end, or to leave things undone.
pub(crate) fn tell(text: impl Display) {
    let text = text.to_string();
    let lines: String = text
        .lines()
        .map(|line| format!("legato: {line}\n"))
        .collect();
    let mut output = std::io::stderr().lock();
    let erase = match LIVE.swap(false, Ordering::Relaxed) {
        true => ERASE,
        false => "",
    };
    let _ = output.write_all(format!("{erase}{lines}").as_bytes());
}

/// A line on a terminal that takes the place of the one before, or is erased if it is empty. The cursor is at
/// its beginning, so what others write takes its place as well.
pub(crate) fn show(line: &str) {
    let mut output = std::io::stderr().lock();
    let is_there = !line.is_empty();
    if !LIVE.swap(is_there, Ordering::Relaxed) && !is_there {
        return;
    }
    // One that does not fit would leave its first part behind. No columns mean that nobody knows.
    let columns = tcgetwinsize(&output).map_or(0, |size| size.ws_col);
    let columns = if columns == 0 { u16::MAX } else { columns };
    let line: String = match is_there {
        true => format!("legato: {line}")
            .chars()
            .take(columns.into())
            .collect(),
        false => String::new(),
    };
    let _ = output.write_all(format!("{line}{ERASE}\r").as_bytes());
}

/// Hours, minutes and seconds.
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_on_a_clock() {
        let clock = |seconds| clock(Duration::from_secs(seconds));
        assert_eq!([clock(0), clock(61)], ["0:00", "1:01"]);
        assert_eq!(clock(36_000 + 59), "10:00:59");
    }
}
