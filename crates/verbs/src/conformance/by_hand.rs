//! The state table, without connection management: every change of state, whole and mutilated.

use super::expect::{equal, must, refused, send, violation};
use super::session::{Checked, End, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    AccessFlags, AsyncEvent, CompletionKind, CompletionStatus, Event, PacketSequenceNumber,
    PathMtu, QueuePairAttributes, QueuePairNumber, QueuePairState as State, ReceiveRequest,
    RetryCount, RnrTimer, SendFlags, VerbsError, WorkRequestId,
};
use alloc::format;
use alloc::vec;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "V-1 every change of state",
        check: every_change,
    },
    Rule {
        name: "V-1 attributes are kept, and forgotten in Reset",
        check: attributes_are_kept,
    },
    Rule {
        name: "V-2 posting in every state",
        check: posting_in_every_state,
    },
    Rule {
        name: "V-4 a peer that does not exist",
        check: peer_that_does_not_exist,
    },
    Rule {
        name: "a drained send queue takes requests and starts none",
        check: drained_send_queue,
    },
    Rule {
        name: "a queue pair that was reset has forgotten all, and connects again",
        check: reset_and_connect_again,
    },
];

/// The states that a reliable connection can be in.
const STATES: [State; 6] = [
    State::Reset,
    State::Init,
    State::ReadyToReceive,
    State::ReadyToSend,
    State::SendQueueDrain,
    State::Error,
];

/// What a queue pair needs to go from one state to the next, towards a peer that is not there.
fn complete(from: State, to: State) -> QueuePairAttributes {
    match (from, to) {
        (State::Reset, State::Init) => QueuePairAttributes::INIT,
        (State::Init, State::ReadyToReceive) => QueuePairAttributes {
            path_mtu: Some(PathMtu::Bytes1024),
            destination: Some(QueuePairNumber::new(0x00AB_CDEF)),
            receive_sequence: Some(PacketSequenceNumber::new(7)),
            responder_resources: Some(4),
            rnr_timer: Some(RnrTimer::new(12)),
            ..QueuePairAttributes::NONE
        },
        (State::ReadyToReceive, State::ReadyToSend) => QueuePairAttributes {
            timeout: Some(8),
            retry_count: RetryCount::new(1),
            rnr_retry: Some(2),
            send_sequence: Some(PacketSequenceNumber::new(9)),
            initiator_depth: Some(4),
            ..QueuePairAttributes::NONE
        },
        _ => QueuePairAttributes::NONE,
    }
}

/// Attributes for a change, with the peer's port where they need one.
fn attributes(
    session: &mut Session<'_>,
    side: Side,
    from: State,
    to: State,
) -> QueuePairAttributes {
    let mut attributes = complete(from, to);
    if (from, to) == (State::Init, State::ReadyToReceive) {
        let peer = match side {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        };
        attributes.address_vector = Some(session.on(peer).port_address());
    }
    attributes
}

fn go(session: &mut Session<'_>, end: &End, to: State) -> Checked {
    let from = must(
        "query",
        session.on(end.side).query_queue_pair(end.queue_pair),
    )?;
    let attributes = attributes(session, end.side, from, to);
    let modified = session
        .on(end.side)
        .modify_queue_pair(end.queue_pair, to, &attributes);
    must(&format!("{from:?} to {to:?}"), modified)?;
    session.state_is(end, to)
}

/// A queue pair in the state, by the shortest way.
fn in_state(session: &mut Session<'_>, state: State) -> Checked<End> {
    let end = session.end_in_reset(Side::Left, SMALL)?;
    let way: &[State] = match state {
        State::Init => &[State::Init],
        State::ReadyToReceive => &[State::Init, State::ReadyToReceive],
        State::ReadyToSend => &[State::Init, State::ReadyToReceive, State::ReadyToSend],
        State::SendQueueDrain => &[
            State::Init,
            State::ReadyToReceive,
            State::ReadyToSend,
            State::SendQueueDrain,
        ],
        State::Error => &[State::Init, State::Error],
        State::Reset | State::SendQueueError => &[],
    };
    for &step in way {
        go(session, &end, step)?;
    }
    Ok(end)
}

/// Which states follow a state (IB spec 10.3.1, figure 124).
const fn followers(from: State) -> &'static [State] {
    use State::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError};
    match from {
        Reset => &[Reset, Init],
        Init => &[Reset, Init, ReadyToReceive, Error],
        ReadyToReceive => &[Reset, ReadyToSend, Error],
        ReadyToSend | SendQueueDrain => &[Reset, ReadyToSend, SendQueueDrain, Error],
        SendQueueError | Error => &[Reset, Error],
    }
}

