//! Rules of reliable connections on the software RoCE NIC, by the test's clock.

use crate::rig::{Node, REGION_LENGTH, Rig, Way};
use legato_base::Duration;
use legato_verbs::{
    AsyncEvent, CompletionKind, CompletionStatus, Event, Provider, QueuePair, QueuePairAttributes,
    QueuePairState, RetryCount, RnrTimer, SendOperation,
};

const NONE: QueuePairAttributes = QueuePairAttributes::NONE;
/// Longest path MTU, which the loopback interface takes.
const PACKET: u32 = 4096;

fn connected(net: u8) -> (Rig, QueuePair, QueuePair) {
    let mut rig = Rig::new(net);
    let (client, server, connected) = rig.connect();
    let server = server.filter(|_| connected).unwrap();
    (rig, client, server)
}

/// Changes attributes of a queue pair that is ready to send (IB spec table 91).
fn change(node: &mut Node, queue_pair: QueuePair, attributes: &QueuePairAttributes) {
    for (to, attributes) in [
        (QueuePairState::SendQueueDrain, &NONE),
        (QueuePairState::SendQueueDrain, attributes),
        (QueuePairState::ReadyToSend, &NONE),
    ] {
        let provider = &mut node.provider;
        provider
            .modify_queue_pair(queue_pair, to, attributes)
            .unwrap();
    }
}

type Result = core::result::Result<CompletionKind, CompletionStatus>;

/// What has completed since it was asked last.
fn done(node: &mut Node) -> Vec<(u64, Result)> {
    let done = node.done.drain(..);
    done.map(|it| (it.wr_id.0, it.result)).collect()
}

/// Nobody answers: not given up before the time of the specification, and in the stated time.
#[test]
fn v_05_a_silent_peer_is_given_up_in_time() {
    for (net, timeout, retry_count) in [(40, 10, 3), (41, 12, 1), (42, 8, 6)] {
        let (mut rig, client, _) = connected(net);
        let attributes = QueuePairAttributes {
            timeout: Some(timeout),
            retry_count: RetryCount::new(retry_count),
            ..NONE
        };
        change(&mut rig.client, client, &attributes);
        rig.rule = Box::new(|_, _| Vec::new());
        let begin = rig.now;
        assert!(rig.client.post(client, 1, SendOperation::Send, (0, 8)));
        let ended = rig.run(Duration::from_secs(60), |rig| !rig.client.done.is_empty());
        assert!(ended, "it waits for ever");
        let took = rig.now.since(begin).as_nanos();
        let first = 4096_u64 << timeout;
        let least = first * (u64::from(retry_count) + 1);
        // Twice as long each time, and what the relay's clock goes on by itself.
        let most = first * ((2 << retry_count) - 1) + first;
        assert!(
            (least..=most).contains(&took),
            "{took} of {least} to {most}"
        );
        let failed = [(1, Err(CompletionStatus::RetryExceeded))];
        assert_eq!(done(&mut rig.client), failed);
    }
}

/// An hour without a receive.
#[test]
fn v_07_seven_retries_wait_for_ever() {
    let (mut rig, client, server) = connected(43);
    let patient = QueuePairAttributes {
        rnr_retry: Some(7),
        ..NONE
    };
    change(&mut rig.client, client, &patient);
    let slow = QueuePairAttributes {
        // The longest, 655.36 ms.
        rnr_timer: Some(RnrTimer::new(0)),
        ..NONE
    };
    change(&mut rig.server, server, &slow);
    rig.client.fill(0, b"patience");
    assert!(rig.client.post(client, 1, SendOperation::Send, (0, 8)));
    let ended = rig.run(Duration::from_secs(3_600), |rig| {
        !rig.client.done.is_empty()
    });
    assert!(!ended, "{:?}", rig.client.done);
    let warning = Event::Async(AsyncEvent::ReceiverNotReady(client));
    let warnings = rig.client.events.iter().filter(|event| **event == warning);
    assert_eq!(warnings.count(), 1, "{:?}", rig.client.events);
    rig.server.post_receive(server, 2, (512, 8));
    let ended = rig.run(Duration::from_secs(2), |rig| {
        !rig.client.done.is_empty() && !rig.server.done.is_empty()
    });
    assert!(ended, "it is not sent again");
    assert_eq!(done(&mut rig.client), [(1, Ok(CompletionKind::Send))]);
    let received = CompletionKind::Receive { length: 8 };
    assert_eq!(done(&mut rig.server), [(2, Ok(received))]);
    assert_eq!(rig.server.bytes(512, 8), b"patience");
}

