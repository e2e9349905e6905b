//! Shared receive queues.

use super::expect::{equal, must, pattern, refused, send, violation};
use super::session::{Checked, End, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    AsyncEvent, CompletionKind, Event, QueuePairInit, ReceiveRequest, Receives, SharedReceiveQueue,
    SharedReceiveQueueCapabilities, VerbsError, WorkRequestId,
};
use alloc::format;
use alloc::vec;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "V-15 the limit of a shared receive queue says so once",
        check: limit_event,
    },
    Rule {
        name: "V-40 queue pairs share receives, and one of them can end",
        check: shared_by_two,
    },
    Rule {
        name: "V-32 Last WQE Reached of an idle queue pair on an empty queue",
        check: |world| last_work_request(world, 0),
    },
    Rule {
        name: "V-32 Last WQE Reached of an idle queue pair",
        check: |world| last_work_request(world, 4),
    },
    Rule {
        name: "shared receive queues: what is refused",
        check: refusals,
    },
];

const TEN: SharedReceiveQueueCapabilities = SharedReceiveQueueCapabilities {
    requests_max: 10,
    entries_max: 2,
};

fn create(session: &mut Session<'_>, end: &End) -> Checked<SharedReceiveQueue> {
    let made = session
        .on(end.side)
        .create_shared_receive_queue(end.domain, TEN);
    must("create a shared receive queue", made)
}

/// A right end whose queue pair takes receives of the queue; it has the domain, region and
/// completion queue of `base`, whose own queue pair is gone.
fn attached(session: &mut Session<'_>, base: &End, queue: SharedReceiveQueue) -> Checked<End> {
    let provider = session.on(base.side);
    let made = provider.create_completion_queue(16);
    let completions = must("create a completion queue", made)?;
    let init = QueuePairInit {
        receives: Receives::Shared(queue),
        ..QueuePairInit::new(base.domain, completions, SMALL)
    };
    let queue_pair = must("create a queue pair", provider.create_queue_pair(&init))?;
    must("to Init", provider.modify_to_init(queue_pair))?;
    Ok(End {
        queue: completions,
        queue_pair,
        ..*base
    })
}

fn post(session: &mut Session<'_>, base: &End, queue: SharedReceiveQueue, wr_id: u64) -> Checked {
    let request = ReceiveRequest {
        wr_id: WorkRequestId(wr_id),
        entries: vec![base.region.entry(wr_id % 16 * 64, 64)],
    };
    let posted = session.on(base.side).post_shared_receive(queue, &request);
    must("post to a shared receive queue", posted)
}

/// One message from left to right, which takes the receive `taken`.
fn message(session: &mut Session<'_>, left: &End, right: &End, taken: u64) -> Checked {
    let bytes = pattern(taken, 40);
    session.fill(left, 0, &bytes)?;
    session.post_send(left, &send(1, vec![left.region.entry(0, 40)]))?;
    session.completes(left, &[(1, Ok(CompletionKind::Send))])?;
    session.completes(
        right,
        &[(taken, Ok(CompletionKind::Receive { length: 40 }))],
    )?;
    let came = session.bytes(right, taken % 16 * 64, 40)?;
    equal("the message", &bytes, &came)
}

fn limit_event(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let base = session.end(Side::Right, SMALL)?;
    let queue = create(&mut session, &base)?;
    let right = attached(&mut session, &base, queue)?;
    let left = session.end(Side::Left, SMALL)?;
    session.connect(&left, &right)?;
    for wr_id in 0..10 {
        post(&mut session, &base, queue, wr_id)?;
    }
    let low = Event::Async(AsyncEvent::SharedReceiveQueueLimit(queue));
    let mut taken = 0;
    for (round, least) in [(1, 7), (2, 3)] {
        let armed = session
            .on(Side::Right)
            .arm_shared_receive_queue(queue, least);
        must("arm the limit", armed)?;
        let limit = session.on(Side::Right).query_shared_receive_queue(queue);
        equal("the armed limit", &Ok(least), &limit)?;
        // As long as so many are posted, nothing is said.
        while 10 - taken > u64::from(least) {
            message(&mut session, &left, &right, taken)?;
            taken += 1;
        }
        session.settle();
        let early = session.count_events(Side::Right, |event| *event == low);
        equal("limit events above the limit", &(round - 1), &early)?;
        message(&mut session, &left, &right, taken)?;
        message(&mut session, &left, &right, taken + 1)?;
        taken += 2;
        session.settle();
        let came = session.count_events(Side::Right, |event| *event == low);
        equal("limit events", &round, &came)?;
        let limit = session.on(Side::Right).query_shared_receive_queue(queue);
        equal("the limit after its event", &Ok(0), &limit)?;
    }
    Ok(())
}

