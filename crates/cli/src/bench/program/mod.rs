//! A program's time under Legato, under Linux swap with the same limit, and on local memory.

use super::comparison::{
    self, ChildError, Comparison, Interrupt, Report, Row, RunError, Runner, Unit, Work,
};
use crate::args::BenchProgramArguments;
use crate::failure::Failure;
use crate::machine;
use crate::output::tell;
use crate::run::{CACHE_MIN, check_cache};
use legato_base::Bytes;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{Read as _, Seek as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) fn run(arguments: &BenchProgramArguments) -> Result<u8, Failure> {
    arguments.cache.map_or(Ok(()), check_cache)?;
    let runner = Runner::start()?;
    let program = Program::started(arguments, &runner.interrupt)?;
    let memory = program.memory(&runner)?;
    let cache = arguments.cache;
    let cache = cache.unwrap_or_else(|| share(memory, arguments.local));
    let local_percent = (cache.0 as f64 / memory.0 as f64 * 100.0).min(100.0);
    let comparison = Comparison::prepare(runner, &arguments.against, cache, memory);
    let work = work(arguments, memory);
    let mut report = Report {
        title: format!(
            "s from start to end, medians of {} interleaved rounds; {memory} of memory, {local_percent:.0} % local",
            arguments.rounds
        ),
        unit: Unit::Seconds,
        settings: json!({"memory_bytes": memory.0}),
        conditions: comparison.conditions(arguments.rounds),
        plain_is_baseline: true,
        rows: vec![row(arguments)],
        missing: Vec::new(),
    };
    comparison::measure(&mut report, &[()], |contender, ()| {
        comparison.run(contender, &work, |interrupt, command| {
            Ok(program.run(interrupt, command)?.as_secs_f64())
        })
    })?;
    comparison::finish(&report, arguments.json)
}

/// A program, and what it prints on local memory.
struct Program<'a> {
    arguments: &'a BenchProgramArguments,
    output: Vec<u8>,
}

impl<'a> Program<'a> {
    /// Runs it on local memory, which also brings the files that it reads into memory.
    fn started(
        arguments: &'a BenchProgramArguments,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let (output, took) = measured(arguments, interrupt, &mut work(arguments, Bytes(0)).plain())
            .map_err(|error| refused("on local memory", error))?;
        tell(format_args!("on local memory: {:.2} s", took.as_secs_f64()));
        Ok(Self { arguments, output })
    }

    /// What its processes take at the same time, of what a cache counts: runs it under Legato with all of
    /// that local.
    fn memory(&self, Runner { interrupt, legato }: &Runner) -> Result<Bytes, Failure> {
        let directory = tempfile::tempdir()
            .map_err(|error| Failure::system("cannot make a temporary directory", error))?;
        let stats = directory.path().join("stats.json");
        let all = machine::memory_available()?;
        let mut work = work(self.arguments, Bytes(0));
        work.far.push("--stats".into());
        work.far.push(stats.clone().into());
        let took = self
            .run(interrupt, &mut work.under(legato, all))
            .map_err(|error| refused("under Legato with all memory local", error))?;
        let memory = memory_of(&stats)?;
        tell(format_args!(
            "under Legato with all memory local: {:.2} s, {memory}",
            took.as_secs_f64()
        ));
        Ok(memory)
    }

    /// Runs it once more, and it prints the same.
    fn run(&self, interrupt: &Interrupt, command: &mut Command) -> Result<Duration, RunError> {
        let (output, took) = measured(self.arguments, interrupt, command)?;
        match first_difference(&self.output, &output) {
            Some(at) if !self.arguments.any_output => Err(RunError::OtherOutput { at }),
            _ => Ok(took),
        }
    }
}

/// Of a run before anything is measured.
fn refused(doing: &str, error: RunError) -> Failure {
    match comparison::unless_interrupted(error) {
        Ok(error) => Failure::refused(format_args!("{doing}: {error}; see that it runs by itself")),
        Err(interrupted) => interrupted,
    }
}