/// Two of its four packets fit.
#[test]
fn v_09_a_write_that_leaves_its_region_is_partial() {
    let (mut rig, client, _) = connected(44);
    let length = 4 * PACKET;
    rig.client.fill(0, &vec![7; length as usize]);
    let edge = REGION_LENGTH - 2 * u64::from(PACKET);
    let target = rig.server.at(edge);
    let write = SendOperation::RdmaWrite(target);
    assert!(rig.client.post(client, 1, write, (0, length)));
    rig.run(Duration::from_secs(10), |rig| !rig.client.done.is_empty());
    let refused = [(1, Err(CompletionStatus::RemoteAccess))];
    assert_eq!(done(&mut rig.client), refused);
    let written = rig.server.bytes(edge, 2 * PACKET as usize);
    assert!(written.iter().all(|&byte| byte == 7));
}

/// It is flushed, and it was executed: a flush says nothing about the far side.
#[test]
fn v_12_a_lost_acknowledgement_and_then_the_end() {
    let (mut rig, client, _) = connected(45);
    rig.rule = Box::new(|way, bytes| match way {
        Way::ToServer => vec![(Duration::ZERO, bytes.to_vec())],
        Way::ToClient => Vec::new(),
    });
    rig.client.fill(0, &[7; 64]);
    let write = SendOperation::RdmaWrite(rig.server.at(128));
    assert!(rig.client.post(client, 1, write, (0, 64)));
    rig.run(Duration::from_millis(5), |_| false);
    assert_eq!(done(&mut rig.client), []);
    rig.client.provider.modify_to_error(client).unwrap();
    rig.run(Duration::from_millis(5), |rig| !rig.client.done.is_empty());
    let flushed = [(1, Err(CompletionStatus::WorkRequestFlushed))];
    assert_eq!(done(&mut rig.client), flushed);
    assert_eq!(rig.server.bytes(128, 64), [7; 64]);
}

/// What nobody has asked for yet keeps nothing from being destroyed. Its completions go with it; that its
/// connection has ended is told all the same.
#[test]
fn v_35_a_queue_pair_with_events_undelivered_is_destroyed() {
    for (net, destroys) in [(46, false), (47, true)] {
        let (mut rig, client, server) = connected(net);
        rig.server.post_receive(server, 2, (0, 8));
        assert!(rig.client.post(client, 1, SendOperation::Send, (0, 8)));
        // The NICs alone: what they have to tell stays with them.
        let nics = |rig: &mut Rig| {
            for _ in 0..100 {
                rig.now = rig.now + Duration::from_micros(10);
                rig.client.provider.progress(rig.now);
                rig.server.provider.progress(rig.now);
                rig.carry();
            }
        };
        nics(&mut rig);
        rig.client.provider.disconnect(client).unwrap();
        nics(&mut rig);
        if destroys {
            rig.server.provider.destroy_queue_pair(server).unwrap();
        }
        rig.run(Duration::from_secs(1), |_| false);
        let received = (2, Ok(CompletionKind::Receive { length: 8 }));
        assert_eq!(done(&mut rig.server).contains(&received), !destroys);
        assert_eq!(rig.server.stage(server), Some(false));
        if destroys {
            let queue = rig.server.queue;
            rig.server.provider.destroy_completion_queue(queue).unwrap();
        }
    }
}
