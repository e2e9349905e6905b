//! The ledger of completion queues, flushing, and the end of a queue pair's completions.

use super::expect::{equal, must, refused, send, signaled, violation};
use super::session::{Checked, REGION_LENGTH, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    CompletionKind, CompletionStatus, QueuePair, QueuePairCapabilities, QueuePairInit,
    RemoteAddress, SendFlags, SendOperation, VerbsError,
};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

const FLUSHED: Result<CompletionKind, CompletionStatus> = Err(CompletionStatus::WorkRequestFlushed);

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "V-17 completion queue ledger",
        check: completion_queue_ledger,
    },
    Rule {
        name: "V-24 entries, receives and bytes are counted while they are there",
        check: what_is_there_is_counted,
    },
    Rule {
        name: "V-18 nobody is let to sleep over a completion or an event",
        check: no_sleep_over_work,
    },
    Rule {
        name: "V-19 completions of a destroyed queue pair reach nobody",
        check: completions_of_the_destroyed,
    },
    Rule {
        name: "V-19 stale handles are errors",
        check: stale_handles,
    },
    Rule {
        name: "V-20 every failed request completes once, signaled or not",
        check: failures_always_complete,
    },
    Rule {
        name: "V-33 drain with full queues",
        check: drain_with_full_queues,
    },
    Rule {
        name: "V-33 flushed buffers are never touched again",
        check: flushed_buffers_stay,
    },
];

fn completion_queue_ledger(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let end = session.end(Side::Left, SMALL)?;
    let provider = session.on(Side::Left);
    let needs = |error: &VerbsError| matches!(*error, VerbsError::CompletionQueueTooSmall { needed: 16, free } if free < 16);
    let expected = "CompletionQueueTooSmall { needed: 16, free: less }";
    let mut more = Vec::new();
    let refusal = loop {
        match provider.create_queue_pair(&QueuePairInit::new(end.domain, end.queue, SMALL)) {
            // Queues may be rounded up.
            Ok(queue_pair) if more.len() < 64 => more.push(queue_pair),
            other => break other,
        }
    };
    refused("attach beyond the queue", &refusal, needs, expected)?;
    let counts = provider.resource_counts();
    equal(
        "queue pairs after the refusal",
        &(1 + more.len()),
        &counts.queue_pairs,
    )?;
    let busy = |error: &VerbsError| matches!(error, VerbsError::Busy(_));
    let destroyed = provider.destroy_completion_queue(end.queue);
    refused("destroy a used completion queue", &destroyed, busy, "Busy")?;
    let destroyed = provider.destroy_protection_domain(end.domain);
    refused("destroy a used protection domain", &destroyed, busy, "Busy")?;
    must(
        "destroy a queue pair",
        provider.destroy_queue_pair(end.queue_pair),
    )?;
    let made = provider.create_queue_pair(&QueuePairInit::new(end.domain, end.queue, SMALL));
    must("attach again when there is room", made)?;
    Ok(())
}

fn what_is_there_is_counted(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let counts = |session: &mut Session<'_>| {
        let counts = session.on(Side::Right).resource_counts();
        let (entries, receives) = (counts.completion_entries, counts.posted_receives);
        (entries, receives, counts.registered_bytes)
    };
    let before = counts(&mut session);
    let (left, right) = session.connected(SMALL)?;
    let entries = (SMALL.send_requests_max + SMALL.receive_requests_max) as usize;
    let is_there = |receives| {
        let (all, posted, bytes) = before;
        (all + entries, posted + receives, bytes + REGION_LENGTH)
    };
    equal("once connected", &is_there(0), &counts(&mut session))?;
    for wr_id in 1..=3 {
        session.post_receive(&right, wr_id, vec![right.region.entry(0, 8)])?;
    }
    equal("three receives", &is_there(3), &counts(&mut session))?;
    session.post_send(&left, &send(4, vec![left.region.entry(0, 8)]))?;
    session.completes(&right, &[(1, Ok(CompletionKind::Receive { length: 8 }))])?;
    equal("two receives", &is_there(2), &counts(&mut session))?;
    session.completes(&left, &[(4, Ok(CompletionKind::Send))])?;
    session.dismantle(right)?;
    session.settle();
    equal("everything is gone", &before, &counts(&mut session))
}

