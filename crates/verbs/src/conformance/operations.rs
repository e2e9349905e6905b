//! Immediate data, inline data and atomics.

use super::expect::{equal, must, pattern, refused, send, signaled, violation};
use super::session::{Checked, End, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    AccessFlags, CompletionKind, CompletionStatus, MemoryRegion, RemoteAddress, SendFlags,
    SendOperation, SendRequest, VerbsError,
};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "immediate data comes with a message and with a WRITE",
        check: immediate_data,
    },
    Rule {
        name: "a WRITE with immediate waits for a receive",
        check: write_with_immediate_waits,
    },
    Rule {
        name: "V-3 inline data is the poster's again at once",
        check: inline_data,
    },
    Rule {
        name: "V-11 atomics are applied once, and say what was there",
        check: atomics,
    },
    Rule {
        name: "V-8 refused atomics change nothing",
        check: refused_atomics,
    },
    Rule {
        name: "a fenced request starts after the READs before it",
        check: fenced,
    },
];

/// What [`End`]s' regions do not allow: atomics.
const ATOMIC: AccessFlags = AccessFlags::from_bits(0b1111);

fn at(region: &MemoryRegion, offset: u64) -> RemoteAddress {
    RemoteAddress {
        key: region.remote_key,
        address: region.address + offset,
    }
}

fn immediate_data(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    for (wr_id, bytes) in [(10, 64), (11, 64), (12, 0)] {
        session.post_receive(&right, wr_id, vec![right.region.entry(0, bytes)])?;
    }
    let message = pattern(3, 40);
    session.fill(&left, 0, &message)?;
    let out = || vec![left.region.entry(0, 40)];
    let target = at(&right.region, 4096);
    for (wr_id, operation, entries) in [
        (1, SendOperation::SendWithImmediate(0xDEAD_BEEF), out()),
        (2, SendOperation::RdmaWriteWithImmediate(target, 7), out()),
        (
            3,
            SendOperation::RdmaWriteWithImmediate(target, u32::MAX),
            Vec::new(),
        ),
    ] {
        session.post_send(&left, &signaled(wr_id, operation, entries))?;
    }
    let written = Ok(CompletionKind::RdmaWrite);
    session.completes(
        &left,
        &[(1, Ok(CompletionKind::Send)), (2, written), (3, written)],
    )?;
    let by_write =
        |length, immediate| Ok(CompletionKind::ReceiveRdmaWithImmediate { length, immediate });
    let by_send = Ok(CompletionKind::ReceiveWithImmediate {
        length: 40,
        immediate: 0xDEAD_BEEF,
    });
    session.completes(
        &right,
        &[
            (10, by_send),
            (11, by_write(40, 7)),
            (12, by_write(0, u32::MAX)),
        ],
    )?;
    let expected = [message.clone(), message];
    let came = [
        session.bytes(&right, 0, 40)?,
        session.bytes(&right, 4096, 40)?,
    ];
    equal("the bytes sent and written", &expected, &came)
}

/// Its bytes may be there before, but nobody is told without a receive.
fn write_with_immediate_waits(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let operation = SendOperation::RdmaWriteWithImmediate(at(&right.region, 0), 1);
    session.post_send(
        &left,
        &signaled(1, operation, vec![left.region.entry(0, 8)]),
    )?;
    session.completes(
        &left,
        &[(1, Err(CompletionStatus::ReceiverNotReadyRetryExceeded))],
    )?;
    session.completes_no_more(&right)
}

fn inline_data(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let limit = session.on(Side::Left).attributes().inline_length_max;
    let (left, right) = session.connected(SMALL)?;
    let request = |wr_id, operation, length| SendRequest {
        flags: SendFlags::SIGNALED | SendFlags::INLINE,
        ..signaled(wr_id, operation, vec![left.region.entry(0, length)])
    };
    let too_long = request(1, SendOperation::Send, limit + 1);
    let posted = session.on(Side::Left).post_send(left.queue_pair, &too_long);
    let over = |error: &VerbsError| {
        matches!(
            error,
            VerbsError::LimitExceeded { .. } | VerbsError::Unsupported(_)
        )
    };
    refused(
        "more inline data than there may be",
        &posted,
        over,
        "LimitExceeded",
    )?;
    let length = limit.min(64);
    if length == 0 {
        return session.exchange(&left, &right);
    }
    let target = at(&right.region, 4096);
    for (wr_id, operation, place) in [
        (1, SendOperation::Send, 0),
        (2, SendOperation::RdmaWrite(target), 4096),
    ] {
        let message = pattern(wr_id, length as usize);
        session.fill(&left, 0, &message)?;
        session.post_receive(&right, 10 + wr_id, vec![right.region.entry(0, 64)])?;
        session.post_send(&left, &request(wr_id, operation, length))?;
        session.fill(&left, 0, &[0xEE; 64])?;
        session.completes(&left, &[(wr_id, Ok(operation.completion_kind()))])?;
        session.settle();
        let came = session.bytes(&right, place, length as usize)?;
        equal("the bytes as they were when posted", &message, &came)?;
        // Only the SEND takes a receive.
        let taken = session.poll(&right)?.len();
        equal("receives taken", &usize::from(wr_id == 1), &taken)?;
    }
    Ok(())
}