fn shared_by_two(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let base = session.end(Side::Right, SMALL)?;
    let queue = create(&mut session, &base)?;
    let (first, second) = (
        attached(&mut session, &base, queue)?,
        attached(&mut session, &base, queue)?,
    );
    let (one, two) = (
        session.end(Side::Left, SMALL)?,
        session.end(Side::Left, SMALL)?,
    );
    session.connect(&one, &first)?;
    session.connect(&two, &second)?;
    for wr_id in 0..10 {
        post(&mut session, &base, queue, wr_id)?;
    }
    message(&mut session, &one, &first, 0)?;
    message(&mut session, &two, &second, 1)?;
    message(&mut session, &one, &first, 2)?;
    let ended = session.on(Side::Right).modify_to_error(first.queue_pair);
    must("to error", ended)?;
    session.completes_no_more(&first)?;
    message(&mut session, &two, &second, 3)?;
    let destroyed = session.on(Side::Right).destroy_queue_pair(first.queue_pair);
    must("destroy", destroyed)?;
    for taken in 4..10 {
        message(&mut session, &two, &second, taken)?;
    }
    // All its slots are there again.
    for wr_id in 0..10 {
        post(&mut session, &base, queue, wr_id)?;
    }
    let request = ReceiveRequest {
        wr_id: WorkRequestId(99),
        entries: vec![],
    };
    let over = session.on(Side::Right).post_shared_receive(queue, &request);
    let full = |error: &VerbsError| matches!(error, VerbsError::QueueFull(_));
    refused(
        "post to a full shared receive queue",
        &over,
        full,
        "QueueFull",
    )?;
    message(&mut session, &two, &second, 0)
}

fn last_work_request(world: &mut dyn World, posted: u64) -> Checked {
    let mut session = Session::new(world);
    let base = session.end(Side::Right, SMALL)?;
    let queue = create(&mut session, &base)?;
    let right = attached(&mut session, &base, queue)?;
    let left = session.end(Side::Left, SMALL)?;
    session.connect(&left, &right)?;
    for wr_id in 0..posted {
        post(&mut session, &base, queue, wr_id)?;
    }
    let ended = session.on(Side::Right).modify_to_error(right.queue_pair);
    must("to error", ended)?;
    session.completes_no_more(&right)?;
    let last = Event::Async(AsyncEvent::LastWorkRequestReached(right.queue_pair));
    let came = session.count_events(Side::Right, |event| *event == last);
    let bounds = session.world.facts().last_work_request;
    if came < bounds.least || came > bounds.most {
        return Err(violation(
            "Last WQE Reached",
            &format!("{} to {} times", bounds.least, bounds.most),
            &format!("{came} times"),
        ));
    }
    Ok(())
}

fn refusals(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let base = session.end(Side::Right, SMALL)?;
    let queue = create(&mut session, &base)?;
    let end = attached(&mut session, &base, queue)?;
    let provider = session.on(Side::Right);
    let request = |entries| ReceiveRequest {
        wr_id: WorkRequestId(1),
        entries,
    };
    let own = provider.post_receive(end.queue_pair, &request(vec![]));
    let unsupported = |error: &VerbsError| matches!(error, VerbsError::Unsupported(_));
    refused(
        "post to the queue pair's own receives",
        &own,
        unsupported,
        "Unsupported",
    )?;
    let many = request(vec![base.region.entry(0, 1); 3]);
    let posted = provider.post_shared_receive(queue, &many);
    let limit = |error: &VerbsError| matches!(error, VerbsError::LimitExceeded { .. });
    refused("too many entries", &posted, limit, "LimitExceeded")?;
    let armed = provider.arm_shared_receive_queue(queue, 11);
    refused("a limit above the depth", &armed, limit, "LimitExceeded")?;
    let busy = |error: &VerbsError| matches!(error, VerbsError::Busy(_));
    let destroyed = provider.destroy_shared_receive_queue(queue);
    refused("destroy while it is used", &destroyed, busy, "Busy")?;
    must("destroy", provider.destroy_queue_pair(end.queue_pair))?;
    must("destroy", provider.destroy_completion_queue(end.queue))?;
    must("destroy", provider.destroy_shared_receive_queue(queue))?;
    let unknown = |error: &VerbsError| matches!(error, VerbsError::UnknownHandle(_));
    let posted = provider.post_shared_receive(queue, &request(vec![]));
    refused("post to a stale handle", &posted, unknown, "UnknownHandle")?;
    let counts = provider.resource_counts();
    equal("queues left", &0, &counts.shared_receive_queues)?;
    session.dismantle(base)
}
