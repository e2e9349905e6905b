//! What `rdma_rxe` does differently and a line of its probes does not show.

use crate::harness::{
    ALL_ACCESS, BASE, FLUSHED, LEFT, Options, Pair, RIGHT, entry, remote, request,
};
use legato_base::{Duration, Time};
use legato_transport::WorkQueue;
use legato_transport::rc::Policy;
use legato_transport::wire::Body;
use legato_verbs::{
    CompletionKind, CompletionStatus, QueuePairAttributes, QueuePairState as State, RemoteAddress,
    RemoteKey, SendOperation, VerbsError,
};
use zerocopy::FromBytes as _;

fn pair(policy: Policy) -> Pair {
    let mut pair = Pair::new(&Options {
        policy,
        ..Options::default()
    });
    for end in &mut pair.ends {
        end.host.add(1, 4096, ALL_ACCESS);
    }
    pair
}

const ADD: SendOperation = SendOperation::FetchAndAdd {
    target: RemoteAddress {
        key: RemoteKey(1),
        address: BASE,
    },
    add: 5,
};

/// Nobody has key 9.
#[test]
fn v_12_an_atomic_whose_answer_has_no_place_is_executed_by_rxe_alone() {
    for (policy, added) in [(Policy::IDEAL, 0), (Policy::RXE, 5)] {
        let mut pair = pair(policy);
        pair.left().post(request(1, ADD, vec![entry(9, 0, 8)]));
        pair.run();
        let failed = (1, Err(CompletionStatus::LocalProtection));
        assert_eq!(pair.left().poll(WorkQueue::Send), [failed]);
        let word = &pair.right().host.bytes(1)[..8];
        assert_eq!(u64::read_from_bytes(word), Ok(added));
        assert_eq!(pair.ends[RIGHT].state(), State::ReadyToSend);
    }
}

#[test]
fn v_12_rxe_refuses_to_post_an_atomic_that_cannot_be() {
    let misplaced = SendOperation::FetchAndAdd {
        target: remote(1, 4),
        add: 5,
    };
    for (operation, length) in [(ADD, 4), (misplaced, 8)] {
        let mut pair = pair(Policy::RXE);
        let end = pair.left();
        let request = request(1, operation, vec![entry(1, 0, length)]);
        let posted = end.queue_pair.post_send(&request, &mut end.host);
        assert!(matches!(posted, Err(VerbsError::Unsupported(_))));
        pair.run();
        assert!(pair.ends[LEFT].host.completions.is_empty());
    }
}

/// The message before the bad request has arrived; whether its sender learns of it differs.
#[test]
fn v_20_a_local_failure_flushes_what_is_not_answered_on_rxe() {
    let good = Ok(CompletionKind::Send);
    let bad = Err(CompletionStatus::LocalProtection);
    for (policy, expected) in [
        (Policy::IDEAL, [(1, good), (2, bad), (3, FLUSHED)]),
        (Policy::RXE, [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]),
    ] {
        let mut pair = pair(policy);
        for id in 8..10 {
            pair.right().post_receive(id, vec![]);
        }
        for (id, entries) in [(1, vec![]), (2, vec![entry(9, 0, 8)]), (3, vec![])] {
            pair.left().post(request(id, SendOperation::Send, entries));
        }
        pair.run();
        assert_eq!(pair.left().poll(WorkQueue::Send), expected);
        let received = pair.right().poll(WorkQueue::Receive);
        assert_eq!(received, [(8, Ok(CompletionKind::Receive { length: 0 }))]);
        assert_eq!(pair.ends[RIGHT].state(), State::ReadyToSend);
    }
}

/// Its timers count jiffies of 4 ms, and one more than asked for.
#[test]
fn v_06_rxe_waits_whole_ticks_for_a_receive() {
    for (policy, waited) in [
        (Policy::IDEAL, Duration::from_micros(640)),
        (Policy::RXE, Duration::from_millis(8)),
    ] {
        let mut pair = pair(policy);
        pair.left().post(request(1, SendOperation::Send, vec![]));
        pair.run_for(Duration::from_micros(10));
        pair.right().post_receive(8, vec![]);
        while pair.ends[LEFT].host.completions.is_empty() {
            assert!(pair.step(Time::NEVER));
        }
        let late = pair.now.since(Time::ZERO + waited);
        assert!(pair.now >= Time::ZERO + waited && late < Duration::from_micros(10));
        assert_eq!(pair.left().poll(WorkQueue::Send).len(), 1);
    }
}

/// A receive posted in the error state waits; what ends it is the next look at the queue pair.
#[test]
fn v_02_a_second_change_to_error_flushes_what_was_posted_meanwhile() {
    let mut pair = pair(Policy::RXE);
    let none = QueuePairAttributes::NONE;
    let end = pair.left();
    end.modify(State::Error, &none);
    end.post_receive(8, vec![]);
    assert_eq!(end.poll(WorkQueue::Receive), []);
    end.modify(State::Error, &none);
    assert_eq!(end.poll(WorkQueue::Receive), [(8, FLUSHED)]);
}

/// Back from SQD, requests that waited start with whatever happens next: here, an answer.
#[test]
fn v_01_an_answer_wakes_the_send_queue_of_rxe() {
    let mut pair = pair(Policy::RXE);
    let none = QueuePairAttributes::NONE;
    for id in 8..10 {
        pair.right().post_receive(id, vec![]);
    }
    pair.left().post(request(1, SendOperation::Send, vec![]));
    pair.pump();
    pair.left().modify(State::SendQueueDrain, &none);
    pair.left().post(request(2, SendOperation::Send, vec![]));
    pair.left().modify(State::ReadyToSend, &none);
    assert_eq!(pair.ends[LEFT].state(), State::ReadyToSend);
    pair.pump();
    assert_eq!(pair.sent[LEFT], 1, "it waits");
    pair.run();
    assert_eq!(pair.left().poll(WorkQueue::Send).len(), 2);
}

/// The sender of a key that cannot be ended is told that all is well, before the receiver ends.
#[test]
fn a_refused_invalidation_is_acknowledged_by_rxe_after_reads_were_answered() {
    let mut pair = pair(Policy::RXE);
    let mut kinds = Vec::new();
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let list = seen.clone();
    pair.filter = Box::new(move |from, packet| {
        if from == RIGHT {
            list.borrow_mut().push(match packet.body {
                Body::ReadResponseOnly(_) => "read",
                Body::Acknowledge(_) => "acknowledged",
                _ => "other",
            });
        }
        true
    });
    pair.right().post_receive(8, vec![]);
    let read = SendOperation::RdmaRead(remote(1, 0));
    pair.left().post(request(1, read, vec![entry(1, 0, 8)]));
    let end = SendOperation::SendWithInvalidate(RemoteKey(9));
    pair.left().post(request(2, end, vec![]));
    pair.run();
    kinds.append(&mut seen.borrow_mut());
    assert_eq!(kinds, ["read", "acknowledged"]);
    let done = [
        (1, Ok(CompletionKind::RdmaRead)),
        (2, Ok(CompletionKind::Send)),
    ];
    assert_eq!(pair.left().poll(WorkQueue::Send), done);
    let refused = (8, Err(CompletionStatus::RemoteInvalidRequest));
    assert_eq!(pair.right().poll(WorkQueue::Receive), [refused]);
    assert_eq!(pair.ends[RIGHT].state(), State::Error);
}
