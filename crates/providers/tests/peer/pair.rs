//! Two connected peers in one thread, with the clock in the test's hand.

use super::{Peer, address};
use legato_base::Time;
use legato_verbs::{
    CompletionKind, CompletionStatus, ConnectionEvent, Event, Provider, QueuePair, QueuePairState,
    RemoteAddress,
};

pub(crate) const NOW: Time = Time::from_nanos(1);

/// Lets both sides do all that they can without time passing.
pub(crate) fn turn(left: &mut Peer, right: &mut Peer) {
    turn_at(NOW, left, right);
}

pub(crate) fn turn_at(now: Time, left: &mut Peer, right: &mut Peer) {
    for _ in 0..4 {
        left.provider.progress(now);
        right.provider.progress(now);
    }
}

/// Results of what is in the queue, in order.
pub(crate) fn polled(peer: &mut Peer) -> Vec<Result<CompletionKind, CompletionStatus>> {
    let mut completions = Vec::new();
    peer.provider
        .poll_completion_queue(peer.queue, 1000, &mut completions)
        .unwrap();
    completions.iter().map(|done| done.result).collect()
}

pub(crate) fn events(peer: &mut Peer) -> Vec<Event> {
    std::iter::from_fn(|| peer.provider.poll_event()).collect()
}

/// The two events that end a connection.
pub(crate) fn over(queue_pair: QueuePair) -> [Event; 2] {
    [
        Event::Connection(ConnectionEvent::Disconnected { queue_pair }),
        Event::Connection(ConnectionEvent::TimeWaitExit { queue_pair }),
    ]
}

pub(crate) fn state(peer: &Peer) -> QueuePairState {
    peer.provider.query_queue_pair(peer.queue_pair).unwrap()
}

pub(crate) fn connected(name: &str) -> (Peer, Peer) {
    let (mut left, mut right) = (Peer::new(), Peer::new());
    connect(name, &mut left, &mut right);
    (left, right)
}

/// Connects the peers' queue pairs, which are in Init.
pub(crate) fn connect(name: &str, left: &mut Peer, right: &mut Peer) {
    let address = address(name);
    let listener = right.provider.listen(&address).unwrap();
    left.provider
        .connect(left.queue_pair, &address, &[])
        .unwrap();
    right.provider.progress(NOW);
    let Some(Event::Connection(ConnectionEvent::Requested { request, .. })) =
        right.provider.poll_event()
    else {
        panic!("no request");
    };
    right
        .provider
        .accept(request, right.queue_pair, &[])
        .unwrap();
    right.provider.close_listener(listener).unwrap();
    turn(left, right);
    for peer in [left, right] {
        events(peer);
        assert_eq!(state(peer), QueuePairState::ReadyToSend);
    }
}

pub(crate) fn remote(peer: &Peer) -> RemoteAddress {
    RemoteAddress {
        key: peer.region.remote_key,
        address: peer.region.address,
    }
}

pub(crate) fn remote_at(peer: &Peer, offset: u64) -> RemoteAddress {
    RemoteAddress {
        key: peer.region.remote_key,
        address: peer.region.address + offset,
    }
}
