//! Separate completion queues, arming and sleeping, and the queues' ledgers.

use crate::peer::Peer;
use crate::peer::pair::{NOW, connect, connected, events, over, polled, remote, turn};
use legato_verbs::{
    Arm, CompletionKind, CompletionStatus, Event, Provider, QueuePairCapabilities, QueuePairInit,
    SendFlags, SendOperation, VerbsError,
};

const SIZES: QueuePairCapabilities = QueuePairCapabilities {
    send_requests_max: 4,
    receive_requests_max: 8,
    entries_max: 1,
};

#[test]
fn v_17_both_queues_of_a_queue_pair_reserve_their_completions_or_none_does() {
    let mut peer = Peer::new();
    let domain = peer.domain;
    let provider = &mut peer.provider;
    let sends = provider.create_completion_queue(8).unwrap();
    let receives = provider.create_completion_queue(9).unwrap();
    let init = QueuePairInit {
        receive_completions: receives,
        ..QueuePairInit::new(domain, sends, SIZES)
    };
    let first = provider.create_queue_pair(&init).unwrap();
    for _ in 0..3 {
        let needed = VerbsError::CompletionQueueTooSmall { needed: 8, free: 1 };
        assert_eq!(provider.create_queue_pair(&init), Err(needed));
    }
    // What the refused ones reserved of the other queue is free.
    let sends_only = QueuePairCapabilities {
        receive_requests_max: 1,
        ..SIZES
    };
    let init = QueuePairInit {
        capabilities: sends_only,
        ..init
    };
    let second = provider.create_queue_pair(&init).unwrap();
    let needed = VerbsError::CompletionQueueTooSmall { needed: 4, free: 0 };
    assert_eq!(provider.create_queue_pair(&init), Err(needed));
    for queue in [sends, receives] {
        let busy = Err(VerbsError::Busy("completion queue"));
        assert_eq!(provider.destroy_completion_queue(queue), busy);
    }
    for queue_pair in [first, second] {
        provider.destroy_queue_pair(queue_pair).unwrap();
    }
    for queue in [sends, receives] {
        provider.destroy_completion_queue(queue).unwrap();
    }
    peer.dismantle();
}

#[test]
fn sends_and_receives_complete_in_their_own_queues() {
    let (mut left, mut right) = (Peer::new(), Peer::new());
    let receives = left.provider.create_completion_queue(64).unwrap();
    let init = QueuePairInit {
        receive_completions: receives,
        ..QueuePairInit::new(left.domain, left.queue, SIZES)
    };
    left.provider.destroy_queue_pair(left.queue_pair).unwrap();
    left.queue_pair = left.provider.create_queue_pair(&init).unwrap();
    left.provider.modify_to_init(left.queue_pair).unwrap();
    connect("two-queues", &mut left, &mut right);
    // Twice as often as there are slots: polling either queue gives its own back.
    for wr_id in 0..16 {
        left.post_receive(wr_id, 0, 8);
        right.post_receive(wr_id, 0, 8);
        left.post(wr_id, SendOperation::Send, 0, 8);
        right.post(wr_id, SendOperation::Send, 0, 8);
        turn(&mut left, &mut right);
        assert_eq!(polled(&mut left), [Ok(CompletionKind::Send)]);
        let mut came = Vec::new();
        let count = left.provider.poll_completion_queue(receives, 9, &mut came);
        assert_eq!(count, Ok(1));
        assert_eq!(came[0].result, Ok(CompletionKind::Receive { length: 8 }));
        assert_eq!(polled(&mut right).len(), 2);
    }
    left.post_receive(20, 0, 8);
    left.provider.modify_to_error(left.queue_pair).unwrap();
    left.post(21, SendOperation::Send, 0, 8);
    let flushed = Err(CompletionStatus::WorkRequestFlushed);
    assert_eq!(polled(&mut left), [flushed]);
    left.provider.destroy_queue_pair(left.queue_pair).unwrap();
    let mut rest = Vec::new();
    let polled = left.provider.poll_completion_queue(receives, 9, &mut rest);
    assert_eq!(polled, Ok(0), "it went with its queue pair");
    left.provider.destroy_completion_queue(receives).unwrap();
}

#[test]
fn v_18_an_armed_queue_says_once_that_a_completion_came() {
    let (mut left, mut right) = connected("armed");
    let ready = Event::CompletionQueueReady(right.queue);
    for wr_id in 0..8 {
        right.post_receive(wr_id, 0, 8);
    }
    let queue = right.queue;
    assert_eq!(
        right.provider.arm_completion_queue(queue, Arm::Next),
        Ok(false)
    );
    let send = |left: &mut Peer, flags| {
        let flags = flags | SendFlags::SIGNALED;
        left.post_with(flags, 1, SendOperation::Send, (0, 8))
            .unwrap();
    };
    send(&mut left, SendFlags::NONE);
    send(&mut left, SendFlags::NONE);
    turn(&mut left, &mut right);
    assert_eq!(events(&mut right), std::slice::from_ref(&ready));
    // For what waits already there is no event: the caller is told to poll.
    assert_eq!(
        right.provider.arm_completion_queue(queue, Arm::Next),
        Ok(true)
    );
    assert_eq!(events(&mut right), []);
    assert_eq!(polled(&mut right).len(), 2);
    send(&mut left, SendFlags::NONE);
    turn(&mut left, &mut right);
    assert_eq!(events(&mut right), std::slice::from_ref(&ready));
    polled(&mut right);
    // Solicited ones only; and who waits for any goes on to do so.
    for (arms, flags, wakes) in [
        (&[Arm::Solicited][..], SendFlags::NONE, false),
        (&[Arm::Solicited], SendFlags::SOLICITED, true),
        (&[Arm::Next, Arm::Solicited], SendFlags::NONE, true),
        (&[Arm::Solicited, Arm::Next], SendFlags::NONE, true),
    ] {
        for &arm in arms {
            right.provider.arm_completion_queue(queue, arm).unwrap();
        }
        send(&mut left, flags);
        turn(&mut left, &mut right);
        assert_eq!(!events(&mut right).is_empty(), wakes, "{arms:?} {flags:?}");
        polled(&mut right);
    }
    // A failure wakes who waits for solicited ones.
    right
        .provider
        .arm_completion_queue(queue, Arm::Solicited)
        .unwrap();
    left.provider.disconnect(left.queue_pair).unwrap();
    turn(&mut left, &mut right);
    let [disconnected, exit] = over(right.queue_pair);
    assert_eq!(events(&mut right), [ready, disconnected, exit]);
    // Sends are nobody's solicited messages.
    let stale = right.queue;
    right.provider.destroy_queue_pair(right.queue_pair).unwrap();
    right.provider.destroy_completion_queue(stale).unwrap();
    let unknown = Err(VerbsError::UnknownHandle("completion queue"));
    assert_eq!(
        right.provider.arm_completion_queue(stale, Arm::Next),
        unknown
    );
}

