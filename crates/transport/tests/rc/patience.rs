//! Peers that do not answer, or have no receive.

use crate::harness::{FLUSHED, LATENCY, LEFT, Options, Pair, RIGHT, entry, request, unsignaled};
use legato_base::{Duration, Time};
use legato_transport::rc::{Backoff, Policy, Recovery};
use legato_transport::wire::{Body, Syndrome};
use legato_transport::{QueuePairEvent, WorkQueue};
use legato_verbs::{
    AccessFlags, CompletionKind, CompletionStatus, QueuePairState as State, SendOperation,
};
use std::cell::RefCell;
use std::rc::Rc;

const T_14: u64 = 4096 << 14;

/// A pair whose left end nobody hears.
fn alone(options: &Options) -> Pair {
    let mut pair = Pair::new(options);
    pair.filter = Box::new(|_, _| false);
    pair
}

fn send(id: u64) -> legato_verbs::SendRequest {
    request(id, SendOperation::Send, vec![])
}

#[test]
fn v_04_dead_peer_unsignaled() {
    let mut pair = alone(&Options::default());
    for id in 1..=3 {
        pair.left().post(unsignaled(send(id)));
    }
    pair.left().post_receive(4, vec![]);
    pair.left().post_receive(5, vec![]);
    pair.run();
    let exceeded = Err(CompletionStatus::RetryExceeded);
    let sends = pair.left().poll(WorkQueue::Send);
    assert_eq!(sends, [(1, exceeded), (2, FLUSHED), (3, FLUSHED)]);
    let receives = pair.left().poll(WorkQueue::Receive);
    assert_eq!(receives, [(4, FLUSHED), (5, FLUSHED)]);
    assert_eq!(pair.left().state(), State::Error);
    assert_eq!(pair.now, Time::from_nanos(4 * T_14));
}

#[test]
fn v_05_retry_timer() {
    for timeout in [1, 8, 10, 14, 20, 31] {
        for retry_count in 0..=7 {
            let options = Options {
                timeout,
                retry_count,
                ..Options::default()
            };
            let mut pair = alone(&options);
            pair.left().post(send(1));
            pair.run();
            let times = u64::from(retry_count) + 1;
            assert_eq!(pair.now.as_nanos(), times * (4096 << timeout));
            assert_eq!(pair.sent[LEFT], times);
            let exceeded = Err(CompletionStatus::RetryExceeded);
            assert_eq!(pair.left().poll(WorkQueue::Send), [(1, exceeded)]);
        }
    }
}

#[test]
fn v_05_timeouts_that_double() {
    let options = Options {
        timeout: 13,
        retry_count: 7,
        policy: Policy {
            backoff: Backoff::Doubling,
            ..Policy::IDEAL
        },
        ..Options::default()
    };
    let mut pair = alone(&options);
    pair.left().post(send(1));
    pair.run();
    assert_eq!(pair.now.as_nanos(), 255 * (4096 << 13));
    assert_eq!(pair.sent[LEFT], 8);
}

/// Who did not look for an hour cannot say that nobody answered in that hour.
#[test]
fn v_05_time_in_which_nobody_looked_does_not_count() {
    for answers in [true, false] {
        let options = Options {
            timeout: 13,
            retry_count: 7,
            policy: Policy {
                backoff: Backoff::Doubling,
                recovery: Recovery::Measured,
                ..Policy::IDEAL
            },
            ..Options::default()
        };
        let patience = Duration::from_nanos(255 * (4096 << 13));
        let mut pair = alone(&options);
        pair.right().post_receive(2, vec![]);
        pair.left().post(send(1));
        let second = Duration::from_secs(1);
        pair.run_for(second);
        pair.now = pair.now + Duration::from_secs(3600);
        let looked = pair.now;
        pair.filter = Box::new(move |_, _| answers);
        pair.run();
        if answers {
            assert_eq!(
                pair.left().poll(WorkQueue::Send),
                [(1, Ok(CompletionKind::Send))]
            );
            continue;
        }
        let exceeded = Err(CompletionStatus::RetryExceeded);
        assert_eq!(pair.left().poll(WorkQueue::Send), [(1, exceeded)]);
        let waited = second + pair.now.since(looked);
        // The timer that was to end when nobody looked takes a second at most.
        assert!(
            waited <= patience && waited + second >= patience,
            "{waited}"
        );
    }
}

#[test]
fn v_05_without_a_timeout_it_waits_for_ever() {
    let options = Options {
        timeout: 0,
        ..Options::default()
    };
    let mut pair = alone(&options);
    pair.left().post(send(1));
    pair.run();
    assert_eq!(pair.left().state(), State::ReadyToSend);
    assert_eq!(pair.left().queue_pair.next_deadline(), Time::NEVER);
    assert_eq!(pair.left().queue_pair.waiting_since(), Some(Time::ZERO));
}