fn no_sleep_over_work(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    session.post_receive(&right, 1, vec![right.region.entry(0, 8)])?;
    session.post_send(&left, &send(2, vec![left.region.entry(0, 8)]))?;
    session.settle();
    let may_sleep = session.on(Side::Right).set_sleeping(true);
    equal("sleep while a completion waits", &false, &may_sleep)?;
    session.on(Side::Right).set_sleeping(false);
    session.completes(&right, &[(1, Ok(CompletionKind::Receive { length: 8 }))])?;
    must(
        "disconnect",
        session.on(Side::Left).disconnect(left.queue_pair),
    )?;
    // Not through the session, which would take the event.
    session.world.settle();
    let may_sleep = session.on(Side::Right).set_sleeping(true);
    equal("sleep while an event waits", &false, &may_sleep)?;
    session.on(Side::Right).set_sleeping(false);
    session.disconnected(&right)?;
    session.wait("sleep when there is nothing to do", |session| {
        session.poll(&right)?;
        let may_sleep = session.on(Side::Right).set_sleeping(true);
        session.on(Side::Right).set_sleeping(false);
        Ok(may_sleep.then_some(()))
    })
}

fn completions_of_the_destroyed(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    for wr_id in 0..4 {
        session.post_receive(&right, wr_id, vec![right.region.entry(0, 16)])?;
        session.post_send(&left, &send(wr_id, vec![left.region.entry(0, 16)]))?;
    }
    session.post_receive(&left, 9, vec![left.region.entry(0, 16)])?;
    session.settle();
    let provider = session.on(Side::Left);
    must("destroy", provider.destroy_queue_pair(left.queue_pair))?;
    if session.world.facts().destroyed_completions_stay {
        // They hold their entries of the ledger until they are polled.
        let stayed = session.poll(&left)?;
        let all_old = stayed.iter().all(|it| it.queue_pair == left.queue_pair);
        equal("completions that stay have the old handle", &true, &all_old)?;
    }
    let provider = session.on(Side::Left);
    let made = provider.create_queue_pair(&QueuePairInit::new(left.domain, left.queue, SMALL));
    let heir = must("create the next owner of the queue", made)?;
    equal(
        "the heir's handle is new",
        &true,
        &(heir != left.queue_pair),
    )?;
    session.completes_no_more(&left)?;
    must("init", session.on(Side::Left).modify_to_init(heir))?;
    let heir_end = super::session::End {
        queue_pair: heir,
        ..left
    };
    session.post_receive(&heir_end, 20, vec![left.region.entry(0, 16)])?;
    must("to error", session.on(Side::Left).modify_to_error(heir))?;
    session.completes(&heir_end, &[(20, FLUSHED)])?;
    session.completes_no_more(&left)
}

fn stale_handles(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let stale = session.end(Side::Left, SMALL)?;
    session.dismantle(stale)?;
    let fresh = session.end(Side::Left, SMALL)?;
    let request = send(1, vec![fresh.region.entry(0, 1)]);
    let provider = session.on(Side::Left);
    let unknown = |error: &VerbsError| matches!(error, VerbsError::UnknownHandle(_));
    let answers = [
        ("post", provider.post_send(stale.queue_pair, &request)),
        (
            "query",
            provider.query_queue_pair(stale.queue_pair).map(|_| ()),
        ),
        ("modify", provider.modify_to_error(stale.queue_pair)),
        ("disconnect", provider.disconnect(stale.queue_pair)),
        (
            "destroy a queue pair",
            provider.destroy_queue_pair(stale.queue_pair),
        ),
        (
            "destroy a queue",
            provider.destroy_completion_queue(stale.queue),
        ),
        (
            "destroy a domain",
            provider.destroy_protection_domain(stale.domain),
        ),
        (
            "poll",
            provider
                .poll_completion_queue(stale.queue, 1, &mut Vec::new())
                .map(|_| ()),
        ),
    ];
    for (what, answer) in answers {
        let what = format!("{what} with a stale handle");
        refused(&what, &answer, unknown, "UnknownHandle")?;
    }
    let invented = QueuePair {
        index: u32::MAX,
        generation: 0,
    };
    refused(
        "query an invented handle",
        &provider.query_queue_pair(invented),
        unknown,
        "UnknownHandle",
    )?;
    let gone = provider.read_region(&stale.region, 0, &mut [0; 1]);
    refused("read a deregistered region", &gone, |_| true, "an error")?;
    session.dismantle(fresh)
}

