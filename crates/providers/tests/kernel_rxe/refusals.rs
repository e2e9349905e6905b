//! V-21: what each side refuses the other, and that the other understands it.

use crate::peer::{ARENA, Order, Wanted};
use crate::rig::Rig;
use legato_verbs::{
    CompletionStatus, Provider as _, QueuePairState, RemoteAddress, RemoteKey, SendOperation,
};

const BUFFER_AT: u64 = 1 << 16;
/// `IBV_WC_REM_ACCESS_ERR`.
const REMOTE_ACCESS: &str = "failed 10";

fn wrong_key(place: RemoteAddress) -> RemoteAddress {
    RemoteAddress {
        key: RemoteKey(place.key.0 ^ 0x55),
        ..place
    }
}

/// The kernel refuses this side's request; the peer's memory stays as it was.
fn refused(operation: impl Fn(RemoteAddress) -> SendOperation) {
    let mut rig = Rig::new();
    let peer = rig.connect_peer(Wanted::USUAL);
    let operation = operation(peer.place(8));
    rig.post(peer.queue_pair, 1, operation, (BUFFER_AT, 8));
    rig.post(peer.queue_pair, 2, SendOperation::Send, (BUFFER_AT, 8));
    assert_eq!(rig.await_failure(), (1, CompletionStatus::RemoteAccess));
    let flushed = (2, CompletionStatus::WorkRequestFlushed);
    assert_eq!(rig.await_failure(), flushed);
    let state = rig.nic.query_queue_pair(peer.queue_pair).unwrap();
    assert_eq!(state, QueuePairState::Error);
    rig.end_peer(peer);
    rig.check_packets();
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_the_kernel_refuses_a_write_with_a_wrong_key() {
    refused(|place| SendOperation::RdmaWrite(wrong_key(place)));
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_the_kernel_refuses_a_read_with_a_wrong_key() {
    refused(|place| SendOperation::RdmaRead(wrong_key(place)));
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_the_kernel_refuses_an_atomic_with_a_wrong_key() {
    refused(|place| SendOperation::FetchAndAdd {
        target: wrong_key(place),
        add: 1,
    });
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_the_kernel_refuses_a_read_beyond_the_region() {
    refused(|place| {
        SendOperation::RdmaRead(RemoteAddress {
            address: place.address + 64 * u64::from(ARENA),
            ..place
        })
    });
}

/// This side refuses the kernel's request; nothing here is changed.
fn refuses(order: Order) {
    let mut rig = Rig::new();
    let peer = rig.connect_peer(Wanted::USUAL);
    rig.write(BUFFER_AT, &[7; 64]);
    let place = RemoteAddress {
        address: rig.region.address + BUFFER_AT,
        key: rig.region.remote_key,
    };
    rig.post_order(peer, order, wrong_key(place), (0, 8));
    assert_eq!(rig.await_line("failed "), REMOTE_ACCESS);
    assert_eq!(rig.bytes(BUFFER_AT, 64), [7; 64]);
    let state = rig.nic.query_queue_pair(peer.queue_pair).unwrap();
    assert_eq!(state, QueuePairState::Error);
    rig.end_peer(peer);
    rig.check_packets();
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_the_kernels_write_with_a_wrong_key_is_refused() {
    refuses(Order::Write);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_the_kernels_read_with_a_wrong_key_is_refused() {
    refuses(Order::Read);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_the_kernels_atomic_with_a_wrong_key_is_refused() {
    refuses(Order::FetchAndAdd(1));
}

/// The peer's answer finds no receive here for a while, and comes all the same.
#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v21_the_kernel_waits_for_a_receive() {
    let mut rig = Rig::new();
    let peer = rig.connect_peer(Wanted::USUAL);
    rig.write(BUFFER_AT, &[9; 3000]);
    let place = (BUFFER_AT, 3000);
    rig.post(peer.queue_pair, 1, SendOperation::Send, place);
    rig.await_success();
    // The answer, refused three times.
    let before = rig.nic.received().packets_received;
    rig.wait("asked again", |rig| {
        (rig.nic.received().packets_received >= before + 9).then_some(())
    });
    assert_eq!(rig.take_completion(), None);
    rig.post_receive(peer.queue_pair, 2, (2 * BUFFER_AT, 3000));
    assert_eq!(rig.await_success().0, 2);
    assert_eq!(rig.bytes(2 * BUFFER_AT, 3000), [9; 3000]);
    rig.end_peer(peer);
    rig.check_packets();
}
