//! How connections end, and that nothing is left of them.

use super::expect::{equal, must, refused, send, signaled, violation};
use super::session::{Checked, End, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    CompletionKind, CompletionStatus, ConnectionEvent, Event, RemoteAddress, ResourceCounts,
    SendOperation, VerbsError,
};
use alloc::format;
use alloc::vec;

const FLUSHED: Result<CompletionKind, CompletionStatus> = Err(CompletionStatus::WorkRequestFlushed);

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "V-24 cycles of connect, traffic and disconnect leave nothing",
        check: cycles_leave_nothing,
    },
    Rule {
        name: "V-26 a peer that is destroyed without disconnect is noticed",
        check: peer_destroyed,
    },
    Rule {
        name: "V-27 after a peer vanished a new connection works",
        check: peer_returns,
    },
    Rule {
        name: "V-34 disconnect from the active side",
        check: |world| disconnect_from(world, Side::Left),
    },
    Rule {
        name: "V-34 disconnect from the passive side",
        check: |world| disconnect_from(world, Side::Right),
    },
    Rule {
        name: "V-34 both sides disconnect at once",
        check: both_disconnect,
    },
    Rule {
        name: "V-34 what was sent before a disconnect arrives before it",
        check: sends_before_disconnect,
    },
    Rule {
        name: "V-35 destroy with undelivered events",
        check: destroy_with_undelivered_events,
    },
    Rule {
        name: "V-40 one failed connection of several",
        check: one_of_several_fails,
    },
];

/// At most one Disconnected and nothing else about a queue pair whose owner ended it.
fn told_at_most_once(session: &mut Session<'_>, end: &End) -> Checked {
    let events = session.events_about(end);
    let over = Event::Connection(ConnectionEvent::Disconnected {
        queue_pair: end.queue_pair,
    });
    if events.is_empty() || events == [over] {
        return Ok(());
    }
    Err(violation(
        "events at an end",
        "one Disconnected at most",
        &format!("{events:?}"),
    ))
}

fn disconnect_from(world: &mut dyn World, side: Side) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let (ender, peer) = if side == Side::Left {
        (left, right)
    } else {
        (right, left)
    };
    for end in [&ender, &peer] {
        session.post_receive(end, 1, vec![end.region.entry(0, 16)])?;
        session.post_receive(end, 2, vec![end.region.entry(0, 16)])?;
    }
    must("disconnect", session.on(side).disconnect(ender.queue_pair))?;
    session.completes(&ender, &[(1, FLUSHED), (2, FLUSHED)])?;
    session.reaches_error(&ender)?;
    session.completes(&peer, &[(1, FLUSHED), (2, FLUSHED)])?;
    session.disconnected(&peer)?;
    session.reaches_error(&peer)?;
    session.settle();
    let rest = session.events_about(&peer);
    equal("events after Disconnected", &vec![], &rest)?;
    told_at_most_once(&mut session, &ender)?;
    let again = session.on(side).disconnect(ender.queue_pair);
    let wrong = |error: &VerbsError| matches!(error, VerbsError::InvalidState(_));
    refused("disconnect twice", &again, wrong, "InvalidState")?;
    session.completes_no_more(&left)?;
    session.completes_no_more(&right)
}

fn both_disconnect(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    for end in [&left, &right] {
        session.post_receive(end, 1, vec![end.region.entry(0, 16)])?;
    }
    must(
        "disconnect",
        session.on(Side::Left).disconnect(left.queue_pair),
    )?;
    // The other's disconnect may have been learnt already: then there is nothing to end.
    match session.on(Side::Right).disconnect(right.queue_pair) {
        Ok(()) | Err(VerbsError::InvalidState(_)) => {}
        Err(other) => must("disconnect at once", Err(other))?,
    }
    for end in [&left, &right] {
        session.completes(end, &[(1, FLUSHED)])?;
        session.reaches_error(end)?;
    }
    session.settle();
    for end in [left, right] {
        told_at_most_once(&mut session, &end)?;
        session.completes_no_more(&end)?;
        session.dismantle(end)?;
    }
    counts_are_zero(&mut session)
}

fn counts_are_zero(session: &mut Session<'_>) -> Checked {
    session.settle();
    for side in [Side::Left, Side::Right] {
        let counts = session.on(side).resource_counts();
        equal("objects left", &ResourceCounts::default(), &counts)?;
    }
    Ok(())
}