fn failures_always_complete(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let nowhere = RemoteAddress {
        key: right.region.remote_key,
        address: right.region.address + REGION_LENGTH,
    };
    for wr_id in 0..3 {
        let entries = vec![left.region.entry(0, 8)];
        let mut request = signaled(wr_id, SendOperation::RdmaWrite(nowhere), entries);
        request.flags = SendFlags::NONE;
        session.post_send(&left, &request)?;
    }
    let denied = Err(CompletionStatus::RemoteAccess);
    session.completes(&left, &[(0, denied), (1, FLUSHED), (2, FLUSHED)])?;
    session.completes_no_more(&left)
}

fn drain_with_full_queues(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let end = session.end(Side::Left, SMALL)?;
    for wr_id in 0..8 {
        session.post_receive(&end, wr_id, vec![end.region.entry(0, 16)])?;
    }
    must(
        "to error",
        session.on(Side::Left).modify_to_error(end.queue_pair),
    )?;
    for wr_id in 10..18 {
        session.post_send(&end, &send(wr_id, Vec::new()))?;
    }
    let came = session.completions(&end, 16)?;
    for range in [0..8, 10..18] {
        let of_queue: Vec<_> = came
            .iter()
            .filter(|completion| range.contains(&completion.wr_id.0))
            .map(|completion| (completion.wr_id.0, completion.result))
            .collect();
        let expected: Vec<_> = range.map(|wr_id| (wr_id, FLUSHED)).collect();
        equal(
            "the flushed requests of a queue, in order",
            &expected,
            &of_queue,
        )?;
    }
    session.completes_no_more(&end)?;
    session.dismantle(end)
}

/// Requests in flight at both ends when one goes to the error state.
fn flushed_buffers_stay(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let capabilities = QueuePairCapabilities {
        send_requests_max: 8,
        receive_requests_max: 8,
        entries_max: 1,
    };
    let (left, right) = session.connected(capabilities)?;
    session.fill(&right, 0, &[0xAA; REGION_LENGTH as usize])?;
    let from = RemoteAddress {
        key: right.region.remote_key,
        address: right.region.address,
    };
    for wr_id in 0..8 {
        let into = vec![left.region.entry(wr_id * 1024, 1024)];
        session.post_send(&left, &signaled(wr_id, SendOperation::RdmaRead(from), into))?;
        session.post_receive(
            &left,
            20 + wr_id,
            vec![left.region.entry(8192 + wr_id * 64, 64)],
        )?;
        session.post_send(&right, &send(wr_id, vec![right.region.entry(0, 64)]))?;
    }
    session.world.begin_wait();
    session.world.advance();
    must(
        "to error",
        session.on(Side::Left).modify_to_error(left.queue_pair),
    )?;
    let came = session.completions(&left, 16)?;
    session.fill(&left, 0, &[0x55; REGION_LENGTH as usize])?;
    for completion in &came {
        match completion.result {
            Ok(_) | Err(CompletionStatus::WorkRequestFlushed) => {}
            Err(other) => {
                let got = format!("{other:?}");
                return Err(violation(
                    "a request at the error state",
                    "done or flushed",
                    &got,
                ));
            }
        }
    }
    let mut ids: Vec<u64> = came.iter().map(|completion| completion.wr_id.0).collect();
    ids.sort_unstable();
    let expected: Vec<u64> = (0..8).chain(20..28).collect();
    equal("each request completes once", &expected, &ids)?;
    session.settle();
    let now = session.bytes(&left, 0, REGION_LENGTH as usize)?;
    let touched = now.iter().position(|&byte| byte != 0x55);
    equal(
        "a byte touched after its request completed",
        &None,
        &touched,
    )?;
    session.completes_no_more(&left)
}
