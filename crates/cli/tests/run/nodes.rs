//! Memory nodes that have little: descriptors, or memory.

use crate::harness::{Cgroup, Finished, MIB, Node, Run, legato, sized, started_by, test_program};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::fs;
use std::process::{Command, Stdio};

/// Lets a node that runs have no more of something.
fn limit(node: &Node, of: Resource, most: u64) {
    let pid = Pid::from_raw(node.process().pid);
    let limit = Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    prlimit(pid, of, limit).unwrap();
}

/// A program with much more far memory than cache.
fn pattern(nodes: &[&Node], bytes: &str) -> Run {
    Run::far(test_program("pattern"))
        .arguments(["--bytes", bytes, "--operations", "1000"])
        .arguments(["--seed", "1", "--phase", "touch"])
        .at(nodes)
        .cache_mib(16)
}

/// It finds all of it as it wrote it.
fn expect_right(run: Finished) {
    let run = run.expect_code(0).expect_far_pages();
    assert!(run.output().ends_with(" 0 wrong\n"), "{}", run.output());
}

fn fill(nodes: &[&Node], bytes: &str) {
    expect_right(pattern(nodes, bytes).finish());
}

/// Wrong: each extent of 8 MiB took one of the node's descriptors, and without one more the node was given up
/// and all pages there were lost.
#[test]
fn descriptors_do_not_limit_the_memory_of_a_node() {
    let node = Node::start(sized("2GiB", "256MiB"));
    limit(
        &node,
        Resource::Nofile,
        node.process().descriptors() as u64 + 8,
    );
    fill(&[&node], sized("1GiB", "160MiB"));
}

/// Wrong: a node that may make no files of that size was ended by SIGXFSZ, and all pages there were lost.
#[test]
fn a_node_whose_files_are_limited_gives_smaller_extents() {
    let node = Node::start("512MiB");
    limit(&node, Resource::Fsize, 1 << 20);
    fill(&[&node], "64MiB");
}

/// Wrong: a node whose system gave no more memory was given up, and all pages there were lost.
#[test]
fn a_node_without_more_memory_keeps_what_it_has() {
    let little = Node::start("1GiB");
    let other = Node::start("1GiB");
    let path = format!("/proc/{}/statm", little.process().pid);
    let statm = fs::read_to_string(path).unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    // Three extents, and what a client takes besides.
    limit(&little, Resource::As, pages * 4096 + (32 << 20));
    fill(&[&little, &other], sized("512MiB", "160MiB"));
}

/// Wrong: the kernel killed the node whose control group had no more memory, and all pages there were lost.
#[test]
fn a_node_in_a_group_without_more_memory_keeps_what_it_has() {
    let group = match Cgroup::limited_to(2048 * MIB) {
        Ok(group) => group,
        Err(reason) => {
            eprintln!("skipped, for want of a memory control group: {reason}");
            return;
        }
    };
    let little = Node::start_by(
        started_by(&group.enter(), legato()),
        "1GiB",
        &Node::unused_address(),
    );
    group.limit_to(group.usage() + 64 * MIB).unwrap();
    let other = Node::start("1GiB");
    fill(&[&little, &other], sized("512MiB", "160MiB"));
    assert_eq!(group.limit_hits(), 0, "it came to the limit");
}

/// Of 256 that a node takes. More than its socket's backlog holds, and than it lets in at a time.
#[test]
fn two_hundred_clients_at_once_are_served_and_disturb_nobody() {
    let node = Node::start("512MiB");
    let working = pattern(&[&node], sized("256MiB", "96MiB")).start();
    let ask = || {
        Command::new(legato())
            .args(["node", "status", "--json", "--node", &node.address])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let crowd: Vec<_> = (0..200).map(|_| ask()).collect();
    for mut one in crowd {
        assert!(one.wait().unwrap().success());
    }
    expect_right(working.finish());
}