/// What the program printed, and how long it took.
fn measured(
    arguments: &BenchProgramArguments,
    interrupt: &Interrupt,
    command: &mut Command,
) -> Result<(Vec<u8>, Duration), RunError> {
    // Not a pipe, which would have to be read meanwhile and is held by whatever outlives the program.
    let mut file = tempfile::tempfile().map_err(ChildError::System)?;
    command.stdout(file.try_clone().map_err(ChildError::System)?);
    let took = interrupt.run(command, arguments.time_limit)?.took;
    let mut output = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut output))
        .map_err(ChildError::System)?;
    Ok((output, took))
}

/// The first byte, counted from 0, in which two differ; one that ends sooner differs there.
fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let differs = one.iter().zip(other).position(|(one, other)| one != other);
    differs.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())))
}

/// What every contender runs, for a program with so much memory.
fn work(arguments: &BenchProgramArguments, memory: Bytes) -> Work {
    Work {
        command: arguments.command.clone(),
        far: far(arguments, memory),
    }
}

/// As arguments of `legato run`.
fn far(arguments: &BenchProgramArguments, memory: Bytes) -> Vec<OsString> {
    if arguments.nodes.is_empty() {
        return Work::embedded(memory);
    }
    let nodes: Vec<_> = arguments.nodes.iter().map(ToString::to_string).collect();
    let mut far = vec![format!("--nodes={}", nodes.join(",")).into()];
    if let Some(file) = &arguments.secret.secret_file {
        far.push("--secret-file".into());
        far.push(file.into());
    }
    far
}

fn memory_of(stats: &Path) -> Result<Bytes, Failure> {
    let failed = |error: std::io::Error| Failure::system(stats.display(), error);
    let text = std::fs::read_to_string(stats).map_err(failed)?;
    let value: Value = serde_json::from_str(&text).map_err(|error| failed(error.into()))?;
    let peak = value["local_bytes_peak"].as_u64();
    peak.map(Bytes)
        .ok_or_else(|| failed(std::io::Error::other("no local_bytes_peak")))
}

/// So many per cent, in whole MiB.
fn share(memory: Bytes, percent: u32) -> Bytes {
    let bytes = memory.0 / 100 * u64::from(percent);
    Bytes::mib(bytes / Bytes::mib(1).0).max(CACHE_MIN)
}

fn row(arguments: &BenchProgramArguments) -> Row {
    let words = arguments.command.iter().map(|word| word.to_string_lossy());
    let words: Vec<_> = words.collect();
    let name = Path::new(&arguments.command[0]).file_name();
    let name = name.unwrap_or_default().to_string_lossy().into_owned();
    Row::new(name, json!({"command": words}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_cache_that_legato_takes() {
        assert_eq!(share(Bytes::mib(301), 50), Bytes::mib(150));
        assert_eq!(share(Bytes::mib(3), 50), CACHE_MIN);
    }

    #[test]
    fn outputs_differ_where_one_ends_too() {
        assert_eq!(first_difference(b"same", b"same"), None);
        assert_eq!(first_difference(b"same", b"sane"), Some(2));
        assert_eq!(first_difference(b"same", b"same too"), Some(4));
        assert_eq!(first_difference(b"", b""), None);
    }

    #[test]
    fn the_memory_is_read_from_the_statistics() {
        let directory = tempfile::tempdir().unwrap();
        let stats = directory.path().join("stats.json");
        assert!(memory_of(&stats).is_err());
        std::fs::write(&stats, "{}").unwrap();
        let error = memory_of(&stats).unwrap_err().text;
        assert!(error.contains("local_bytes_peak"), "{error}");
        std::fs::write(&stats, r#"{"local_bytes_peak": 4096}"#).unwrap();
        assert_eq!(memory_of(&stats).unwrap(), Bytes(4096));
    }
}
