//! Processes as /proc shows them.

use super::{legato, poll_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A process, told from a later one with the same number by the time of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    start: u64,
}

impl Process {
    pub(crate) fn find(pid: i32) -> Option<Self> {
        let (state, start) = state_and_start(pid)?;
        (state != 'Z' && state != 'X').then_some(Self { pid, start })
    }

    pub(crate) fn is_alive(&self) -> bool {
        Self::find(self.pid) == Some(*self)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid).unwrap();
        // A process that has just ended needs no signal.
        let _ = kill_process(pid, signal);
    }

    /// A program of the test, not the supervisor, a node, or a process that is yet to become one.
    pub(crate) fn is_program(&self) -> bool {
        let executable = fs::read_link(format!("/proc/{}/exe", self.pid));
        executable.is_ok_and(|path| !path.starts_with(legato())) && !self.leads_a_session()
    }

    /// True for agents, which leave the program's session; none of the test programs does. An
    /// agent shares its program's memory, so counting both would count that twice.
    fn leads_a_session(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The command name is in parentheses; state, parent, group and session follow.
        let after_name = stat.rsplit(") ").next().unwrap_or_default();
        after_name.split(' ').nth(3) == Some(self.pid.to_string().as_str())
    }

    /// RssAnon and RssShmem of /proc/PID/status, in bytes.
    pub(crate) fn resident(&self) -> Option<Resident> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
            Some(kib * 1024)
        };
        Some(Resident {
            anonymous: field("RssAnon:")?,
            shared: field("RssShmem:")?,
        })
    }

    pub(crate) fn command(&self) -> String {
        let bytes = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    }

    fn children(&self) -> Vec<Self> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid))
            .into_iter()
            .flatten()
            .flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let pids: Vec<i32> = lists
            .flat_map(|list| {
                list.split(' ')
                    .filter_map(|pid| pid.parse().ok())
                    .collect::<Vec<_>>()
            })
            .collect();
        pids.into_iter().filter_map(Self::find).collect()
    }

    /// Inode numbers of the sockets that the process holds.
    pub(crate) fn sockets(&self) -> Vec<String> {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.pid))
            .into_iter()
            .flatten()
            .flatten();
        let targets = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        let inode = |path: PathBuf| {
            Some(
                path.to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_owned(),
            )
        };
        targets.filter_map(inode).collect()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resident {
    pub(crate) anonymous: u64,
    pub(crate) shared: u64,
}

fn state_and_start(pid: i32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold anything, spaces and brackets included (proc_pid_stat(5)).
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    Some((
        fields.next()?.chars().next()?,
        fields.nth(18)?.parse().ok()?,
    ))
}

/// The process and everything below it.
pub(crate) fn descendants(root: Process) -> Vec<Process> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let children = found[next].children();
        found.extend(
            children
                .into_iter()
                .filter(|child| !found.contains(child))
                .collect::<Vec<_>>(),
        );
        next += 1;
    }
    found
}

/// Every process whose environment holds `mark`, whoever its parent is by now.
pub(crate) fn marked(mark: &str) -> Vec<Process> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has_mark = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        // Whole entries only: one run's mark may begin like another's.
        environment
            .split(|&byte| byte == 0)
            .any(|entry| entry == mark.as_bytes())
    };
    pids.filter(has_mark).filter_map(Process::find).collect()
}

pub(crate) fn wait_until_gone(processes: &[Process], limit: Duration) {
    let names: Vec<_> = processes
        .iter()
        .map(|process| (process.pid, process.command()))
        .collect();
    poll_until(&format!("all gone of {names:?}"), limit, || {
        !processes.iter().any(Process::is_alive)
    });
}
