//! Defaults from the environment: `LEGATO_CACHE` is that of `--cache`, and so on for every option.

use super::Arguments;
use super::misuse::one_line;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory as _, Parser as _};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// A command line that cannot be obeyed.
#[derive(Debug)]
pub(crate) struct Misuse {
    pub(super) error: clap::Error,
    /// The variables that had to do with it.
    pub(super) variables: Vec<String>,
}

/// What a variable says that an option takes no value of.
const YES: [&str; 4] = ["1", "yes", "true", "on"];
const NO: [&str; 4] = ["0", "no", "false", "off"];

/// How the name of every variable begins.
const PREFIX: &str = "LEGATO_";

/// By name.
type Variables = BTreeMap<OsString, OsString>;

/// The command line of this process.
pub(crate) fn parse() -> Result<Arguments, Misuse> {
    let variables = std::env::vars_os()
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
    parse_with(std::env::args_os().collect(), &variables.collect())
}

/// An option that is not on the line, and that nothing on the line excludes, is as if it had been there with
/// what its variable says. A variable that is empty says nothing.
fn parse_with(mut line: Vec<OsString>, variables: &Variables) -> Result<Arguments, Misuse> {
    let of_the_line = |error| Misuse {
        error,
        variables: Vec::new(),
    };
    if variables.is_empty() {
        return Arguments::try_parse_from(line).map_err(of_the_line);
    }
    let given = given_by(&line).map_err(of_the_line)?;
    let mut command = Arguments::command();
    command.build();
    let found = options_of(&command, &given, variables);
    let at = line.len().min(1 + found.depth);
    let options = found.options.iter().map(|(_, option)| option.clone());
    line.splice(at..at, options);
    Arguments::try_parse_from(line).map_err(|error| {
        let text = one_line(&error);
        let concerned = found.options.into_iter().filter(|(variable, _)| {
            let option = option_of(variable);
            text.split(['\'', ' ', '=']).any(|word| word == option)
        });
        Misuse {
            variables: concerned.map(|(variable, _)| variable).collect(),
            error,
        }
    })
}

/// What the line itself says. A mistake in it, and a call for help, is what it would be without an environment.
fn given_by(line: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let command = Arguments::command();
    match command.clone().try_get_matches_from(line) {
        // The environment may have it.
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            command.ignore_errors(true).try_get_matches_from(line)
        }
        result => result,
    }
}

/// What the environment adds to a line.
#[derive(Default)]
struct Found {
    /// How many words of the line name the command: options belong behind them.
    depth: usize,
    /// Variables, and the options that they stand for.
    options: Vec<(String, OsString)>,
}

fn options_of(command: &Command, given: &ArgMatches, variables: &Variables) -> Found {
    if let Some((name, inner)) = given.subcommand() {
        let Some(command) = command.find_subcommand(name) else {
            return Found::default();
        };
        let mut found = options_of(command, inner, variables);
        found.depth += 1;
        return found;
    }
    let is_given =
        |arg: &&Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let on_the_line: Vec<_> = command.get_arguments().filter(is_given).collect();
    // Legato itself uses what is hidden, and says all that it wants.
    if command.is_hide_set() || on_the_line.iter().any(|arg| arg.is_hide_set()) {
        return Found::default();
    }
    let is_excluded = |arg: &Arg| {
        let excludes = |one: &Arg, other: &Arg| {
            let excluded = command.get_arg_conflicts_with(one);
            excluded.iter().any(|arg| arg.get_id() == other.get_id())
        };
        let mut given = on_the_line.iter();
        given.any(|given| {
            given.get_id() == arg.get_id() || excludes(given, arg) || excludes(arg, given)
        })
    };
    let candidates = command
        .get_arguments()
        .filter(|arg| has_variable(arg) && !is_excluded(arg));
    let options = candidates.filter_map(|arg| {
        let name = variable_of(arg.get_long()?);
        let value = variables.get(OsStr::new(&name));
        let option = option(arg, value.filter(|value| !value.is_empty())?)?;
        Some((name, option))
    });
    Found {
        depth: 0,
        options: options.collect(),
    }
}

/// False for `--help` and `--version`, which are no defaults, and for what only Legato itself uses.
fn has_variable(arg: &Arg) -> bool {
    arg.get_long().is_some()
        && !arg.is_hide_set()
        && matches!(
            arg.get_action(),
            ArgAction::Set | ArgAction::Append | ArgAction::SetTrue
        )
}

/// `--cache=64MiB`, or `--quiet`. None if the variable says no.
fn option(arg: &Arg, value: &OsStr) -> Option<OsString> {
    let mut option = OsString::from("--");
    option.push(arg.get_long()?);
    let takes_value = !matches!(arg.get_action(), ArgAction::SetTrue);
    let is = |words: [&str; 4]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    if !takes_value && is(NO) {
        return None;
    }
    // What an option without a value is told, besides yes, is refused by the parser.
    if takes_value || !is(YES) {
        option.push("=");
        option.push(value);
    }
    Some(option)
}

