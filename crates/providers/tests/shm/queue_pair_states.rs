//! The states of a queue pair, by hand and connected.

use crate::peer::pair::{
    NOW, connect, connected, events, over, polled, remote, state, turn, turn_at,
};
use crate::peer::{Peer, pattern};
use legato_base::{Duration, Time};
use legato_verbs::{
    AsyncEvent, CompletionKind, CompletionStatus, Event, PacketSequenceNumber, PathMtu, Provider,
    QueuePairAttributes, QueuePairNumber, QueuePairState as State, ReceiveRequest, RetryCount,
    RnrTimer, SendFlags, SendOperation, VerbsError, WorkRequestId,
};

const NONE: QueuePairAttributes = QueuePairAttributes::NONE;
const STATES: [State; 7] = [
    State::Reset,
    State::Init,
    State::ReadyToReceive,
    State::ReadyToSend,
    State::SendQueueDrain,
    State::SendQueueError,
    State::Error,
];

/// All that any change may need.
fn all(peer: &Peer) -> QueuePairAttributes {
    QueuePairAttributes {
        address_vector: Some(peer.provider.port_address()),
        path_mtu: Some(PathMtu::Bytes1024),
        destination: Some(QueuePairNumber::new(0x1234)),
        receive_sequence: Some(PacketSequenceNumber::new(7)),
        responder_resources: Some(4),
        rnr_timer: Some(RnrTimer::new(12)),
        timeout: Some(14),
        retry_count: RetryCount::new(3),
        rnr_retry: Some(2),
        send_sequence: Some(PacketSequenceNumber::new(9)),
        initiator_depth: Some(4),
        ..QueuePairAttributes::INIT
    }
}

/// What a change to that state needs.
fn needed(peer: &Peer, from: State, to: State) -> QueuePairAttributes {
    let all = all(peer);
    match (from, to) {
        (State::Reset, State::Init) => QueuePairAttributes::INIT,
        (_, State::ReadyToReceive) => QueuePairAttributes {
            timeout: None,
            retry_count: None,
            rnr_retry: None,
            send_sequence: None,
            initiator_depth: None,
            partition_index: None,
            port: None,
            access_flags: None,
            ..all
        },
        (State::ReadyToReceive, State::ReadyToSend) => QueuePairAttributes {
            timeout: all.timeout,
            retry_count: all.retry_count,
            rnr_retry: all.rnr_retry,
            send_sequence: all.send_sequence,
            initiator_depth: all.initiator_depth,
            ..NONE
        },
        _ => NONE,
    }
}

/// A queue pair that nobody has connected, by hand in a state.
fn taken_to(to: State) -> Peer {
    let mut peer = Peer::new();
    let path: &[State] = match to {
        State::Reset => &[State::Reset],
        State::Init | State::SendQueueError => &[],
        State::ReadyToReceive => &[State::ReadyToReceive],
        State::ReadyToSend => &[State::ReadyToReceive, State::ReadyToSend],
        State::SendQueueDrain => &[
            State::ReadyToReceive,
            State::ReadyToSend,
            State::SendQueueDrain,
        ],
        State::Error => &[State::Error],
    };
    for &next in path {
        let attributes = needed(&peer, state(&peer), next);
        modify(&mut peer, next, &attributes).unwrap();
    }
    peer
}

fn modify(peer: &mut Peer, to: State, attributes: &QueuePairAttributes) -> Result<(), VerbsError> {
    peer.provider
        .modify_queue_pair(peer.queue_pair, to, attributes)
}

