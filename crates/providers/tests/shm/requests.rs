//! Atomics, immediates, inline data, permissions and receivers that are not ready.

use crate::peer::pair::{
    NOW, connect, connected, events, over, polled, remote, remote_at, state, turn, turn_at,
};
use crate::peer::{Peer, pattern};
use legato_base::{Duration, Time};
use legato_providers::shm::INLINE_LENGTH_MAX;
use legato_verbs::{
    AccessFlags, AsyncEvent, CompletionKind, CompletionStatus, Event, Provider,
    QueuePairAttributes, QueuePairState as State, RemoteKey, RnrTimer, SendFlags, SendOperation,
    SendRequest, VerbsError, WindowBinding, WorkRequestId,
};

const NONE: QueuePairAttributes = QueuePairAttributes::NONE;
const FLUSHED: Result<CompletionKind, CompletionStatus> = Err(CompletionStatus::WorkRequestFlushed);
const SENT: Result<CompletionKind, CompletionStatus> = Ok(CompletionKind::Send);

fn word(peer: &Peer, offset: u64) -> u64 {
    u64::from_le_bytes(peer.bytes(offset, 8).try_into().unwrap())
}

/// Does a request and returns its result.
fn done(
    left: &mut Peer,
    right: &mut Peer,
    operation: SendOperation,
    place: (u64, u32),
) -> Result<CompletionKind, CompletionStatus> {
    left.post_with(SendFlags::SIGNALED, 1, operation, place)
        .unwrap();
    turn(left, right);
    let results = polled(left);
    assert_eq!(results.len(), 1, "{results:?}");
    results[0]
}

#[test]
fn v_11_atomics_change_the_target_and_return_what_was_there() {
    let (mut left, mut right) = connected("atomics");
    let target = remote_at(&right, 64);
    right.fill(64, &100_u64.to_le_bytes());
    let add = SendOperation::FetchAndAdd { target, add: 11 };
    let added = done(&mut left, &mut right, add, (0, 8));
    assert_eq!(added, Ok(CompletionKind::FetchAndAdd));
    assert_eq!((word(&left, 0), word(&right, 64)), (100, 111));
    for (compare, there) in [(5, 111), (111, 7)] {
        let swap = SendOperation::CompareAndSwap {
            target,
            compare,
            swap: 7,
        };
        let swapped = done(&mut left, &mut right, swap, (8, 8));
        assert_eq!(swapped, Ok(CompletionKind::CompareAndSwap));
        assert_eq!((word(&left, 8), word(&right, 64)), (111, there));
    }
    // Scattered over two entries, and wrapping.
    right.fill(64, &u64::MAX.to_le_bytes());
    let request = SendRequest {
        wr_id: WorkRequestId(2),
        operation: SendOperation::FetchAndAdd { target, add: 2 },
        entries: vec![left.region.entry(100, 3), left.region.entry(110, 5)],
        flags: SendFlags::SIGNALED | SendFlags::FENCE,
    };
    let queue_pair = left.queue_pair;
    left.provider.post_send(queue_pair, &request).unwrap();
    assert_eq!(polled(&mut left), [Ok(CompletionKind::FetchAndAdd)]);
    assert_eq!(left.bytes(100, 3), [0xFF; 3]);
    assert_eq!(left.bytes(110, 5), [0xFF; 5]);
    assert_eq!(word(&right, 64), 1);
}

#[test]
fn requests_complete_without_a_look_at_connections() {
    let (mut left, mut right) = connected("requests-alone");
    right.fill(0, &pattern(1, 64));
    left.post_receive(1, 0, 64);
    right.post(2, SendOperation::Send, 0, 64);
    assert_eq!(left.provider.progress_requests(NOW), Time::NEVER);
    assert_eq!(
        polled(&mut left),
        [Ok(CompletionKind::Receive { length: 64 })]
    );
    assert_eq!(left.bytes(0, 64), pattern(1, 64));
    right.provider.progress_requests(NOW);
    assert_eq!(polled(&mut right), [SENT]);
    drop(right);
    left.provider.progress_requests(NOW);
    assert_eq!(events(&mut left), []);
    left.provider.progress(NOW);
    let queue_pair = left.queue_pair;
    assert_eq!(events(&mut left), over(queue_pair));
}

