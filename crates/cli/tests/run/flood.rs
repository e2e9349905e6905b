//! Somebody sends a node what is no packet of anything, for as long as he likes.

use crate::harness::{Node, PATIENCE, legato, poll_until, status_of};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::Instant;

const PORT: u16 = 4791;
/// So many datagrams have room in the buffer of any socket.
const BATCH: u64 = 64;
const SECONDS: u64 = 3;

/// How often it has said that it refused damaged packets, and how many.
fn refused(node: &Node) -> (u64, u64) {
    let log = node.log();
    let lines = log
        .lines()
        .filter_map(|line| line.split_once("refused damaged packets count="));
    lines.fold((0, 0), |(lines, packets), (_, count)| {
        (lines + 1, packets + count.trim().parse::<u64>().unwrap())
    })
}

#[test]
fn a_flood_of_garbage_is_a_line_a_second_in_a_nodes_log_and_stops_nobody() {
    let host = Node::unused_host();
    let address = format!("roce://{host}:{PORT}");
    let began = Instant::now();
    let node = Node::start_at("64MiB", &address);
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut sent = 0;
    while refused(&node).0 < SECONDS {
        for _ in 0..BATCH {
            stranger.send_to(&[0xFF; 100], (host, PORT)).unwrap();
        }
        sent += BATCH;
        // Its request is behind them in the same queue: when it is answered, they are counted.
        status_of(Command::new(legato()), &address);
    }
    poll_until("every one is in the log", PATIENCE, || {
        refused(&node).1 == sent
    });
    // A second of the node's clock lies between two lines.
    let lines = refused(&node).0;
    assert!(lines <= 1 + began.elapsed().as_secs(), "{lines} lines");
    assert!(node.terminate().success());
}
