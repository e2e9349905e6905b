//! Two real processes: this test program, and itself started once more as the peer.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

mod peer;

use legato_verbs::{
    Address, CompletionKind, CompletionStatus, Provider, QueuePairState, RemoteAddress,
    SendOperation,
};
use peer::{Peer, address, pattern};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

const CHILD_ADDRESS: &str = "LEGATO_TEST_SHM_ADDRESS";
const READY: &str = "the peer listens";
const MESSAGE: u32 = 1024;
const RECEIVES: u64 = 32;
/// Offsets in a region: receives below, then what is sent, read and written.
const OUT: u64 = 64 * 1024;
const FAR: u64 = 128 * 1024;
/// A message that asks the child to write to and read from its parent.
const ONE_SIDED: u8 = 0xF0;

/// The peer's program; as a test of its own it has nothing to do.
#[test]
fn child_peer() {
    let Ok(name) = std::env::var(CHILD_ADDRESS) else {
        return;
    };
    let mut peer = Peer::new();
    peer.fill(FAR, &pattern(1, 8192));
    for wr_id in 0..RECEIVES {
        peer.post_receive(wr_id, wr_id * u64::from(MESSAGE), MESSAGE);
    }
    let parent = peer.serve(&name.parse::<Address>().unwrap(), || println!("{READY}"));
    loop {
        let done = peer.completion();
        match done.result {
            Ok(CompletionKind::Receive { length }) => {
                let offset = done.wr_id.0 * u64::from(MESSAGE);
                let message = peer.bytes(offset, length as usize);
                if message[0] == ONE_SIDED {
                    one_sided(&mut peer, parent);
                }
                peer.fill(OUT + offset, &message);
                peer.post(
                    1000 + done.wr_id.0,
                    SendOperation::Send,
                    OUT + offset,
                    length,
                );
                peer.post_receive(done.wr_id.0, offset, MESSAGE);
            }
            Ok(_) => {}
            Err(CompletionStatus::WorkRequestFlushed) => break,
            Err(other) => panic!("{other}"),
        }
    }
    peer.disconnected();
    peer.dismantle();
}

/// Writes into the parent's region and reads it back.
fn one_sided(peer: &mut Peer, parent: RemoteAddress) {
    let place = RemoteAddress {
        address: parent.address + FAR,
        ..parent
    };
    peer.fill(FAR + 16_384, &pattern(2, 4096));
    peer.post(2000, SendOperation::RdmaWrite(place), FAR + 16_384, 4096);
    peer.post(2001, SendOperation::RdmaRead(place), FAR + 32_768, 4096);
    for wr_id in [2000, 2001] {
        let done = peer.until("one-sided completions", |peer| {
            let wanted = |done: &legato_verbs::Completion| done.wr_id.0 == wr_id;
            let place = peer.completions.iter().position(wanted)?;
            peer.completions.remove(place)
        });
        assert!(done.result.is_ok(), "{done:?}");
    }
    assert_eq!(peer.bytes(FAR + 32_768, 4096), pattern(2, 4096));
}

/// A child, killed when the test ends however it ends. Its output stays open: the test harness
/// in it fails when it cannot print.
struct Process(Child, Option<BufReader<ChildStdout>>);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(address: &Address) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_peer", "--nocapture"])
        .env(CHILD_ADDRESS, address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.by_ref().lines().map_while(Result::ok);
    let ready = lines.any(|line| line.contains(READY));
    let process = Process(child, Some(output));
    assert!(ready, "the child ended before it listened");
    process
}

fn at(far: RemoteAddress, offset: u64) -> RemoteAddress {
    RemoteAddress {
        address: far.address + offset,
        ..far
    }
}