#[test]
fn v_08_atomics_are_refused_in_the_order_of_the_specification() {
    use CompletionStatus::{LocalLength, RemoteAccess, RemoteInvalidRequest};
    let request_error: fn(_) -> _ = AsyncEvent::QueuePairRequestError;
    let cases = [
        // Misaligned, whatever the key is.
        (4, 8, false, RemoteInvalidRequest, Some(request_error)),
        (3, 8, true, RemoteInvalidRequest, Some(request_error)),
        (
            crate::peer::REGION_LENGTH,
            8,
            false,
            RemoteAccess,
            Some(AsyncEvent::QueuePairAccessError),
        ),
        (0, 4, false, LocalLength, None),
        (0, 16, false, LocalLength, None),
    ];
    for (offset, length, bad_key, status, event) in cases {
        let (mut left, mut right) = connected("atomic-refused");
        // Mapped first, so that it is the initiator who refuses.
        let write = SendOperation::RdmaWrite(remote(&right));
        let written = done(&mut left, &mut right, write, (0, 8));
        assert_eq!(written, Ok(CompletionKind::RdmaWrite));
        let mut target = remote_at(&right, offset);
        if bad_key {
            target.key = RemoteKey(!target.key.0);
        }
        left.fill(128, &[0xEE; 16]);
        let add = SendOperation::FetchAndAdd { target, add: 1 };
        let refused = done(&mut left, &mut right, add, (128, length));
        assert_eq!(refused, Err(status), "{offset} {length}");
        assert_eq!(left.bytes(128, 16), [0xEE; 16]);
        assert_eq!(state(&left), State::Error);
        assert_eq!(state(&right), State::Error);
        let mut expected: Vec<_> = event
            .map(|event| Event::Async(event(right.queue_pair)))
            .into_iter()
            .collect();
        expected.extend(over(right.queue_pair));
        assert_eq!(events(&mut right), expected);
        assert_eq!(events(&mut left), over(left.queue_pair));
    }
}

#[test]
fn v_08_the_queue_pairs_permission_comes_before_the_keys() {
    let rights = [
        AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE,
        AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC,
        AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC,
        AccessFlags::NONE,
    ];
    for (number, access) in rights.into_iter().enumerate() {
        let (mut left, mut right) = (Peer::new(), Peer::new());
        let attributes = QueuePairAttributes {
            access_flags: Some(access),
            ..NONE
        };
        let queue_pair = right.queue_pair;
        let modified = right
            .provider
            .modify_queue_pair(queue_pair, State::Init, &attributes);
        modified.unwrap();
        connect("permission", &mut left, &mut right);
        let target = remote(&right);
        let operations = [
            SendOperation::FetchAndAdd { target, add: 1 },
            SendOperation::RdmaRead(target),
            SendOperation::RdmaWrite(target),
        ];
        for (place, operation) in operations.into_iter().enumerate() {
            if number == 3 && place > 0 {
                continue;
            }
            if place != number && number < 3 {
                let allowed = done(&mut left, &mut right, operation, (0, 8));
                assert!(allowed.is_ok(), "{operation:?} {allowed:?}");
            }
        }
        let forbidden = operations[number % 3];
        // Of no length as well: the key is not looked at, the permission is.
        let length = if number == 0 || number == 3 { 8 } else { 0 };
        let refused = done(&mut left, &mut right, forbidden, (0, length));
        assert_eq!(refused, Err(CompletionStatus::RemoteInvalidRequest));
        let error = Event::Async(AsyncEvent::QueuePairRequestError(queue_pair));
        assert_eq!(events(&mut right)[0], error);
    }
}