#[test]
fn v_01_the_table_holds_and_a_refused_change_changes_nothing() {
    for from in STATES.into_iter().filter(|&s| s != State::SendQueueError) {
        for to in STATES {
            let mut peer = taken_to(from);
            assert_eq!(state(&peer), from);
            let queue_pair = peer.queue_pair;
            let required = needed(&peer, from, to);
            let mut foreign = required;
            foreign.drained_event = Some(true);
            foreign.path_mtu = Some(PathMtu::Bytes256);
            foreign.receive_sequence = None;
            let less = QueuePairAttributes {
                port: None,
                rnr_timer: None,
                timeout: None,
                ..required
            };
            for attributes in [foreign, less, required] {
                let allowed = attributes.check(from, to);
                let before = peer.provider.query_attributes(queue_pair);
                let answer = modify(&mut peer, to, &attributes);
                assert_eq!(answer, allowed.map_err(VerbsError::from), "{from:?} {to:?}");
                if allowed.is_ok() {
                    assert_eq!(state(&peer), to);
                    break;
                }
                assert_eq!(state(&peer), from);
                assert_eq!(peer.provider.query_attributes(queue_pair), before);
            }
            assert_eq!(polled(&mut peer), []);
            assert_eq!(events(&mut peer), []);
            peer.dismantle();
        }
    }
}

#[test]
fn v_01_attributes_are_kept_until_reset() {
    let mut peer = taken_to(State::ReadyToSend);
    let queue_pair = peer.queue_pair;
    assert_eq!(peer.provider.query_attributes(queue_pair), Ok(all(&peer)));
    modify(&mut peer, State::Reset, &NONE).unwrap();
    assert_eq!(peer.provider.query_attributes(queue_pair), Ok(NONE));

    let (mut left, right) = connected("kept");
    let known = left.provider.query_attributes(left.queue_pair).unwrap();
    let number = right.provider.queue_pair_number(right.queue_pair).unwrap();
    assert_eq!(known.destination, Some(number));
    assert!(number.get() > 1, "not a management queue pair");
    assert_eq!((known.timeout, known.rnr_retry), (Some(0), Some(5)));
    assert_eq!(known.access_flags, QueuePairAttributes::INIT.access_flags);
    let stopped = QueuePairAttributes {
        timeout: Some(18),
        ..NONE
    };
    modify(&mut left, State::SendQueueDrain, &NONE).unwrap();
    modify(&mut left, State::SendQueueDrain, &stopped).unwrap();
    let known = left.provider.query_attributes(left.queue_pair).unwrap();
    assert_eq!(known.timeout, Some(18));
}

#[test]
fn v_02_posting_by_state() {
    for from in STATES.into_iter().filter(|&s| s != State::SendQueueError) {
        let mut peer = taken_to(from);
        let flags = SendFlags::SIGNALED;
        let posted = peer.post_with(flags, 1, SendOperation::Send, (0, 8));
        let receive = ReceiveRequest {
            wr_id: WorkRequestId(2),
            entries: vec![peer.region.entry(0, 8)],
        };
        let received = peer.provider.post_receive(peer.queue_pair, &receive);
        let refused = Err(VerbsError::InvalidState(from));
        let sends = [State::ReadyToSend, State::SendQueueDrain, State::Error].contains(&from);
        assert_eq!(posted, if sends { Ok(()) } else { refused }, "{from:?}");
        let receives = from != State::Reset;
        assert_eq!(
            received,
            if receives { Ok(()) } else { refused },
            "{from:?}"
        );
        let flushed = Err(CompletionStatus::WorkRequestFlushed);
        let expected = match from {
            State::Error => vec![flushed; 2],
            _ => vec![],
        };
        assert_eq!(polled(&mut peer), expected, "{from:?}");
    }
}

#[test]
fn v_05_a_queue_pair_that_nobody_connected_reaches_nobody() {
    // 4.096 us * 2^14 * (3 + 1).
    let patience = Duration::from_nanos(4_096 * 16_384 * 4);
    let mut peer = taken_to(State::ReadyToSend);
    peer.post_receive(3, 64, 8);
    let mut unsignaled = |wr_id| {
        let posted = peer.post_with(SendFlags::NONE, wr_id, SendOperation::Send, (0, 8));
        posted.unwrap();
    };
    unsignaled(1);
    unsignaled(2);
    assert!(
        !peer.provider.set_sleeping(true),
        "the clock does not run yet"
    );
    let begin = Time::from_nanos(1_000);
    let deadline = peer.provider.progress(begin);
    assert_eq!(deadline, begin + patience);
    assert!(peer.provider.set_sleeping(true));
    peer.provider.set_sleeping(false);
    let before = Time::from_nanos(deadline.as_nanos() - 1);
    assert_eq!(peer.provider.progress(before), deadline);
    assert_eq!(polled(&mut peer), []);
    assert_eq!(peer.provider.progress(deadline), Time::NEVER);
    let flushed = Err(CompletionStatus::WorkRequestFlushed);
    let exceeded = Err(CompletionStatus::RetryExceeded);
    assert_eq!(polled(&mut peer), [exceeded, flushed, flushed]);
    assert_eq!(state(&peer), State::Error);
    assert_eq!(events(&mut peer), [], "there was no connection");
    let queue_pair = peer.queue_pair;
    let disconnected = peer.provider.disconnect(queue_pair);
    assert_eq!(disconnected, Err(VerbsError::InvalidState(State::Error)));
}

