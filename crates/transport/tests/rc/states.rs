//! States of a queue pair, and what can be posted in each.

use crate::harness::{FLUSHED, LEFT, Options, Pair, RIGHT, entry, request, unsignaled};
use legato_base::Duration;
use legato_transport::rc::{LastWorkRequest, Policy, Receives};
use legato_transport::{QueuePairEvent, WorkQueue};
use legato_verbs::{
    AccessFlags, CompletionKind, ModifyError, QueuePairAttributes, QueuePairState as State,
    SendOperation, VerbsError,
};

/// Those that a reliable connection can be in.
const STATES: [State; 6] = [
    State::Reset,
    State::Init,
    State::ReadyToReceive,
    State::ReadyToSend,
    State::SendQueueDrain,
    State::Error,
];
const TARGETS: [State; 7] = [
    State::Reset,
    State::Init,
    State::ReadyToReceive,
    State::ReadyToSend,
    State::SendQueueDrain,
    State::SendQueueError,
    State::Error,
];

/// Allowed changes, with what they need; rows and columns as above.
fn needed(options: &Options, from: State, to: State) -> Option<QueuePairAttributes> {
    match (from, to) {
        (_, State::Reset)
        | (State::Init, State::Init)
        | (State::ReadyToSend | State::SendQueueDrain, State::ReadyToSend)
        | (State::ReadyToSend | State::SendQueueDrain, State::SendQueueDrain) => {
            Some(QueuePairAttributes::NONE)
        }
        (State::Reset, State::Init) => Some(options.init()),
        (State::Init, State::ReadyToReceive) => Some(options.ready_to_receive(2)),
        (State::ReadyToReceive, State::ReadyToSend) => Some(options.ready_to_send()),
        (from, State::Error) if from != State::Reset => Some(QueuePairAttributes::NONE),
        _ => None,
    }
}

/// The attributes without one of those that they have: one result for each.
fn each_without_one(all: &QueuePairAttributes) -> Vec<QueuePairAttributes> {
    let removals: [fn(&mut QueuePairAttributes); 14] = [
        |a| a.partition_index = None,
        |a| a.port = None,
        |a| a.access_flags = None,
        |a| a.address_vector = None,
        |a| a.path_mtu = None,
        |a| a.destination = None,
        |a| a.receive_sequence = None,
        |a| a.responder_resources = None,
        |a| a.rnr_timer = None,
        |a| a.timeout = None,
        |a| a.retry_count = None,
        |a| a.rnr_retry = None,
        |a| a.send_sequence = None,
        |a| a.initiator_depth = None,
    ];
    let without = |remove: fn(&mut QueuePairAttributes)| {
        let mut less = *all;
        remove(&mut less);
        less
    };
    let lesser = removals.into_iter().map(without);
    lesser.filter(|less| less != all).collect()
}

#[test]
fn v_01_state_table() {
    let options = Options::default();
    let everything = {
        let mut all = options.ready_to_receive(2);
        let (init, send) = (options.init(), options.ready_to_send());
        (all.partition_index, all.port) = (init.partition_index, init.port);
        (all.timeout, all.retry_count) = (send.timeout, send.retry_count);
        (all.access_flags, all.send_sequence) = (init.access_flags, send.send_sequence);
        all
    };
    for from in STATES {
        for to in TARGETS {
            let attempt = |attributes: &QueuePairAttributes| {
                let mut end = options.end(1, 2, from);
                let before = *end.queue_pair.query();
                let result = end.queue_pair.modify(to, attributes, &mut end.host);
                match result {
                    Ok(()) => assert_eq!(end.state(), to),
                    Err(_) => {
                        assert_eq!(end.state(), from, "a refused change changes nothing");
                        assert_eq!(*end.queue_pair.query(), before);
                        assert!(end.host.completions.is_empty() && end.host.events.is_empty());
                    }
                }
                result
            };
            let Some(required) = needed(&options, from, to) else {
                let refused = Err(ModifyError::Transition { from, to });
                assert_eq!(attempt(&QueuePairAttributes::NONE), refused);
                assert_eq!(attempt(&everything), refused);
                continue;
            };
            assert_eq!(attempt(&required), Ok(()), "{from:?} {to:?}");
            for less in each_without_one(&required) {
                let result = attempt(&less);
                assert!(
                    matches!(result, Err(ModifyError::Missing(_))),
                    "{from:?} {to:?}"
                );
            }
            // The peer's first number can be said on the way to one state only; so can these.
            let mut foreign = required;
            foreign.drained_event = Some(true);
            if to != State::SendQueueDrain || from == to {
                let result = attempt(&foreign);
                assert_eq!(
                    result,
                    Err(ModifyError::Foreign("drained_event")),
                    "{from:?} {to:?}"
                );
            }
            let mut foreign = required;
            foreign.receive_sequence = options.ready_to_receive(2).receive_sequence;
            if to != State::ReadyToReceive {
                let result = attempt(&foreign);
                assert_eq!(result, Err(ModifyError::Foreign("receive_sequence")));
            }
        }
    }
}

