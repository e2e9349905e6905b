//! `legato ps`: the runs on this machine, as their supervisors hold them open: a record of each
//! (`crate::run::record`), and the counters of its agents. Nobody is asked, so one that is frozen is seen too.

use crate::args::PsArguments;
use crate::failure::Failure;
use crate::output::{clock, print};
use crate::run::local::{LOCAL_NAME, LOCAL_SIZE};
use crate::run::processes::Process;
use crate::run::progress::Load;
use crate::run::record::{NodeRecord, RECORD_MAX, RECORD_NAME, Record};
use legato_base::Bytes;
use legato_base::wire::stats::{AgentCounters, STATS_NAME, STATS_SIZE, StatsPage};
use rustix::fs::OFlags;
use rustix::process::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between the two looks that tell how many faults there are a second.
const INTERVAL: Duration = Duration::from_millis(500);
const HEADER: [&str; 8] = [
    "PID",
    "TIME",
    "PROCESSES",
    "LOCAL",
    "FAR",
    "FAULTS/S",
    "NODES",
    "PROGRAM",
];

pub(crate) fn run(arguments: &PsArguments) -> Result<u8, Failure> {
    let before = Instant::now();
    let seen = look();
    std::thread::sleep(INTERVAL);
    let elapsed = before.elapsed();
    let runs: Vec<_> = look()
        .into_iter()
        .filter_map(|(pid, now)| {
            let before = seen.get(&pid)?;
            Some(Run::new(pid, now, before, elapsed))
        })
        .collect();
    match arguments.json {
        true => print(format_args!(
            "{:#}",
            Value::from_iter(runs.iter().map(Run::json))
        ))?,
        false => print(table(&runs))?,
    }
    Ok(0)
}

/// What one supervisor had open.
#[derive(Debug)]
struct Sight {
    record: Record,
    /// How many processes have run without far memory.
    local: u64,
    /// Of each agent, by the number of its file.
    agents: BTreeMap<u32, AgentCounters>,
}

/// All supervisors that this user may look at.
fn look() -> BTreeMap<u32, Sight> {
    let pids = numbers_in(Path::new("/proc"));
    pids.filter_map(|pid| Some((pid, sight_of(pid)?))).collect()
}

fn sight_of(pid: u32) -> Option<Sight> {
    let directory = PathBuf::from(format!("/proc/{pid}/fd"));
    let (mut record, mut agents, mut local) = (None, BTreeMap::new(), 0);
    for number in numbers_in(&directory) {
        let path = directory.join(number.to_string());
        let Ok(target) = fs::read_link(&path) else {
            continue;
        };
        let is = |name: &str| target.as_os_str() == format!("/memfd:{name} (deleted)").as_str();
        if is(RECORD_NAME) {
            record = Record::parse(&read(&path, RECORD_MAX.0)?);
        } else if is(LOCAL_NAME) {
            let bytes = read(&path, LOCAL_SIZE as u64)?;
            local = bytes.try_into().map_or(0, u64::from_le_bytes);
        } else if is(STATS_NAME) {
            let page = read(&path, STATS_SIZE as u64).and_then(|bytes| StatsPage::parse(&bytes));
            agents.insert(number, page.unwrap_or_default().counters);
        }
    }
    Some(Sight {
        record: record?,
        local,
        agents,
    })
}

/// The bytes of a file, through a description of its own: that of the owner keeps its position.
fn read(path: &Path, most: u64) -> Option<Vec<u8>> {
    // Whose the process is may have given the name to what would keep the reader waiting.
    let mut options = OpenOptions::new();
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.read(true).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn numbers_in(directory: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A run as it is shown.
#[derive(Debug)]
struct Run {
    pid: u32,
    elapsed: Option<Duration>,
    load: Load,
    local: u64,
    limit: Bytes,
    faults_per_second: u64,
    nodes: Vec<NodeRecord>,
    command: Vec<String>,
}

impl Run {
    fn new(pid: u32, now: Sight, before: &Sight, between: Duration) -> Self {
        let mut load = Load::default();
        now.agents.values().for_each(|agent| load.add(agent));
        // An agent that came meanwhile has had all of its faults since.
        let faulted = now.agents.iter().map(|(number, agent)| {
            let before = before.agents.get(number);
            let before = before.map_or(0, |before| before.faults);
            agent.faults.saturating_sub(before) as f64
        });
        let rate = faulted.sum::<f64>() / between.as_secs_f64();
        Self {
            pid,
            elapsed: Pid::from_raw(pid as i32)
                .and_then(Process::find)
                .map(|process| process.age()),
            load,
            local: now.local,
            limit: Bytes(now.record.cache_bytes_limit),
            faults_per_second: rate as u64,
            nodes: now.record.nodes,
            command: now.record.command,
        }
    }

    fn json(&self) -> Value {
        json!({
            "pid": self.pid,
            "elapsed_ms": self.elapsed.map(|elapsed| elapsed.as_millis() as u64),
            "processes": self.load.processes,
            "processes_local": self.local,
            "local_bytes_current": self.load.local.0,
            "cache_bytes_limit": self.limit.0,
            "far_bytes_current": self.load.far.0,
            "faults": self.load.faults,
            "faults_per_second": self.faults_per_second,
            "nodes": self.nodes,
            "command": self.command,
        })
    }

    fn row(&self) -> [String; 8] {
        let embedded = self.nodes.iter().filter(|node| node.pid.is_some()).count();
        let given = self.nodes.iter().filter(|node| node.pid.is_none());
        let mut nodes: Vec<_> = given.map(|node| shown(&node.address)).collect();
        if embedded > 0 {
            nodes.push(format!("{embedded} embedded"));
        }
        [
            self.pid.to_string(),
            self.elapsed.map_or_else(|| "?".to_owned(), clock),
            match self.local {
                0 => self.load.processes.to_string(),
                local => format!("{} +{local}", self.load.processes),
            },
            format!("{} of {}", self.load.local, self.limit),
            self.load.far.to_string(),
            self.faults_per_second.to_string(),
            nodes.join(","),
            shown(&self.command.join(" ")),
        ]
    }
}

/// Without what a terminal would obey: the text is another's.
fn shown(text: &str) -> String {
    let replaced = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(replaced).collect()
}

fn table(runs: &[Run]) -> String {
    let rows: Vec<_> = [HEADER.map(str::to_owned)]
        .into_iter()
        .chain(runs.iter().map(Run::row))
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..HEADER.len())
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let line = |row: &[String; 8]| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        let line: Vec<_> = cells.collect();
        line.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
