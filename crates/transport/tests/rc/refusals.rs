//! Requests that the responder, or the requester itself, refuses.

use crate::harness::{ALL_ACCESS, FLUSHED, LEFT, Options, Pair, RIGHT, entry, remote, request};
use legato_transport::rc::{Policy, Receives};
use legato_transport::wire::{Body, Syndrome};
use legato_transport::{PathMtu, QueuePairEvent, WorkQueue};
use legato_verbs::{
    AccessFlags, CompletionKind, CompletionStatus, QueuePairAttributes, QueuePairState as State,
    RemoteKey, SendFlags, SendOperation, VerbsError,
};

/// A pair with memory: 1 is the left end's; 2 the right end's for all, 3 for nobody.
fn pair(options: &Options) -> Pair {
    let mut pair = Pair::new(options);
    pair.left().host.add(1, 8192, AccessFlags::LOCAL_WRITE);
    pair.right().host.add(2, 2048, ALL_ACCESS);
    pair.right().host.add(3, 2048, AccessFlags::NONE);
    pair
}

/// Posts a request and another; the first is refused so, and both ends stop.
fn refused(
    options: &Options,
    operation: SendOperation,
    length: u32,
    status: CompletionStatus,
    event: QueuePairEvent,
) {
    let mut pair = pair(options);
    pair.left()
        .post(request(1, operation, vec![entry(1, 0, length)]));
    pair.left().post(request(2, SendOperation::Send, vec![]));
    pair.right().post_receive(9, vec![]);
    pair.run();
    let sends = pair.left().poll(WorkQueue::Send);
    assert_eq!(sends, [(1, Err(status)), (2, FLUSHED)], "{operation:?}");
    assert_eq!(pair.right().poll(WorkQueue::Receive), [(9, FLUSHED)]);
    assert_eq!(pair.right().host.events, [event], "{operation:?}");
    assert_eq!(pair.left().state(), State::Error);
    assert_eq!(pair.right().state(), State::Error);
}

#[test]
fn v_08_refused_write() {
    let options = Options::default();
    let access = (CompletionStatus::RemoteAccess, QueuePairEvent::AccessError);
    let invalid = (
        CompletionStatus::RemoteInvalidRequest,
        QueuePairEvent::RequestError,
    );
    let closed = Options {
        access: AccessFlags::REMOTE_READ,
        ..Options::default()
    };
    for (options, target, (status, event)) in [
        (&options, remote(99, 0), access),
        (&options, remote(2, 2041), access),
        (&options, remote(2, u64::MAX - crate::harness::BASE), access),
        (&options, remote(3, 0), access),
        (&closed, remote(2, 0), invalid),
        (&closed, remote(99, 0), invalid),
    ] {
        let write = SendOperation::RdmaWrite(target);
        refused(options, write, 8, status, event);
    }
}

#[test]
fn v_08_an_empty_write_or_read_checks_neither_key_nor_address() {
    let mut pair = pair(&Options::default());
    pair.left()
        .post(request(1, SendOperation::RdmaWrite(remote(99, 1)), vec![]));
    pair.left()
        .post(request(2, SendOperation::RdmaRead(remote(99, 1)), vec![]));
    pair.run();
    let sends = pair.left().poll(WorkQueue::Send);
    let expected = [
        (1, Ok(CompletionKind::RdmaWrite)),
        (2, Ok(CompletionKind::RdmaRead)),
    ];
    assert_eq!(sends, expected);
}

#[test]
fn v_08_refused_reads_and_atomics() {
    let options = Options::default();
    let access = CompletionStatus::RemoteAccess;
    let invalid = CompletionStatus::RemoteInvalidRequest;
    let fetch = |target| SendOperation::FetchAndAdd { target, add: 1 };
    let swap = |target| SendOperation::CompareAndSwap {
        target,
        compare: 0,
        swap: 1,
    };
    let closed = Options {
        access: AccessFlags::REMOTE_WRITE,
        ..Options::default()
    };
    let none = Options {
        resources: 0,
        ..Options::default()
    };
    for (options, operation, status) in [
        (&options, SendOperation::RdmaRead(remote(99, 0)), access),
        (&options, SendOperation::RdmaRead(remote(2, 2041)), access),
        (&options, SendOperation::RdmaRead(remote(3, 0)), access),
        (&closed, SendOperation::RdmaRead(remote(2, 0)), invalid),
        (&options, fetch(remote(99, 0)), access),
        (&options, fetch(remote(3, 0)), access),
        (&options, fetch(remote(2, 4)), invalid),
        (&options, swap(remote(2, 2048)), access),
        (&closed, swap(remote(2, 0)), invalid),
    ] {
        let event = if status == access {
            QueuePairEvent::AccessError
        } else {
            QueuePairEvent::RequestError
        };
        refused(options, operation, 8, status, event);
    }
    let mut pair = pair(&none);
    pair.left().post(request(
        1,
        SendOperation::RdmaRead(remote(2, 0)),
        vec![entry(1, 0, 8)],
    ));
    pair.run();
    let operation = Err(CompletionStatus::LocalQueuePairOperation);
    assert_eq!(pair.left().poll(WorkQueue::Send), [(1, operation)]);
    assert_eq!(pair.right().state(), State::ReadyToSend);
}