#[test]
fn v_01_values_are_checked_and_kept() {
    let options = Options::default();
    let mut end = options.end(1, 2, State::ReadyToReceive);
    for (what, limit, change) in [
        (
            "timeout",
            31,
            (|a| a.timeout = Some(32)) as fn(&mut QueuePairAttributes),
        ),
        ("rnr_retry", 7, |a| a.rnr_retry = Some(8)),
    ] {
        let mut attributes = options.ready_to_send();
        change(&mut attributes);
        let result = end
            .queue_pair
            .modify(State::ReadyToSend, &attributes, &mut end.host);
        let refused = ModifyError::OutOfRange {
            attribute: what,
            limit,
        };
        assert_eq!(result, Err(refused));
    }
    let mut attributes = options.ready_to_send();
    attributes.current_state = Some(State::Init);
    let result = end
        .queue_pair
        .modify(State::ReadyToSend, &attributes, &mut end.host);
    assert_eq!(result, Err(ModifyError::OtherState(State::ReadyToReceive)));
    attributes.current_state = Some(State::ReadyToReceive);
    end.modify(State::ReadyToSend, &attributes);
    let kept = *end.queue_pair.query();
    assert_eq!(kept.timeout, Some(14));
    assert_eq!(kept.path_mtu, Some(options.mtu));
    assert_eq!(kept.current_state, None);
    end.modify(State::Reset, &QueuePairAttributes::NONE);
    assert_eq!(*end.queue_pair.query(), QueuePairAttributes::NONE);
}

#[test]
fn v_02_posting_by_state() {
    let options = Options::default();
    for state in STATES {
        let mut end = options.end(1, 2, state);
        end.host.add(1, 64, AccessFlags::LOCAL_WRITE);
        let send = request(7, SendOperation::Send, vec![entry(1, 0, 8)]);
        let posted = end.queue_pair.post_send(&send, &mut end.host);
        let accepted = [State::ReadyToSend, State::SendQueueDrain, State::Error];
        if accepted.contains(&state) {
            assert_eq!(posted, Ok(()));
        } else {
            assert_eq!(posted, Err(VerbsError::InvalidState(state)));
        }
        let receive = end.queue_pair.check_post_receive();
        if state == State::Reset {
            assert_eq!(receive, Err(VerbsError::InvalidState(state)));
        } else {
            end.post_receive(8, vec![entry(1, 0, 8)]);
        }
        let flushed = state == State::Error;
        let expect = |id| if flushed { vec![(id, FLUSHED)] } else { vec![] };
        assert_eq!(end.poll(WorkQueue::Send), expect(7), "{state:?}");
        assert_eq!(end.poll(WorkQueue::Receive), expect(8), "{state:?}");
        // A refused request never completes; an accepted one does.
        if state != State::Reset {
            end.modify(State::Error, &QueuePairAttributes::NONE);
        }
        let late = accepted.contains(&state) && !flushed;
        let sends = if late { vec![(7, FLUSHED)] } else { vec![] };
        assert_eq!(end.poll(WorkQueue::Send), sends, "{state:?}");
    }
}

#[test]
fn v_02_the_reset_state_forgets_without_completions() {
    let mut pair = Pair::new(&Options::default());
    pair.left().host.add(1, 64, AccessFlags::LOCAL_WRITE);
    let send = request(1, SendOperation::Send, vec![entry(1, 0, 8)]);
    pair.left().post(send.clone());
    pair.pump();
    pair.left().modify(State::Reset, &QueuePairAttributes::NONE);
    pair.run();
    assert!(pair.left().host.completions.is_empty());
    // And it can be used again.
    let options = Options::default();
    for (to, attributes) in [
        (State::Init, options.init()),
        (State::ReadyToReceive, options.ready_to_receive(11)),
        (State::ReadyToSend, options.ready_to_send()),
    ] {
        pair.left().modify(to, &attributes);
    }
    pair.ends[RIGHT] = options.end(11, 10, State::ReadyToSend);
    pair.right().host.add(1, 64, AccessFlags::LOCAL_WRITE);
    pair.right().post_receive(2, vec![entry(1, 0, 8)]);
    pair.left().post(send);
    pair.run();
    let sent = vec![(1, Ok(CompletionKind::Send))];
    assert_eq!(pair.left().poll(WorkQueue::Send), sent);
}

