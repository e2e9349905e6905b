//! A node that is stopped: it neither answers nor dies.

use super::{Client, Whole};
use crate::harness::{Node, is_soak, legato};
use legato_base::wire::node::{NodeReply, NodeRequest};
use legato_base::{ClientId, Duration};
use legato_fabric::{Cause, Effect, FabricEvent, Proof, Refused, ResetCause};
use legato_verbs::{AccessFlags, Provider as _, RemoteAddress, RemoteKey};
use rustix::process::Signal;
use std::process::Command;

/// Pings come ten times as often.
const LIVENESS: Duration = Duration::from_secs(5);

#[test]
fn f_07_who_calls_a_peer_that_does_not_read_waits_for_credits_and_loses_nothing() {
    let node = Node::start("64MiB");
    let mut client = Client::new(Duration::from_secs(60));
    let connection = client.connect(&node);
    node.signal(Signal::STOP);
    let mut calls = Vec::new();
    let time = Duration::from_millis(300);
    let refused = loop {
        match client.call(connection, NodeRequest::Status, time) {
            Ok(call) => calls.push(call),
            Err(refused) => break refused,
        }
        assert!(calls.len() < 1000, "nothing bounds the calls under way");
    };
    assert_eq!(refused, Refused::WouldBlock);
    for &call in &calls {
        let error = client.outcome(call).unwrap_err();
        assert_eq!(error.cause, Cause::DeadlineExpired);
    }
    node.signal(Signal::CONT);
    client.run_until("the late replies", |client| {
        client.station.fabric.counters().replies_late == calls.len() as u64
    });
    // What was refused for want of a credit is not any more.
    client.status(connection);
    assert_eq!(client.station.fabric.counters().connections_reset, 0);
}

// P-46
#[test]
fn f_16_a_frozen_peer_is_suspected_and_given_up_and_nobody_spins() {
    let node = Node::start("64MiB");
    let mut client = Client::new(LIVENESS);
    let connection = client.connect(&node);
    client.status(connection);
    let stopped = client.now();
    node.signal(Signal::STOP);
    let turns = client.turns;
    let call = client
        .call(connection, NodeRequest::Status, Duration::from_secs(60))
        .unwrap();
    client.run_until("suspicion", |client| {
        client.has(|event| matches!(event, FabricEvent::Suspected { .. }))
    });
    if is_soak() {
        // Three pings, and a tenth of one to get a processor.
        let after = client.now().since(stopped);
        let most = LIVENESS.as_nanos() / 100 * 31;
        assert!(after.as_nanos() < most, "suspected after {after}");
    }
    client.run_until("the end of the connection", |client| {
        client.has(|event| matches!(event, FabricEvent::Disconnected { .. }))
    });
    let cause = client.station.fabric.reset_cause(connection);
    assert_eq!(cause, Some(ResetCause::PeerSilent));
    let error = client.outcome(call).unwrap_err();
    assert_eq!(error.cause, Cause::Reset(ResetCause::PeerSilent));
    // Ten pings, and a few turns for each thing that happened.
    let turns = client.turns - turns;
    assert!(turns < 1000, "{turns} turns while there was nothing to do");
    node.signal(Signal::CONT);
    // It has heard the disconnect, and serves others and us as before.
    let connection = client.connect(&node);
    client.status(connection);
}

#[test]
fn f_16_a_peer_that_is_frozen_for_a_moment_is_heard_again() {
    let node = Node::start("64MiB");
    let mut client = Client::new(Duration::from_secs(20));
    let connection = client.connect(&node);
    node.signal(Signal::STOP);
    client.run_until("suspicion", |client| {
        client.has(|event| matches!(event, FabricEvent::Suspected { .. }))
    });
    node.signal(Signal::CONT);
    client.run_until("a sign of life", |client| {
        client.has(|event| matches!(event, FabricEvent::Heard { .. }))
    });
    client.status(connection);
    assert_eq!(client.station.fabric.counters().connections_reset, 0);
}

/// A READ of a frozen node's memory is given up by its caller. Its outcome is there at once; its buffer
/// stays with the engine until the queue pair is over, and then nothing changes it any more.
#[test]
fn f_04_what_a_caller_gives_up_comes_back_when_nothing_can_touch_it() {
    let host = Node::unused_host();
    let address = format!("roce://{host}:4791");
    let node = Node::start_by(Command::new(legato()), "64MiB", &address);
    let mut client = Client::towards(&address, LIVENESS);
    let connection = client.connect(&node);
    client.ask(
        connection,
        NodeRequest::Open {
            client: ClientId(9),
        },
    );
    let extent = client.ask(connection, NodeRequest::AllocateExtent { slots: 64 });
    let NodeReply::ExtentAllocated {
        remote_key,
        address,
        ..
    } = extent
    else {
        panic!("{extent:?}");
    };
    let from = RemoteAddress {
        key: RemoteKey(remote_key),
        address,
    };
    let (domain, provider) = (client.station.fabric.domain(), &mut client.station.provider);
    let access = AccessFlags::from_bits(1);
    let region = provider.allocate_region(domain, 65_536, access).unwrap();
    provider.write_region(&region, 0, &[0xC5; 65_536]).unwrap();
    client.events.clear();
    node.signal(Signal::STOP);
    let deadline = client.now() + Duration::from_secs(50);
    let (fabric, provider) = (&mut client.station.fabric, &mut client.station.provider);
    let read = fabric
        .read(provider, connection, from, Whole(region), deadline)
        .unwrap();
    let now = client.now();
    client.step(now);
    assert!(client.station.fabric.cancel(read));
    client.run_until("the outcome", |client| {
        client.has(|event| matches!(event, FabricEvent::Outcome { .. }))
    });
    let FabricEvent::Outcome { operation, outcome } = client.events.remove(0) else {
        panic!("{:?}", client.events);
    };
    let error = outcome.unwrap_err();
    assert_eq!((operation, error.cause), (read, Cause::Canceled));
    assert_eq!(error.effect, Effect::Unknown);
    assert_eq!(client.events.len(), 0, "its buffer is not quiet yet");
    client.run_until("the buffer", |client| {
        client.has(|event| matches!(event, FabricEvent::Quiesced { .. }))
    });
    let rung = client.events.iter().find_map(|event| match event {
        FabricEvent::Quiesced { proof, .. } => Some(*proof),
        _ => None,
    });
    assert_eq!(rung, Some(Proof::QueuePairDrained));
    assert_eq!(
        client.station.fabric.counters().fences.queue_pair_drained,
        1
    );
    // What the node sends when it goes on comes too late.
    node.signal(Signal::CONT);
    let connection = client.connect(&node);
    client.status(connection);
    let mut bytes = vec![0; 65_536];
    let provider = &client.station.provider;
    provider.read_region(&region, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0xC5));
}
