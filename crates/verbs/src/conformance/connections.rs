//! How connections begin, and how they do not.

use super::expect::{equal, must, pattern, refused, violation};
use super::session::{Checked, End, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    ConnectionEvent, Event, PRIVATE_DATA_MAX, QueuePairState, RejectReason, UnreachableReason,
    VerbsError,
};
use alloc::format;
use alloc::vec::Vec;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "connections: private data both ways",
        check: private_data_both_ways,
    },
    Rule {
        name: "connections: nobody listens",
        check: nobody_listens,
    },
    Rule {
        name: "connections: the consumer rejects",
        check: consumer_rejects,
    },
    Rule {
        name: "connections: closing a listener rejects those who wait",
        check: closing_rejects,
    },
    Rule {
        name: "connections: a peer that went away cannot be accepted",
        check: gone_before_accept,
    },
    Rule {
        name: "connections: several through one listener do not mix",
        check: several_do_not_mix,
    },
    Rule {
        name: "L-44 connections: two sides that connect to each other at once",
        check: both_connect_at_once,
    },
];

fn private_data_both_ways(world: &mut dyn World) -> Checked {
    for length in [0, 1, PRIVATE_DATA_MAX] {
        let mut session = Session::new(world);
        let address = session.world.fresh_address(Side::Right);
        let left = session.end(Side::Left, SMALL)?;
        let right = session.end(Side::Right, SMALL)?;
        let (out, back) = (pattern(1, length), pattern(2, length));
        let listener = must("listen", session.on(Side::Right).listen(&address))?;
        let connected = session
            .on(Side::Left)
            .connect(left.queue_pair, &address, &out);
        must("connect", connected)?;
        let (request, came) = session.requested(listener)?;
        equal("the connector's private data", &out, &came)?;
        let accepted = session
            .on(Side::Right)
            .accept(request, right.queue_pair, &back);
        must("accept", accepted)?;
        let came = session.established(&left)?;
        equal("the acceptor's private data", &back, &came)?;
        session.established(&right)?;
        session.exchange(&left, &right)?;
        let rest = (session.events_about(&left), session.events_about(&right));
        equal("further events", &(Vec::new(), Vec::new()), &rest)?;
        must("close", session.on(Side::Right).close_listener(listener))?;
    }
    Ok(())
}

/// The event that says how a refused connection ended.
fn refusal(session: &mut Session<'_>, end: &End) -> Checked<ConnectionEvent> {
    let event = session.event(end.side, "Rejected or Unreachable", |event| match event {
        Event::Connection(
            event @ (ConnectionEvent::Rejected { queue_pair, .. }
            | ConnectionEvent::Unreachable { queue_pair, .. }),
        ) if *queue_pair == end.queue_pair => Some(event.clone()),
        _ => None,
    })?;
    session.state_is(end, QueuePairState::Error)?;
    Ok(event)
}

fn nobody_listens(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let never_used = session.world.fresh_address(Side::Right);
    let closed = session.world.fresh_address(Side::Right);
    let listener = must("listen", session.on(Side::Right).listen(&closed))?;
    must("close", session.on(Side::Right).close_listener(listener))?;
    for address in [never_used, closed] {
        let end = session.end(Side::Left, SMALL)?;
        let connected = session
            .on(Side::Left)
            .connect(end.queue_pair, &address, &[]);
        // Where the address can be looked up locally, nothing needs to be sent.
        must("connect to nobody", connected)?;
        match refusal(&mut session, &end)? {
            ConnectionEvent::Unreachable {
                reason: UnreachableReason::NoSuchAddress,
                ..
            }
            | ConnectionEvent::Rejected {
                reason: RejectReason::InvalidServiceId,
                ..
            } => {}
            other => {
                let got = format!("{other:?}");
                return Err(violation(
                    "nobody listens",
                    "NoSuchAddress or InvalidServiceId",
                    &got,
                ));
            }
        }
        session.dismantle(end)?;
    }
    Ok(())
}

fn consumer_rejects(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let address = session.world.fresh_address(Side::Right);
    let left = session.end(Side::Left, SMALL)?;
    let listener = must("listen", session.on(Side::Right).listen(&address))?;
    let connected = session
        .on(Side::Left)
        .connect(left.queue_pair, &address, &[]);
    must("connect", connected)?;
    let (request, _) = session.requested(listener)?;
    let reason = pattern(3, PRIVATE_DATA_MAX);
    must("reject", session.on(Side::Right).reject(request, &reason))?;
    let expected = ConnectionEvent::Rejected {
        queue_pair: left.queue_pair,
        reason: RejectReason::ConsumerReject,
        private_data: reason,
    };
    let came = refusal(&mut session, &left)?;
    equal("the rejection", &expected, &came)?;
    let again = session.on(Side::Right).reject(request, &[]);
    refused(
        "reject twice",
        &again,
        |error| matches!(error, VerbsError::UnknownHandle(_)),
        "UnknownHandle",
    )?;
    let next = session.end(Side::Left, SMALL)?;
    let right = session.end(Side::Right, SMALL)?;
    let connected = session
        .on(Side::Left)
        .connect(next.queue_pair, &address, &[]);
    must("connect again", connected)?;
    let (request, _) = session.requested(listener)?;
    must(
        "accept",
        session
            .on(Side::Right)
            .accept(request, right.queue_pair, &[]),
    )?;
    session.established(&next)?;
    session.established(&right)?;
    session.exchange(&next, &right)
}