#[test]
fn v_08_a_permission_can_be_taken_back_and_given_again() {
    let (mut left, mut right) = connected("taken-back");
    let write = SendOperation::RdmaWrite(remote(&right));
    let allow = |right: &mut Peer, access| {
        let attributes = QueuePairAttributes {
            access_flags: Some(access),
            ..NONE
        };
        let queue_pair = right.queue_pair;
        right
            .provider
            .modify_queue_pair(queue_pair, State::ReadyToSend, &attributes)
            .unwrap();
    };
    assert!(done(&mut left, &mut right, write, (0, 8)).is_ok());
    allow(&mut right, AccessFlags::REMOTE_READ);
    allow(&mut right, AccessFlags::REMOTE_WRITE);
    assert!(done(&mut left, &mut right, write, (0, 8)).is_ok());
    allow(&mut right, AccessFlags::REMOTE_READ);
    let refused = done(&mut left, &mut right, write, (0, 8));
    assert_eq!(refused, Err(CompletionStatus::RemoteInvalidRequest));
}

#[test]
fn immediates_arrive_with_their_messages_and_writes() {
    let (mut left, mut right) = connected("immediates");
    let bytes = pattern(1, 4096);
    left.fill(0, &bytes);
    for wr_id in 0..4 {
        right.post_receive(wr_id, 65_536 + wr_id * 64, 64);
    }
    let at = remote_at(&right, 100);
    left.post(1, SendOperation::SendWithImmediate(0xFFFF_FFFF), 0, 64);
    left.post(2, SendOperation::RdmaWriteWithImmediate(at, 7), 0, 4096);
    left.post(3, SendOperation::SendWithImmediate(0), 0, 0);
    left.post(4, SendOperation::RdmaWriteWithImmediate(at, 0), 0, 0);
    turn(&mut left, &mut right);
    turn(&mut left, &mut right);
    let wrote = Ok(CompletionKind::RdmaWrite);
    assert_eq!(polled(&mut left), [SENT, wrote, SENT, wrote]);
    let message = |length, immediate| CompletionKind::ReceiveWithImmediate { length, immediate };
    let written =
        |length, immediate| CompletionKind::ReceiveRdmaWithImmediate { length, immediate };
    let came = [
        Ok(message(64, u32::MAX)),
        Ok(written(4096, 7)),
        Ok(message(0, 0)),
        Ok(written(0, 0)),
    ];
    assert_eq!(polled(&mut right), came);
    assert_eq!(right.bytes(100, 4096), bytes);
    assert_eq!(right.bytes(65_536, 64), bytes[..64]);
    assert_eq!(right.bytes(65_600, 192), [0; 192], "no bytes of a WRITE");
}

#[test]
fn v_06_a_write_with_immediate_that_finds_no_receive_fails() {
    let (mut left, mut right) = connected("no-receive");
    let at = remote_at(&right, 0);
    left.post(1, SendOperation::RdmaWriteWithImmediate(at, 7), 0, 64);
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut left), []);
    turn_at(NOW + Duration::from_secs(1), &mut left, &mut right);
    let exhausted = Err(CompletionStatus::ReceiverNotReadyRetryExceeded);
    assert_eq!(polled(&mut left), [exhausted]);
    assert_eq!(polled(&mut right), []);
}

