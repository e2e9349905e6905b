//! Two real processes: this test program, and itself started once more as the peer.

use crate::peer::process::{CHILD_ADDRESS, READY, start};
use crate::peer::{Peer, address, pattern};
use legato_verbs::{
    Address, AsyncEvent, CompletionKind, CompletionStatus, Event, Provider, QueuePairState,
    RemoteAddress, SendOperation,
};
use rustix::process::Signal;
use std::io::BufRead;

const CHILD: &str = "two_processes::child_peer";
const MESSAGE: u32 = 1024;
const RECEIVES: u64 = 32;
/// Offsets in a region: receives below, then what is sent, read and written.
const OUT: u64 = 64 * 1024;
const FAR: u64 = 128 * 1024;
/// A message that asks the child to write to and read from its parent.
const ONE_SIDED: u8 = 0xF0;
/// A message that asks the child to add to its parent's word, [`ADDITIONS`] times.
const ADD: u8 = 0xF1;
const ADDITIONS: u64 = 20_000;
/// The word, and where what was there comes to.
const WORD: u64 = FAR + 65_536;
const OLD: u64 = WORD + 8;

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
                match message[0] {
                    ONE_SIDED => one_sided(&mut peer, parent),
                    ADD => add(&mut peer, parent),
                    _ => {}
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

/// Adds one to the far word again and again. What was there always grows.
fn add(peer: &mut Peer, far: RemoteAddress) {
    let mut before = None;
    for _ in 0..ADDITIONS {
        let target = at(far, WORD);
        let add = SendOperation::FetchAndAdd { target, add: 1 };
        peer.post(3000, add, OLD, 8);
        let done = peer.until("an addition", |peer| {
            let wanted = |done: &legato_verbs::Completion| done.wr_id.0 == 3000;
            let place = peer.completions.iter().position(wanted)?;
            peer.completions.remove(place)
        });
        assert_eq!(done.result, Ok(CompletionKind::FetchAndAdd));
        let old = u64::from_le_bytes(peer.bytes(OLD, 8).try_into().unwrap());
        assert!(before < Some(old), "{before:?} and then {old}");
        before = Some(old);
    }
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
    let mut child = start(CHILD, &address);
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

// P-41
#[test]
fn v_25_a_killed_peer_is_noticed_and_nothing_is_left() {
    for cycle in 0..20_u64 {
        let address = address(&format!("killed-{cycle}"));
        let mut child = start(CHILD, &address);
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

#[test]
fn v_11_atomics_of_two_processes_add_up() {
    let address = address("adding");
    let _child = start(CHILD, &address);
    let mut owner = Peer::new();
    owner.post_receive(1, 0, MESSAGE);
    owner.connect(&address);
    // A second one who adds, in this process, through a connection to the owner of the word.
    let mut other = Peer::new();
    let name = crate::peer::address("adding-too");
    owner.provider.listen(&name).unwrap();
    let near = owner.queue_pair;
    let adder = std::thread::spawn(move || {
        let far = other.connect(&name);
        add(&mut other, far);
        other.post(1, SendOperation::Send, OUT, 1);
        assert_eq!(other.completion().result, Ok(CompletionKind::Send));
    });
    let request = owner.event("a request", |event| match event {
        Event::Connection(legato_verbs::ConnectionEvent::Requested { request, .. }) => {
            Some(*request)
        }
        _ => None,
    });
    owner.queue_pair = owner.create_queue_pair();
    owner.provider.modify_to_init(owner.queue_pair).unwrap();
    let introduction = owner.introduction();
    let accepting = owner.queue_pair;
    owner
        .provider
        .accept(request, accepting, &introduction)
        .unwrap();
    owner.post_receive(3, u64::from(MESSAGE), MESSAGE);
    owner.queue_pair = near;
    owner.fill(OUT, &[ADD]);
    owner.post(2, SendOperation::Send, OUT, 1);
    // Sent; echoed when the child is done; and the other's message when it is.
    for _ in 0..3 {
        assert!(owner.completion().result.is_ok());
    }
    adder.join().unwrap();
    let sum = u64::from_le_bytes(owner.bytes(WORD, 8).try_into().unwrap());
    assert_eq!(sum, 2 * ADDITIONS);
}

#[test]
fn a_stopped_peer_is_waited_for_and_its_memory_is_there() {
    let address = address("stopped");
    let mut child = start(CHILD, &address);
    let mut peer = Peer::new();
    peer.post_receive(1, 0, MESSAGE);
    let far = peer.connect(&address);
    peer.post(1, SendOperation::RdmaRead(at(far, FAR)), OUT, 64);
    assert_eq!(peer.completion().result, Ok(CompletionKind::RdmaRead));
    child.stop();
    // One-sided operations need nobody at the other end.
    let target = at(far, WORD);
    let add = SendOperation::FetchAndAdd { target, add: 5 };
    for (operation, length) in [
        (SendOperation::RdmaWrite(at(far, FAR)), 64),
        (SendOperation::RdmaRead(at(far, FAR)), 64),
        (add, 8),
    ] {
        peer.post(2, operation, OUT, length);
        let kind = operation.completion_kind();
        assert_eq!(peer.completion().result, Ok(kind));
    }
    peer.fill(OUT, &[0; 64]);
    peer.post(3, SendOperation::Send, OUT, 64);
    for hour in 1..100 {
        let late = legato_base::Time::from_nanos(hour * 3_600_000_000_000);
        peer.provider.progress(late);
    }
    assert_eq!(peer.provider.poll_event(), None, "no timeout");
    child.signal(Signal::CONT);
    let mut results: Vec<_> = (0..2).map(|_| peer.completion().result).collect();
    results.sort_by_key(|result| *result != Ok(CompletionKind::Send));
    let echoed = CompletionKind::Receive { length: 64 };
    assert_eq!(results, [Ok(CompletionKind::Send), Ok(echoed)]);
    // Killed while it stands still. It may not yet have posted again what the echo came from.
    child.stop();
    for _ in 0..RECEIVES - 1 {
        peer.post(4, SendOperation::Send, OUT, 64);
        assert_eq!(peer.completion().result, Ok(CompletionKind::Send));
    }
    for _ in 0..2 {
        peer.post(5, SendOperation::Send, OUT, 64);
    }
    child.0.kill().unwrap();
    peer.disconnected();
    let flushed = Err(CompletionStatus::WorkRequestFlushed);
    assert_eq!(
        peer.completions.pop_back().map(|last| last.result),
        Some(flushed)
    );
    peer.completions.clear();
    assert_eq!(peer.provider.resource_counts().connection_state, 0);
    peer.dismantle();
}

#[test]
fn v_26_a_killed_peer_gives_shared_receives_back() {
    let address = address("killed-sharing");
    let mut child = start(CHILD, &address);
    let mut peer = Peer::sharing(8);
    for wr_id in 0..8 {
        peer.post_receive(wr_id, wr_id * u64::from(MESSAGE), MESSAGE);
    }
    peer.connect(&address);
    child.0.kill().unwrap();
    let last = Event::Async(AsyncEvent::LastWorkRequestReached(peer.queue_pair));
    peer.event("the last receive", |event| (*event == last).then_some(()));
    peer.disconnected();
    assert_eq!(peer.completions.len(), 0, "they are the queue's");
    assert_eq!(peer.provider.resource_counts().connection_state, 0);
    peer.dismantle();
}

#[test]
fn v_27_a_peer_that_comes_back_with_the_same_number_is_a_new_one() {
    let address = address("comes-back");
    let mut peer = Peer::new();
    let mut destinations = Vec::new();
    for round in 0..3 {
        let mut child = start(CHILD, &address);
        let far = peer.connect(&address);
        let known = peer.provider.query_attributes(peer.queue_pair).unwrap();
        destinations.push(known.destination.unwrap());
        peer.post(1, SendOperation::RdmaRead(at(far, FAR)), OUT, 64);
        assert_eq!(peer.completion().result, Ok(CompletionKind::RdmaRead));
        assert_eq!(peer.bytes(OUT, 64), pattern(1, 64), "round {round}");
        peer.fill(OUT, &[0xEE; 64]);
        peer.post(2, SendOperation::RdmaWrite(at(far, FAR)), OUT, 64);
        assert_eq!(peer.completion().result, Ok(CompletionKind::RdmaWrite));
        child.0.kill().unwrap();
        peer.disconnected();
        let none = legato_verbs::QueuePairAttributes::NONE;
        let (queue_pair, reset) = (peer.queue_pair, QueuePairState::Reset);
        peer.provider
            .modify_queue_pair(queue_pair, reset, &none)
            .unwrap();
        peer.provider.modify_to_init(queue_pair).unwrap();
    }
    destinations.dedup();
    assert_eq!(destinations.len(), 1, "{destinations:?}");
    peer.dismantle();
}
