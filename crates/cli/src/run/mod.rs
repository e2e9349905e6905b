//! `legato run`: a program, its agents, and the memory nodes that they use.

mod agents;
mod budget;
pub(crate) mod control;
mod directory;
mod held;
mod helpers;
pub(crate) mod idle_poll;
mod injector;
mod intruder;
pub(crate) mod keeper;
pub(crate) mod launch;
pub(crate) mod local;
mod nodes;
mod outcome;
mod preload;
pub(crate) mod processes;
mod program;
pub(crate) mod progress;
mod proxies;
mod reach;
pub(crate) mod record;
mod signals;
mod stats;
mod stats_file;
mod summary;
mod supervise;
mod tree;
mod unserved;

use crate::args::RunArguments;
use crate::failure::{EXIT_NOT_EXECUTABLE, Failure, advised};
use crate::output::tell;
use control::ControlListener;
use directory::RunDirectory;
use helpers::Helpers;
use injector::{Injector, InjectorError};
use keeper::Keeper;
use legato_base::Bytes;
use local::LocalProcesses;
use nodes::Nodes;
use outcome::Outcome;
use program::Found;
use progress::Progress;
use proxies::Proxies;
use record::Record;
use signals::Signals;
use stats_file::StatsFile;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;
use supervise::{Limits, Supervisor};

/// Below this, the reserve and the agent's own memory leave nothing for the program.
pub(crate) const CACHE_MIN: Bytes = Bytes::mib(8);
/// Tells the agent where its supervisor listens.
const CONTROL_VARIABLE: &str = "LEGATO_CONTROL";
/// Tells the agent which filters of system calls are none of its program's.
const FILTERS_VARIABLE: &str = "LEGATO_FILTERS";
/// An aid for tests, which agents read in their own environment where they have one.
const MASK_VARIABLE: &str = "LEGATO_MASK_FEATURES";

/// Everything that can be refused is refused before anything is started.
pub(crate) fn run(arguments: &RunArguments) -> Result<u8, Failure> {
    check_arguments(arguments)?;
    let program = program::find(&arguments.command[0])?;
    let stats_file = arguments
        .stats
        .as_deref()
        .map(StatsFile::prepare)
        .transpose()?;
    // Removed when all else is over.
    let directory = RunDirectory::create()?;
    let listener = ControlListener::bind(&directory.control())
        .map_err(|error| Failure::system("cannot listen for agents", error))?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| Failure::system("cannot adopt the program's children", error))?;
    let nodes = Nodes::provide(arguments, &directory)?;
    let masked_features = std::env::var_os(MASK_VARIABLE).unwrap_or_default();
    let mut injector = Injector::start(&directory.control(), masked_features.as_encoded_bytes())
        .map_err(InjectorError::failure)?;
    let started = Signals::take()
        .map_err(|error| Failure::system("cannot take signals", error))
        .and_then(|signals| {
            let proxies = Proxies::for_nodes(&nodes)?;
            let keeper = Keeper::start(directory.path())?;
            let record = Record::new(&arguments.command, arguments.cache, &nodes).publish();
            let record = record.map_err(|error| {
                Failure::system("cannot put the run's record into memory", error)
            })?;
            let local = LocalProcesses::new().map_err(|error| {
                Failure::system("cannot put the run's record into memory", error)
            })?;
            let main = start(arguments, &program, &directory, &mut injector)?;
            Ok((signals, proxies, keeper, record, local, main))
        });
    // The record is there until the run is over.
    let (signals, proxies, keeper, _record, local, main) = match started {
        Ok(started) => started,
        Err(failure) => {
            nodes.stop();
            return Err(failure);
        }
    };
    let injector = Rc::new(RefCell::new(injector));
    let helpers = Helpers {
        nodes,
        proxies,
        keeper: Some(keeper),
        directory: directory.path().to_owned(),
        idle_poll: arguments.idle_poll,
    };
    let began = Instant::now();
    let progress = arguments.progress.then(|| Progress::start(began));
    let mut supervisor = Supervisor::new(
        signals,
        listener,
        helpers,
        injector,
        main,
        Limits {
            cache: arguments.cache,
            local,
            strict: arguments.strict,
        },
        progress,
    );
    let outcome = supervisor.supervise();
    let elapsed = began.elapsed();
    let (report, nodes) = supervisor.finish(outcome);
    nodes.stop();
    if !arguments.quiet && report.outcome != Outcome::Refused {
        tell(summary::text(&report));
    }
    if let Some(file) = stats_file {
        let value = stats::json(&report, &arguments.command, elapsed);
        if let Err(failure) = file.write(&value) {
            // The program has ended as it has.
            tell(failure.text);
        }
    }
    Ok(report.outcome.exit_status())
}

fn check_arguments(arguments: &RunArguments) -> Result<(), Failure> {
    arguments.check().map_err(Failure::refused)?;
    check_cache(arguments.cache)?;
    if !legato_pager::uffd::has_own_proc() {
        return Err(Failure::refused(
            "/proc is not that of this pid namespace, or not there; mount proc at /proc",
        ));
    }
    if std::env::var_os(CONTROL_VARIABLE).is_some() {
        return Err(Failure::refused(
            "already inside a program that legato runs; its children run under it too; start them without \
             legato run",
        ));
    }
    Ok(())
}

/// Is it enough for a process?
pub(crate) fn check_cache(cache: Bytes) -> Result<(), Failure> {
    if cache < CACHE_MIN {
        return Err(Failure::refused(format_args!(
            "--cache {cache} is less than the minimum of {CACHE_MIN}; give more"
        )));
    }
    Ok(())
}

/// A program as it is to be started.
#[derive(Debug)]
struct Invocation<'a> {
    program: &'a Path,
    /// What it finds as its own name.
    name: &'a OsStr,
    arguments: &'a [OsString],
    preload: &'a OsStr,
    control: &'a OsStr,
}

impl Invocation<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command
            .arg0(self.name)
            .args(self.arguments)
            .env("LD_PRELOAD", self.preload)
            .env(CONTROL_VARIABLE, self.control)
            .env(FILTERS_VARIABLE, processes::own_filters().to_string());
        command
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        Failure {
            code: Some(EXIT_NOT_EXECUTABLE),
            text: format!("{}: {}", self.name.display(), advised(error)),
        }
    }
}

fn start(
    arguments: &RunArguments,
    program: &Found,
    directory: &RunDirectory,
    injector: &mut Injector,
) -> Result<rustix::process::Pid, Failure> {
    // A program without a loader may well start others that have one.
    let preload = preload::variable(&directory.object(), std::env::var_os("LD_PRELOAD"));
    let control = directory.control();
    let invocation = Invocation {
        program: &program.path,
        name: &arguments.command[0],
        arguments: &arguments.command[1..],
        preload: &preload,
        control: control.as_os_str(),
    };
    if !program.has_loader {
        return launch::start(&invocation, injector);
    }
    let child = invocation.command().spawn();
    let child = child.map_err(|error| invocation.failure(&error))?;
    Ok(rustix::process::Pid::from_child(&child))
}
