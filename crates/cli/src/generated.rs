//! What is made of the definition of the command line: completions and manual pages.

use crate::args::{Arguments, CompletionsArguments, ManualArguments};
use crate::failure::Failure;
use crate::output;
use clap::builder::Resettable;
use clap::{Command, CommandFactory as _};

pub(crate) fn completions(arguments: &CompletionsArguments) -> Result<u8, Failure> {
    let mut script = Vec::new();
    let mut command = visible(&Arguments::command());
    clap_complete::generate(arguments.shell, &mut command, "legato", &mut script);
    output::write(&script)?;
    Ok(0)
}

pub(crate) fn manual(arguments: &ManualArguments) -> Result<u8, Failure> {
    let directory = &arguments.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Arguments::command(), directory))
        .map_err(|error| Failure::system(directory.display(), error))?;
    Ok(0)
}

/// Without what only Legato itself uses, which completions would offer.
fn visible(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let commands = command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set());
    let version = command
        .get_version()
        .map(|version| version.to_owned().into());
    Command::new(command.get_name().to_owned())
        .version(Resettable::from(version))
        .about(Resettable::from(command.get_about().cloned()))
        .args(arguments)
        .subcommands(commands.map(visible))
}
