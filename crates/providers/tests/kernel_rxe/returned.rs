//! V-27: a peer of the provider in the guest vanishes and comes back with the same queue pair number. The peer is
//! no NIC, whose numbers would be new ones, but connection management alone, on a plain socket.

use crate::guest::Guest;
use crate::raw_packets::PAYLOAD_BYTE;
use crate::raw_peer::{MESSAGE, RawPeer};
use crate::side::Peer;
use legato_providers::ibverbs::IbverbsProvider;
use legato_transport::cm::RejectReason;
use legato_verbs::{
    Address, CompletionKind, CompletionStatus, ConnectionEvent, Event, Provider as _, QueuePair,
    QueuePairNumber,
};
use std::time::{Duration, Instant};

/// Of both lives of the peer.
const NUMBER: QueuePairNumber = QueuePairNumber::new(100);
/// Receives of each connection, one behind the other.
const RECEIVES: u64 = 4;
/// A request is refused for as long as the connection before has not ended, and asked again.
const REQUESTS_MAX: u32 = 20;
/// The scenario's second, and what an emulated processor needs.
const CONNECTED_WITHIN: Duration = Duration::from_secs(5);

pub(crate) type End = Peer<IbverbsProvider>;

/// Accepts the next request; its receives are numbered from `first`.
fn accept(end: &mut End, queue_pair: QueuePair, first: u64) {
    end.queue_pair = queue_pair;
    for wr_id in first..first + RECEIVES {
        end.post_receive(wr_id, wr_id * u64::from(MESSAGE), MESSAGE);
    }
    accept_with(end, queue_pair);
}

/// With the queue pair that is given.
pub(crate) fn accept_with(end: &mut End, queue_pair: QueuePair) {
    let request = end.event("a request", |event| match event {
        Event::Connection(ConnectionEvent::Requested { request, .. }) => Some(*request),
        _ => None,
    });
    end.provider.accept(request, queue_pair, &[]).unwrap();
    end.event("Established", |event| match event {
        Event::Connection(ConnectionEvent::Established { queue_pair: of, .. }) => {
            (*of == queue_pair).then_some(())
        }
        _ => None,
    });
    println!("\naccepted");
}

/// The next completion is of this receive, and with what was sent.
fn hear(end: &mut End, wr_id: u64) {
    let done = end.completion();
    let heard = CompletionKind::Receive { length: MESSAGE };
    assert_eq!((done.wr_id.0, done.result), (wr_id, Ok(heard)));
    assert_eq!(done.queue_pair, end.queue_pair);
    let bytes = end.bytes(wr_id * u64::from(MESSAGE), MESSAGE as usize);
    assert_eq!(bytes, [PAYLOAD_BYTE; MESSAGE as usize]);
    println!("\nheard");
}

pub(crate) fn is_disconnected(end: &mut End, queue_pair: QueuePair) {
    let over = Event::Connection(ConnectionEvent::Disconnected { queue_pair });
    end.event("Disconnected", |event| (*event == over).then_some(()));
}

/// The connection is over, and the receives behind the first have come back empty.
fn over(end: &mut End, first: u64) {
    is_disconnected(end, end.queue_pair);
    for wr_id in first + 1..first + RECEIVES {
        let done = end.completion();
        let flushed = Err(CompletionStatus::WorkRequestFlushed);
        assert_eq!((done.wr_id.0, done.result), (wr_id, flushed));
    }
    println!("\nover");
}

/// In the guest: two connections, one behind the other, each with one message.
pub(crate) fn attend(provider: IbverbsProvider, address: &Address, ready: impl FnOnce()) {
    let mut end = End::over(provider);
    end.provider.listen(address).unwrap();
    ready();
    let old = end.queue_pair;
    accept(&mut end, old, 0);
    hear(&mut end, 0);
    over(&mut end, 0);
    let new = end.create_queue_pair();
    end.provider.modify_to_init(new).unwrap();
    accept(&mut end, new, RECEIVES);
    // Whatever is sent to the old one in between.
    hear(&mut end, RECEIVES);
    over(&mut end, RECEIVES);
    assert!(end.completions.is_empty(), "{:?}", end.completions);
    for queue_pair in [old, new] {
        end.provider.destroy_queue_pair(queue_pair).unwrap();
    }
}

/// The peer with an end in the guest that listens: the first of its lives, and what follows.
pub(crate) fn returns(guest: Guest) -> Guest {
    let mut peer = RawPeer::new(guest);
    let (_, old) = peer.request(NUMBER, 7000).unwrap();
    peer.told("accepted");
    peer.say(&old, 0);
    peer.told("heard");
    peer.vanish_and_return();
    let begun = Instant::now();
    let first = peer.request(NUMBER, 9000);
    assert_eq!(first.err(), Some(RejectReason::STALE_CONNECTION));
    // And the guest's connection ends by that.
    peer.told("over");
    let mut requests = 1;
    let (connection, new) = loop {
        requests += 1;
        match peer.request(NUMBER, 9000) {
            Ok(new) => break new,
            Err(reason) => assert_eq!(reason, RejectReason::STALE_CONNECTION),
        }
        assert!(requests < REQUESTS_MAX, "refused again and again");
    };
    let took = begun.elapsed();
    println!("  connected again after {took:?} and {requests} requests");
    assert!(took < CONNECTED_WITHIN, "{took:?}");
    assert_ne!(old.queue_pair, new.queue_pair);
    peer.told("accepted");
    // What the old life had sent, and comes only now.
    peer.say(&old, 1);
    peer.say(&new, 0);
    peer.told("heard");
    peer.disconnect(connection);
    peer.told("over");
    peer.guest
}
