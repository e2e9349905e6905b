//! Peers that stand still, and end: what was sent to them is theirs when it is complete, and holds up
//! nothing that comes after it.

use crate::peer::pair::{connect, connected, events, over, polled, remote, state, turn};
use crate::peer::{Peer, pattern};
use legato_verbs::{
    CompletionKind, CompletionStatus, Provider, QueuePairState as State, SendOperation,
};

const SENT: Result<CompletionKind, CompletionStatus> = Ok(CompletionKind::Send);
const READ: Result<CompletionKind, CompletionStatus> = Ok(CompletionKind::RdmaRead);
const FLUSHED: Result<CompletionKind, CompletionStatus> = Err(CompletionStatus::WorkRequestFlushed);

const fn received(length: u32) -> Result<CompletionKind, CompletionStatus> {
    Ok(CompletionKind::Receive { length })
}

fn send(peer: &mut Peer, length: u32) {
    peer.post(1, SendOperation::Send, 0, length);
}

/// Of the other's region, which was read once before: so its segment is mapped.
fn read(left: &mut Peer, right: &Peer) {
    let remote = remote(right);
    left.post(2, SendOperation::RdmaRead(remote), 4096, 64);
}

/// Two that are connected, the first one of which has read from the second.
fn acquainted(name: &str) -> (Peer, Peer) {
    let (mut left, mut right) = connected(name);
    read(&mut left, &right);
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut left), [READ]);
    (left, right)
}

#[test]
fn what_a_peer_has_a_receive_for_is_sent_and_holds_up_nothing() {
    let (mut left, mut right) = acquainted("still");
    let bytes = pattern(1, 64);
    left.fill(0, &bytes);
    right.fill(0, &pattern(2, 64));
    for wr_id in 0..2 {
        right.post_receive(wr_id, 1024 + 64 * wr_id, 64);
    }
    // From here on only one side runs.
    send(&mut left, 64);
    read(&mut left, &right);
    send(&mut left, 8);
    read(&mut left, &right);
    assert_eq!(polled(&mut left), [SENT, READ, SENT, READ]);
    assert_eq!(left.bytes(4096, 64), pattern(2, 64));
    // A third one finds no receive. What comes after it waits as it does.
    send(&mut left, 8);
    read(&mut left, &right);
    assert_eq!(polled(&mut left), []);
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut right), [received(64), received(8)]);
    assert_eq!(right.bytes(1024, 64), bytes);
    assert_eq!(polled(&mut left), []);
    right.post_receive(3, 2048, 64);
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut right), [received(8)]);
    assert_eq!(polled(&mut left), [SENT, READ]);
    left.dismantle();
    right.dismantle();
}

/// No longer than the shortest that was ever posted.
#[test]
fn what_may_be_too_long_is_sent_when_it_is_received() {
    let (mut left, mut right) = acquainted("short");
    for (wr_id, length) in [(0, 64), (1, 8), (2, 64)] {
        right.post_receive(wr_id, 1024, length);
    }
    send(&mut left, 64);
    read(&mut left, &right);
    assert_eq!(polled(&mut left), []);
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut left), [SENT, READ]);
    send(&mut left, 8);
    assert_eq!(polled(&mut left), [SENT]);
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut right), [received(64), received(8)]);
    left.dismantle();
    right.dismantle();
}

#[test]
fn what_shares_its_receives_has_sent_when_it_is_received() {
    let (mut left, mut right) = (Peer::new(), Peer::sharing(4));
    connect("shared-still", &mut left, &mut right);
    right.post_receive(0, 0, 64);
    send(&mut left, 8);
    assert_eq!(polled(&mut left), []);
    turn(&mut left, &mut right);
    assert_eq!(
        (polled(&mut left), polled(&mut right)),
        (vec![SENT], vec![received(8)])
    );
    left.dismantle();
    right.dismantle();
}

/// P-99: as on a wire, where what was acknowledged is in memory.
#[test]
fn what_was_sent_is_received_whoever_ends_the_connection() {
    type End = fn(&mut Peer, &mut Peer);
    let ends: [(&str, End); 4] = [
        ("sender-disconnects", |left, _| {
            left.provider.disconnect(left.queue_pair).unwrap();
        }),
        ("sender-is-gone", |left, _| {
            left.provider.destroy_queue_pair(left.queue_pair).unwrap();
        }),
        ("receiver-disconnects", |_, right| {
            right.provider.disconnect(right.queue_pair).unwrap();
        }),
        ("receiver-fails", |_, right| {
            right.provider.modify_to_error(right.queue_pair).unwrap();
        }),
    ];
    for (name, end) in ends {
        let (mut left, mut right) = acquainted(name);
        let bytes = pattern(3, 64);
        left.fill(0, &bytes);
        for wr_id in 0..3 {
            right.post_receive(wr_id, 1024 + 64 * wr_id, 64);
        }
        send(&mut left, 64);
        send(&mut left, 8);
        assert_eq!(polled(&mut left), [SENT, SENT], "{name}");
        end(&mut left, &mut right);
        right.provider.progress(crate::peer::pair::NOW);
        let done = polled(&mut right);
        assert_eq!(done, [received(64), received(8), FLUSHED], "{name}");
        assert_eq!(right.bytes(1024, 64), bytes, "{name}");
        assert_eq!(state(&right), State::Error, "{name}");
        assert_eq!(events(&mut right), over(right.queue_pair), "{name}");
        // Nothing is certain any more.
        if name.starts_with("receiver") {
            send(&mut left, 8);
            turn(&mut left, &mut right);
            assert_eq!(polled(&mut left), [FLUSHED], "{name}");
        }
    }
}