fn closing_rejects(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let address = session.world.fresh_address(Side::Right);
    let left = session.end(Side::Left, SMALL)?;
    let listener = must("listen", session.on(Side::Right).listen(&address))?;
    let connected = session
        .on(Side::Left)
        .connect(left.queue_pair, &address, &[]);
    must("connect", connected)?;
    session.requested(listener)?;
    must("close", session.on(Side::Right).close_listener(listener))?;
    refusal(&mut session, &left)?;
    let again = session.on(Side::Right).close_listener(listener);
    refused(
        "close twice",
        &again,
        |error| matches!(error, VerbsError::UnknownHandle(_)),
        "UnknownHandle",
    )?;
    let listened = session.on(Side::Right).listen(&address);
    must("listen at the same address again", listened)?;
    Ok(())
}

fn gone_before_accept(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let address = session.world.fresh_address(Side::Right);
    let left = session.end(Side::Left, SMALL)?;
    let right = session.end(Side::Right, SMALL)?;
    let listener = must("listen", session.on(Side::Right).listen(&address))?;
    let connected = session
        .on(Side::Left)
        .connect(left.queue_pair, &address, &[]);
    must("connect", connected)?;
    let (request, _) = session.requested(listener)?;
    session.dismantle(left)?;
    session.settle();
    let accepted = session
        .on(Side::Right)
        .accept(request, right.queue_pair, &[]);
    let gone = |error: &VerbsError| matches!(error, VerbsError::UnknownHandle(_));
    refused(
        "accept a peer that went away",
        &accepted,
        gone,
        "UnknownHandle",
    )?;
    session.state_is(&right, QueuePairState::Init)?;
    let rejected = session.on(Side::Right).reject(request, &[]);
    refused(
        "reject a peer that went away",
        &rejected,
        gone,
        "UnknownHandle",
    )?;
    must("close", session.on(Side::Right).close_listener(listener))?;
    session.dismantle(right)?;
    let counts = session.on(Side::Right).resource_counts();
    equal(
        "what is left at the listener",
        &crate::ResourceCounts::default(),
        &counts,
    )
}

fn several_do_not_mix(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let address = session.world.fresh_address(Side::Right);
    let listener = must("listen", session.on(Side::Right).listen(&address))?;
    let mut pairs = Vec::new();
    for number in 0..4u8 {
        let left = session.end(Side::Left, SMALL)?;
        let connected = session
            .on(Side::Left)
            .connect(left.queue_pair, &address, &[number]);
        must("connect", connected)?;
        pairs.push((left, None));
    }
    for _ in 0..4 {
        let (request, data) = session.requested(listener)?;
        let right = session.end(Side::Right, SMALL)?;
        let accepted = session
            .on(Side::Right)
            .accept(request, right.queue_pair, &data);
        must("accept", accepted)?;
        session.established(&right)?;
        let pair = data
            .first()
            .and_then(|&number| pairs.get_mut(usize::from(number)));
        match pair {
            Some((_, place @ None)) => *place = Some(right),
            _ => {
                return Err(violation(
                    "the private data",
                    "one of each",
                    &format!("{data:?}"),
                ));
            }
        }
    }
    for (number, (left, right)) in pairs.iter().enumerate() {
        let came = session.established(left)?;
        equal("the echoed private data", &[number as u8][..], &came[..])?;
        if let Some(right) = right {
            session.exchange(left, right)?;
        }
    }
    Ok(())
}

/// Each listens, and asks the other one before it has seen that it is asked: two connections.
fn both_connect_at_once(world: &mut dyn World) -> Checked {
    const SIDES: [Side; 2] = [Side::Left, Side::Right];
    let mut session = Session::new(world);
    for _ in 0..4 {
        let mut listeners = Vec::new();
        for at in SIDES {
            let address = session.world.fresh_address(at);
            let listener = must("listen", session.on(at).listen(&address))?;
            listeners.push((listener, address));
        }
        let mut asking = Vec::new();
        for (from, (_, address)) in SIDES.into_iter().zip(listeners.iter().rev()) {
            let end = session.end(from, SMALL)?;
            let connected = session.on(from).connect(end.queue_pair, address, &[7]);
            must("connect", connected)?;
            asking.push(end);
        }
        let mut asked = Vec::new();
        for (at, (listener, _)) in SIDES.into_iter().zip(&listeners) {
            let (request, _) = session.requested_of(at, *listener)?;
            let end = session.end(at, SMALL)?;
            must(
                "accept",
                session.on(at).accept(request, end.queue_pair, &[]),
            )?;
            asked.push(end);
        }
        for (near, far) in asking.into_iter().zip(asked.into_iter().rev()) {
            session.established(&near)?;
            session.established(&far)?;
            session.exchange(&near, &far)?;
            session.dismantle(near)?;
            session.dismantle(far)?;
        }
        for (at, (listener, _)) in SIDES.into_iter().zip(listeners) {
            must("close", session.on(at).close_listener(listener))?;
        }
    }
    Ok(())
}
