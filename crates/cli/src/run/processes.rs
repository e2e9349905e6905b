//! What /proc knows about the processes below this one.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Uid};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The program that an agent serves, in this process's pid namespace: `own` is what the program
/// calls itself, `peer` the process that connected (the program, or a helper process beside it).
///
/// The two numbers differ in a pid namespace of the program's own, where `own` would name a
/// stranger here, and strangers must not be killed.
pub(crate) fn of_agent(peer: Pid, own: u32) -> Option<Pid> {
    of_agent_as(status, peer, own)
}

/// As [`of_agent`], with what tells the status of a process.
fn of_agent_as(status: impl Fn(Pid) -> Option<String>, peer: Pid, own: u32) -> Option<Pid> {
    let own = i32::try_from(own).ok()?;
    let mut candidate = peer;
    // The connected process itself, or the one that made it.
    for _ in 0..2 {
        // The one that made it may be the task in between, which has just ended.
        let Some(status) = status(candidate) else {
            break;
        };
        if innermost_pid(&status) == Some(own) {
            return Some(candidate);
        }
        candidate = parent(&status)?;
    }
    // A helper whose parent has gone is below this process, and in its namespace.
    let own = Pid::from_raw(own)?;
    (innermost_pid(&status(peer)?) == Some(peer.as_raw_pid())).then_some(own)
}

/// The children of this process's first thread, which are all that it has and adopts.
pub(crate) fn children() -> Vec<Pid> {
    let own = rustix::process::getpid();
    // Where the kernel has no such list, all descendants are a superset of it.
    std::fs::read_to_string(format!("/proc/self/task/{own}/children")).map_or_else(
        |_| descendants(),
        |list| {
            let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
            pids.filter_map(Pid::from_raw).collect()
        },
    )
}

/// All processes below this one: it adopts those whose parents have ended.
pub(crate) fn descendants() -> Vec<Pid> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for pid in numeric_entries("/proc") {
        let Some(status) = Pid::from_raw(pid).and_then(status) else {
            continue;
        };
        if let Some(parent) = parent(&status) {
            children.entry(parent.as_raw_pid()).or_default().push(pid);
        }
    }
    let mut found = BTreeSet::new();
    let mut open = vec![rustix::process::getpid().as_raw_pid()];
    while let Some(pid) = open.pop() {
        for &child in children.get(&pid).into_iter().flatten() {
            if found.insert(child) {
                open.push(child);
            }
        }
    }
    found.into_iter().filter_map(Pid::from_raw).collect()
}

/// Does it belong to the run, and run as this user now?
pub(crate) fn is_below(process: Pid, user: Uid) -> bool {
    let own = rustix::process::getpid();
    let of = |status: &str| {
        field(status, "Uid")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    };
    let Some(first) = status(process) else {
        return false;
    };
    if of(&first) != Some(user.as_raw()) {
        return false;
    }
    let mut above = parent(&first);
    // Whoever loses its parent meanwhile becomes a child of this process, or of one that is below it.
    while let Some(pid) = above.filter(|&pid| pid != own) {
        above = status(pid).as_deref().and_then(parent);
    }
    above == Some(own)
}

/// A process, told from a later one with the same number by the time of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// In clock ticks since the machine was started.
    pub(crate) start: u64,
    /// Nothing of it is left but its exit status.
    pub(crate) ended: bool,
}

impl Process {
    pub(crate) fn find(pid: Pid) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
        let (start, ended) = parse_stat(&String::from_utf8_lossy(&stat))?;
        Some(Self { pid, start, ended })
    }

    /// How long it has been there.
    pub(crate) fn age(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
        let start = self.start as f64 / clock_ticks_per_second() as f64;
        now.saturating_sub(Duration::from_secs_f64(start))
    }

    pub(crate) fn is(&self, pid: i32, start: u64) -> bool {
        (self.pid.as_raw_pid(), self.start) == (pid, start)
    }
}

/// The start time, and whether the process has ended. The name in brackets may hold anything,
/// spaces and brackets included (proc_pid_stat(5)).
fn parse_stat(stat: &str) -> Option<(u64, bool)> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    Some((fields.nth(18)?.parse().ok()?, matches!(state, "Z" | "X")))
}

