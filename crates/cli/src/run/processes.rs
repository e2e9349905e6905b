//! What /proc knows about the processes below this one.

use rustix::process::Pid;
use std::collections::{BTreeMap, BTreeSet};

/// The program that an agent serves, in this process's pid namespace: `own` is what the program
/// calls itself, `peer` the process that connected (the program, or a helper process beside it).
///
/// The two numbers differ in a pid namespace of the program's own, where `own` would name a
/// stranger here, and strangers must not be killed.
pub(crate) fn of_agent(peer: Pid, own: u32) -> Option<Pid> {
    let own = i32::try_from(own).ok()?;
    let mut candidate = peer;
    // The connected process itself, or the one that made it.
    for _ in 0..2 {
        let status = status(candidate)?;
        if innermost_pid(&status) == Some(own) {
            return Some(candidate);
        }
        candidate = parent(&status)?;
    }
    // A helper whose parent has gone is below this process, and in its namespace.
    let own = Pid::from_raw(own)?;
    (innermost_pid(&status(peer)?) == Some(peer.as_raw_pid())).then_some(own)
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

fn numeric_entries(directory: &str) -> impl Iterator<Item = i32> {
    std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn status(pid: Pid) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{}/status", pid.as_raw_pid())).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
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

    #[test]
    fn children_are_descendants_and_agents_lead_to_their_program() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        assert!(descendants().contains(&pid));
        let own = rustix::process::getpid();
        assert_eq!(of_agent(own, own.as_raw_pid() as u32), Some(own));
        assert_eq!(of_agent(pid, own.as_raw_pid() as u32), Some(own));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
