//! V-31: connections to the provider in the guest that end in the middle of a message, one after the other, with one
//! shared receive queue. `rdma_rxe` (Linux 6.5 and later) keeps the receive of each.

use crate::guest::Guest;
use crate::raw_peer::{MESSAGE, RawPeer};
use crate::returned::{End, accept_with, is_disconnected};
use legato_providers::ibverbs::IbverbsProvider;
use legato_verbs::{Address, CompletionKind, Provider as _, QueuePairNumber};

/// What the queue takes at a time. All are posted.
const DEPTH: u32 = 4;
const HALVES: u32 = 3;
/// A receive that holds a packet.
const RECEIVE: u32 = 2048;

fn post(end: &mut End, wr_id: u64) {
    let slot = wr_id % u64::from(2 * DEPTH);
    end.post_receive(wr_id, slot * u64::from(RECEIVE), RECEIVE);
}

/// In the guest: a connection with whole messages, and behind each half of one on another.
pub(crate) fn attend(provider: IbverbsProvider, address: &Address, ready: impl FnOnce()) {
    let mut end = End::with_receives(provider, Some(DEPTH));
    let listener = end.provider.listen(address).unwrap();
    ready();
    let mut posted = u64::from(DEPTH);
    (0..posted).for_each(|wr_id| post(&mut end, wr_id));
    let whole = end.queue_pair;
    accept_with(&mut end, whole);
    for _ in 0..HALVES {
        let half = end.create_queue_pair();
        end.provider.modify_to_init(half).unwrap();
        accept_with(&mut end, half);
        let heard = end.until("a whole message", |end| {
            let mut all = end.completions.iter();
            let place = all.position(|done| done.queue_pair == whole)?;
            end.completions.remove(place)
        });
        assert_eq!(
            heard.result,
            Ok(CompletionKind::Receive { length: MESSAGE })
        );
        println!("\nheard");
        is_disconnected(&mut end, half);
        end.provider.destroy_queue_pair(half).unwrap();
        // As many as were taken.
        for _ in 0..2 {
            post(&mut end, posted);
            posted += 1;
        }
        println!("\nover");
    }
    is_disconnected(&mut end, whole);
    println!("\nwhole over");
    end.provider.close_listener(listener).unwrap();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    // Each was found when there was no room.
    let kept = if kernel.starts_with("6.1.") {
        0
    } else {
        HALVES
    };
    assert_eq!(end.provider.counters().receives_kept, u64::from(kept));
    end.dismantle();
}

/// This side, with an end in the guest that listens.
pub(crate) fn sends_halves(guest: Guest) -> Guest {
    let mut peer = RawPeer::new(guest);
    let (whole, to_whole) = peer.request(QueuePairNumber::new(200), 1).unwrap();
    peer.told("accepted");
    for round in 0..HALVES {
        let number = QueuePairNumber::new(100 + round);
        let (half, to_half) = peer.request(number, 1).unwrap();
        peer.told("accepted");
        peer.say_half(&to_half, 0);
        peer.say(&to_whole, round);
        peer.told("heard");
        peer.disconnect(half);
        peer.told("over");
    }
    peer.disconnect(whole);
    peer.told("whole over");
    peer.guest
}
