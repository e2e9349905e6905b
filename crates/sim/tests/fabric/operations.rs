//! The fabric on the simulated network: calls, one-sided operations, and every way to end them.

use crate::rig::{CREDITS, EPOCH, MILLISECOND, PIECE, RawPeer, SECOND, World, answer};
use legato_base::wire::message::{MessageHeader, MessageKind, TimeLeft};
use legato_base::{Duration, Random};
use legato_fabric::{
    CallId, Cause, ConnectError, Effect, OperationId, Proof, Refused, ReplyError, RequestId,
    ResetCause,
};
use legato_sim::fault::{Link, Rule};
use legato_verbs::{Address, ConnectionEvent, Event, Provider, RemoteAddress, VerbsError};
use std::collections::{BTreeMap, BTreeSet};

/// F-1, F-7, F-8, F-10, P-5: both sides call, both answer late and out of order.
#[test]
fn every_reply_matches_its_request_and_no_receive_is_ever_missing() {
    let mut would_block = 0;
    for seed in 0..5 {
        let mut random = Random::from_seed(seed);
        let mut world = World::seeded(seed);
        let (here, there) = world.connect();
        let mut expected: [BTreeMap<CallId, Vec<u8>>; 2] = Default::default();
        let mut open: [Vec<(RequestId, Vec<u8>)>; 2] = Default::default();
        let mut left_to_do = 4000;
        world.run_until(|world| {
            let deadline = world.in_time(SECOND);
            let sides = [(&mut world.left, here), (&mut world.right, there)];
            for (number, (side, connection)) in sides.into_iter().enumerate() {
                for (call, outcome) in side.replies() {
                    assert_eq!(outcome.ok(), expected[number].remove(&call));
                }
                let (fabric, nic) = (&mut side.fabric, &mut side.nic);
                if left_to_do > 0 && random.ratio(1, 2) {
                    let length = random.below(201) as usize;
                    let body: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
                    match fabric.call(nic, connection, &body, deadline) {
                        Ok(call) => {
                            left_to_do -= 1;
                            expected[number].insert(call, answer(&body));
                        }
                        Err(refused) => {
                            assert_eq!(refused, Refused::WouldBlock);
                            would_block += 1;
                        }
                    }
                    assert!(expected[number].len() <= CREDITS as usize);
                }
                if !open[number].is_empty() && random.ratio(1, 3) {
                    let one = random.below(open[number].len() as u64) as usize;
                    let (request, body) = open[number].swap_remove(one);
                    fabric.reply(nic, request, &answer(&body)).unwrap();
                    let again = fabric.reply(nic, request, &[]);
                    assert_eq!(again, Err(ReplyError::NotWaiting));
                }
                open[number].extend(side.requests());
                assert!(open[number].len() <= CREDITS as usize);
            }
            left_to_do == 0 && expected.iter().all(BTreeMap::is_empty)
        });
        for side in [&mut world.left, &mut world.right] {
            let counters = side.fabric.counters();
            assert_eq!((counters.replies_late, counters.replies_stale), (0, 0));
            assert_eq!((counters.connections_reset, counters.posts_refused), (0, 0));
            side.end();
        }
    }
    assert!(would_block > 100, "credits were never short: {would_block}");
}

/// F-2, P-6: the late reply finds its slot, and no other.
#[test]
fn a_reply_after_the_deadline_is_dropped_and_the_slot_serves_again() {
    let mut world = World::seeded(7);
    let (here, _) = world.connect();
    for round in 0..500u32 {
        let slow = world.call(here, &round.to_le_bytes(), MILLISECOND);
        let due = world.in_time(MILLISECOND);
        let mut requests = Vec::new();
        let mut replies = Vec::new();
        world.run_until(|world| {
            requests.extend(world.right.requests());
            replies.extend(world.left.replies());
            !replies.is_empty()
        });
        assert_eq!(replies, [(slow, Err(Cause::DeadlineExpired))]);
        assert_eq!(world.network.now(), due);
        let (late, _) = requests.pop().unwrap();
        let right = &mut world.right;
        right.fabric.reply(&mut right.nic, late, b"late").unwrap();
        let quick = world.call(here, b"quick", MILLISECOND);
        world.run_until(|world| {
            for (request, body) in world.right.requests() {
                assert_eq!(body, b"quick");
                let right = &mut world.right;
                right
                    .fabric
                    .reply(&mut right.nic, request, b"quick!")
                    .unwrap();
            }
            replies = world.left.replies();
            !replies.is_empty()
        });
        assert_eq!(replies, [(quick, Ok(b"quick!".to_vec()))]);
    }
    assert_eq!(world.left.fabric.counters().replies_late, 500);
    assert_eq!(world.left.fabric.counters().connections_reset, 0);
    world.left.end();
    world.right.end();
}