#[test]
fn v_08_more_reads_than_agreed_are_refused() {
    let options = Options {
        mtu: PathMtu::Bytes256,
        ..Options::default()
    };
    let mut pair = pair(&options);
    let less = Options {
        resources: 1,
        ..options
    };
    let mut right = less.end(11, 10, State::ReadyToSend);
    right.host.add(2, 2048, ALL_ACCESS);
    pair.ends[RIGHT] = right;
    for id in 0..3 {
        pair.left().post(request(
            id,
            SendOperation::RdmaRead(remote(2, 0)),
            vec![entry(1, 0, 2048)],
        ));
    }
    pair.run();
    let sends = pair.left().poll(WorkQueue::Send);
    let invalid = Err(CompletionStatus::RemoteInvalidRequest);
    let expected = [
        (0, Ok(CompletionKind::RdmaRead)),
        (1, invalid),
        (2, FLUSHED),
    ];
    assert_eq!(sends, expected);
}

#[test]
fn v_09_partial_write() {
    for (policy, written) in [(Policy::IDEAL, 2048), (Policy::RXE, 0)] {
        let options = Options {
            policy,
            ..Options::default()
        };
        let mut pair = pair(&options);
        pair.left().host.bytes_mut(1).fill(7);
        let write = SendOperation::RdmaWrite(remote(2, 0));
        pair.left().post(request(1, write, vec![entry(1, 0, 4096)]));
        pair.run();
        let access = Err(CompletionStatus::RemoteAccess);
        assert_eq!(pair.left().poll(WorkQueue::Send), [(1, access)]);
        let bytes = pair.right().host.bytes(2).iter();
        assert_eq!(bytes.filter(|byte| **byte == 7).count(), written);
    }
}

#[test]
fn v_10_message_longer_than_the_receive() {
    use CompletionStatus::{
        LocalLength, LocalQueuePairOperation, RemoteInvalidRequest, RemoteOperation,
    };
    for (policy, sender, receiver) in [
        (Policy::IDEAL, RemoteInvalidRequest, LocalLength),
        (Policy::RXE, RemoteOperation, LocalQueuePairOperation),
    ] {
        // One packet, and several of which the third is too much.
        for (room, length) in [(16, 64), (2047, 4096), (0, 1)] {
            let options = Options {
                policy,
                ..Options::default()
            };
            let mut pair = pair(&options);
            pair.left().host.bytes_mut(1).fill(7);
            pair.right().post_receive(8, vec![entry(2, 0, room)]);
            pair.right().post_receive(9, vec![entry(2, 16, 64)]);
            pair.left()
                .post(request(1, SendOperation::Send, vec![entry(1, 0, length)]));
            pair.left()
                .post(request(2, SendOperation::Send, vec![entry(1, 0, 8)]));
            pair.run();
            let sends = pair.left().poll(WorkQueue::Send);
            assert_eq!(sends, [(1, Err(sender)), (2, FLUSHED)]);
            let receives = pair.right().poll(WorkQueue::Receive);
            assert_eq!(receives, [(8, Err(receiver)), (9, FLUSHED)]);
            let beyond = &pair.right().host.bytes(2)[room as usize..];
            assert!(beyond.iter().all(|byte| *byte == 0));
            assert!(pair.right().host.events.is_empty());
        }
    }
}

#[test]
fn v_10_a_receive_that_may_not_be_written() {
    let mut pair = pair(&Options::default());
    pair.right().post_receive(8, vec![entry(3, 0, 64)]);
    pair.left()
        .post(request(1, SendOperation::Send, vec![entry(1, 0, 8)]));
    pair.run();
    let sends = pair.left().poll(WorkQueue::Send);
    assert_eq!(sends, [(1, Err(CompletionStatus::RemoteOperation))]);
    let receives = pair.right().poll(WorkQueue::Receive);
    assert_eq!(receives, [(8, Err(CompletionStatus::LocalProtection))]);
}

