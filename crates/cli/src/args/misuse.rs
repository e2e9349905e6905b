//! What the parser refuses, said as everything else is.

use super::environment::Misuse;
use crate::failure::{EXIT_REFUSED, EXIT_RUN_REFUSED};
use crate::output::tell;
use std::ffi::OsStr;
use std::process::ExitCode;

/// Help and versions are printed; anything else is one line, and a status of its own for `legato run`.
pub(crate) fn misused(misuse: &Misuse) -> ExitCode {
    let error = &misuse.error;
    let asked = error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || asked {
        // Nobody is there to be told that nobody reads it.
        let _ = error.print();
    } else {
        tell(told(misuse));
    }
    let run = std::env::args_os().nth(1).as_deref() == Some(OsStr::new("run"));
    ExitCode::from(match (error.use_stderr(), run) {
        (false, _) => 0,
        (true, true) => EXIT_RUN_REFUSED,
        (true, false) => EXIT_REFUSED,
    })
}

/// What is wrong, whose fault it is if it is the environment's, and where there is more.
fn told(misuse: &Misuse) -> String {
    let what = one_line(&misuse.error);
    match misuse.variables.as_slice() {
        [] => format!("{what}; see --help"),
        variables => format!(
            "{what}; in the environment: {}; see --help",
            variables.join(", ")
        ),
    }
}

/// Of paragraphs, without the usage and where there is more help.
pub(super) fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
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
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::environment::tests::parse_in;

    fn said_of(line: &[&str], environment: &[(&str, &str)]) -> String {
        told(&parse_in(environment, line).unwrap_err())
    }

    #[test]
    fn a_mistake_is_one_line() {
        for (line, said) in [
            (
                &["legato", "run", "--idle-poll", "often", "ls"][..],
                "invalid value 'often' for '--idle-poll <WHEN>' [possible values: auto, never]; see --help",
            ),
            (
                &["legato", "run"],
                "the following required arguments were not provided: <PROG>...; see --help",
            ),
            (
                &["legato", "doctor", "--no-bensh"],
                "unexpected argument '--no-bensh' found; tip: a similar argument exists: '--no-bench'; \
                 see --help",
            ),
            (
                &["legato", "walk"],
                "unrecognized subcommand 'walk'; see --help",
            ),
        ] {
            assert_eq!(said_of(line, &[("LEGATO_IDLE_POLL", "never")]), said);
        }
    }

    #[test]
    fn a_mistake_on_the_line_is_not_the_environments() {
        let line = ["legato", "run", "--idle-poll", "often", "ls"];
        assert_eq!(
            said_of(&line, &[("LEGATO_IDLE_POLL", "at times")]),
            said_of(&line, &[])
        );
    }

    #[test]
    fn a_mistake_in_the_environment_is_told_as_such() {
        let run = ["legato", "run", "ls"];
        assert_eq!(
            said_of(&run, &[("LEGATO_IDLE_POLL", "often")]),
            "invalid value 'often' for '--idle-poll <WHEN>' [possible values: auto, never]; \
             in the environment: LEGATO_IDLE_POLL; see --help"
        );
        assert_eq!(
            said_of(&run, &[("LEGATO_QUIET", "perhaps")]),
            "unexpected value 'perhaps' for '--quiet' found; no more were expected; \
             in the environment: LEGATO_QUIET; see --help"
        );
        assert_eq!(
            said_of(&run, &[("LEGATO_FAR", "1GiB"), ("LEGATO_NODES", "shm:@a")]),
            "the argument '--far <SIZE>' cannot be used with '--nodes <ADDR,...>'; \
             in the environment: LEGATO_FAR, LEGATO_NODES; see --help"
        );
    }
}
