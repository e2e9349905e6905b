//! Bytes arrive as they were sent, in the order in which they were posted.

use super::expect::{equal, must, pattern, refused, send, signaled, violation};
use super::session::{Checked, REGION_LENGTH, SMALL, Session, Side};
use super::{Rule, World};
use crate::{
    AccessFlags, CompletionKind, MemoryRegion, QueuePairCapabilities, RemoteAddress,
    ScatterGatherEntry, SendFlags, SendOperation, VerbsError, WorkRequestId,
};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use legato_base::Random;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "V-3 unsignaled sends complete silently and free their slots",
        check: unsignaled_sends,
    },
    Rule {
        name: "V-3 a full send queue gives the request back",
        check: full_send_queue,
    },
    Rule {
        name: "V-3 a full receive queue gives the request back",
        check: full_receive_queue,
    },
    Rule {
        name: "V-11 messages of every size arrive whole, scattered and gathered",
        check: sizes,
    },
    Rule {
        name: "V-11 mixed operations complete in posting order and equal a model",
        check: mixed_operations,
    },
    Rule {
        name: "V-11 messages beyond the limits are refused",
        check: beyond_the_limits,
    },
];

/// Longest message that [`sizes`] tries, in bytes, whatever the provider allows.
const LENGTH_TRIED_MAX: u64 = 4 << 20;

fn unsignaled_sends(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    for round in 0..3u64 {
        for place in 0..8u64 {
            let wr_id = round * 100 + place;
            session.post_receive(&right, wr_id, vec![right.region.entry(place * 16, 16)])?;
        }
        for place in 0..8u64 {
            let wr_id = round * 100 + place;
            session.fill(&left, place * 16, &pattern(wr_id, 16))?;
            let mut request = send(wr_id, vec![left.region.entry(place * 16, 16)]);
            if place != 7 {
                request.flags = SendFlags::NONE;
            }
            session.post_send(&left, &request)?;
        }
        session.completes(&left, &[(round * 100 + 7, Ok(CompletionKind::Send))])?;
        let received = Ok(CompletionKind::Receive { length: 16 });
        let expected: Vec<_> = (0..8)
            .map(|place| (round * 100 + place, received))
            .collect();
        session.completes(&right, &expected)?;
        for place in 0..8u64 {
            let came = session.bytes(&right, place * 16, 16)?;
            equal("the message", &pattern(round * 100 + place, 16), &came)?;
        }
    }
    session.completes_no_more(&left)
}

fn full_send_queue(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let write = |wr_id| {
        let to = RemoteAddress {
            key: right.region.remote_key,
            address: right.region.address,
        };
        let mut request = signaled(wr_id, SendOperation::RdmaWrite(to), Vec::new());
        request.flags = SendFlags::NONE;
        request
    };
    for wr_id in 0..8 {
        session.post_send(&left, &write(wr_id))?;
    }
    session.completes_no_more(&left)?;
    let posted = session.on(Side::Left).post_send(left.queue_pair, &write(8));
    match posted {
        Err(VerbsError::QueueFull(_)) => Ok(()),
        // A provider may have more slots than were asked for, but not without end.
        Ok(()) => fills_in_the_end(&mut session, &left, &write(9)),
        Err(other) => Err(violation(
            "post to a full queue",
            "QueueFull",
            &format!("{other:?}"),
        )),
    }?;
    session.completes_no_more(&left)
}

fn fills_in_the_end(
    session: &mut Session<'_>,
    end: &super::session::End,
    request: &crate::SendRequest,
) -> Checked {
    for _ in 0..1024 {
        if let Err(error) = session.on(end.side).post_send(end.queue_pair, request) {
            return equal("a full queue", &VerbsError::QueueFull("send"), &error);
        }
        session.settle();
    }
    Err(violation(
        "post without end",
        "QueueFull",
        "1024 requests were taken",
    ))
}