#[test]
fn v_05_without_a_timeout_it_waits_for_ever() {
    let mut peer = taken_to(State::ReadyToReceive);
    let mut attributes = needed(&peer, State::ReadyToReceive, State::ReadyToSend);
    attributes.timeout = Some(0);
    modify(&mut peer, State::ReadyToSend, &attributes).unwrap();
    peer.post(1, SendOperation::Send, 0, 8);
    assert_eq!(peer.provider.progress(NOW), Time::NEVER);
    let late = Time::from_nanos(u64::MAX - 1);
    assert_eq!(peer.provider.progress(late), Time::NEVER);
    assert_eq!(polled(&mut peer), []);
    let address = crate::peer::address("by-hand");
    let queue_pair = peer.queue_pair;
    let connecting = peer.provider.connect(queue_pair, &address, &[]);
    assert_eq!(
        connecting,
        Err(VerbsError::InvalidState(State::ReadyToSend))
    );
}

#[test]
fn a_stopped_send_queue_ends_what_it_has_started_and_goes_on_later() {
    let (mut left, mut right) = connected("drain");
    let drained = Event::Async(AsyncEvent::SendQueueDrained(left.queue_pair));
    let wanted = QueuePairAttributes {
        drained_event: Some(true),
        ..NONE
    };
    left.post(1, SendOperation::Send, 0, 8);
    modify(&mut left, State::SendQueueDrain, &wanted).unwrap();
    left.post(2, SendOperation::Send, 0, 8);
    left.post(3, SendOperation::RdmaWrite(remote(&right)), 0, 8);
    turn(&mut left, &mut right);
    assert_eq!(events(&mut left), [], "the first message is on its way");
    right.post_receive(1, 0, 8);
    right.post_receive(2, 0, 8);
    turn(&mut left, &mut right);
    assert_eq!(events(&mut left), std::slice::from_ref(&drained));
    assert_eq!(polled(&mut left), [Ok(CompletionKind::Send)]);
    let received = Ok(CompletionKind::Receive { length: 8 });
    assert_eq!(polled(&mut right), [received], "the second has not started");
    turn(&mut left, &mut right);
    modify(&mut left, State::ReadyToSend, &NONE).unwrap();
    turn(&mut left, &mut right);
    let done = [Ok(CompletionKind::Send), Ok(CompletionKind::RdmaWrite)];
    assert_eq!(polled(&mut left), done);
    assert_eq!(polled(&mut right), [received]);
    // At rest already: said at once. Not asked for: not said.
    modify(&mut left, State::SendQueueDrain, &wanted).unwrap();
    assert_eq!(events(&mut left), [drained]);
    modify(&mut left, State::ReadyToSend, &NONE).unwrap();
    modify(&mut left, State::SendQueueDrain, &NONE).unwrap();
    assert_eq!(events(&mut left), []);
    // A stopped queue pair is connected: it receives, and it can disconnect.
    left.post_receive(4, 0, 8);
    right.post(4, SendOperation::Send, 0, 8);
    turn(&mut left, &mut right);
    assert_eq!(polled(&mut left), [received]);
    left.provider.disconnect(left.queue_pair).unwrap();
    assert_eq!(events(&mut left), over(left.queue_pair));
}