#[test]
fn v_02_a_drained_send_queue_finishes_what_had_started() {
    let mut pair = Pair::new(&Options::default());
    for end in &mut pair.ends {
        end.host.add(1, 8192, AccessFlags::LOCAL_WRITE);
    }
    pair.right().post_receive(1, vec![entry(1, 0, 8192)]);
    pair.right().post_receive(2, vec![entry(1, 0, 8192)]);
    let send = |id| request(id, SendOperation::Send, vec![entry(1, 0, 8192)]);
    pair.left().post(send(1));
    // One packet of eight is out when the queue is stopped.
    let mut buffer = [0; 4096];
    let now = pair.now;
    let end = pair.left();
    let transmit = end.queue_pair.transmit(now, &mut end.host, &mut buffer);
    assert!(transmit.is_some());
    let wanted = QueuePairAttributes {
        drained_event: Some(true),
        ..QueuePairAttributes::NONE
    };
    pair.left().modify(State::SendQueueDrain, &wanted);
    pair.left().post(send(2));
    pair.run();
    assert_eq!(pair.left().host.events, [QueuePairEvent::SendQueueDrained]);
    let sent = |id| vec![(id, Ok(CompletionKind::Send))];
    assert_eq!(pair.left().poll(WorkQueue::Send), sent(1));
    pair.left()
        .modify(State::ReadyToSend, &QueuePairAttributes::NONE);
    pair.run();
    assert_eq!(pair.left().poll(WorkQueue::Send), sent(2));
    assert_eq!(pair.left().host.events.len(), 1);
    // Nothing is under way: the event comes at once.
    pair.left().modify(State::SendQueueDrain, &wanted);
    assert_eq!(pair.left().host.events.len(), 2);
}

#[test]
fn a_packet_before_the_connection_is_established_raises_an_event_once() {
    let options = Options::default();
    let mut pair = Pair::of(
        options.end(10, 11, State::ReadyToSend),
        options.end(11, 10, State::ReadyToReceive),
    );
    pair.left().host.add(1, 64, AccessFlags::LOCAL_WRITE);
    pair.right().host.add(1, 64, AccessFlags::LOCAL_WRITE);
    for id in 0..2 {
        pair.right().post_receive(id, vec![entry(1, 0, 64)]);
        let send = request(id, SendOperation::Send, vec![entry(1, 0, 64)]);
        pair.left().post(send);
    }
    pair.run();
    let events = [QueuePairEvent::CommunicationEstablished];
    assert_eq!(pair.right().host.events, events);
    assert_eq!(pair.left().poll(WorkQueue::Send).len(), 2);
}

#[test]
fn v_32_the_last_receive_of_a_shared_queue() {
    for (last_work_request, events) in [
        (LastWorkRequest::Once, 1),
        (LastWorkRequest::Repeatedly, 3),
        (LastWorkRequest::Never, 0),
    ] {
        let options = Options {
            receives: Receives::Shared,
            policy: Policy {
                last_work_request,
                ..Policy::IDEAL
            },
            ..Options::default()
        };
        let mut end = options.end(1, 2, State::ReadyToSend);
        end.post_receive(1, vec![]);
        end.modify(State::Error, &QueuePairAttributes::NONE);
        end.modify(State::Error, &QueuePairAttributes::NONE);
        end.post(request(1, SendOperation::Send, vec![]));
        let expected = vec![QueuePairEvent::LastWorkRequestReached; events];
        assert_eq!(end.host.events, expected);
        assert_eq!(end.host.receives.len(), 1, "those of the shared queue stay");
    }
}

#[test]
fn v_03_unsignaled_sends() {
    let options = Options {
        depth: 8,
        ..Options::default()
    };
    let mut pair = Pair::new(&options);
    let send = |id| request(id, SendOperation::Send, vec![]);
    for round in 0..3 {
        for id in 0..8 {
            pair.right().post_receive(id, vec![]);
            let request = if id == 7 {
                send(id)
            } else {
                unsignaled(send(id))
            };
            pair.left().post(request);
        }
        pair.run();
        let end = pair.left();
        assert_eq!(end.host.completions.len(), 1, "round {round}");
        let full = end.queue_pair.post_send(&send(9), &mut end.host);
        assert_eq!(full, Err(VerbsError::QueueFull("send")), "it is not polled");
        let polled = end.poll(WorkQueue::Send);
        assert_eq!(polled, [(7, Ok(CompletionKind::Send))]);
    }
    // None is signaled: the queue is full and stays so.
    for id in 0..8 {
        pair.right().post_receive(id, vec![]);
        pair.left().post(unsignaled(send(id)));
    }
    pair.run();
    let end = pair.left();
    assert_eq!(end.poll(WorkQueue::Send), []);
    let full = end.queue_pair.post_send(&send(9), &mut end.host);
    assert_eq!(full, Err(VerbsError::QueueFull("send")));
}

#[test]
fn v_03_rxe_frees_slots_without_a_poll() {
    let options = Options {
        depth: 2,
        policy: Policy::RXE,
        ..Options::default()
    };
    let mut pair = Pair::new(&options);
    for id in 0..10 {
        pair.right().post_receive(id, vec![]);
        let send = request(id, SendOperation::Send, vec![]);
        pair.left().post(unsignaled(send));
        pair.run_for(Duration::from_micros(10));
    }
    let events = &pair.ends[LEFT].host.events;
    assert_eq!(*events, []);
}
