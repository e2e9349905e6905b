//! SENDs that the receiver is not ready for, or that do not fit.

use super::expect::{equal, must, pattern, refused, send};
use super::session::{Checked, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    AccessFlags, CompletionKind, CompletionStatus, ReceiveRequest, VerbsError, WorkRequestId,
};
use alloc::vec;
use alloc::vec::Vec;

const FLUSHED: Result<CompletionKind, CompletionStatus> = Err(CompletionStatus::WorkRequestFlushed);

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "V-6 no receive posted",
        check: no_receive_posted,
    },
    Rule {
        name: "V-6 a receive posted before the send arrives is enough",
        check: receives_are_used_in_order,
    },
    Rule {
        name: "V-10 message longer than the receive",
        check: message_longer_than_receive,
    },
    Rule {
        name: "V-10 receive into memory without local write permission",
        check: receive_without_permission,
    },
];

fn no_receive_posted(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    session.post_send(&left, &send(1, vec![left.region.entry(0, 16)]))?;
    session.post_send(&left, &send(2, vec![left.region.entry(0, 16)]))?;
    let exhausted = Err(CompletionStatus::ReceiverNotReadyRetryExceeded);
    session.completes(&left, &[(1, exhausted), (2, FLUSHED)])?;
    session.reaches_error(&left)?;
    session.completes_no_more(&left)?;
    session.completes_no_more(&right)?;
    let (again_left, again_right) = session.connected(SMALL)?;
    session.exchange(&again_left, &again_right)?;
    session.dismantle(left)?;
    session.dismantle(right)?;
    session.exchange(&again_left, &again_right)
}

fn receives_are_used_in_order(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    for wr_id in 0..4 {
        session.post_receive(&right, wr_id, vec![right.region.entry(wr_id * 64, 64)])?;
        session.fill(&left, wr_id * 64, &pattern(wr_id, 64))?;
    }
    for wr_id in 0..4 {
        // Each message shorter than the one before: a length must not stick.
        let length = 64 - wr_id as u32;
        session.post_send(
            &left,
            &send(10 + wr_id, vec![left.region.entry(wr_id * 64, length)]),
        )?;
    }
    let sent = Ok(CompletionKind::Send);
    session.completes(&left, &[(10, sent), (11, sent), (12, sent), (13, sent)])?;
    let received: Vec<_> = (0..4u64)
        .map(|wr_id| {
            let length = 64 - wr_id as u32;
            (wr_id, Ok(CompletionKind::Receive { length }))
        })
        .collect();
    session.completes(&right, &received)?;
    for wr_id in 0..4u64 {
        let length = 64 - wr_id as usize;
        let mut expected = pattern(wr_id, 64);
        expected[length..].fill(0);
        equal(
            "the receive buffer",
            &expected,
            &session.bytes(&right, wr_id * 64, 64)?,
        )?;
    }
    Ok(())
}

fn message_longer_than_receive(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    session.post_receive(&right, 10, vec![right.region.entry(0, 16)])?;
    session.post_receive(&right, 11, vec![right.region.entry(16, 64)])?;
    session.fill(&left, 0, &pattern(1, 64))?;
    session.post_send(&left, &send(1, vec![left.region.entry(0, 64)]))?;
    session.post_send(&left, &send(2, vec![left.region.entry(0, 8)]))?;
    let facts = session.world.facts();
    let refused = Err(facts.too_long_at_sender);
    session.completes(&left, &[(1, refused), (2, FLUSHED)])?;
    let too_long = Err(facts.too_long_at_receiver);
    session.completes(&right, &[(10, too_long), (11, FLUSHED)])?;
    session.reaches_error(&left)?;
    session.reaches_error(&right)?;
    let beyond = session.bytes(&right, 16, 64)?;
    equal("the bytes behind the short receive", &vec![0; 64], &beyond)?;
    let (left, right) = session.connected(SMALL)?;
    session.exchange(&left, &right)
}

/// The provider refuses the receive when it is posted, or fails it when a message comes.
fn receive_without_permission(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let provider = session.on(Side::Right);
    let made = provider.allocate_region(right.domain, 4096, AccessFlags::NONE);
    let region = must("allocate a region that nobody may write", made)?;
    let request = ReceiveRequest {
        wr_id: WorkRequestId(10),
        entries: vec![region.entry(0, 64)],
    };
    let posted = provider.post_receive(right.queue_pair, &request);
    if posted.is_ok() {
        session.fill(&left, 0, &pattern(1, 64))?;
        session.post_send(&left, &send(1, vec![left.region.entry(0, 64)]))?;
        session.completes(&right, &[(10, Err(CompletionStatus::LocalProtection))])?;
    } else {
        let denied = |error: &VerbsError| *error == VerbsError::LocalProtection;
        refused(
            "post a receive without permission",
            &posted,
            denied,
            "LocalProtection",
        )?;
        session.exchange(&left, &right)?;
    }
    let mut now = vec![1; 4096];
    let read = session.on(Side::Right).read_region(&region, 0, &mut now);
    must("read the region", read)?;
    equal("the forbidden region", &vec![0; 4096], &now)
}