fn full_receive_queue(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    for wr_id in 0..8 {
        session.post_receive(&right, wr_id, vec![right.region.entry(wr_id * 16, 16)])?;
    }
    let ninth = crate::ReceiveRequest {
        wr_id: WorkRequestId(8),
        entries: vec![right.region.entry(128, 16)],
    };
    let posted = session
        .on(Side::Right)
        .post_receive(right.queue_pair, &ninth);
    let full = |error: &VerbsError| matches!(error, VerbsError::QueueFull(_));
    refused("post to a full receive queue", &posted, full, "QueueFull")?;
    session.post_send(&left, &send(50, vec![left.region.entry(0, 16)]))?;
    session.completes(&left, &[(50, Ok(CompletionKind::Send))])?;
    session.completes(&right, &[(0, Ok(CompletionKind::Receive { length: 16 }))])?;
    let posted = session
        .on(Side::Right)
        .post_receive(right.queue_pair, &ninth);
    must("post again when a receive was polled", posted)
}

/// Cuts `length` bytes from `from` on into up to `pieces` entries with gaps between them.
fn cut(
    random: &mut Random,
    region: &MemoryRegion,
    length: u64,
    pieces: u64,
) -> Vec<ScatterGatherEntry> {
    let mut entries = Vec::new();
    let mut offset = random.below(8);
    let mut left = length;
    for piece in 0..pieces {
        let size = if piece + 1 == pieces {
            left
        } else {
            random.below(left + 1)
        };
        entries.push(region.entry(offset, size as u32));
        offset += size + random.below(8);
        left -= size;
    }
    entries
}

fn gather(region: &MemoryRegion, bytes: &[u8], entries: &[ScatterGatherEntry]) -> Vec<u8> {
    let mut gathered = Vec::new();
    for entry in entries {
        let start = (entry.address - region.address) as usize;
        gathered.extend_from_slice(&bytes[start..start + entry.length as usize]);
    }
    gathered
}

/// Sizes around the edges that providers have: nothing, one, a cache line, a page, the limit.
fn sizes(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let lengths = [Side::Left, Side::Right]
        .map(|side| u64::from(session.on(side).attributes().message_length_max));
    let limit = lengths[0].min(lengths[1]).min(LENGTH_TRIED_MAX);
    let room = limit + 64;
    let allocate = |session: &mut Session<'_>, end: &super::session::End| {
        let made =
            session
                .on(end.side)
                .allocate_region(end.domain, room, super::session::ALL_ACCESS);
        must("allocate a region of the message limit", made)
    };
    let from = allocate(&mut session, &left)?;
    let to = allocate(&mut session, &right)?;
    let mut random = Random::from_seed(11);
    for (round, length) in [0, 1, 7, 63, 64, 65, 4095, 4096, 4097, 10_000, 65_536, limit]
        .into_iter()
        .filter(|&length| length <= limit)
        .enumerate()
    {
        let bytes = pattern(round as u64, room as usize);
        let written = session.on(Side::Left).write_region(&from, 0, &bytes);
        must("fill the source", written)?;
        let (out, into) = (
            cut(&mut random, &from, length, 4),
            cut(&mut random, &to, length, 3),
        );
        session.post_receive(&right, 1, into.clone())?;
        session.post_send(&left, &send(2, out.clone()))?;
        session.completes(&left, &[(2, Ok(CompletionKind::Send))])?;
        let received = CompletionKind::Receive {
            length: length as u32,
        };
        session.completes(&right, &[(1, Ok(received))])?;
        let mut there = vec![0; room as usize];
        let read = session.on(Side::Right).read_region(&to, 0, &mut there);
        must("read the target", read)?;
        let what = format!("a message of {length} bytes");
        equal(
            &what,
            &gather(&from, &bytes, &out),
            &gather(&to, &there, &into),
        )?;
    }
    Ok(())
}

