//! Rules of the shm provider that the conformance suite does not know: names in the file system,
//! revocation while a segment is mapped, and memory of others.

use crate::peer::pair::{NOW, connected, polled, remote, turn};
use crate::peer::{Peer, pattern};
use legato_base::Time;
use legato_providers::ForeignMemory;
use legato_providers::shm::RECEIVER_NOT_READY_WAIT;
use legato_verbs::{
    AccessFlags, Address, AsyncEvent, CompletionKind, CompletionStatus, Event, Provider,
    QueuePairState, RemoteAddress, ScatterGatherEntry, SendFlags, SendOperation, SendRequest,
    VerbsError, WorkRequestId,
};
use std::os::unix::net::UnixListener;

// P-38
#[test]
fn a_mapped_segment_is_read_without_the_target_and_fails_once_revoked() {
    let (mut left, mut right) = connected("revoked");
    right.fill(0, &pattern(1, 4096));
    let read = SendOperation::RdmaRead(remote(&right));
    left.post(1, read, 0, 4096);
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut left), [Ok(CompletionKind::RdmaRead)]);
    assert_eq!(left.provider.resource_counts().connection_state, 2);
    // From here on neither side makes progress, and a READ is complete when posted.
    right.fill(0, &pattern(2, 4096));
    left.post(2, read, 0, 4096);
    assert_eq!(polled(&mut left), [Ok(CompletionKind::RdmaRead)]);
    assert_eq!(left.bytes(0, 4096), pattern(2, 4096));
    let region = right.region;
    right.provider.deregister_region(&region).unwrap();
    left.post(3, read, 0, 4096);
    assert_eq!(polled(&mut left), [Err(CompletionStatus::RemoteAccess)]);
    assert_eq!(left.bytes(0, 4096), pattern(2, 4096));
    assert_eq!(left.provider.resource_counts().connection_state, 0);
    turn(&mut left, &mut right);
    let queue_pair = right.queue_pair;
    let violated = Event::Async(AsyncEvent::QueuePairAccessError(queue_pair));
    assert_eq!(right.provider.poll_event(), Some(violated));
}

// P-39
#[test]
fn revoking_one_region_unmaps_it_at_the_peer_and_leaves_the_others() {
    let (mut left, mut right) = connected("unmapped");
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let domain = right.domain;
    let other = right.provider.allocate_region(domain, 100, access).unwrap();
    let at = RemoteAddress {
        key: other.remote_key,
        address: other.address,
    };
    left.post(1, SendOperation::RdmaWrite(at), 0, 100);
    left.post(2, SendOperation::RdmaRead(remote(&right)), 0, 100);
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut left).len(), 2);
    assert_eq!(left.provider.resource_counts().connection_state, 3);
    right.provider.deregister_region(&other).unwrap();
    turn(&mut left, &mut right);
    assert_eq!(left.provider.resource_counts().connection_state, 2);
    left.post(3, SendOperation::RdmaRead(remote(&right)), 0, 100);
    assert_eq!(polled(&mut left), [Ok(CompletionKind::RdmaRead)]);
}

#[test]
fn v_06_a_receive_posted_within_the_wait_is_in_time() {
    let (mut left, mut right) = connected("in-time");
    left.post(1, SendOperation::Send, 0, 64);
    let first = right.provider.progress(NOW);
    assert_eq!(first, NOW + RECEIVER_NOT_READY_WAIT);
    right
        .provider
        .progress(Time::from_nanos(first.as_nanos() - 1));
    right.post_receive(1, 0, 64);
    right.provider.progress(first);
    left.provider.progress(first);
    assert_eq!(polled(&mut left), [Ok(CompletionKind::Send)]);
    let received = CompletionKind::Receive { length: 64 };
    assert_eq!(polled(&mut right), [Ok(received)]);

    left.post(2, SendOperation::Send, 0, 64);
    let late = right.provider.progress(first);
    right.provider.progress(late);
    // Refused is refused, even if a receive comes after all.
    right.post_receive(2, 0, 64);
    right.provider.progress(late);
    let state = right.provider.query_queue_pair(right.queue_pair);
    assert_eq!(state, Ok(QueuePairState::ReadyToSend));
    left.provider.progress(late);
    let exhausted = CompletionStatus::ReceiverNotReadyRetryExceeded;
    assert_eq!(polled(&mut left), [Err(exhausted)]);
    right.provider.progress(late);
    let flushed = CompletionStatus::WorkRequestFlushed;
    assert_eq!(polled(&mut right), [Err(flushed)]);
}