#[test]
fn messages_reads_and_writes_cross_both_ways() {
    let address = address("cross");
    let mut child = start(&address);
    let mut peer = Peer::new();
    for wr_id in 0..RECEIVES {
        peer.post_receive(wr_id, wr_id * u64::from(MESSAGE), MESSAGE);
    }
    let far = peer.connect(&address);
    for round in 0..300_u64 {
        let mut message = pattern(round, 1 + (round as usize * 7) % MESSAGE as usize);
        message[0] = if round == 40 { ONE_SIDED } else { 0 };
        peer.fill(OUT, &message);
        peer.post(5000 + round, SendOperation::Send, OUT, message.len() as u32);
        let mut echoed = None;
        let mut sent = false;
        while echoed.is_none() || !sent {
            let done = peer.completion();
            match done.result {
                Ok(CompletionKind::Receive { length }) => {
                    let offset = done.wr_id.0 * u64::from(MESSAGE);
                    echoed = Some(peer.bytes(offset, length as usize));
                    peer.post_receive(done.wr_id.0, offset, MESSAGE);
                }
                Ok(CompletionKind::Send) => sent = true,
                other => panic!("{other:?}"),
            }
        }
        assert!(echoed.unwrap() == message, "round {round}");
    }
    assert_eq!(peer.bytes(FAR, 4096), pattern(2, 4096), "the child's WRITE");

    peer.post(1, SendOperation::RdmaRead(at(far, FAR)), OUT, 8192);
    assert_eq!(peer.completion().result, Ok(CompletionKind::RdmaRead));
    assert_eq!(peer.bytes(OUT, 8192), pattern(1, 8192));
    peer.fill(OUT, &pattern(9, 4096));
    peer.post(2, SendOperation::RdmaWrite(at(far, FAR + 100)), OUT, 4096);
    peer.post(
        3,
        SendOperation::RdmaRead(at(far, FAR + 100)),
        OUT + 8192,
        4096,
    );
    assert_eq!(peer.completion().result, Ok(CompletionKind::RdmaWrite));
    assert_eq!(peer.completion().result, Ok(CompletionKind::RdmaRead));
    assert_eq!(peer.bytes(OUT + 8192, 4096), pattern(9, 4096));

    peer.provider.disconnect(peer.queue_pair).unwrap();
    peer.dismantle();
    let said: Vec<_> = child.1.take().unwrap().lines().collect();
    assert!(child.0.wait().unwrap().success(), "{said:?}");
}

#[test]
fn v_25_a_killed_peer_is_noticed_and_nothing_is_left() {
    for cycle in 0..20_u64 {
        let address = address(&format!("killed-{cycle}"));
        let mut child = start(&address);
        let mut peer = Peer::new();
        for wr_id in 0..RECEIVES {
            peer.post_receive(wr_id, wr_id * u64::from(MESSAGE), MESSAGE);
        }
        let far = peer.connect(&address);
        peer.post(1, SendOperation::RdmaRead(at(far, FAR)), OUT, 64);
        assert_eq!(peer.completion().result, Ok(CompletionKind::RdmaRead));
        // More and more traffic before the kill, which comes while it runs.
        let posted = 2 + cycle;
        for wr_id in 0..posted {
            peer.post(100 + wr_id, SendOperation::Send, OUT, MESSAGE);
        }
        child.0.kill().unwrap();
        peer.disconnected();
        let state = peer.provider.query_queue_pair(peer.queue_pair);
        assert_eq!(state, Ok(QueuePairState::Error));
        assert_eq!(peer.provider.resource_counts().connection_state, 0);
        // The mapping is gone with the connection: a READ must not find the dead peer's bytes.
        peer.post(900, SendOperation::RdmaRead(at(far, FAR)), OUT, 64);
        let mut seen: Vec<_> = (0..RECEIVES + posted + 1)
            .map(|_| peer.completion())
            .collect();
        assert_eq!(
            seen.iter().find(|done| done.wr_id.0 == 900).unwrap().result,
            Err(CompletionStatus::WorkRequestFlushed)
        );
        seen.sort_by_key(|done| done.wr_id);
        seen.dedup_by_key(|done| done.wr_id);
        assert_eq!(
            seen.len() as u64,
            RECEIVES + posted + 1,
            "each exactly once"
        );
        peer.dismantle();
    }
}
