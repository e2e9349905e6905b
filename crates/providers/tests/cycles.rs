//! Connections come and go, and nothing is left of them. Alone in its program, because it counts
//! what the process has.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

mod peer;

use legato_verbs::{
    Arm, CompletionKind, Provider, QueuePairAttributes, QueuePairState, ResourceCounts,
    SendOperation,
};
use peer::Peer;
use peer::pair::{connect, events, polled, remote, turn};

const CYCLES: u64 = 10_000;
const NONE: QueuePairAttributes = QueuePairAttributes::NONE;

/// Objects of both providers; then descriptors, threads and mappings of the process.
fn held(left: &Peer, right: &Peer) -> ([ResourceCounts; 2], [usize; 3]) {
    let counts = [left, right].map(|peer| peer.provider.resource_counts());
    let entries = |path| std::fs::read_dir(path).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // Those of segments: the allocator's own come and go.
    let segments = maps.lines().filter(|line| line.contains("/memfd:")).count();
    let process = [
        entries("/proc/self/fd"),
        entries("/proc/self/task"),
        segments,
    ];
    (counts, process)
}

fn traffic(cycle: u64, left: &mut Peer, right: &mut Peer) {
    right.post_receive(cycle, 0, 64);
    let queue = right.queue;
    right
        .provider
        .arm_completion_queue(queue, Arm::Next)
        .unwrap();
    let target = remote(right);
    let immediate = SendOperation::SendWithImmediate(cycle as u32);
    left.post(1, immediate, 0, 64);
    left.post(2, SendOperation::FetchAndAdd { target, add: 1 }, 0, 8);
    turn(left, right);
    let done = [Ok(CompletionKind::Send), Ok(CompletionKind::FetchAndAdd)];
    assert_eq!(polled(left), done);
    let came = CompletionKind::ReceiveWithImmediate {
        length: 64,
        immediate: cycle as u32,
    };
    assert_eq!(polled(right), [Ok(came)]);
    assert_eq!(events(right).len(), 1);
}

/// Ends the connection, in turn from either side and in each way.
fn end(cycle: u64, left: &mut Peer, right: &mut Peer) {
    let (ender, other) = match cycle % 2 {
        0 => (left, right),
        _ => (right, left),
    };
    let queue_pair = ender.queue_pair;
    let reset = QueuePairState::Reset;
    match cycle % 3 {
        0 => ender.provider.disconnect(queue_pair),
        1 => ender.provider.modify_to_error(queue_pair),
        _ => ender.provider.modify_queue_pair(queue_pair, reset, &NONE),
    }
    .unwrap();
    turn(ender, other);
    for peer in [ender, other] {
        assert!(events(peer).len() >= 2);
        let queue_pair = peer.queue_pair;
        if cycle.is_multiple_of(5) {
            peer.provider.destroy_queue_pair(queue_pair).unwrap();
            peer.queue_pair = peer.create_queue_pair();
        } else {
            peer.provider
                .modify_queue_pair(queue_pair, reset, &NONE)
                .unwrap();
        }
        peer.provider.modify_to_init(peer.queue_pair).unwrap();
    }
}

#[test]
fn v_24_ten_thousand_cycles_leave_nothing() {
    let (mut left, mut right) = (Peer::new(), Peer::sharing(16));
    let mut early = None;
    for cycle in 0..CYCLES {
        connect(&format!("cycle-{cycle}"), &mut left, &mut right);
        traffic(cycle, &mut left, &mut right);
        end(cycle, &mut left, &mut right);
        if cycle == 99 {
            early = Some(held(&left, &right));
        }
    }
    assert_eq!(early, Some(held(&left, &right)));
    left.dismantle();
    right.dismantle();
}
