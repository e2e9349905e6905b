//! Waiting for completions, and completion queues that run over.

use super::expect::{equal, must, refused, send};
use super::session::{Checked, End, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    Arm, AsyncEvent, CompletionKind, CompletionQueue, Event, QueuePairInit, QueuePairState,
    SendFlags, VerbsError,
};
use alloc::vec;
use alloc::vec::Vec;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "V-18 an armed queue tells of the next completion, once",
        check: armed_once,
    },
    Rule {
        name: "V-18 what waits already is said when the queue is armed",
        check: armed_too_late,
    },
    Rule {
        name: "V-18 solicited completions and failures only",
        check: solicited_only,
    },
    Rule {
        name: "sends and receives complete into queues of their own",
        check: two_queues,
    },
    Rule {
        name: "V-16 a completion queue without a ledger runs over",
        check: overrun,
    },
];

fn ready(session: &mut Session<'_>, queue: CompletionQueue) -> usize {
    session.settle();
    session.count_events(Side::Right, |event| {
        *event == Event::CompletionQueueReady(queue)
    })
}

fn arm(session: &mut Session<'_>, end: &End, what: Arm, waits: bool) -> Checked {
    let armed = session.on(end.side).arm_completion_queue(end.queue, what);
    equal(
        "completions wait when the queue is armed",
        &Ok(waits),
        &armed,
    )
}

fn message(session: &mut Session<'_>, left: &End, right: &End, flags: SendFlags) -> Checked {
    session.post_receive(right, 10, vec![right.region.entry(0, 16)])?;
    let mut request = send(1, vec![left.region.entry(0, 16)]);
    request.flags = request.flags | flags;
    session.post_send(left, &request)?;
    session.completes(left, &[(1, Ok(CompletionKind::Send))])
}

const PLAIN: SendFlags = SendFlags::NONE;

fn armed_once(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    message(&mut session, &left, &right, PLAIN)?;
    equal(
        "events of a queue never armed",
        &0,
        &ready(&mut session, right.queue),
    )?;
    session.completions(&right, 1)?;
    for round in 1..4 {
        arm(&mut session, &right, Arm::Next, false)?;
        // Armed twice is armed once.
        arm(&mut session, &right, Arm::Next, false)?;
        message(&mut session, &left, &right, PLAIN)?;
        message(&mut session, &left, &right, PLAIN)?;
        equal(
            "events of an armed queue",
            &round,
            &ready(&mut session, right.queue),
        )?;
        session.completions(&right, 2)?;
    }
    Ok(())
}

fn armed_too_late(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    message(&mut session, &left, &right, PLAIN)?;
    session.settle();
    arm(&mut session, &right, Arm::Next, true)?;
    equal(
        "events of what waited",
        &0,
        &ready(&mut session, right.queue),
    )?;
    message(&mut session, &left, &right, PLAIN)?;
    equal(
        "events of what came later",
        &1,
        &ready(&mut session, right.queue),
    )?;
    session.completions(&right, 2)?;
    Ok(())
}

fn solicited_only(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    arm(&mut session, &right, Arm::Solicited, false)?;
    message(&mut session, &left, &right, PLAIN)?;
    equal(
        "events of a plain message",
        &0,
        &ready(&mut session, right.queue),
    )?;
    message(&mut session, &left, &right, SendFlags::SOLICITED)?;
    equal(
        "events of a solicited one",
        &1,
        &ready(&mut session, right.queue),
    )?;
    session.completions(&right, 2)?;
    arm(&mut session, &right, Arm::Solicited, false)?;
    session.post_receive(&right, 11, vec![right.region.entry(0, 16)])?;
    let ended = session.on(Side::Right).modify_to_error(right.queue_pair);
    must("to error", ended)?;
    equal(
        "events after a failure",
        &2,
        &ready(&mut session, right.queue),
    )?;
    session.completions(&right, 1)?;
    // Who waits for any completion goes on to do so.
    arm(&mut session, &right, Arm::Next, false)?;
    arm(&mut session, &right, Arm::Solicited, false)?;
    let (left, other) = session.connected(SMALL)?;
    message(&mut session, &left, &other, PLAIN)?;
    equal(
        "events of another queue",
        &2,
        &ready(&mut session, right.queue),
    )
}