#[test]
fn a_local_protection_error_waits_for_the_requests_before_it() {
    let mut pair = pair(&Options::default());
    for id in 0..4 {
        pair.right().post_receive(id, vec![]);
    }
    pair.left().post(request(1, SendOperation::Send, vec![]));
    let bad = SendOperation::RdmaWrite(remote(2, 0));
    pair.left().post(request(2, bad, vec![entry(99, 0, 8)]));
    pair.left().post(request(3, SendOperation::Send, vec![]));
    pair.run();
    let sends = pair.left().poll(WorkQueue::Send);
    let expected = [
        (1, Ok(CompletionKind::Send)),
        (2, Err(CompletionStatus::LocalProtection)),
        (3, FLUSHED),
    ];
    assert_eq!(sends, expected);
    assert_eq!(pair.right().state(), State::ReadyToSend);
}

#[test]
fn a_region_that_ends_under_way_fails_its_request() {
    // The requester's, in the middle of a WRITE.
    let mut pair = pair(&Options::default());
    let write = SendOperation::RdmaWrite(remote(2, 0));
    pair.left().post(request(1, write, vec![entry(1, 0, 2048)]));
    let (mut buffer, now) = ([0; 4096], pair.now);
    let end = pair.left();
    let transmit = |end: &mut crate::harness::End, buffer: &mut [u8]| {
        end.queue_pair
            .transmit(now, &mut end.host, buffer)
            .is_some()
    };
    assert!(transmit(end, &mut buffer));
    end.host.regions.clear();
    pair.run();
    let protection = Err(CompletionStatus::LocalProtection);
    assert_eq!(pair.left().poll(WorkQueue::Send), [(1, protection)]);
    // The responder's, while it answers a READ.
    let mut pair = self::pair(&Options::default());
    let read = SendOperation::RdmaRead(remote(2, 0));
    pair.left().post(request(1, read, vec![entry(1, 0, 2048)]));
    pair.pump();
    assert!(pair.step(legato_base::Time::NEVER));
    let end = pair.right();
    assert!(transmit(end, &mut buffer));
    end.host.regions.clear();
    pair.run();
    // The first response was not put on the wire, so the second is not what is missing.
    let sends = pair.left().poll(WorkQueue::Send);
    assert_eq!(sends, [(1, Err(CompletionStatus::RetryExceeded))]);
    assert_eq!(pair.right().host.events, [QueuePairEvent::AccessError]);
}

#[test]
fn reads_before_a_refused_request_are_still_answered() {
    let mut pair = pair(&Options::default());
    pair.right().host.bytes_mut(2).fill(5);
    let read = SendOperation::RdmaRead(remote(2, 0));
    pair.left().post(request(1, read, vec![entry(1, 0, 2048)]));
    let write = SendOperation::RdmaWrite(remote(99, 0));
    pair.left().post(request(2, write, vec![entry(1, 4096, 8)]));
    pair.run();
    let sends = pair.left().poll(WorkQueue::Send);
    let expected = [
        (1, Ok(CompletionKind::RdmaRead)),
        (2, Err(CompletionStatus::RemoteAccess)),
    ];
    assert_eq!(sends, expected);
    assert_eq!(pair.left().host.bytes(1)[..2048], [5; 2048]);
}

#[test]
fn an_unknown_key_to_invalidate_ends_both() {
    let mut pair = pair(&Options::default());
    pair.right().post_receive(8, vec![]);
    let send = SendOperation::SendWithInvalidate(RemoteKey(99));
    pair.left().post(request(1, send, vec![]));
    pair.run();
    let sends = pair.left().poll(WorkQueue::Send);
    assert_eq!(sends, [(1, Err(CompletionStatus::RemoteAccess))]);
    let receives = pair.right().poll(WorkQueue::Receive);
    let invalid = Err(CompletionStatus::RemoteInvalidRequest);
    assert_eq!(receives, [(8, invalid)]);
    pair = self::pair(&Options::default());
    let invalidate = SendOperation::LocalInvalidate(RemoteKey(99));
    pair.left().post(request(1, invalidate, vec![]));
    pair.run();
    let sends = pair.left().poll(WorkQueue::Send);
    let operation = Err(CompletionStatus::LocalQueuePairOperation);
    assert_eq!(sends, [(1, operation)]);
}