#[test]
fn more_messages_than_the_ring_holds_wait_for_space() {
    let (mut left, mut right) = connected("full");
    const LENGTH: u32 = 60_000;
    for wr_id in 0..12 {
        left.post(wr_id, SendOperation::Send, 0, LENGTH);
    }
    for wr_id in 0..12 {
        right.post_receive(wr_id, 0, LENGTH);
    }
    for _ in 0..4 {
        turn(&mut left, &mut right);
    }
    assert_eq!(polled(&mut left), [Ok(CompletionKind::Send); 12]);
    let received = CompletionKind::Receive { length: LENGTH };
    assert_eq!(polled(&mut right), [Ok(received); 12]);
}

// P-40
#[test]
fn v_18_nobody_sleeps_over_a_message() {
    let (mut left, mut right) = connected("sleep");
    right.post_receive(1, 0, 64);
    assert!(right.provider.set_sleeping(true));
    left.post(1, SendOperation::Send, 0, 64);
    assert_eq!(left.provider.counters().wake_ups, 1);
    left.post(2, SendOperation::Send, 0, 64);
    assert_eq!(left.provider.counters().wake_ups, 1, "once a sleep");
    right.provider.set_sleeping(false);
    assert!(!right.provider.set_sleeping(true), "a message is there");
}

#[test]
fn foreign_memory_is_a_local_entry_and_nothing_else() {
    let (mut left, mut right) = connected("foreign");
    right.fill(0, &pattern(3, 4096));
    let mut memory = vec![0_u8; 4096];
    let (pointer, domain) = (memory.as_mut_ptr(), left.domain);
    for access in [AccessFlags::REMOTE_READ, AccessFlags::REMOTE_WRITE] {
        // SAFETY: the vector outlives the provider's use of it, and is not touched meanwhile.
        let refused = unsafe {
            left.provider
                .register_foreign(domain, pointer, 4096, access)
        };
        assert_eq!(refused, Err(VerbsError::PermissionDenied));
    }
    // SAFETY: the vector is deregistered below before it is used or freed.
    let region = unsafe {
        left.provider
            .register_foreign(domain, pointer, 4096, AccessFlags::LOCAL_WRITE)
    };
    let region = region.unwrap();
    assert_eq!(region.address, pointer.addr() as u64);
    let mut request = SendRequest {
        wr_id: WorkRequestId(1),
        operation: SendOperation::RdmaRead(remote(&right)),
        entries: vec![region.entry(0, 4096)],
        flags: SendFlags::SIGNALED,
    };
    let queue_pair = left.queue_pair;
    left.provider.post_send(queue_pair, &request).unwrap();
    let busy = left.provider.deregister_region(&region);
    assert_eq!(busy, Err(VerbsError::Busy("memory region")));
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut left), [Ok(CompletionKind::RdmaRead)]);
    request.entries = vec![ScatterGatherEntry {
        address: region.address - 1,
        ..region.entry(0, 16)
    }];
    let outside = left.provider.post_send(queue_pair, &request);
    assert_eq!(outside, Err(VerbsError::LocalProtection));
    left.provider.deregister_region(&region).unwrap();
    assert!(memory == pattern(3, 4096));
}

fn path(name: &str) -> (std::path::PathBuf, Address) {
    let path = std::env::temp_dir().join(format!("legato-{}-{name}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let address = Address::Shm(path.to_str().unwrap().to_string());
    (path, address)
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_or_a_file_is_not() {
    let (path, address) = path("stale");
    let mut peer = Peer::new();
    // Dropping a standard listener leaves its name behind, as a killed process does.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = peer.provider.listen(&address).unwrap();
    let mut other = Peer::new();
    assert_eq!(
        other.provider.listen(&address),
        Err(VerbsError::AddressInUse)
    );
    peer.provider.close_listener(listener).unwrap();
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(
        peer.provider.listen(&address),
        Err(VerbsError::AddressInUse)
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_name_is_removed_on_drop_only_if_it_is_still_ours() {
    let (path, address) = path("ours");
    let mut peer = Peer::new();
    peer.provider.listen(&address).unwrap();
    drop(peer);
    assert!(!path.exists());
    let mut peer = Peer::new();
    peer.provider.listen(&address).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _another = UnixListener::bind(&path).unwrap();
    drop(peer);
    assert!(path.exists());
    std::fs::remove_file(&path).unwrap();
}