#[test]
fn v_05_rxe_seven_is_without_end_and_mlx5_raises_the_timeout() {
    let options = Options {
        policy: Policy::RXE,
        retry_count: 7,
        ..Options::default()
    };
    let mut pair = alone(&options);
    pair.left().post(send(1));
    pair.run_for(Duration::from_secs(6));
    assert_eq!(pair.left().state(), State::ReadyToSend);
    let options = Options {
        policy: Policy::MLX5,
        timeout: 4,
        retry_count: 1,
        ..Options::default()
    };
    let mut pair = alone(&options);
    pair.left().post(send(1));
    pair.run();
    // The first two timeouts are 0.85 times the nominal one.
    assert_eq!(pair.now.as_nanos(), 2 * ((4096 << 16) / 20 * 17));
}

#[test]
fn v_05_retries_begin_anew_with_progress() {
    let mut pair = Pair::new(&Options::default());
    let heard = Rc::new(RefCell::new(0));
    let count = heard.clone();
    // Of each request the first three transmissions are lost.
    pair.filter = Box::new(move |from, _| {
        let mut count = count.borrow_mut();
        *count += u32::from(from == LEFT);
        from == RIGHT || count.is_multiple_of(4)
    });
    for id in 0..5 {
        pair.right().post_receive(id, vec![]);
    }
    for id in 0..5 {
        pair.left().post(send(id));
        let before = pair.now;
        pair.run();
        let expected = Duration::from_nanos(3 * T_14) + LATENCY + LATENCY;
        assert_eq!(pair.now.since(before), expected);
        let sent = Ok(CompletionKind::Send);
        assert_eq!(pair.left().poll(WorkQueue::Send), [(id, sent)]);
    }
}

/// When the right end refused for want of a receive.
fn watch_refusals(pair: &mut Pair) -> Rc<RefCell<u32>> {
    let refusals = Rc::new(RefCell::new(0));
    let count = refusals.clone();
    pair.filter = Box::new(move |_, packet| {
        if let Body::Acknowledge(answer) = packet.body
            && let Syndrome::ReceiverNotReady(timer) = answer.syndrome
        {
            assert_eq!(timer.code(), 12);
            *count.borrow_mut() += 1;
        }
        true
    });
    refusals
}

#[test]
fn v_06_no_receive_posted() {
    let mut pair = Pair::new(&Options::default());
    let refusals = watch_refusals(&mut pair);
    pair.left().post(send(1));
    pair.left().post(send(2));
    pair.run();
    assert_eq!(*refusals.borrow(), 3);
    let exhausted = Err(CompletionStatus::ReceiverNotReadyRetryExceeded);
    let sends = pair.left().poll(WorkQueue::Send);
    assert_eq!(sends, [(1, exhausted), (2, FLUSHED)]);
    assert_eq!(pair.left().state(), State::Error);
    assert_eq!(pair.right().state(), State::ReadyToSend);
    assert!(pair.right().host.completions.is_empty());
    // Two waits, and three times there and back.
    let expected = Duration::from_micros(2 * 640 + 3 * 2);
    assert_eq!(pair.now.since(Time::ZERO), expected);
}

#[test]
fn v_06_a_receive_in_time_is_enough() {
    let mut pair = Pair::new(&Options::default());
    let refusals = watch_refusals(&mut pair);
    pair.left().host.add(1, 64, AccessFlags::NONE);
    pair.left().host.bytes_mut(1).fill(7);
    pair.right().host.add(1, 64, AccessFlags::LOCAL_WRITE);
    pair.left()
        .post(request(1, SendOperation::Send, vec![entry(1, 0, 64)]));
    pair.left()
        .post(request(2, SendOperation::Send, vec![entry(1, 0, 32)]));
    pair.run_for(Duration::from_micros(700));
    pair.right().post_receive(1, vec![entry(1, 0, 64)]);
    pair.right().post_receive(2, vec![entry(1, 0, 64)]);
    pair.run();
    assert_eq!(*refusals.borrow(), 2);
    let sent = Ok(CompletionKind::Send);
    let sends = pair.left().poll(WorkQueue::Send);
    assert_eq!(sends, [(1, sent), (2, sent)]);
    let received = |length| Ok(CompletionKind::Receive { length });
    let receives = pair.right().poll(WorkQueue::Receive);
    assert_eq!(receives, [(1, received(64)), (2, received(32))]);
    assert_eq!(pair.right().host.bytes(1), [7; 64]);
}

#[test]
fn v_07_receiver_not_ready_for_an_hour() {
    let options = Options {
        rnr_retry: 7,
        ..Options::default()
    };
    let mut pair = Pair::new(&options);
    pair.left().post(send(1));
    let hour = Duration::from_secs(3600);
    pair.run_for(hour);
    assert_eq!(pair.left().state(), State::ReadyToSend);
    // What a watchdog sees: nothing new since the beginning.
    assert_eq!(pair.left().queue_pair.waiting_since(), Some(Time::ZERO));
    assert_eq!(pair.left().host.events, [QueuePairEvent::ReceiverNotReady]);
    pair.right().post_receive(1, vec![]);
    pair.run();
    let sent = Ok(CompletionKind::Send);
    assert_eq!(pair.left().poll(WorkQueue::Send), [(1, sent)]);
    assert!(pair.now.since(Time::ZERO) < hour + Duration::from_millis(1));
    assert_eq!(pair.left().queue_pair.waiting_since(), None);
}