/// Tries a change that must be refused, and sees that it changed nothing.
fn refuses(
    session: &mut Session<'_>,
    end: &End,
    to: State,
    attributes: &QueuePairAttributes,
    what: &str,
) -> Checked {
    let before = must(
        "query",
        session.on(end.side).query_attributes(end.queue_pair),
    )?;
    let state = must(
        "query",
        session.on(end.side).query_queue_pair(end.queue_pair),
    )?;
    let what = format!("{state:?} to {to:?} {what}");
    let modified = session
        .on(end.side)
        .modify_queue_pair(end.queue_pair, to, attributes);
    let allowed = |error: &VerbsError| {
        matches!(
            error,
            VerbsError::InvalidState(_) | VerbsError::Attributes(_)
        )
    };
    refused(&what, &modified, allowed, "InvalidState or Attributes")?;
    session.state_is(end, state)?;
    let after = session.on(end.side).query_attributes(end.queue_pair);
    equal(&what, &Ok(before), &after)
}

/// An attribute that no change to the state takes.
fn foreign(from: State, to: State) -> QueuePairAttributes {
    let mut attributes = complete(from, to);
    if (from, to) == (State::Init, State::ReadyToReceive) {
        attributes.timeout = Some(14);
    } else {
        attributes.path_mtu = Some(PathMtu::Bytes256);
    }
    attributes
}

fn every_change(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    for from in STATES {
        for to in STATES.into_iter().chain([State::SendQueueError]) {
            let end = in_state(&mut session, from)?;
            let whole = attributes(&mut session, Side::Left, from, to);
            if !followers(from).contains(&to) {
                refuses(&mut session, &end, to, &whole, "though it does not follow")?;
                session.dismantle(end)?;
                continue;
            }
            let too_much = QueuePairAttributes {
                address_vector: whole.address_vector,
                ..foreign(from, to)
            };
            refuses(
                &mut session,
                &end,
                to,
                &too_much,
                "with a foreign attribute",
            )?;
            for (name, lacking) in mutilations(&whole) {
                let what = format!("without {name}");
                refuses(&mut session, &end, to, &lacking, &what)?;
            }
            go(&mut session, &end, to)?;
            session.dismantle(end)?;
        }
    }
    Ok(())
}