#[test]
fn what_no_queue_takes_is_refused_when_posted() {
    let mut pair = pair(&Options::default());
    let end = pair.left();
    let mut refused = |entries, flags, operation| {
        let mut request = request(1, operation, entries);
        request.flags = flags;
        end.queue_pair
            .post_send(&request, &mut end.host)
            .unwrap_err()
    };
    let signaled = SendFlags::SIGNALED;
    let send = SendOperation::Send;
    let long = refused(vec![entry(1, 0, u32::MAX); 2], signaled, send);
    assert!(matches!(
        long,
        VerbsError::LimitExceeded {
            what: "message bytes",
            ..
        }
    ));
    let many = refused(vec![entry(1, 0, 1); 5], signaled, send);
    assert!(matches!(
        many,
        VerbsError::LimitExceeded {
            what: "entries",
            ..
        }
    ));
    let inline = SendFlags::INLINE;
    let large = refused(vec![entry(1, 0, 513)], inline, send);
    assert!(matches!(
        large,
        VerbsError::LimitExceeded {
            what: "inline bytes",
            ..
        }
    ));
    let read = SendOperation::RdmaRead(remote(2, 0));
    let fetched = refused(vec![entry(1, 0, 8)], inline, read);
    assert!(matches!(fetched, VerbsError::Unsupported(_)));
    let unreadable = refused(vec![entry(9, 0, 8)], inline, send);
    assert_eq!(unreadable, VerbsError::LocalProtection);
    pair.run();
    assert!(pair.left().host.completions.is_empty());
}

#[test]
fn v_31_half_a_message_at_the_error_state() {
    for (policy, receives) in [
        (Policy::IDEAL, Receives::Shared),
        (Policy::IDEAL, Receives::Own),
        (Policy::RXE, Receives::Own),
        (Policy::RXE, Receives::Shared),
    ] {
        let options = Options {
            policy,
            receives,
            ..Options::default()
        };
        let mut pair = pair(&options);
        pair.filter = Box::new(|_, packet| !matches!(packet.body, Body::SendLast(_)));
        pair.right().post_receive(8, vec![entry(2, 0, 2048)]);
        pair.right().post_receive(9, vec![entry(2, 0, 2048)]);
        pair.left()
            .post(request(1, SendOperation::Send, vec![entry(1, 0, 2048)]));
        pair.run_for(legato_base::Duration::from_micros(10));
        assert!(pair.right().host.completions.is_empty());
        pair.right()
            .modify(State::Error, &QueuePairAttributes::NONE);
        let completed = pair.right().poll(WorkQueue::Receive);
        let shared = receives == Receives::Shared;
        let expected = match (shared, policy == Policy::IDEAL) {
            (false, _) => vec![(8, FLUSHED), (9, FLUSHED)],
            (true, true) => vec![(8, FLUSHED)],
            // What rxe had taken is lost.
            (true, false) => vec![],
        };
        assert_eq!(completed, expected);
        let event = QueuePairEvent::LastWorkRequestReached;
        let events = if shared { vec![event] } else { vec![] };
        assert_eq!(pair.right().host.events, events);
        assert_eq!(pair.right().host.receives.len(), usize::from(shared));
        pair.run();
        let sends = pair.left().poll(WorkQueue::Send);
        assert_eq!(sends, [(1, Err(CompletionStatus::RetryExceeded))]);
    }
}

#[test]
fn a_gap_is_told_once() {
    let mut pair = pair(&Options::default());
    let told = std::rc::Rc::new(std::cell::Cell::new(0));
    let (count, mut lost) = (told.clone(), 0);
    pair.filter = Box::new(move |from, packet| {
        if let Body::Acknowledge(answer) = packet.body
            && matches!(answer.syndrome, Syndrome::Refused(_))
        {
            count.set(count.get() + 1);
        }
        let loses = from == LEFT && packet.base.sequence.get() == 100 && lost < 2;
        lost += u32::from(loses);
        !loses
    });
    for id in 0..8 {
        pair.right().post_receive(id, vec![]);
        pair.left().post(request(id, SendOperation::Send, vec![]));
    }
    pair.run();
    // The second loss is silent: only the timer repairs it.
    assert_eq!(told.get(), 1);
    assert_eq!(pair.left().poll(WorkQueue::Send).len(), 8);
    assert!(pair.now.as_nanos() > 4096 << 14);
    assert_eq!(pair.right().poll(WorkQueue::Receive).len(), 8);
}

#[test]
fn every_new_gap_is_told() {
    let mut pair = pair(&Options::default());
    let mut lost = Vec::new();
    pair.filter = Box::new(move |from, packet| {
        let number = packet.base.sequence.get();
        let loses = from == LEFT && number % 3 == 0 && !lost.contains(&number);
        if loses {
            lost.push(number);
        }
        !loses
    });
    for id in 0..9 {
        pair.right().post_receive(id, vec![]);
        pair.left().post(request(id, SendOperation::Send, vec![]));
    }
    pair.run();
    assert_eq!(pair.left().poll(WorkQueue::Send).len(), 9);
    let microseconds = pair.now.as_nanos() / 1000;
    assert!(
        microseconds < 20,
        "no timer was needed, but {microseconds} us"
    );
}
