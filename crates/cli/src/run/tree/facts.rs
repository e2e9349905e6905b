//! What /proc tells about one process.

use super::super::processes::{self, Process};
use super::{OWN_AGENT, Server, Verdict};
use crate::run::preload::OBJECT_NAME;
use crate::run::{CONTROL_VARIABLE, program};
use legato_base::wire::stats::STATS_NAME;
use legato_pager::uffd::injection::{InjectionError, Target};
use legato_pager::uffd::same_memory;
use rustix::process::Pid;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The case of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) ended: bool,
    /// It has a hand.
    pub(crate) attended: bool,
    /// How often it was seen before, as it is now.
    pub(crate) looks: u32,
    /// Since it was first seen as it is now.
    pub(crate) age: Duration,
    /// An injection is under way.
    pub(crate) asked: bool,
    pub(crate) refused: Option<InjectionError>,
    /// Its own agent could not start, which has been said.
    pub(crate) runs_without: bool,
    /// Somebody else traces it (`TracerPid`).
    pub(crate) traced: bool,
    /// Its memory is not for this process to see.
    pub(crate) foreign: bool,
    /// It has filters of system calls of its own, which its agent has seen too.
    pub(crate) filtered: bool,
    pub(crate) shares_memory: bool,
    /// It has shared its memory a moment ago: it may be a hand whose child has ended since, and that
    /// has not connected yet.
    pub(crate) may_be_hand: bool,
    /// A dynamic program that was told to load the agent, and has not run `main` for long; or one
    /// that is being executed just now.
    pub(crate) may_bring_agent: bool,
    /// Valgrind interprets it, and does not know of memory that others map.
    pub(crate) under_valgrind: bool,
    pub(crate) mappings: Option<Mappings>,
}

/// What the process has mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mappings {
    /// Some of it is registered with a userfaultfd, so an agent serves it.
    pub(crate) served: bool,
    /// The program whose agent that is.
    pub(crate) server: Option<Pid>,
}

impl Facts {
    pub(super) fn barrier(&self) -> Option<InjectionError> {
        if self.traced {
            return Some(InjectionError::TracedByAnother);
        }
        if self.filtered {
            return Some(InjectionError::Filtered);
        }
        self.foreign.then_some(InjectionError::NotPermitted)
    }

    /// May it yet get an agent, as it is now?
    pub(super) fn may_be_attended(&self, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Inject(_) => true,
            Verdict::Wait => {
                let has_barrier = self.refused.or(self.barrier()).is_some();
                self.looks == 0 || self.asked || (!has_barrier && self.age < OWN_AGENT)
            }
            Verdict::Leave | Verdict::Inspect | Verdict::Mention(_) => false,
        }
    }

    /// Returns what may be entered: what is read from now on is true of that, or is read in vain.
    pub(super) fn gather_status(&mut self, pid: Pid, all: &[Process]) -> Option<Target> {
        let target = Target::of(pid);
        let Some(status) = processes::status(pid) else {
            self.ended = true;
            return None;
        };
        let number = |name| {
            processes::field(&status, name)?
                .split(' ')
                .next()?
                .parse()
                .ok()
        };
        self.traced = number("TracerPid").is_some_and(|tracer: u64| tracer != 0);
        self.filtered = target.as_ref().is_ok_and(Target::is_filtered);
        self.foreign = matches!(target, Err(InjectionError::NotPermitted));
        let with = |other: &Process| other.pid != pid && same_memory(pid, other.pid) == Ok(true);
        self.shares_memory = all.iter().any(with);
        target.ok()
    }

    pub(super) fn gather_mappings(&mut self, pid: Pid, servers: &[Server]) {
        let Some(mappings) = mappings(pid, servers) else {
            self.ended = true;
            return;
        };
        let environment = Environment::of(pid);
        // While a program is being executed it has no environment yet.
        self.may_bring_agent = mappings.server.is_none()
            && (environment.is_empty() || brings_agent(pid, &environment));
        // Its launcher tells Valgrind so, and nobody else.
        self.under_valgrind = environment.has("VALGRIND_LAUNCHER");
        self.mappings = Some(mappings);
    }
}

/// True if some of it is registered with a userfaultfd (proc_pid_smaps(5)).
fn is_served(smaps: &str) -> bool {
    smaps
        .lines()
        .filter_map(|line| line.strip_prefix("VmFlags:"))
        .any(|flags| flags.split_whitespace().any(|flag| flag == "um"))
}

/// What the mappings of a process say now. None if they cannot be read.
pub(crate) fn mappings(pid: Pid, servers: &[Server]) -> Option<Mappings> {
    let smaps = std::fs::read(format!("/proc/{}/smaps", pid.as_raw_pid())).ok()?;
    let smaps = String::from_utf8_lossy(&smaps);
    Some(Mappings {
        served: is_served(&smaps),
        server: server_of(&marks_in(&smaps), servers),
    })
}

/// The marks of the agents that serve a process, or have served what it was forked from.
pub(crate) fn marks(pid: Pid) -> Vec<u64> {
    let maps = std::fs::read(format!("/proc/{}/maps", pid.as_raw_pid())).unwrap_or_default();
    marks_in(&String::from_utf8_lossy(&maps))
}

/// A forked child has the marks of its parent. Of several programs that fit, the one with the most: its
/// agent is the youngest.
fn server_of(marks: &[u64], servers: &[Server]) -> Option<Pid> {
    servers
        .iter()
        .filter(|server| !server.marks.is_empty())
        .filter(|server| server.marks.iter().all(|mark| marks.contains(mark)))
        .max_by_key(|server| server.marks.len())
        .map(|server| server.program)
}

/// The inodes of what agents publish their counters in, each of which has mapped its own
/// (proc_pid_maps(5); smaps has the same lines).
pub(super) fn marks_in(maps: &str) -> Vec<u64> {
    let mark = |line: &str| {
        let mut fields = line.split_whitespace();
        let inode = fields.nth(4)?.parse().ok()?;
        let name = fields.next()?.strip_prefix("/memfd:")?;
        (name == STATS_NAME).then_some(inode)
    };
    maps.lines().filter_map(mark).collect()
}

/// True if the dynamic loader is told to load the agent into this program.
fn brings_agent(pid: Pid, environment: &Environment) -> bool {
    let image = PathBuf::from(format!("/proc/{}/exe", pid.as_raw_pid()));
    environment.has(CONTROL_VARIABLE)
        && environment
            .get("LD_PRELOAD")
            .is_some_and(|objects| loads_agent(pid, objects))
        && program::is_dynamic(&image)
}

/// Is the agent's object among these, and there for the process?
fn loads_agent(pid: Pid, objects: &[u8]) -> bool {
    let mut paths = objects.split(|byte| matches!(byte, b':' | b' '));
    let of_agent = paths.find(|path| path.ends_with(OBJECT_NAME.as_bytes()));
    of_agent.is_some_and(|path| {
        let mut seen = format!("/proc/{pid}/root").into_bytes();
        seen.extend_from_slice(path);
        Path::new(OsStr::from_bytes(&seen)).exists()
    })
}

/// What a process was started with (proc_pid_environ(5)).
struct Environment(Vec<u8>);

impl Environment {
    fn of(pid: Pid) -> Self {
        Self(std::fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.0.split(|&byte| byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }
}

/// The program file that the process runs.
pub(super) fn image(pid: Pid) -> PathBuf {
    std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_pid())).unwrap_or_default()
}