fn sends_before_disconnect(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    for wr_id in 0..4 {
        session.post_receive(&right, wr_id, vec![right.region.entry(0, 16)])?;
    }
    for wr_id in 0..3 {
        session.post_send(&left, &send(wr_id, vec![left.region.entry(0, 16)]))?;
    }
    let sent = Ok(CompletionKind::Send);
    session.completes(&left, &[(0, sent), (1, sent), (2, sent)])?;
    must(
        "disconnect",
        session.on(Side::Left).disconnect(left.queue_pair),
    )?;
    let received = Ok(CompletionKind::Receive { length: 16 });
    session.completes(
        &right,
        &[(0, received), (1, received), (2, received), (3, FLUSHED)],
    )?;
    session.disconnected(&right)
}

fn peer_destroyed(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    session.post_receive(&right, 1, vec![right.region.entry(0, 16)])?;
    session.dismantle(left)?;
    session.completes(&right, &[(1, FLUSHED)])?;
    session.disconnected(&right)?;
    session.reaches_error(&right)?;
    session.dismantle(right)?;
    counts_are_zero(&mut session)
}

/// The peer is destroyed with requests towards it under way: each completes once, the first
/// failure says why, the rest are flushed.
fn peer_returns(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let at = RemoteAddress {
        key: right.region.remote_key,
        address: right.region.address,
    };
    for wr_id in 0..8 {
        let entries = vec![left.region.entry(0, 64)];
        session.post_send(
            &left,
            &signaled(wr_id, SendOperation::RdmaWrite(at), entries),
        )?;
    }
    session.dismantle(right)?;
    let came = session.completions(&left, 8)?;
    let failed = came
        .iter()
        .position(|completion| completion.result.is_err());
    for (place, completion) in came.iter().enumerate() {
        equal(
            "the order of completions",
            &(place as u64),
            &completion.wr_id.0,
        )?;
        let allowed = match (completion.result, failed) {
            (Ok(kind), None) => kind == CompletionKind::RdmaWrite,
            (Ok(kind), Some(first)) => place < first && kind == CompletionKind::RdmaWrite,
            (Err(status), Some(first)) if place == first => matches!(
                status,
                CompletionStatus::WorkRequestFlushed
                    | CompletionStatus::RemoteAccess
                    | CompletionStatus::RemoteOperation
                    | CompletionStatus::RetryExceeded
            ),
            (result, _) => result == FLUSHED,
        };
        equal(
            "each completion fits its place",
            &(true, completion),
            &(allowed, completion),
        )?;
    }
    session.disconnected(&left)?;
    session.reaches_error(&left)?;
    session.dismantle(left)?;
    let (left, right) = session.connected(SMALL)?;
    session.exchange(&left, &right)
}

fn cycles_leave_nothing(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let mut after_first = None;
    for cycle in 0..session.world.facts().cycles {
        let (left, right) = session.connected(SMALL)?;
        session.exchange(&left, &right)?;
        let (ender, peer) = if cycle % 2 == 0 {
            (left, right)
        } else {
            (right, left)
        };
        session.post_receive(&peer, 90, vec![peer.region.entry(0, 8)])?;
        must(
            "disconnect",
            session.on(ender.side).disconnect(ender.queue_pair),
        )?;
        session.disconnected(&peer)?;
        session.completes(&peer, &[(90, FLUSHED)])?;
        session.dismantle(left)?;
        session.dismantle(right)?;
        session.settle();
        told_at_most_once(&mut session, &ender)?;
        let counts = [Side::Left, Side::Right].map(|side| session.on(side).resource_counts());
        let first = *after_first.get_or_insert(counts);
        equal("objects after a cycle", &(cycle, first), &(cycle, counts))?;
    }
    counts_are_zero(&mut session)
}

fn destroy_with_undelivered_events(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    must(
        "disconnect",
        session.on(Side::Left).disconnect(left.queue_pair),
    )?;
    session.world.settle();
    session.dismantle(right)?;
    session.disconnected(&right)?;
    session.dismantle(left)?;
    counts_are_zero(&mut session)
}

fn one_of_several_fails(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let mut pairs = vec![];
    for _ in 0..8 {
        pairs.push(session.connected(SMALL)?);
    }
    let (victim, _) = pairs.remove(3);
    must(
        "to error",
        session.on(Side::Left).modify_to_error(victim.queue_pair),
    )?;
    session.settle();
    for (left, right) in &pairs {
        session.exchange(left, right)?;
        let rest = (session.events_about(left), session.events_about(right));
        equal("events at the others", &(vec![], vec![]), &rest)?;
    }
    Ok(())
}