fn variable_of(long: &str) -> String {
    format!("{PREFIX}{}", long.replace('-', "_").to_uppercase())
}

fn option_of(variable: &str) -> String {
    let name = variable.trim_start_matches(PREFIX);
    format!("--{}", name.replace('_', "-").to_lowercase())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::args;
    use legato_base::Bytes;

    pub(crate) fn parse_in(
        environment: &[(&str, &str)],
        line: &[&str],
    ) -> Result<Arguments, Misuse> {
        let environment = environment.iter();
        let variables = environment.map(|(name, value)| (name.into(), value.into()));
        let line = line.iter().map(OsString::from).collect();
        parse_with(line, &variables.collect())
    }

    fn parsed(line: &[&str], environment: &[(&str, &str)]) -> args::Command {
        parse_in(environment, line).unwrap().command
    }

    fn run(line: &[&str], environment: &[(&str, &str)]) -> args::RunArguments {
        let line = [&["legato", "run"], line].concat();
        match parsed(&line, environment) {
            args::Command::Run(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_option_has_a_default_in_the_environment() {
        let environment = [
            ("LEGATO_CACHE", "64MiB"),
            ("LEGATO_QUIET", "Yes"),
            ("LEGATO_NODES", "shm:@a,shm:@b"),
            ("LEGATO_STATS", ""),
        ];
        let found = run(&["sort", "--cache", "1"], &environment);
        assert_eq!((found.cache, found.quiet), (Bytes::mib(64), true));
        assert_eq!((found.nodes.len(), found.stats), (2, None));
        assert_eq!(found.command, ["sort", "--cache", "1"]);
        let node = [("LEGATO_MEMORY", "1GiB"), ("LEGATO_LISTEN", "shm:@a")];
        let args::Command::Node(node) = parsed(&["legato", "node"], &node) else {
            panic!("of another command");
        };
        assert_eq!((node.memory, node.listen.len()), (Some(Bytes::gib(1)), 1));
        let status = [("LEGATO_NODE", "shm:@a"), ("LEGATO_MEMORY", "1GiB")];
        let status = parsed(&["legato", "node", "status"], &status);
        assert!(matches!(status, args::Command::Node(node) if node.memory.is_none()));
    }

    #[test]
    fn the_command_line_goes_before() {
        let found = run(
            &["--cache", "32MiB", "--quiet", "--", "ls"],
            &[("LEGATO_CACHE", "big"), ("LEGATO_QUIET", "no")],
        );
        assert_eq!((found.cache, found.quiet), (Bytes::mib(32), true));
        let found = run(&["--nodes", "shm:@a", "ls"], &[("LEGATO_FAR", "1GiB")]);
        assert_eq!((found.nodes.len(), found.far), (1, None));
        let found = run(&["--far", "1GiB", "ls"], &[("LEGATO_NODES", "shm:@a")]);
        assert_eq!((found.nodes.len(), found.far), (0, Some(Bytes::gib(1))));
        let list = parsed(&["legato", "sim", "--list"], &[("LEGATO_SEED", "1")]);
        assert!(matches!(list, args::Command::Sim(sim) if sim.list && sim.seed.is_none()));
    }

    #[test]
    fn what_legato_itself_starts_has_no_defaults() {
        let line = "legato node --memory 1MiB --listen shm:@a --embedded";
        let line: Vec<_> = line.split(' ').collect();
        let node = parsed(&line, &[("LEGATO_INSECURE", "yes"), ("LEGATO_JSON", "yes")]);
        assert!(matches!(node, args::Command::Node(node) if !node.insecure && !node.json));
    }

    #[test]
    fn no_option_has_a_variable_that_means_something_else() {
        fn variables(command: &Command, all: &mut Vec<String>) {
            let options = command.get_arguments().filter(|arg| has_variable(arg));
            all.extend(options.map(|arg| variable_of(arg.get_long().unwrap())));
            let commands = command.get_subcommands();
            let shown = commands.filter(|command| !command.is_hide_set());
            shown.for_each(|command| variables(command, all));
        }
        let mut all = Vec::new();
        variables(&Arguments::command(), &mut all);
        assert!(all.contains(&"LEGATO_IDLE_POLL".to_owned()));
        for other in ["LOG", "MASK_FEATURES", "CONTROL", "PROXY", "AGENT_OBJECT"] {
            assert!(!all.contains(&format!("LEGATO_{other}")), "{other}");
        }
        let found = all
            .iter()
            .find(|name| variable_of(&option_of(name)[2..]) != **name);
        assert_eq!(found, None);
    }
}