#[test]
fn inline_bytes_are_copied_when_they_are_posted() {
    let (mut left, mut right) = connected("inline");
    let inline = SendFlags::SIGNALED | SendFlags::INLINE;
    let limit = INLINE_LENGTH_MAX;
    assert_eq!(left.provider.attributes().inline_length_max, limit);
    left.fill(0, &pattern(1, 1024));
    let at = remote_at(&right, 8192);
    // No receive yet, and the WRITE behind it waits too.
    let place = (0, limit);
    left.post_with(inline, 1, SendOperation::Send, place)
        .unwrap();
    left.post_with(inline, 2, SendOperation::RdmaWrite(at), place)
        .unwrap();
    let immediate = SendOperation::RdmaWriteWithImmediate(remote_at(&right, 16_384), 3);
    left.post_with(inline, 3, immediate, (8, 16)).unwrap();
    left.fill(0, &[0; 1024]);
    // The buffer is the poster's: its region can go.
    let region = left.region;
    left.provider.deregister_region(&region).unwrap();
    right.post_receive(1, 0, limit);
    right.post_receive(2, 0, 0);
    turn(&mut left, &mut right);
    let wrote = Ok(CompletionKind::RdmaWrite);
    assert_eq!(polled(&mut left), [SENT, wrote, wrote]);
    let bytes = pattern(1, limit as usize);
    assert_eq!(right.bytes(0, limit as usize), bytes);
    assert_eq!(right.bytes(8192, limit as usize), bytes);
    assert_eq!(right.bytes(16_384, 16), bytes[8..24]);
}

#[test]
fn what_inline_data_cannot_be_is_refused() {
    let (mut left, mut right) = connected("not-inline");
    let inline = SendFlags::SIGNALED | SendFlags::INLINE;
    let target = remote(&right);
    let limit = INLINE_LENGTH_MAX;
    let too_long = left.post_with(inline, 1, SendOperation::Send, (0, limit + 1));
    let limit = u64::from(limit);
    assert_eq!(
        too_long,
        Err(VerbsError::LimitExceeded {
            what: "message length",
            asked: limit + 1,
            limit
        })
    );
    for operation in [
        SendOperation::RdmaRead(target),
        SendOperation::FetchAndAdd { target, add: 1 },
    ] {
        let refused = left.post_with(inline, 2, operation, (0, 8));
        assert!(matches!(refused, Err(VerbsError::Unsupported(_))));
    }
    let outside = (crate::peer::REGION_LENGTH - 4, 8);
    let refused = left.post_with(inline, 3, SendOperation::Send, outside);
    assert_eq!(refused, Err(VerbsError::LocalProtection));
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut left), []);
}

#[test]
fn there_are_no_windows_and_no_queues_without_a_ledger() {
    let (mut left, right) = connected("windows");
    let key = right.region.remote_key;
    assert_eq!(left.provider.attributes().memory_windows_max, 0);
    let domain = left.domain;
    let unsupported = |error: &VerbsError| matches!(error, VerbsError::Unsupported(_));
    let window = left.provider.allocate_window(domain);
    assert!(window.is_err_and(|error| unsupported(&error)));
    let queue = left.provider.create_overcommitted_completion_queue(8);
    assert!(queue.is_err_and(|error| unsupported(&error)));
    let binding = WindowBinding {
        window: key,
        next: key,
        region: left.region.local_key,
        address: 0,
        length: 8,
        access: AccessFlags::REMOTE_READ,
    };
    for operation in [
        SendOperation::SendWithInvalidate(key),
        SendOperation::LocalInvalidate(key),
        SendOperation::BindWindow(binding),
    ] {
        let posted = left.post_with(SendFlags::SIGNALED, 1, operation, (0, 0));
        assert!(posted.is_err_and(|error| unsupported(&error)));
    }
    assert_eq!(polled(&mut left), []);
}

#[test]
fn v_10_a_message_with_immediate_that_is_too_long_fails_both() {
    let (mut left, mut right) = connected("too-long");
    right.post_receive(1, 0, 16);
    right.post_receive(2, 0, 64);
    left.post(1, SendOperation::SendWithImmediate(5), 0, 64);
    left.post(2, SendOperation::Send, 0, 8);
    turn(&mut left, &mut right);
    let invalid = Err(CompletionStatus::RemoteInvalidRequest);
    assert_eq!(polled(&mut left), [invalid, FLUSHED]);
    let too_long = Err(CompletionStatus::LocalLength);
    assert_eq!(polled(&mut right), [too_long, FLUSHED]);
    assert_eq!(events(&mut left), over(left.queue_pair));
    assert_eq!(events(&mut right), over(right.queue_pair));
}

