//! WRITE and READ: what the target's keys allow, and what a refusal does to both sides.

use super::expect::{equal, must, pattern, send, signaled, violation};
use super::session::{ALL_ACCESS, Checked, End, SMALL, Session, Side, subject};
use super::{Rule, World};
use crate::{
    AccessFlags, AsyncEvent, CompletionKind, CompletionStatus, ConnectionEvent, Event,
    MemoryRegion, RemoteAddress, RemoteKey, SendOperation,
};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "V-8 allowed WRITE and READ need no target software and no receive",
        check: allowed,
    },
    Rule {
        name: "V-8 zero length validates neither key nor address",
        check: zero_length,
    },
    Rule {
        name: "V-8 refused access by a bad key",
        check: |world| refused_access(world, Refusal::BadKey),
    },
    Rule {
        name: "V-8 refused access out of range",
        check: |world| refused_access(world, Refusal::OutOfRange),
    },
    Rule {
        name: "V-8 refused access that wraps the address space",
        check: |world| refused_access(world, Refusal::Wrapping),
    },
    Rule {
        name: "V-8 refused access without permission",
        check: |world| refused_access(world, Refusal::NoPermission),
    },
    Rule {
        name: "V-8 refused access through another protection domain",
        check: |world| refused_access(world, Refusal::OtherDomain),
    },
    Rule {
        name: "V-8 refused access to a deregistered region",
        check: |world| refused_access(world, Refusal::Deregistered),
    },
];

fn allowed(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let bytes = pattern(1, 5000);
    session.fill(&left, 0, &bytes)?;
    let at = RemoteAddress {
        key: right.region.remote_key,
        address: right.region.address + 100,
    };
    let out = vec![left.region.entry(0, 1000), left.region.entry(1000, 4000)];
    session.post_send(&left, &signaled(1, SendOperation::RdmaWrite(at), out))?;
    session.completes(&left, &[(1, Ok(CompletionKind::RdmaWrite))])?;
    equal(
        "the bytes written",
        &bytes,
        &session.bytes(&right, 100, 5000)?,
    )?;
    let into = vec![left.region.entry(10_000, 4999), left.region.entry(9000, 1)];
    session.post_send(&left, &signaled(2, SendOperation::RdmaRead(at), into))?;
    session.completes(&left, &[(2, Ok(CompletionKind::RdmaRead))])?;
    let mut read = session.bytes(&left, 10_000, 4999)?;
    read.extend(session.bytes(&left, 9000, 1)?);
    equal("the bytes read", &bytes, &read)?;
    let around = [
        session.bytes(&right, 0, 100)?,
        session.bytes(&right, 5100, 100)?,
    ];
    equal("the bytes around", &[vec![0; 100], vec![0; 100]], &around)?;
    session.completes_no_more(&right)
}

fn zero_length(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let nowhere = RemoteAddress {
        key: RemoteKey(!right.region.remote_key.0),
        address: 0,
    };
    for (wr_id, operation, kind) in [
        (
            1,
            SendOperation::RdmaWrite(nowhere),
            CompletionKind::RdmaWrite,
        ),
        (
            2,
            SendOperation::RdmaRead(nowhere),
            CompletionKind::RdmaRead,
        ),
    ] {
        session.post_send(&left, &signaled(wr_id, operation, Vec::new()))?;
        session.completes(&left, &[(wr_id, Ok(kind))])?;
    }
    session.exchange(&left, &right)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    BadKey,
    OutOfRange,
    Wrapping,
    NoPermission,
    OtherDomain,
    Deregistered,
}