/// Random SENDs, WRITEs and READs on one connection against plain arrays.
fn mixed_operations(world: &mut dyn World) -> Checked {
    const HALF: u64 = REGION_LENGTH / 2;
    let mut session = Session::new(world);
    let capabilities = QueuePairCapabilities {
        send_requests_max: 16,
        receive_requests_max: 16,
        entries_max: 4,
    };
    let (left, right) = session.connected(capabilities)?;
    let fence = match session.world.facts().reads_are_repeated {
        true => SendFlags::FENCE,
        false => SendFlags::NONE,
    };
    let mut random = Random::from_seed(12);
    // The lower half of left is the source of WRITEs and SENDs, the upper half the target of
    // READs; on the right, SENDs go to the lower half, WRITEs and READs to the upper, because the
    // place of a posted receive is the receiver's until it has completed.
    let source = pattern(13, HALF as usize);
    session.fill(&left, 0, &source)?;
    let mut far = pattern(14, REGION_LENGTH as usize);
    session.fill(&right, 0, &far)?;
    for round in 0..20u64 {
        let mut expected = Vec::new();
        let mut receives = Vec::new();
        let mut near = session.bytes(&left, HALF, HALF as usize)?;
        for place in 0..16u64 {
            let wr_id = round * 16 + place;
            let length = random.below(HALF / 16 + 1);
            let local = place * (HALF / 16);
            let kind = random.below(3);
            let remote = if kind == 0 {
                local
            } else {
                HALF + random.below(HALF - length)
            };
            let range = remote as usize..(remote + length) as usize;
            let at = RemoteAddress {
                key: right.region.remote_key,
                address: right.region.address + remote,
            };
            let bytes = &source[local as usize..(local + length) as usize];
            let out = vec![left.region.entry(local, length as u32)];
            let mut request = match kind {
                0 => {
                    far[range].copy_from_slice(bytes);
                    let into = vec![right.region.entry(remote, length as u32)];
                    session.post_receive(&right, wr_id, into)?;
                    let received = CompletionKind::Receive {
                        length: length as u32,
                    };
                    receives.push((wr_id, Ok(received)));
                    expected.push((wr_id, Ok(CompletionKind::Send)));
                    send(wr_id, out)
                }
                1 => {
                    far[range].copy_from_slice(bytes);
                    expected.push((wr_id, Ok(CompletionKind::RdmaWrite)));
                    signaled(wr_id, SendOperation::RdmaWrite(at), out)
                }
                _ => {
                    near[local as usize..(local + length) as usize].copy_from_slice(&far[range]);
                    expected.push((wr_id, Ok(CompletionKind::RdmaRead)));
                    let into = vec![left.region.entry(HALF + local, length as u32)];
                    signaled(wr_id, SendOperation::RdmaRead(at), into)
                }
            };
            request.flags = request.flags | fence;
            session.post_send(&left, &request)?;
        }
        session.completes(&left, &expected)?;
        session.completes(&right, &receives)?;
        equal(
            "what READs fetched",
            &near,
            &session.bytes(&left, HALF, HALF as usize)?,
        )?;
    }
    let there = session.bytes(&right, 0, REGION_LENGTH as usize)?;
    equal("the target's memory", &far, &there)?;
    let untouched = session.bytes(&left, 0, HALF as usize)?;
    equal("the source's memory", &source, &untouched)
}

fn beyond_the_limits(world: &mut dyn World) -> Checked {
    let mut session = Session::new(world);
    let (left, right) = session.connected(SMALL)?;
    let limit = session.on(Side::Left).attributes().message_length_max;
    let provider = session.on(Side::Left);
    let room = u64::from(limit) + 1;
    let region = provider.allocate_region(left.domain, room, AccessFlags::LOCAL_WRITE);
    let region = must("allocate a region beyond the message limit", region)?;
    let over = |error: &VerbsError| matches!(error, VerbsError::LimitExceeded { .. });
    let too_long = send(1, vec![region.entry(0, limit), region.entry(0, 1)]);
    let posted = provider.post_send(left.queue_pair, &too_long);
    refused(
        "send beyond the message limit",
        &posted,
        over,
        "LimitExceeded",
    )?;
    let too_many = send(2, vec![region.entry(0, 1); SMALL.entries_max as usize + 1]);
    let posted = provider.post_send(left.queue_pair, &too_many);
    refused("send with too many entries", &posted, over, "LimitExceeded")?;
    session.completes_no_more(&left)?;
    session.exchange(&left, &right)
}