#[test]
fn reset_forgets_everything_and_the_queue_pair_can_be_connected_again() {
    let (mut left, mut right) = connected("reset");
    for round in 0..3 {
        left.fill(0, &pattern(round, 64));
        for wr_id in 0..4 {
            left.post_receive(wr_id, 0, 8);
            left.post(wr_id, SendOperation::Send, 0, 8);
        }
        right.post_receive(1, 0, 8);
        turn(&mut left, &mut right);
        let region = left.region;
        let busy = Err(VerbsError::Busy("memory region"));
        assert_eq!(left.provider.deregister_region(&region), busy);
        // Completions of before go too: those posted below have all the slots.
        modify(&mut left, State::Reset, &NONE).unwrap();
        assert_eq!(polled(&mut left), []);
        assert_eq!(events(&mut left), over(left.queue_pair));
        turn(&mut left, &mut right);
        assert_eq!(events(&mut right), over(right.queue_pair));
        assert_eq!(state(&right), State::Error);
        modify(&mut right, State::Reset, &NONE).unwrap();
        assert_eq!(events(&mut right), [], "its end was told");
        for peer in [&mut left, &mut right] {
            assert_eq!(peer.provider.resource_counts().connection_state, 0);
            peer.provider.modify_to_init(peer.queue_pair).unwrap();
        }
        connect(&format!("again-{round}"), &mut left, &mut right);
        for wr_id in 0..u64::from(crate::peer::REQUESTS) {
            right.post_receive(wr_id, wr_id * 8, 8);
            left.post(wr_id, SendOperation::Send, 0, 8);
        }
        turn_at(NOW, &mut left, &mut right);
        let sent = vec![Ok(CompletionKind::Send); crate::peer::REQUESTS as usize];
        assert_eq!(polled(&mut left), sent);
        assert_eq!(polled(&mut right).len(), sent.len());
        assert_eq!(right.bytes(0, 8), pattern(round, 64)[..8]);
    }
    left.dismantle();
    right.dismantle();
}

#[test]
fn v_34_each_side_of_a_connection_hears_of_its_end_once() {
    let ways: [fn(&mut Peer); 3] = [
        |peer| peer.provider.disconnect(peer.queue_pair).unwrap(),
        |peer| peer.provider.modify_to_error(peer.queue_pair).unwrap(),
        |peer| modify(peer, State::Reset, &NONE).unwrap(),
    ];
    for (number, end) in ways.into_iter().enumerate() {
        let (mut left, mut right) = connected(&format!("end-{number}"));
        end(&mut left);
        turn(&mut left, &mut right);
        assert_eq!(events(&mut left), over(left.queue_pair));
        assert_eq!(events(&mut right), over(right.queue_pair));
        modify(&mut left, State::Reset, &NONE).unwrap();
        turn(&mut left, &mut right);
        assert_eq!(events(&mut left), []);
    }
    // A connect that is given up has an end as well; one that is destroyed says nothing more.
    let mut peer = Peer::new();
    let mut listening = Peer::new();
    let address = crate::peer::address("given-up");
    listening.provider.listen(&address).unwrap();
    let queue_pair = peer.queue_pair;
    peer.provider.connect(queue_pair, &address, &[]).unwrap();
    peer.provider.modify_to_error(queue_pair).unwrap();
    assert_eq!(events(&mut peer), over(queue_pair));
    let (mut left, _right) = connected("destroyed");
    left.provider.disconnect(left.queue_pair).unwrap();
    left.provider.destroy_queue_pair(left.queue_pair).unwrap();
    assert_eq!(events(&mut left), over(left.queue_pair)[..1]);
}

#[test]
fn connection_management_alone_moves_a_queue_pair_that_connects() {
    let mut peer = Peer::new();
    let mut listening = Peer::new();
    let address = crate::peer::address("moves");
    listening.provider.listen(&address).unwrap();
    let queue_pair = peer.queue_pair;
    peer.provider.connect(queue_pair, &address, &[]).unwrap();
    let attributes = needed(&peer, State::Init, State::ReadyToReceive);
    let moved = modify(&mut peer, State::ReadyToReceive, &attributes);
    assert_eq!(moved, Err(VerbsError::InvalidState(State::Init)));
    assert_eq!(state(&peer), State::Init);
}