/// A region at the target that refuses `write` (or READ), and the address to use.
fn forbidden(
    session: &mut Session<'_>,
    right: &End,
    refusal: Refusal,
    write: bool,
) -> Checked<(MemoryRegion, RemoteAddress)> {
    let access = match (refusal, write) {
        (Refusal::NoPermission, true) => AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ,
        (Refusal::NoPermission, false) => AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE,
        _ => ALL_ACCESS,
    };
    let provider = session.on(right.side);
    let domain = if refusal == Refusal::OtherDomain {
        must(
            "create a second domain",
            provider.create_protection_domain(),
        )?
    } else {
        right.domain
    };
    let made = provider.allocate_region(domain, 4096, access);
    let region = must("allocate a region", made)?;
    let mut at = RemoteAddress {
        key: region.remote_key,
        address: region.address,
    };
    match refusal {
        Refusal::BadKey => at.key = RemoteKey(!region.remote_key.0),
        Refusal::OutOfRange => at.address += 4096 - 63,
        Refusal::Wrapping => at.address = u64::MAX - 10,
        Refusal::Deregistered => {
            must("deregister", provider.deregister_region(&region))?;
        }
        Refusal::NoPermission | Refusal::OtherDomain => {}
    }
    Ok((region, at))
}

fn refused_access(world: &mut dyn World, refusal: Refusal) -> Checked {
    for write in [true, false] {
        let mut session = Session::new(world);
        let (left, right) = session.connected(SMALL)?;
        let (region, at) = forbidden(&mut session, &right, refusal, write)?;
        let secret = pattern(5, 4096);
        if refusal != Refusal::Deregistered {
            let written = session.on(Side::Right).write_region(&region, 0, &secret);
            must("fill the region", written)?;
        }
        session.post_receive(&right, 10, vec![right.region.entry(0, 64)])?;
        session.post_receive(&left, 11, vec![left.region.entry(0, 64)])?;
        session.fill(&left, 128, &[0xEE; 64])?;
        let operation = if write {
            SendOperation::RdmaWrite(at)
        } else {
            SendOperation::RdmaRead(at)
        };
        let entries = vec![left.region.entry(128, 64)];
        session.post_send(&left, &signaled(1, operation, entries))?;
        check_refusal(&mut session, &left, &right)?;
        if refusal != Refusal::Deregistered {
            check_untouched(&mut session, &right, &region, &secret, refusal)?;
        }
        let unread = session.bytes(&left, 128, 64)?;
        equal("the local bytes after a refusal", &vec![0xEE; 64], &unread)?;
        session.post_send(&left, &send(2, Vec::new()))?;
        session.completes(&left, &[(2, Err(CompletionStatus::WorkRequestFlushed))])?;
        let (left, right) = session.connected(SMALL)?;
        session.exchange(&left, &right)?;
    }
    Ok(())
}

fn check_refusal(session: &mut Session<'_>, left: &End, right: &End) -> Checked {
    let mut came = session.completions(left, 2)?;
    // The send queue and the receive queue are not ordered against each other.
    came.sort_by_key(|completion| completion.wr_id);
    let results: Vec<_> = came
        .iter()
        .map(|completion| (completion.wr_id.0, completion.result))
        .collect();
    let flushed = Err(CompletionStatus::WorkRequestFlushed);
    let expected = vec![(1, Err(CompletionStatus::RemoteAccess)), (11, flushed)];
    equal("the requester's completions", &expected, &results)?;
    session.reaches_error(left)?;
    session.completes(right, &[(10, flushed)])?;
    session.reaches_error(right)?;
    if !session.world.facts().refusals_are_told {
        return Ok(());
    }
    let about = |event: &Event| {
        let over = matches!(
            event,
            Event::Connection(ConnectionEvent::Disconnected { .. })
                | Event::Async(AsyncEvent::QueuePairAccessError(_) | AsyncEvent::QueuePairFatal(_))
        );
        (over && subject(event) == Some(right.queue_pair)).then_some(())
    };
    session.event(right.side, "an event tells the responder", about)
}

fn check_untouched(
    session: &mut Session<'_>,
    right: &End,
    region: &MemoryRegion,
    secret: &[u8],
    refusal: Refusal,
) -> Checked {
    let mut now = vec![0; secret.len()];
    let read = session.on(right.side).read_region(region, 0, &mut now);
    must("read the region", read)?;
    let partial = session.world.facts().refused_write_may_be_partial;
    let kept = if refusal == Refusal::OutOfRange && partial {
        secret.len() - 63
    } else {
        secret.len()
    };
    if now[..kept] != secret[..kept] {
        let place = now.iter().zip(secret).position(|(a, b)| a != b);
        let got = format!("byte {place:?} changed");
        return Err(violation("a refused access", "the region untouched", &got));
    }
    Ok(())
}
