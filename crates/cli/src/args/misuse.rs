//! What the parser refuses, said as everything else is.

use crate::failure::{EXIT_REFUSED, EXIT_RUN_REFUSED};
use std::ffi::OsStr;
use std::process::ExitCode;

/// Help and versions are printed; anything else is one line, and a status of its own for `legato run`.
pub(crate) fn misused(error: &clap::Error) -> ExitCode {
    let asked = error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || asked {
        // Nobody is there to be told that nobody reads it.
        let _ = error.print();
    } else {
        eprintln!("legato: {}", one_line(&error.render().to_string()));
    }
    let run = std::env::args_os().nth(1).as_deref() == Some(OsStr::new("run"));
    ExitCode::from(match (error.use_stderr(), run) {
        (false, _) => 0,
        (true, true) => EXIT_RUN_REFUSED,
        (true, false) => EXIT_REFUSED,
    })
}

/// Of paragraphs: what is wrong, tips, the usage and where there is more help.
fn one_line(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let mut line = String::new();
    for paragraph in text.trim().split("\n\n") {
        if paragraph.starts_with("Usage:") || paragraph.starts_with("For more information") {
            continue;
        }
        for part in paragraph.lines().map(str::trim) {
            let between = match part.starts_with("tip:") {
                _ if line.is_empty() => "",
                true => "; ",
                false => " ",
            };
            line += between;
            line += part;
        }
    }
    line + "; see --help"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Arguments;
    use clap::Parser as _;

    fn said(line: &[&str]) -> String {
        let error = Arguments::try_parse_from(line).unwrap_err();
        one_line(&error.render().to_string())
    }

    #[test]
    fn a_mistake_is_one_line() {
        assert_eq!(
            said(&["legato", "run", "--idle-poll", "often", "ls"]),
            "invalid value 'often' for '--idle-poll <WHEN>' [possible values: auto, never]; see --help"
        );
        assert_eq!(
            said(&["legato", "run"]),
            "the following required arguments were not provided: <PROG>...; see --help"
        );
        assert_eq!(
            said(&["legato", "doctor", "--no-bensh"]),
            "unexpected argument '--no-bensh' found; tip: a similar argument exists: '--no-bench'; see --help"
        );
        assert_eq!(
            said(&["legato", "walk"]),
            "unrecognized subcommand 'walk'; see --help"
        );
    }
}
