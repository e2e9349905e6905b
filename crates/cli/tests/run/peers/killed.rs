//! Clients that are killed at any moment, a thousand of them; in a gate a quarter. Over RoCE as many as a
//! node takes at a time: there it finds out when they have been silent for half a minute and more.

use super::Client;
use crate::harness::{Node, PATIENCE, poll_until, sized};
use legato_base::wire::node::{NodeReply, NodeRequest};
use legato_base::{ClientId, Duration, Random};
use std::process::{Child, Command, Stdio};

/// Of those that are alive at the same time.
const GROUP: usize = 10;
const ADDRESS: &str = "LEGATO_TEST_CLIENT_OF";

/// A client that allocates and releases until it is killed.
#[test]
#[ignore = "is a process of v_25, which kills it"]
fn a_client_until_it_is_killed() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let mut client = Client::towards(&address, Duration::from_secs(10));
    let connection = client.try_connect(&address).unwrap();
    let name = ClientId(u64::from(std::process::id()));
    client.ask(connection, NodeRequest::Open { client: name });
    let mut held = Vec::new();
    loop {
        match client.ask(connection, NodeRequest::AllocateExtent { slots: 64 }) {
            NodeReply::ExtentAllocated { extent, .. } => held.push(extent),
            NodeReply::NoRoom { .. } => {}
            other => panic!("{other:?}"),
        }
        if held.len() > 2 {
            let extent = held.remove(0);
            client.ask(connection, NodeRequest::ReleaseExtent { extent });
        }
    }
}

fn start(address: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peers::killed::a_client_until_it_is_killed"])
        .args(["--ignored", "--test-threads", "1"])
        .env(ADDRESS, address)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Descriptors and mappings of shared memory.
fn held(pid: i32) -> (usize, usize) {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let shared = maps.lines().filter(|line| line.contains("memfd:")).count();
    (descriptors, shared)
}

#[test]
fn v_25_after_a_thousand_killed_clients_a_node_holds_what_it_held_before() {
    are_killed(sized(1_000, 250), &Node::unused_address());
}

/// They are silent, and that is all.
#[test]
fn v_25_after_two_hundred_killed_clients_over_roce_a_node_holds_what_it_held_before() {
    are_killed(200, &format!("roce://{}", Node::unused_host()));
}

fn are_killed(deaths: u32, address: &str) {
    let node = Node::start_at("256MiB", address);
    let pid = node.process().pid;
    let mut watcher = Client::towards(address, Duration::from_secs(60));
    let connection = watcher.connect(&node);
    let empty = watcher.status(connection);
    let before = held(pid);
    let mut random = Random::from_seed(25);
    let mut alive: Vec<Child> = Vec::new();
    let (mut reached, mut dead) = (0, 0);
    while dead < deaths {
        while alive.len() < GROUP {
            alive.push(start(&node.address));
        }
        // Any moment of a client's life: from before its first step on.
        watcher.run_for(Duration::from_micros(random.below(8_000)));
        reached = reached.max(watcher.status(connection).extents);
        let mut killed = alive.swap_remove(random.below(GROUP as u64) as usize);
        let ended = killed.try_wait().unwrap();
        assert!(ended.is_none(), "a client ended by itself: {ended:?}");
        killed.kill().unwrap();
        killed.wait().unwrap();
        dead += 1;
    }
    for mut child in alive {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(reached > 0, "no client ever held anything");
    poll_until("nothing is left", PATIENCE, || {
        watcher.status(connection) == empty && held(pid) == before
    });
}