#[test]
fn a_write_with_immediate_can_be_solicited_and_a_send_completion_is_not() {
    let (mut left, mut right) = connected("solicited");
    right.post_receive(1, 0, 8);
    for peer in [&mut left, &mut right] {
        let queue = peer.queue;
        peer.provider
            .arm_completion_queue(queue, Arm::Solicited)
            .unwrap();
    }
    let write = SendOperation::RdmaWriteWithImmediate(remote(&right), 1);
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    left.post_with(flags, 1, write, (0, 8)).unwrap();
    turn(&mut left, &mut right);
    assert_eq!(events(&mut left), []);
    let ready = Event::CompletionQueueReady(right.queue);
    assert_eq!(events(&mut right), [ready]);
}

/// What the receiving side does, one step at a time, as it would run before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Progress,
    Arm,
    Poll,
    Sleep,
}

/// V-18 for every place that the peer's two messages can have among the waiter's steps.
#[test]
fn v_18_no_order_of_arming_polling_and_sleeping_loses_a_message() {
    let steps = [Wait::Progress, Wait::Arm, Wait::Poll, Wait::Sleep];
    for first in 0..=steps.len() {
        for second in first..=steps.len() {
            let (mut left, mut right) = connected(&format!("order-{first}-{second}"));
            right.post_receive(1, 0, 8);
            right.post_receive(2, 0, 8);
            let (mut seen, mut sleeps) = (0, false);
            for place in 0..=steps.len() {
                for sent in [first, second] {
                    if sent == place {
                        left.post(1, SendOperation::Send, 0, 8);
                    }
                }
                match steps.get(place) {
                    None => {}
                    Some(Wait::Progress) => {
                        right.provider.progress(NOW);
                    }
                    Some(Wait::Arm) => {
                        let queue = right.queue;
                        let armed = right.provider.arm_completion_queue(queue, Arm::Next);
                        assert_eq!(armed, Ok(first == 0));
                    }
                    Some(Wait::Poll) => seen += polled(&mut right).len(),
                    Some(Wait::Sleep) => sleeps = right.provider.set_sleeping(true),
                }
            }
            let woken = left.provider.counters().wake_ups;
            let unseen = seen < 2;
            assert!(
                !sleeps || !unseen || woken > 0,
                "sent at {first} and {second}: {seen} seen, asleep, not woken"
            );
            right.provider.set_sleeping(false);
            right.provider.progress(NOW);
            let ready = Event::CompletionQueueReady(right.queue);
            let told = events(&mut right);
            let after_arming = polled(&mut right).len();
            assert_eq!(seen + after_arming, 2);
            let expected = if after_arming > 0 {
                vec![ready]
            } else {
                vec![]
            };
            assert_eq!(told, expected, "sent at {first} and {second}");
        }
    }
}

#[test]
fn v_35_nothing_that_is_destroyed_waits_for_its_events() {
    let (mut left, mut right) = connected("unread");
    let queue = left.queue;
    left.provider
        .arm_completion_queue(queue, Arm::Next)
        .unwrap();
    left.post_receive(1, 0, 8);
    left.provider.disconnect(left.queue_pair).unwrap();
    let (queue_pair, ready) = (left.queue_pair, Event::CompletionQueueReady(queue));
    let held = left.provider.poll_event();
    assert_eq!(held, Some(ready));
    left.provider.destroy_queue_pair(queue_pair).unwrap();
    left.provider.destroy_completion_queue(queue).unwrap();
    assert_eq!(events(&mut left), over(queue_pair)[..1], "still readable");
    turn(&mut left, &mut right);
    assert_eq!(events(&mut right), over(right.queue_pair));
}

#[test]
fn v_19_a_new_queue_pair_at_an_old_index_has_another_number() {
    let mut peer = Peer::new();
    let mut numbers = std::collections::BTreeSet::new();
    for _ in 0..1_000 {
        let queue_pair = peer.queue_pair;
        let number = peer.provider.queue_pair_number(queue_pair).unwrap();
        assert!(numbers.insert(number), "{number:?} twice");
        peer.provider.destroy_queue_pair(queue_pair).unwrap();
        let unknown = Err(VerbsError::UnknownHandle("queue pair"));
        assert_eq!(peer.provider.queue_pair_number(queue_pair), unknown);
        let next = peer.create_queue_pair();
        assert_eq!(next.index, queue_pair.index);
        peer.queue_pair = next;
    }
}