/// A region of the right end that allows atomics.
fn atomic_region(session: &mut Session<'_>, end: &End, value: u64) -> Checked<MemoryRegion> {
    let provider = session.on(end.side);
    let made = provider.allocate_region(end.domain, 4096, ATOMIC);
    let region = must("allocate a region for atomics", made)?;
    let written = provider.write_region(&region, 64, &value.to_le_bytes());
    must("write the number", written)?;
    Ok(region)
}

fn number(session: &mut Session<'_>, side: Side, region: &MemoryRegion, at: u64) -> Checked<u64> {
    let mut bytes = [0; 8];
    let read = session.on(side).read_region(region, at, &mut bytes);
    must("read the number", read)?;
    Ok(u64::from_le_bytes(bytes))
}

fn atomics(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let start = u64::MAX - 10;
    let region = atomic_region(&mut session, &right, start)?;
    let target = at(&region, 64);
    let add = |add| SendOperation::FetchAndAdd { target, add };
    let swap = |compare, swap| SendOperation::CompareAndSwap {
        target,
        compare,
        swap,
    };
    let mut model = start;
    let steps = [
        add(7),
        add(u64::MAX),
        add(100),
        swap(1, 2),
        swap(start.wrapping_add(106), 0x0102_0304_0506_0708),
        add(0),
    ];
    for (wr_id, operation) in (0..).zip(steps) {
        let was = model;
        match operation {
            SendOperation::FetchAndAdd { add, .. } => model = model.wrapping_add(add),
            SendOperation::CompareAndSwap { compare, swap, .. } if compare == model => {
                model = swap;
            }
            _ => {}
        }
        session.post_send(
            &left,
            &signaled(wr_id, operation, vec![left.region.entry(8 * wr_id, 8)]),
        )?;
        session.completes(&left, &[(wr_id, Ok(operation.completion_kind()))])?;
        let told = number(&mut session, Side::Left, &left.region, 8 * wr_id)?;
        equal("what was there", &was, &told)?;
        let now = number(&mut session, Side::Right, &region, 64)?;
        equal("what is there", &model, &now)?;
    }
    equal("the last step saw the swap", &0x0102_0304_0506_0708, &model)?;
    let around = [
        number(&mut session, Side::Right, &region, 56)?,
        number(&mut session, Side::Right, &region, 72)?,
    ];
    equal("the bytes around", &[0, 0], &around)?;
    session.completes_no_more(&right)
}

fn refused_atomics(world: &mut dyn World) -> Checked {
    for (what, access, offset, statuses) in [
        (
            "without permission",
            AccessFlags::from_bits(7),
            64,
            [CompletionStatus::RemoteAccess; 2],
        ),
        // The specification says invalid request (IB spec 9.7.4.1.6), some devices say access.
        (
            "at an odd address",
            ATOMIC,
            61,
            [
                CompletionStatus::RemoteInvalidRequest,
                CompletionStatus::RemoteAccess,
            ],
        ),
        (
            "beyond the end",
            ATOMIC,
            4096,
            [CompletionStatus::RemoteAccess; 2],
        ),
    ] {
        let mut session = Session::new(world);
        let (left, right) = session.connected(SMALL)?;
        let made = session
            .on(Side::Right)
            .allocate_region(right.domain, 4096, access);
        let region = must("allocate a region", made)?;
        let operation = SendOperation::FetchAndAdd {
            target: at(&region, offset),
            add: 1,
        };
        let request = signaled(1, operation, vec![left.region.entry(0, 8)]);
        session.post_send(&left, &request)?;
        let came = session.completions(&left, 1)?;
        let refused = came
            .iter()
            .all(|it| it.result.is_err_and(|status| statuses.contains(&status)));
        if !refused {
            let expected = format!("one of {statuses:?}");
            return Err(violation(what, &expected, &format!("{came:?}")));
        }
        session.reaches_error(&left)?;
        session.reaches_error(&right)?;
        let mut now = vec![1; 4096];
        let read = session.on(Side::Right).read_region(&region, 0, &mut now);
        must("read the region", read)?;
        equal(what, &vec![0; 4096], &now)?;
    }
    Ok(())
}

/// The message is what the READ brought.
fn fenced(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let bytes = pattern(9, 4096);
    session.fill(&right, 0, &bytes)?;
    session.post_receive(&right, 10, vec![right.region.entry(8192, 4096)])?;
    let read = SendOperation::RdmaRead(at(&right.region, 0));
    let here = || vec![left.region.entry(0, 4096)];
    session.post_send(&left, &signaled(1, read, here()))?;
    let mut message = send(2, here());
    message.flags = message.flags | SendFlags::FENCE;
    session.post_send(&left, &message)?;
    session.completes(
        &left,
        &[
            (1, Ok(CompletionKind::RdmaRead)),
            (2, Ok(CompletionKind::Send)),
        ],
    )?;
    session.completes(
        &right,
        &[(10, Ok(CompletionKind::Receive { length: 4096 }))],
    )?;
    let came = session.bytes(&right, 8192, 4096)?;
    equal("the message", &bytes, &came)
}
