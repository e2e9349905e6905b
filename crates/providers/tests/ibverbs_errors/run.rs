//! One run of the scenario in a process of its own, and what the stand-in library says about it.

use crate::guest_headers::{Headers, directory};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What goes wrong in a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fault {
    /// Name, value: as `stand_in/control.c` reads them.
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Fault {
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Calls `first` and `count - 1` after it fail with `errno`.
    pub(crate) fn of(function: &str, first: u64, errno: i32, count: u64) -> Self {
        let plan = format!("{function}:{first}:{errno}:{count}");
        Self {
            environment: vec![("STAND_IN_FAIL", plan)],
        }
    }

    /// Both.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.environment.extend(other.environment);
        self
    }

    /// Events of connection management of this number get lost.
    pub(crate) fn silent(event: u32) -> Self {
        Self {
            environment: vec![("STAND_IN_SILENT", event.to_string())],
        }
    }

    pub(crate) fn devices(count: u32) -> Self {
        Self {
            environment: vec![("STAND_IN_DEVICES", count.to_string())],
        }
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// `done`, or how the scenario ended.
    pub(crate) outcome: String,
    pub(crate) calls: BTreeMap<String, u64>,
    /// Kinds of objects that are left, and how many.
    pub(crate) left: BTreeMap<String, i64>,
    pub(crate) violations: Vec<String>,
    /// Calls that were made to fail.
    pub(crate) failed: u64,
}

/// The stand-in library, compiled.
pub(crate) struct StandIn {
    library: PathBuf,
    directory: PathBuf,
}

const SOURCES: [&str; 5] = ["control", "device", "objects", "data", "connections"];
/// How long a run may take, in seconds. One takes milliseconds.
const LIMIT: &str = "60";

impl StandIn {
    /// `None` where it cannot be compiled, which has been said. `name` is of the test alone, for several run at the same time.
    pub(crate) fn compile(name: &str) -> Option<Self> {
        let headers = Headers::find()?;
        let directory = directory(&format!("ibverbs_errors/{name}"));
        let library = directory.join("stand_in.so");
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ibverbs_errors/stand_in");
        let sources = SOURCES.map(|name| from.join(format!("{name}.c")));
        headers.compile(
            &sources,
            &library,
            ["-shared", "-fPIC", "-fvisibility=hidden"],
        );
        Some(Self { library, directory })
    }

    pub(crate) fn run(&self, fault: &Fault) -> Report {
        let file = self.directory.join("report");
        // What another run has left; there is none before the first.
        let _ = std::fs::remove_file(&file);
        let output = Command::new("timeout")
            .args(["--kill-after", "5", LIMIT])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "the_scenario", "--ignored", "--nocapture"])
            .env(LIBRARY_VARIABLE, &self.library)
            .env("STAND_IN_REPORT", &file)
            .envs(fault.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{fault:?}: {}\n{said}{errors}",
            output.status
        );
        let mut report = Report::default();
        let outcome = said.lines().find_map(|line| line.strip_prefix(OUTCOME));
        report.outcome = outcome.expect("a scenario says how it ended").to_owned();
        for line in std::fs::read_to_string(&file).unwrap().lines() {
            report.take(line);
        }
        report
    }
}

impl Report {
    fn take(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["call", function, count] => {
                *self.calls.entry(function.to_owned()).or_default() +=
                    count.parse::<u64>().unwrap();
            }
            ["live", _, "0"] => {}
            ["live", kind, count] => {
                *self.left.entry(kind.to_owned()).or_default() += count.parse::<i64>().unwrap();
            }
            ["failed", count] => self.failed += count.parse::<u64>().unwrap(),
            ["violation", ..] => self.violations.push(line.to_owned()),
            _ => panic!("not a line of a report: {line}"),
        }
    }
}

/// Where a run finds the library.
pub(crate) const LIBRARY_VARIABLE: &str = "LEGATO_STAND_IN";
/// Before what a run prints about its end.
pub(crate) const OUTCOME: &str = "outcome ";