fn two_queues(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let base = session.end(Side::Right, SMALL)?;
    let provider = session.on(Side::Right);
    let made = provider.create_completion_queue(8);
    let sends = must("create a queue for sends", made)?;
    let made = provider.create_completion_queue(8);
    let receives = must("create a queue for receives", made)?;
    let init = QueuePairInit {
        send_completions: sends,
        receive_completions: receives,
        ..QueuePairInit::new(base.domain, sends, SMALL)
    };
    let made = provider.create_queue_pair(&init);
    let queue_pair = must("create a queue pair", made)?;
    must("to Init", provider.modify_to_init(queue_pair))?;
    let sending = End {
        queue: sends,
        queue_pair,
        ..base
    };
    let receiving = End {
        queue: receives,
        ..sending
    };
    let left = session.end(Side::Left, SMALL)?;
    session.connect(&left, &sending)?;
    message(&mut session, &left, &receiving, PLAIN)?;
    let received = Ok(CompletionKind::Receive { length: 16 });
    session.completes(&receiving, &[(10, received)])?;
    session.post_receive(&left, 12, vec![left.region.entry(64, 16)])?;
    session.post_send(&sending, &send(13, vec![base.region.entry(0, 16)]))?;
    session.completes(&sending, &[(13, Ok(CompletionKind::Send))])?;
    session.completes_no_more(&sending)?;
    session.completes_no_more(&receiving)?;
    let busy = |error: &VerbsError| matches!(error, VerbsError::Busy(_));
    for queue in [sends, receives] {
        let destroyed = session.on(Side::Right).destroy_completion_queue(queue);
        refused("destroy a used queue", &destroyed, busy, "Busy")?;
    }
    let destroyed = session.on(Side::Right).destroy_queue_pair(queue_pair);
    must("destroy", destroyed)?;
    for queue in [sends, receives] {
        let destroyed = session.on(Side::Right).destroy_completion_queue(queue);
        must("destroy a queue", destroyed)?;
    }
    Ok(())
}

/// Three messages into a queue of two.
fn overrun(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let made = session
        .on(Side::Right)
        .create_overcommitted_completion_queue(2);
    let queue = match made {
        Err(VerbsError::Unsupported(_)) => return Ok(()),
        made => must("create a queue without a ledger", made)?,
    };
    let base = session.end(Side::Right, SMALL)?;
    let provider = session.on(Side::Right);
    let made = provider.create_queue_pair(&QueuePairInit::new(base.domain, queue, SMALL));
    let queue_pair = must("create a queue pair", made)?;
    must("to Init", provider.modify_to_init(queue_pair))?;
    let right = End {
        queue,
        queue_pair,
        ..base
    };
    let left = session.end(Side::Left, SMALL)?;
    session.connect(&left, &right)?;
    for wr_id in 0..4 {
        session.post_receive(&right, wr_id, vec![right.region.entry(0, 16)])?;
        session.post_send(&left, &send(wr_id, vec![left.region.entry(0, 16)]))?;
    }
    session.settle();
    let error = Event::Async(AsyncEvent::CompletionQueueError(queue));
    let came = session.count_events(Side::Right, |event| *event == error);
    equal("CQ error events", &1, &came)?;
    let mut polled = Vec::new();
    let poll = session
        .on(Side::Right)
        .poll_completion_queue(queue, 16, &mut polled);
    if session.world.facts().overrun_is_fatal {
        equal("poll", &Err(VerbsError::CompletionQueueOverrun), &poll)?;
        session.state_is(&right, QueuePairState::Error)?;
        let fatal = Event::Async(AsyncEvent::QueuePairFatal(queue_pair));
        let came = session.count_events(Side::Right, |event| *event == fatal);
        equal("QP fatal events", &1, &came)?;
    } else {
        equal("the completions that found room", &Ok(2), &poll)?;
    }
    // Others are not concerned, and a new queue works.
    let destroyed = session.on(Side::Right).destroy_queue_pair(queue_pair);
    must("destroy the queue pair", destroyed)?;
    let destroyed = session.on(Side::Right).destroy_completion_queue(queue);
    must("destroy the queue", destroyed)?;
    let (left, right) = session.connected(SMALL)?;
    session.exchange(&left, &right)
}