/// True once the process of a pidfd has ended.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    let mut descriptors = [PollFd::new(process, PollFlags::IN)];
    poll(&mut descriptors, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// All processes below this one, without a look at any other process of the machine.
pub(crate) fn below() -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut open = vec![rustix::process::getpid()];
    while let Some(parent) = open.pop() {
        for child in children_of(parent) {
            if !found.iter().any(|process| process.pid == child)
                && let Some(process) = Process::find(child)
            {
                found.push(process);
                open.push(child);
            }
        }
    }
    found
}

/// Children of every thread of a process (`children` of proc_pid_task(5)).
fn children_of(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_pid();
    let mut found = Vec::new();
    for thread in numeric_entries(&format!("/proc/{parent}/task")) {
        let path = format!("/proc/{parent}/task/{thread}/children");
        let list = std::fs::read_to_string(path).unwrap_or_default();
        found.extend(
            list.split(' ')
                .filter_map(|pid| Pid::from_raw(pid.parse().ok()?)),
        );
    }
    found
}

/// The command name (proc_pid_comm(5)).
pub(crate) fn command(pid: Pid) -> Option<String> {
    let name = std::fs::read(format!("/proc/{}/comm", pid.as_raw_pid())).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

fn numeric_entries(directory: &str) -> impl Iterator<Item = i32> {
    std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

pub(crate) fn status(pid: Pid) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{}/status", pid.as_raw_pid())).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

pub(crate) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// How many filters of system calls this process has (seccomp(2); counted since Linux 5.9).
pub(crate) fn own_filters() -> u64 {
    let status = status(rustix::process::getpid()).unwrap_or_default();
    let count = field(&status, "Seccomp_filters");
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// What the process calls itself (the last of `NSpid`, proc_pid_status(5)).
fn innermost_pid(status: &str) -> Option<i32> {
    field(status, "NSpid")?
        .split_whitespace()
        .last()?
        .parse()
        .ok()
}

fn parent(status: &str) -> Option<Pid> {
    Pid::from_raw(field(status, "PPid")?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn fields_of_a_status_are_found() {
        let text = "Name:\tPPid: 3\nPPid:\t17\nNSpid:\t400\t2\n";
        assert_eq!(parent(text), Pid::from_raw(17));
        assert_eq!(innermost_pid(text), Some(2));
    }

    /// Lost: an agent whose maker ended between two looks. The program ran on local
    /// memory, and nobody said so.
    #[test]
    fn an_agent_whose_maker_ends_meanwhile_leads_to_its_program() {
        let pid = |number| Pid::from_raw(number).unwrap();
        let (program, maker, agent) = (70, 71, 72);
        let with_parent = |parent: i32, own: i32| Some(format!("PPid:\t{parent}\nNSpid:\t{own}\n"));
        let meanwhile = |of: Pid| match of.as_raw_pid() {
            72 => with_parent(maker, agent),
            _ => None,
        };
        assert_eq!(of_agent_as(meanwhile, pid(agent), 70), Some(pid(program)));
        // In another namespace the numbers say nothing.
        let elsewhere = |of: Pid| match of.as_raw_pid() {
            72 => with_parent(maker, 3),
            _ => None,
        };
        assert_eq!(of_agent_as(elsewhere, pid(agent), 70), None);
        assert_eq!(of_agent_as(|_| None, pid(agent), 70), None);
    }

    #[test]
    fn a_stat_is_read_past_any_name() {
        let rest = "S 1 2 3 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 4711 99";
        assert_eq!(parse_stat(&format!("5 (a) b) {rest}")), Some((4711, false)));
        let rest = rest.replacen('S', "Z", 1);
        assert_eq!(parse_stat(&format!("5 (x) {rest}")), Some((4711, true)));
        assert_eq!(parse_stat("5 (x) S 1"), None);
    }

    #[test]
    fn children_are_descendants_and_agents_lead_to_their_program() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        assert!(descendants().contains(&pid));
        let seen = Process::find(pid).unwrap();
        assert!(!seen.ended && below().contains(&seen));
        let user = rustix::process::getuid();
        assert!(is_below(pid, user) && !is_below(rustix::process::getpid(), user));
        assert!(!is_below(pid, Uid::from_raw(user.as_raw() + 1)));
        // A test has its own thread, and with it its own children.
        assert!(!children().contains(&rustix::process::getpid()));
        let own = rustix::process::getpid();
        assert_eq!(of_agent(own, own.as_raw_pid() as u32), Some(own));
        assert_eq!(of_agent(pid, own.as_raw_pid() as u32), Some(own));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
