//! `legato run`: a program, its agents, and the memory nodes that they use.

mod agents;
mod control;
mod nodes;
mod preload;
mod processes;
mod program;
mod signals;
mod stats_file;
mod summary;
mod supervise;

use crate::args::RunArguments;
use crate::failure::{EXIT_NOT_EXECUTABLE, EXIT_REFUSED, Failure};
use crate::machine;
use control::ControlListener;
use legato_base::Bytes;
use nodes::Nodes;
use preload::PreloadFile;
use signals::Signals;
use stats_file::StatsFile;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use supervise::Supervisor;

/// Below this, the reserve and the agent's own memory leave nothing for the program.
const CACHE_MIN: Bytes = Bytes::mib(8);
/// Tells the agent where its supervisor listens.
const CONTROL_VARIABLE: &str = "LEGATO_CONTROL";

/// Everything that can be refused is refused before anything is started.
pub(crate) fn run(arguments: &RunArguments) -> Result<u8, Failure> {
    check_arguments(arguments)?;
    let program = program::find(&arguments.command[0])?;
    let stats_file = arguments
        .stats
        .as_deref()
        .map(StatsFile::prepare)
        .transpose()?;
    let preload = PreloadFile::create()
        .map_err(|error| Failure::system("cannot put the agent into memory", error))?;
    let name = machine::random_name()
        .map_err(|error| Failure::system("cannot draw a random name", error))?;
    let name = format!("legato-run-{name}");
    let listener = ControlListener::bind(&name)
        .map_err(|error| Failure::system("cannot listen for agents", error))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| Failure::system("cannot adopt the program's children", error))?;
    let nodes = Nodes::provide(arguments)?;
    let started = Signals::take()
        .map_err(|error| Failure::system("cannot take signals", error))
        .and_then(|signals| Ok((signals, start(arguments, &program, &preload, &name)?)));
    let (signals, main) = match started {
        Ok(started) => started,
        Err(failure) => {
            nodes.stop();
            return Err(failure);
        }
    };
    let mut supervisor = Supervisor::new(signals, listener, nodes, main, arguments.cache);
    let outcome = supervisor.supervise();
    let (report, nodes) = supervisor.finish(outcome);
    nodes.stop();
    if report.refused {
        return Ok(EXIT_REFUSED);
    }
    if !arguments.quiet {
        eprint!("{}", summary::text(&report));
    }
    if let Some(file) = stats_file {
        file.write(&summary::json(&report))?;
    }
    Ok(report.exit_status)
}

fn check_arguments(arguments: &RunArguments) -> Result<(), Failure> {
    arguments.check().map_err(Failure::refused)?;
    if arguments.cache < CACHE_MIN {
        return Err(Failure::refused(format_args!(
            "--cache {} is less than the minimum of {CACHE_MIN}",
            arguments.cache
        )));
    }
    if std::env::var_os(CONTROL_VARIABLE).is_some() {
        return Err(Failure::refused(
            "already inside a program that legato runs",
        ));
    }
    Ok(())
}

fn start(
    arguments: &RunArguments,
    program: &Path,
    preload: &PreloadFile,
    control: &str,
) -> Result<rustix::process::Pid, Failure> {
    let name: &OsString = &arguments.command[0];
    let child = Command::new(program)
        .arg0(name)
        .args(&arguments.command[1..])
        .env(
            "LD_PRELOAD",
            preload.variable(std::env::var_os("LD_PRELOAD")),
        )
        .env(CONTROL_VARIABLE, control)
        .spawn()
        .map_err(|error| Failure {
            code: EXIT_NOT_EXECUTABLE,
            text: format!("{}: {error}", name.display()),
        })?;
    Ok(rustix::process::Pid::from_child(&child))
}