/// Takes an attribute away, and its name.
type Removal = (&'static str, fn(&mut QueuePairAttributes));

/// The attributes with one of them missing, for each that is there.
fn mutilations(
    whole: &QueuePairAttributes,
) -> impl Iterator<Item = (&'static str, QueuePairAttributes)> {
    let without: [Removal; 14] = [
        ("partition_index", |it| it.partition_index = None),
        ("port", |it| it.port = None),
        ("access_flags", |it| it.access_flags = None),
        ("address_vector", |it| it.address_vector = None),
        ("path_mtu", |it| it.path_mtu = None),
        ("destination", |it| it.destination = None),
        ("receive_sequence", |it| it.receive_sequence = None),
        ("responder_resources", |it| it.responder_resources = None),
        ("rnr_timer", |it| it.rnr_timer = None),
        ("timeout", |it| it.timeout = None),
        ("retry_count", |it| it.retry_count = None),
        ("rnr_retry", |it| it.rnr_retry = None),
        ("send_sequence", |it| it.send_sequence = None),
        ("initiator_depth", |it| it.initiator_depth = None),
    ];
    let whole = *whole;
    without.into_iter().filter_map(move |(name, remove)| {
        let mut lacking = whole;
        remove(&mut lacking);
        (lacking != whole).then_some((name, lacking))
    })
}

fn attributes_are_kept(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let end = in_state(&mut session, State::ReadyToSend)?;
    let known = session.on(end.side).query_attributes(end.queue_pair);
    let known = must("query the attributes", known)?;
    let way = [
        (State::Reset, State::Init),
        (State::Init, State::ReadyToReceive),
        (State::ReadyToReceive, State::ReadyToSend),
    ];
    let mut expected = QueuePairAttributes::NONE;
    for (from, to) in way {
        expected.merge(&attributes(&mut session, Side::Left, from, to));
    }
    equal("the attributes", &expected, &known)?;
    let other = QueuePairAttributes {
        access_flags: Some(AccessFlags::REMOTE_READ),
        ..QueuePairAttributes::NONE
    };
    let modified =
        session
            .on(end.side)
            .modify_queue_pair(end.queue_pair, State::ReadyToSend, &other);
    must("change the access rights", modified)?;
    expected.access_flags = other.access_flags;
    let known = session.on(end.side).query_attributes(end.queue_pair);
    equal("the attributes after a change", &Ok(expected), &known)?;
    go(&mut session, &end, State::Reset)?;
    let known = session.on(end.side).query_attributes(end.queue_pair);
    let none = Ok(QueuePairAttributes::NONE);
    equal("the attributes in Reset", &none, &known)?;
    session.dismantle(end)
}

fn posting_in_every_state(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    for state in STATES {
        let end = in_state(&mut session, state)?;
        let request = send(1, vec![end.region.entry(0, 8)]);
        let receive = ReceiveRequest {
            wr_id: WorkRequestId(2),
            entries: vec![end.region.entry(64, 8)],
        };
        let provider = session.on(end.side);
        let sent = provider.post_send(end.queue_pair, &request);
        let received = provider.post_receive(end.queue_pair, &receive);
        let sends = matches!(
            state,
            State::ReadyToSend | State::SendQueueDrain | State::Error
        );
        for (what, posted, allowed) in [
            ("a send", sent, sends),
            ("a receive", received, state != State::Reset),
        ] {
            let what = format!("post {what} in {state:?}");
            if allowed {
                must(&what, posted)?;
            } else {
                let invalid = Err(VerbsError::InvalidState(state));
                equal(&what, &invalid, &posted)?;
            }
        }
        if state == State::Error {
            let flushed = session.completions(&end, 2)?;
            let all = flushed
                .iter()
                .all(|it| it.result == Err(CompletionStatus::WorkRequestFlushed));
            equal("what is posted in Error is flushed", &true, &all)?;
        }
        // The send of ReadyToSend would end in silence.
        if state != State::ReadyToSend {
            session.completes_no_more(&end)?;
        }
        session.dismantle(end)?;
    }
    Ok(())
}

/// With unsignaled requests: failures complete all the same.
fn peer_that_does_not_exist(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let end = in_state(&mut session, State::ReadyToSend)?;
    for wr_id in 20..22 {
        session.post_receive(&end, wr_id, vec![end.region.entry(64, 8)])?;
    }
    for wr_id in 1..4 {
        let mut request = send(wr_id, vec![end.region.entry(0, 8)]);
        request.flags = SendFlags::NONE;
        session.post_send(&end, &request)?;
    }
    let came = session.completions(&end, 5)?;
    let flushed = CompletionStatus::WorkRequestFlushed;
    for (queue, expected) in [
        (
            1..4,
            vec![
                (1, Err(CompletionStatus::RetryExceeded)),
                (2, Err(flushed)),
                (3, Err(flushed)),
            ],
        ),
        (20..22, vec![(20, Err(flushed)), (21, Err(flushed))]),
    ] {
        let of_queue: vec::Vec<_> = came
            .iter()
            .filter(|it| queue.contains(&it.wr_id.0))
            .map(|it| (it.wr_id.0, it.result))
            .collect();
        equal("the completions of a queue, in order", &expected, &of_queue)?;
    }
    session.state_is(&end, State::Error)?;
    session.completes_no_more(&end)?;
    session.dismantle(end)
}

fn drained_send_queue(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let attributes = QueuePairAttributes {
        drained_event: Some(true),
        ..QueuePairAttributes::NONE
    };
    let modified = session.on(Side::Left).modify_queue_pair(
        left.queue_pair,
        State::SendQueueDrain,
        &attributes,
    );
    must("ReadyToSend to SendQueueDrain", modified)?;
    let drained = Event::Async(AsyncEvent::SendQueueDrained(left.queue_pair));
    session.event(Side::Left, "Send Queue Drained", |event| {
        (*event == drained).then_some(())
    })?;
    session.post_receive(&right, 10, vec![right.region.entry(0, 16)])?;
    session.post_receive(&left, 11, vec![left.region.entry(64, 16)])?;
    session.post_send(&left, &send(1, vec![left.region.entry(0, 16)]))?;
    session.post_send(&right, &send(2, vec![right.region.entry(64, 16)]))?;
    // It goes on to receive.
    session.completes(&left, &[(11, Ok(CompletionKind::Receive { length: 16 }))])?;
    session.completes(&right, &[(2, Ok(CompletionKind::Send))])?;
    session.completes_no_more(&left)?;
    session.completes_no_more(&right)?;
    go(&mut session, &left, State::ReadyToSend)?;
    session.completes(&left, &[(1, Ok(CompletionKind::Send))])?;
    session.completes(&right, &[(10, Ok(CompletionKind::Receive { length: 16 }))])
}

fn reset_and_connect_again(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    for wr_id in 0..4 {
        session.post_receive(&left, wr_id, vec![left.region.entry(0, 16)])?;
    }
    go(&mut session, &left, State::Reset)?;
    session.disconnected(&right)?;
    session.completes_no_more(&left)?;
    // The buffers are the owner's: nothing keeps the region.
    let made = session
        .on(Side::Left)
        .allocate_region(left.domain, 4096, AccessFlags::LOCAL_WRITE);
    let region = must("allocate another region", made)?;
    let ended = session.on(Side::Left).deregister_region(&left.region);
    must("deregister the region of forgotten receives", ended)?;
    session.time_wait_over(&left)?;
    session.time_wait_over(&right)?;
    go(&mut session, &right, State::Reset)?;
    let _ = session.poll(&right)?;
    for end in [&left, &right] {
        go(&mut session, end, State::Init)?;
    }
    let left = End { region, ..left };
    session.connect(&left, &right)?;
    session.post_receive(&right, 71, vec![right.region.entry(0, 64)])?;
    session.post_send(&left, &send(70, vec![left.region.entry(0, 64)]))?;
    session.completes(&left, &[(70, Ok(CompletionKind::Send))])?;
    let received = Ok(CompletionKind::Receive { length: 64 });
    session.completes(&right, &[(71, received)])?;
    let told = session.events_about(&left);
    if told.len() > 1 {
        let got = format!("{told:?}");
        return Err(violation("events of a reset", "at most Disconnected", &got));
    }
    Ok(())
}