/// F-7, P-7: the peer's application does not answer, so calls stop, also expired ones.
#[test]
fn a_peer_that_does_not_answer_costs_its_credits_and_nothing_else() {
    let mut world = World::seeded(8);
    let (here, _) = world.connect();
    for _ in 0..CREDITS {
        world.call(here, b"?", MILLISECOND);
    }
    world.run_until(|world| world.left.events.len() == CREDITS as usize);
    let deadline = world.in_time(SECOND);
    let left = &mut world.left;
    let refused = left.fabric.call(&mut left.nic, here, b"?", deadline);
    assert_eq!(refused, Err(Refused::WouldBlock));
    let long = left.fabric.call(&mut left.nic, here, &[0; 201], deadline);
    assert_eq!(long, Err(Refused::TooLong));
    world.write(here, 1, SECOND).unwrap();
    world.run_until(|world| world.left.quiesced().len() == 1);
    world.left.end();
    world.right.end();
}

#[test]
fn one_sided_operations_move_the_right_bytes_in_order() {
    let mut world = World::seeded(9);
    let (here, _) = world.connect();
    for number in 0..8 {
        let bytes = [number as u8 + 1; PIECE as usize];
        let (nic, region) = (&mut world.left.nic, world.left.region);
        nic.write_region(&region, u64::from(number * PIECE), &bytes)
            .unwrap();
        world.write(here, number, SECOND).unwrap();
    }
    let (refused, buffer) = world.write(here, 9, SECOND).unwrap_err();
    assert_eq!((refused, buffer.number), (Refused::WouldBlock, 9));
    let mut quiesced = Vec::new();
    world.run_until(|world| {
        quiesced.extend(world.left.quiesced());
        quiesced.len() == 8
    });
    let numbers: Vec<u32> = quiesced.iter().map(|(_, number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(
        quiesced
            .iter()
            .all(|(.., proof)| *proof == Proof::Completion)
    );
    assert!(
        world
            .left
            .outcomes()
            .iter()
            .all(|(_, outcome)| outcome.is_ok())
    );
    let from = RemoteAddress {
        key: world.right.region.remote_key,
        address: world.right.region.address + 5 * u64::from(PIECE),
    };
    let (deadline, piece) = (world.in_time(SECOND), world.left.piece(20));
    let left = &mut world.left;
    left.fabric
        .read(&mut left.nic, here, from, piece, deadline)
        .unwrap();
    world.run_until(|world| world.left.quiesced().len() == 1);
    let mut bytes = [0; PIECE as usize];
    let (nic, region) = (&world.left.nic, world.left.region);
    nic.read_region(&region, 20 * u64::from(PIECE), &mut bytes)
        .unwrap();
    assert_eq!(bytes, [6; PIECE as usize]);
    world.left.end();
    world.right.end();
}

/// F-4, F-5, P-13: the outcome at the deadline, the buffer when the queue pair has given it back.
#[test]
fn an_expired_operation_has_its_outcome_in_time_and_its_buffer_when_it_is_quiet() {
    let mut world = World::seeded(10);
    let (here, _) = world.connect();
    world.network.freeze("right");
    world.left.nic.hold_completions = true;
    let first = world.write(here, 1, Duration::from_millis(10)).unwrap();
    let second = world.write(here, 2, Duration::from_millis(20)).unwrap();
    let due = world.in_time(Duration::from_millis(10));
    let mut outcomes = Vec::new();
    world.run_until(|world| {
        outcomes.extend(world.left.outcomes());
        !outcomes.is_empty()
    });
    assert_eq!(world.network.now(), due);
    let expired = Err((Cause::DeadlineExpired, Effect::Unknown));
    assert_eq!(outcomes, [(first, expired)]);
    let (refused, _) = world.write(here, 3, SECOND).unwrap_err();
    assert_eq!(refused, Refused::NotConnected);
    world.run_for(Duration::from_millis(50));
    assert_eq!(world.left.quiesced(), []);
    assert_eq!(world.left.outcomes(), [(second, expired)]);
    world.left.nic.hold_completions = false;
    world.run_until(|world| world.left.disconnected() == [here]);
    let drained = Proof::QueuePairDrained;
    assert_eq!(
        world.left.quiesced(),
        [(first, 1, drained), (second, 2, drained)]
    );
    assert_eq!(world.left.outcomes(), []);
    assert_eq!(
        world.left.fabric.reset_cause(here),
        Some(ResetCause::OperationExpired)
    );
    world.left.end();
}

/// F-5, F-22, P-15, P-53: the flush never comes, so the queue pair is destroyed, and only then the buffer is
/// free.
#[test]
fn a_queue_pair_that_does_not_drain_is_destroyed() {
    let mut world = World::seeded(11);
    let (here, _) = world.connect();
    let call = world.call(here, b"?", SECOND + SECOND);
    let operation = world.write(here, 1, Duration::from_millis(10)).unwrap();
    world.left.nic.hold_completions = true;
    world.run_until(|world| world.left.disconnected() == [here]);
    assert_eq!(world.left.outcomes().len(), 1);
    let destroyed = Proof::QueuePairDestroyed;
    assert_eq!(world.left.quiesced(), [(operation, 1, destroyed)]);
    let cause = Cause::Reset(ResetCause::OperationExpired);
    assert_eq!(world.left.replies(), [(call, Err(cause))]);
    assert_eq!(world.left.fabric.counters().drains_overdue, 1);
    world.left.end();
}

/// P-16: a success that comes after the outcome changes only who has the buffer.
#[test]
fn a_late_success_does_not_change_an_outcome() {
    let mut world = World::seeded(12);
    let (here, _) = world.connect();
    let operation = world.write(here, 1, Duration::from_millis(10)).unwrap();
    world.left.nic.hold_completions = true;
    world.run_for(Duration::from_millis(20));
    let expired = Err((Cause::DeadlineExpired, Effect::Unknown));
    assert_eq!(world.left.outcomes(), [(operation, expired)]);
    world.left.nic.hold_completions = false;
    world.run_until(|world| world.left.disconnected() == [here]);
    assert_eq!(world.left.quiesced(), [(operation, 1, Proof::Completion)]);
    assert_eq!(world.left.outcomes(), []);
    world.left.end();
}

/// F-4, F-6, F-14, F-22, P-14: whatever ends a connection, whenever, everything in flight ends once.
#[test]
fn every_end_of_a_connection_gives_everything_back_exactly_once() {
    for seed in 0..300 {
        let mut random = Random::from_seed(seed);
        let mut world = World::seeded(seed);
        world.left.nic.double_completions = random.ratio(1, 4);
        let (here, there) = world.connect();
        let mut operations = BTreeSet::new();
        let mut calls = BTreeSet::new();
        for number in 0..random.below(9) as u32 {
            operations.insert(world.write(here, number, SECOND).unwrap());
            if random.ratio(1, 2) && calls.len() < CREDITS as usize {
                calls.insert(world.call(here, b"?", SECOND));
            }
        }
        for _ in 0..random.below(30) {
            world.step();
        }
        for (request, _) in world.right.requests() {
            let right = &mut world.right;
            right.fabric.reply(&mut right.nic, request, b"!").unwrap();
        }
        match seed % 4 {
            0 => world.left.fabric.close(&mut world.left.nic, here),
            1 => world.right.fabric.close(&mut world.right.nic, there),
            2 => world.network.kill("right"),
            _ => {
                world.network.freeze("right");
                // Nothing but a deadline ends a connection to a frozen peer.
                // Acknowledgements that are under way make room for it.
                let started = loop {
                    match world.write(here, 8, MILLISECOND) {
                        Ok(started) => break started,
                        Err(_) => assert!(world.step()),
                    }
                };
                operations.insert(started);
            }
        }
        world.run_until(|world| world.left.disconnected() == [here]);
        let outcomes: Vec<OperationId> = world.left.outcomes().iter().map(|o| o.0).collect();
        let quiesced: Vec<(OperationId, u32, Proof)> = world.left.quiesced();
        let replies: Vec<CallId> = world.left.replies().iter().map(|r| r.0).collect();
        assert_eq!(outcomes.len(), operations.len(), "seed {seed}");
        assert_eq!(quiesced.len(), operations.len(), "seed {seed}");
        assert_eq!(replies.len(), calls.len(), "seed {seed}");
        assert_eq!(outcomes.into_iter().collect::<BTreeSet<_>>(), operations);
        assert_eq!(replies.into_iter().collect::<BTreeSet<_>>(), calls);
        let numbers: BTreeSet<u32> = quiesced.iter().map(|q| q.1).collect();
        assert_eq!(numbers.len(), operations.len(), "seed {seed}");
        world.left.end();
    }
}

/// V-12: the acknowledgement of a WRITE is lost, and then the connection ends.
#[test]
fn a_write_that_was_executed_and_not_acknowledged_is_unknown() {
    let mut world = World::seeded(12);
    let (here, _) = world.connect();
    let [from, to] = ["right", "left"].map(|name| world.network.machine_number(name).unwrap());
    let cut = Rule::one_way_cut(Link { from, to });
    world.network.faults(|faults| faults.add(cut));
    let region = world.left.region;
    let nic = &mut world.left.nic;
    nic.write_region(&region, u64::from(PIECE), &[7; PIECE as usize])
        .unwrap();
    let written = world.write(here, 1, SECOND).unwrap();
    world.run_for(MILLISECOND);
    world.left.fabric.close(&mut world.left.nic, here);
    world.run_until(|world| world.left.disconnected() == [here]);
    let [(operation, Err((_, effect)))] = world.left.outcomes()[..] else {
        panic!("one failure");
    };
    assert_eq!((operation, effect), (written, Effect::Unknown));
    let region = world.right.region;
    let mut there = [0; PIECE as usize];
    let nic = &world.right.nic;
    nic.read_region(&region, u64::from(PIECE), &mut there)
        .unwrap();
    assert_eq!(there, [7; PIECE as usize]);
}

/// F-3, F-14, P-17: a NIC that says everything twice.
#[test]
fn doubled_completions_are_counted_and_change_nothing() {
    let mut world = World::seeded(13);
    world.left.nic.double_completions = true;
    let (here, _) = world.connect();
    let call = world.call(here, b"?", SECOND);
    world.write(here, 1, SECOND).unwrap();
    let mut replies = Vec::new();
    world.run_until(|world| {
        for (request, body) in world.right.requests() {
            let right = &mut world.right;
            let reply = answer(&body);
            right.fabric.reply(&mut right.nic, request, &reply).unwrap();
        }
        replies.extend(world.left.replies());
        !replies.is_empty()
    });
    world.run_for(MILLISECOND);
    assert_eq!(replies, [(call, Ok(answer(b"?")))]);
    assert_eq!(
        (world.left.outcomes().len(), world.left.quiesced().len()),
        (1, 1)
    );
    // A send, a write and a receive.
    assert_eq!(world.left.fabric.counters().completions_stale, 3);
    world.left.end();
    world.right.end();
}

/// F-9: a refused post reaches the caller and is counted.
#[test]
fn refused_posts_come_back_at_once() {
    let mut world = World::seeded(14);
    let (here, there) = world.connect();
    world.left.nic.refuse_sends = Some(VerbsError::QueueFull("send"));
    let (refused, buffer) = world.write(here, 1, SECOND).unwrap_err();
    assert_eq!((refused, buffer.number), (Refused::WouldBlock, 1));
    world.left.nic.refuse_sends = Some(VerbsError::LocalProtection);
    let (refused, _) = world.write(here, 1, SECOND).unwrap_err();
    assert_eq!(refused, Refused::Provider(VerbsError::LocalProtection));
    assert_eq!(world.left.fabric.counters().posts_refused, 2);
    world.left.nic.refuse_sends = None;
    let call = world.call(here, b"?", SECOND);
    let mut replied = false;
    world.right.nic.refuse_sends = Some(VerbsError::QueueFull("send"));
    world.run_until(|world| {
        for (request, _) in world.right.requests() {
            let right = &mut world.right;
            right.fabric.reply(&mut right.nic, request, b"!").unwrap();
            replied = true;
        }
        replied
    });
    world.right.nic.refuse_sends = None;
    let mut replies = Vec::new();
    world.run_until(|world| {
        replies = world.left.replies();
        !replies.is_empty()
    });
    assert_eq!(replies, [(call, Ok(b"!".to_vec()))]);
    // A receive that cannot be posted again for long would break the peer's credits.
    world.right.nic.refuse_receives = Some(VerbsError::QueueFull("receive"));
    world.call(here, b"?", SECOND);
    world.run_until(|world| world.left.disconnected() == [here]);
    world.right.nic.refuse_receives = None;
    world.run_until(|world| world.right.disconnected() == [there]);
    let cause = world.right.fabric.reset_cause(there);
    assert!(matches!(cause, Some(ResetCause::Provider(_))));
    world.left.end();
    world.right.end();
}

#[test]
fn connections_are_limited_and_failures_to_connect_are_typed() {
    let mut world = World::seeded(15);
    let ends: Vec<_> = (0..3).map(|_| world.connect()).collect();
    let deadline = world.in_time(SECOND);
    let left = &mut world.left;
    let nic = &mut left.nic;
    let full = left.fabric.connect(nic, &world.address, &[], deadline);
    assert_eq!(full, Err(ConnectError::TooManyConnections));
    let long = left.fabric.connect(nic, &world.address, &[0; 41], deadline);
    assert_eq!(long, Err(ConnectError::PrivateDataTooLong));
    left.fabric.close(nic, ends[0].0);
    world.run_until(|world| world.left.disconnected() == [ends[0].0]);
    let nowhere = Address::Sim("nowhere".to_owned());
    let left = &mut world.left;
    let failing = left
        .fabric
        .connect(&mut left.nic, &nowhere, &[], deadline)
        .unwrap();
    assert_ne!(failing, ends[0].0);
    assert_eq!(failing.index, ends[0].0.index);
    let mut failed = Vec::new();
    world.run_until(|world| {
        failed = world.left.failed_connects();
        !failed.is_empty()
    });
    assert!(matches!(failed[..], [(id, ConnectError::Unreachable(_))] if id == failing));
    // The stale name reaches nobody.
    let left = &mut world.left;
    left.fabric.close(&mut left.nic, ends[0].0);
    let stale = left.fabric.call(&mut left.nic, ends[0].0, b"?", deadline);
    assert_eq!(stale, Err(Refused::NotConnected));
    world.left.end();
    world.right.end();
}

/// F-13, P-8, P-45: only the connection of the peer that sent it is reset.
#[test]
fn malformed_messages_reset_one_connection_and_nothing_else() {
    let mut world = World::seeded(16);
    let (here, _) = world.connect();
    let mut random = Random::from_seed(3);
    let mut malformed = 0;
    for _ in 0..200 {
        let (mut peer, connection) = RawPeer::established(&mut world, 16);
        let header = MessageHeader {
            kind: MessageKind::Request,
            call: 7,
            length: 10,
            time_left: TimeLeft::UNBOUNDED,
            epoch: EPOCH,
        };
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend([1; 10]);
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= random.next_u64() as u8 | 1;
        bytes.truncate(random.below(bytes.len() as u64 + 30) as usize);
        let before = world.right.fabric.counters().replies_stale;
        peer.send(&bytes);
        world.run_for(MILLISECOND);
        let stale = world.right.fabric.counters().replies_stale - before;
        let understood = world.right.requests().len() as u64 + stale;
        let reset = world.right.disconnected() == [connection];
        if reset {
            malformed += 1;
            let cause = world.right.fabric.reset_cause(connection);
            assert!(matches!(cause, Some(ResetCause::Malformed(_))), "{cause:?}");
        } else {
            assert_eq!(understood, 1);
            world.right.fabric.close(&mut world.right.nic, connection);
            world.run_until(|world| world.right.disconnected() == [connection]);
        }
        peer.end();
    }
    assert!(malformed > 100);
    assert_eq!(world.right.fabric.counters().messages_malformed, malformed);
    world.ask(here, b"alive?");
    world.left.end();
    world.right.end();
}

/// F-3, F-13, P-4: replies that nobody waits for are dropped; requests beyond the credits are not.
#[test]
fn doubled_replies_are_dropped_and_stolen_credits_reset_the_connection() {
    let mut world = World::seeded(17);
    let (mut peer, connection) = RawPeer::established(&mut world, 16);
    let deadline = world.in_time(SECOND);
    let right = &mut world.right;
    let call = right
        .fabric
        .call(&mut right.nic, connection, b"?", deadline)
        .unwrap();
    world.run_for(MILLISECOND);
    let mut bytes = [0; 33];
    peer.nic
        .read_region(&peer.region, 8192, &mut bytes)
        .unwrap();
    let request = MessageHeader::parse(&bytes, 33).unwrap();
    let reply = MessageHeader {
        kind: MessageKind::Reply,
        call: request.call,
        length: 0,
        time_left: TimeLeft::UNBOUNDED,
        epoch: EPOCH,
    };
    for _ in 0..3 {
        peer.send(&reply.to_bytes());
        world.run_for(MILLISECOND);
    }
    assert_eq!(world.right.replies(), [(call, Ok(Vec::new()))]);
    assert_eq!(world.right.fabric.counters().replies_stale, 2);
    for number in 0..=u64::from(CREDITS) {
        let request = MessageHeader {
            kind: MessageKind::Request,
            call: number,
            length: 0,
            time_left: TimeLeft::UNBOUNDED,
            epoch: EPOCH,
        };
        peer.send(&request.to_bytes());
        world.run_for(MILLISECOND);
    }
    assert_eq!(world.right.disconnected(), [connection]);
    let cause = world.right.fabric.reset_cause(connection);
    assert_eq!(cause, Some(ResetCause::CreditsExceeded));
    for (request, _) in world.right.requests() {
        let right = &mut world.right;
        let replied = right.fabric.reply(&mut right.nic, request, &[]);
        assert_eq!(replied, Err(ReplyError::NotWaiting));
    }
    peer.end();
    world.left.end();
    world.right.end();
}

// P-1
#[test]
fn a_peer_without_the_protocol_is_rejected() {
    let mut world = World::seeded(18);
    let mut peer = RawPeer::connect(&world, b"hello", 16);
    let mut event = None;
    world.run_until(|_| {
        event = peer.nic.poll_event();
        event.is_some()
    });
    assert!(matches!(
        event,
        Some(Event::Connection(ConnectionEvent::Rejected { .. }))
    ));
    assert_eq!(world.right.fabric.counters().peers_rejected, 1);
    world.left.end();
    world.right.end();
}

/// P-47: both machines stood still for longer than a silent peer is believed to be alive.
#[test]
fn v_26_a_side_that_slept_does_not_blame_its_peer() {
    let mut world = World::seeded(19);
    let (here, _) = world.connect();
    let woken = world.in_time(Duration::from_secs(25));
    world.network.advance_to(woken);
    world.run_for(SECOND);
    assert!(world.left.disconnected().is_empty() && world.right.disconnected().is_empty());
    world.ask(here, b"alive?");
    world.left.end();
    world.right.end();
}