/// Gives a connected queue pair other attributes, as a stopped send queue allows.
fn change(peer: &mut Peer, attributes: &QueuePairAttributes) {
    let queue_pair = peer.queue_pair;
    let steps = [
        (State::SendQueueDrain, &NONE),
        (State::SendQueueDrain, attributes),
        (State::ReadyToSend, &NONE),
    ];
    for (to, attributes) in steps {
        peer.provider
            .modify_queue_pair(queue_pair, to, attributes)
            .unwrap();
    }
}

#[test]
fn v_06_the_senders_retries_and_the_receivers_timer_say_how_long_a_message_waits() {
    // Retries, the code of the timer, and the wait in units of 10 us.
    for (retry, timer, wait) in [(2, 12, 128), (0, 12, 0), (6, 0, 6 * 65_536), (1, 1, 1)] {
        let (mut left, mut right) = connected("attributes");
        change(
            &mut left,
            &QueuePairAttributes {
                rnr_retry: Some(retry),
                ..NONE
            },
        );
        change(
            &mut right,
            &QueuePairAttributes {
                rnr_timer: Some(RnrTimer::new(timer)),
                ..NONE
            },
        );
        left.post(1, SendOperation::Send, 0, 8);
        let deadline = NOW + Duration::from_micros(wait * 10);
        if wait > 0 {
            assert_eq!(right.provider.progress(NOW), deadline);
            let before = Time::from_nanos(deadline.as_nanos() - 1);
            turn_at(before, &mut left, &mut right);
            assert_eq!(polled(&mut left), []);
        }
        right.provider.progress(deadline);
        left.provider.progress(deadline);
        let exhausted = Err(CompletionStatus::ReceiverNotReadyRetryExceeded);
        assert_eq!(polled(&mut left), [exhausted]);
        assert_eq!(state(&left), State::Error);
        assert_eq!(state(&right), State::ReadyToSend, "not its fault");
    }
}

#[test]
fn v_07_seven_retries_wait_for_ever() {
    let (mut left, mut right) = connected("for-ever");
    change(
        &mut left,
        &QueuePairAttributes {
            rnr_retry: Some(7),
            ..NONE
        },
    );
    left.post(1, SendOperation::Send, 0, 8);
    assert_eq!(right.provider.progress(NOW), Time::NEVER);
    assert!(right.provider.set_sleeping(true));
    right.provider.set_sleeping(false);
    let late = NOW + Duration::from_secs(3_600);
    turn_at(late, &mut left, &mut right);
    assert_eq!(polled(&mut left), []);
    right.post_receive(1, 0, 8);
    assert!(!right.provider.set_sleeping(true), "there is a receive now");
    turn_at(late, &mut left, &mut right);
    assert_eq!(polled(&mut left), [SENT]);
}

#[test]
fn v_03_a_full_queue_of_unsignaled_writes_gives_the_next_back() {
    let (mut left, mut right) = connected("unsignaled");
    let at = remote(&right);
    let write = SendOperation::RdmaWriteWithImmediate(at, 1);
    for wr_id in 0..u64::from(crate::peer::REQUESTS) {
        right.post_receive(wr_id, 0, 8);
        left.post_with(SendFlags::NONE, wr_id, write, (0, 8))
            .unwrap();
    }
    for _ in 0..crate::peer::REQUESTS {
        turn(&mut left, &mut right);
    }
    assert_eq!(polled(&mut left), []);
    assert_eq!(polled(&mut right).len(), crate::peer::REQUESTS as usize);
    let full = left.post_with(SendFlags::SIGNALED, 99, write, (0, 8));
    assert_eq!(full, Err(VerbsError::QueueFull("send")));
}
