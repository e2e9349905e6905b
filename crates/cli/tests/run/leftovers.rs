//! Nothing stays behind.

use crate::harness::{
    Finished, PATIENCE, Process, Run, Running, marked, test_program, wait_until_gone,
};
use rustix::process::{Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

/// Long enough for a process to notice that its supervisor is gone.
const GONE: Duration = PATIENCE;

/// Names in shared memory and temporary directories that tell of Legato and of one of these processes.
/// Other tests, and other programs, may have names there too.
fn files_of(processes: &[Process]) -> BTreeSet<String> {
    let directories = ["/dev/shm", "/tmp", "/run"];
    let pids: BTreeSet<i32> = processes.iter().map(|process| process.pid).collect();
    let is_theirs = |name: &str| {
        let numbers = name.split(|byte: char| !byte.is_ascii_digit());
        let mut numbers = numbers.filter_map(|number| number.parse().ok());
        numbers.any(|number| pids.contains(&number))
    };
    let entries = directories
        .iter()
        .flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten());
    let names = entries.map(|entry| entry.path().display().to_string());
    names
        .filter(|name| name.contains("legato") && is_theirs(name))
        .collect()
}

fn sockets_of(run: &Finished) -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let inodes: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(6))
        .collect();
    run.seen
        .sockets
        .iter()
        .filter(|inode| inodes.contains(inode.as_str()))
        .cloned()
        .collect()
}

fn expect_nothing_left(run: &Finished) {
    wait_until_gone(&marked(&run.mark), GONE);
    let processes: Vec<_> = run.seen.processes.iter().copied().collect();
    assert!(
        processes.len() >= 3,
        "supervisor, node and program were seen: {processes:?}"
    );
    wait_until_gone(&processes, GONE);
    assert_eq!(sockets_of(run), Vec::<String>::new());
    assert_eq!(run.temporary_files, Vec::<String>::new());
    assert_eq!(files_of(&processes), BTreeSet::new());
    let directories = &run.seen.directories;
    assert!(!directories.is_empty(), "the keeper was seen");
    let left = directories
        .iter()
        .filter(|directory| fs::exists(directory).unwrap());
    assert_eq!(left.count(), 0, "{directories:?}");
}

#[test]
fn m01_the_demo_leaves_nothing_behind() {
    let run = Run::far(test_program("scan"))
        .arguments(["--bytes", "128MiB", "--order", "random"])
        .cache_mib(64)
        .memory_mib(256)
        .watched_for_leftovers()
        .finish()
        .expect_code(0)
        .expect_far_pages();
    expect_nothing_left(&run);
}

#[test]
fn m01_a_program_that_is_killed_leaves_nothing_behind() {
    let run = holding();
    for process in run.processes() {
        if process.is_program() {
            process.signal(Signal::KILL);
        }
    }
    let run = run.finish();
    assert_eq!(run.code(), Some(128 + 9), "{}", run.stderr);
    expect_nothing_left(&run);
}

// P-32
#[test]
fn m01_a_supervisor_that_is_killed_takes_everything_with_it() {
    let run = holding();
    let processes = run.processes();
    assert!(
        processes.len() >= 3,
        "supervisor, node and program: {processes:?}"
    );
    kill_process(run.pid(), Signal::KILL).unwrap();
    wait_until_gone(&processes, GONE);
    let run = run.finish();
    assert_eq!(run.signal(), Some(9));
    expect_nothing_left(&run);
}

/// A program with far pages that waits for its input.
fn holding() -> Running {
    let run = Run::far(test_program("hold"))
        .arguments(["--bytes", "128MiB"])
        .cache_mib(64)
        .memory_mib(256)
        .watched_for_leftovers()
        .start();
    run.wait_for_far_pages(64);
    run
}
