//! Peers and providers that do what they should not.

use crate::rig::{EPOCH, MILLISECOND, Plan, RawPeer, SECOND, World, answer, link};
use legato_base::wire::message::{
    Hello, MESSAGE_HEADER_SIZE, MessageError, MessageHeader, MessageKind, TimeLeft,
};
use legato_base::{Duration, Random};
use legato_fabric::ResetCause;
use legato_sim::fault::{
    CompletionEffect, Effect, EventEffect, Events, Frequency, PacketEffect, Rule, Span,
};
use legato_sim::provider::Personality;
use legato_verbs::VerbsError;

/// Private data of a connect that is noise, or nearly right: never more than one peer sent away.
#[test]
fn f_13_hellos_from_a_fuzzer() {
    let mut world = World::new(Plan::default());
    let (here, _) = world.connect();
    let mut random = Random::from_seed(5);
    let hello = Hello {
        credits: 4,
        message_length_max: 100,
        incarnation: 77,
        epoch: 1,
        oldest_epoch: 1,
    };
    let mut accepted = 0;
    for round in 0..300 {
        let mut bytes = hello.to_bytes().to_vec();
        match round % 3 {
            0 => bytes
                .iter_mut()
                .for_each(|it| *it = random.next_u64() as u8),
            1 => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            _ => bytes.truncate(random.below(bytes.len() as u64) as usize),
        }
        let peer = RawPeer::connect(&world, &bytes, 16);
        world.run_for(MILLISECOND);
        for connection in world.right.accepted() {
            accepted += 1;
            world.right.fabric.close(&mut world.right.nic, connection);
        }
        peer.end();
        world.run_for(SECOND);
        world.right.disconnected();
    }
    assert!(accepted < 250, "{accepted}");
    let rejected = world.right.fabric.counters().peers_rejected;
    assert!(rejected > 50, "{rejected}");
    assert_eq!(world.left.disconnected(), []);
    world.ask(here, b"alive?");
    world.left.end();
    world.right.end();
}

/// P-45: messages of noise, of any length up to what fits and beyond.
#[test]
fn f_13_messages_from_a_fuzzer() {
    let mut world = World::new(Plan::default());
    let (here, _) = world.connect();
    let mut random = Random::from_seed(6);
    let mut reset = 0;
    for _ in 0..300 {
        let (mut peer, connection) = RawPeer::established(&mut world, 16);
        let length = random.below(400) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        peer.send(&bytes);
        world.run_for(MILLISECOND);
        if world.right.disconnected() == [connection] {
            reset += 1;
        } else {
            world.right.fabric.close(&mut world.right.nic, connection);
            world.run_for(SECOND + SECOND);
        }
        peer.end();
    }
    assert!(reset > 290, "{reset}");
    assert_eq!(world.right.requests(), []);
    world.right.disconnected();
    assert_eq!(world.left.disconnected(), []);
    world.ask(here, b"alive?");
    world.left.end();
    world.right.end();
}

/// P-45: a message that was right, with one bit changed. If it is one still, it is heard; if not, it ends
/// its connection, and no other.
#[test]
fn f_13_one_bit_of_a_message_is_another() {
    let body = [0; 8];
    let mut world = World::new(Plan::default());
    let (here, _) = world.connect();
    for kind in [MessageKind::Request, MessageKind::Reply] {
        for bit in 0..MESSAGE_HEADER_SIZE * 8 {
            let (mut peer, connection) = RawPeer::established(&mut world, 16);
            let deadline = world.in_time(SECOND);
            let right = &mut world.right;
            let asked = right
                .fabric
                .call(&mut right.nic, connection, &body, deadline);
            assert!(asked.is_ok());
            world.run_for(MILLISECOND);
            let length = MESSAGE_HEADER_SIZE + body.len();
            let request = peer.received(0, length);
            let request = MessageHeader::parse(&request, length as u32).unwrap();
            let header = MessageHeader {
                kind,
                time_left: TimeLeft::UNBOUNDED,
                ..request
            };
            let mut message = [&header.to_bytes()[..], &body].concat();
            message[bit / 8] ^= 1 << (bit % 8);
            let stale = world.right.fabric.counters().replies_stale;
            peer.send(&message);
            world.run_for(MILLISECOND);
            let context = format!("{kind:?}, bit {bit}");
            assert_eq!(
                world.right.replies().iter().find(|(_, it)| it.is_ok()),
                None
            );
            let requests = world.right.requests().len();
            // The caller's name for its call, and how long it waits, may be anything.
            let is_heard = match kind {
                MessageKind::Request => matches!(bit / 8, 8..16 | 20..24),
                _ => matches!(bit / 8, 8..16),
            };
            let is_request = is_heard && kind == MessageKind::Request;
            assert_eq!(requests, usize::from(is_request), "{context}");
            if is_heard {
                assert_eq!(world.right.disconnected(), [], "{context}");
                let answers = world.right.fabric.counters().replies_stale - stale;
                assert_eq!(answers, u64::from(!is_request), "{context}");
                world.right.fabric.close(&mut world.right.nic, connection);
                world.run_until(|world| world.right.disconnected() == [connection]);
            } else {
                assert_eq!(world.right.disconnected(), [connection], "{context}");
                let cause = world.right.fabric.reset_cause(connection);
                let malformed = matches!(cause, Some(ResetCause::Malformed(_)));
                assert!(malformed, "{context}: {cause:?}");
            }
            world.right.replies();
            peer.end();
        }
    }
    assert_eq!(world.left.disconnected(), []);
    world.ask(here, b"alive?");
    world.left.end();
    world.right.end();
}

/// P-45: of another connection of the peer, and otherwise as it must be.
#[test]
fn a_message_of_another_epoch_ends_the_connection() {
    let mut world = World::new(Plan::default());
    let (here, _) = world.connect();
    for kind in [MessageKind::Request, MessageKind::Reply, MessageKind::Ping] {
        for epoch in [EPOCH, EPOCH - 1, EPOCH + 1, EPOCH + (1 << 32), 0] {
            let (mut peer, connection) = RawPeer::established(&mut world, 16);
            let header = MessageHeader {
                kind,
                call: 0,
                length: 0,
                time_left: TimeLeft::UNBOUNDED,
                epoch,
            };
            peer.send(&header.to_bytes());
            world.run_for(MILLISECOND);
            let requests = world.right.requests().len();
            if epoch == EPOCH {
                assert_eq!(requests, usize::from(kind == MessageKind::Request));
                world.right.fabric.close(&mut world.right.nic, connection);
                world.run_until(|world| world.right.disconnected() == [connection]);
            } else {
                assert_eq!(requests, 0, "{kind:?} {epoch}");
                assert_eq!(world.right.disconnected(), [connection], "{kind:?} {epoch}");
                let cause = world.right.fabric.reset_cause(connection);
                let other = ResetCause::Malformed(MessageError::Epoch);
                assert_eq!(cause, Some(other), "{kind:?} {epoch}");
            }
            peer.end();
        }
    }
    world.ask(here, b"alive?");
    world.left.end();
    world.right.end();
}

/// A peer repeats its reply to a call that is over, when another call has its slot.
#[test]
fn f_03_a_reply_that_comes_again_does_not_answer_the_next_call() {
    let mut world = World::new(Plan::default());
    let (mut peer, connection) = RawPeer::established(&mut world, 16);
    let mut earlier: Vec<Vec<u8>> = Vec::new();
    for round in 0..12_u8 {
        let deadline = world.in_time(SECOND);
        let right = &mut world.right;
        let call = right
            .fabric
            .call(&mut right.nic, connection, &[round], deadline)
            .unwrap();
        world.run_for(MILLISECOND);
        for reply in &earlier {
            peer.send(reply);
            world.run_for(MILLISECOND);
        }
        assert_eq!(world.right.replies(), [], "a reply to another call");
        let bytes = peer.received(u64::from(round), MESSAGE_HEADER_SIZE + 1);
        let length = MESSAGE_HEADER_SIZE as u32 + 1;
        let request = MessageHeader::parse(&bytes, length).unwrap();
        let header = MessageHeader {
            kind: MessageKind::Reply,
            time_left: TimeLeft::UNBOUNDED,
            ..request
        };
        let mut reply = header.to_bytes().to_vec();
        reply.push(round);
        peer.send(&reply);
        world.run_for(MILLISECOND);
        assert_eq!(world.right.replies(), [(call, Ok(vec![round]))]);
        earlier.push(reply);
        peer.polled();
    }
    let counters = world.right.fabric.counters();
    assert_eq!(counters.replies_stale, (0..12).sum::<u64>());
    peer.end();
    world.left.end();
    world.right.end();
}

/// Polls that fail for a while cost time, and nothing else.
#[test]
fn f_14_failed_polls() {
    for personality in Personality::ATTENTIVE {
        for error in [
            VerbsError::UnknownHandle("completion queue"),
            VerbsError::System {
                call: "poll",
                errno: 11,
            },
        ] {
            let mut world = World::new(Plan::both(personality));
            let (here, _) = world.connect();
            let call = world.call(here, b"?", SECOND);
            let operation = world.write(here, 1, SECOND).unwrap();
            world.left.nic.fail_polls = Some(error);
            world.right.nic.fail_polls = Some(error);
            world.run_for(Duration::from_millis(5));
            assert_eq!(world.left.replies(), []);
            world.left.nic.fail_polls = None;
            world.right.nic.fail_polls = None;
            world.run_for(MILLISECOND);
            world.right.serve(answer);
            world.run_for(MILLISECOND);
            assert_eq!(world.left.replies(), [(call, Ok(answer(b"?")))]);
            assert_eq!(world.left.outcomes(), [(operation, Ok(()))]);
            world.left.end();
            world.right.end();
        }
    }
}

/// P-55: a queue that is overrun ends its connections, and another one takes its place.
#[test]
fn f_14_an_overrun_is_not_the_end_of_the_node() {
    for personality in Personality::ALL {
        let mut world = World::new(Plan::both(personality));
        let (here, _) = world.connect();
        world.call(here, b"?", SECOND);
        let operation = world.write(here, 1, SECOND).unwrap();
        world.left.nic.fail_polls = Some(VerbsError::CompletionQueueOverrun);
        world.step();
        world.left.nic.fail_polls = None;
        world.run_for(SECOND + SECOND);
        assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
        assert_eq!(
            world.left.fabric.reset_cause(here),
            Some(ResetCause::CompletionQueueOverrun)
        );
        assert_eq!(world.left.replies().len(), 1);
        let outcomes = world.left.outcomes();
        assert_eq!((outcomes.len(), outcomes[0].0), (1, operation));
        assert_eq!(world.left.quiesced().len(), 1);
        assert_eq!(world.left.fabric.counters().completion_queues_replaced, 1);
        let (again, _) = world.connect();
        world.ask(again, b"?");
        world.left.end();
        world.right.end();
    }
}

/// Any history of faults, then none: everything that was started has ended, and nothing is left.
#[test]
fn f_22_after_the_faults_everything_balances() {
    for personality in Personality::ATTENTIVE {
        for seed in 0..12 {
            let mut random = Random::from_seed(seed);
            let mut world = World::new(Plan {
                seed,
                ..Plan::both(personality)
            });
            let (here, _) = world.connect();
            break_things(&world, &mut random);
            let mut connection = here;
            for round in 0..100_u32 {
                // Either may be refused.
                let lasts = Duration::from_micros(10 + random.below(100_000));
                let _ = world.try_call(connection, &round.to_le_bytes(), lasts);
                let _ = world.write(connection, round % 8, lasts);
                let _ = world.read(connection, 8 + round % 8, lasts);
                world.run_for(Duration::from_micros(random.below(2_000)));
                world.right.serve(answer);
                if world.left.disconnected() == [connection] {
                    connection = world.try_connect(SECOND).unwrap();
                }
            }
            world.network.faults(|faults| faults.heal());
            for _ in 0..15 {
                world.run_for(SECOND);
                world.right.serve(answer);
            }
            world.left.balance();
            world.right.balance();
            world.left.fabric.close(&mut world.left.nic, connection);
            world.run_for(Duration::from_secs(15));
            world.left.events.clear();
            world.right.events.clear();
            let (again, _) = world.connect();
            for _ in 0..8 {
                world.ask(again, b"healed");
            }
            world.network.check_canaries().unwrap();
            world.left.end();
            world.right.end();
        }
    }
}

fn break_things(world: &World, random: &mut Random) {
    let span = Span {
        least: Duration::ZERO,
        most: Duration::from_millis(2),
    };
    let completions = |effect| Effect::Completion { of: None, effect };
    let events = |effect| Effect::Event {
        of: Events::All,
        effect,
    };
    let rules = [
        Rule::packets(10, PacketEffect::Drop),
        Rule::packets(10, PacketEffect::Delay(span)),
        Rule::packets(10, PacketEffect::Duplicate(span)),
        Rule::packets(10, PacketEffect::Corrupt),
        Rule::one_way_cut(link(&world.network, "left", "right")).between(
            world.network.now(),
            world.in_time(Duration::from_millis(20)),
        ),
        Rule::new(Frequency::EveryNth(17), completions(CompletionEffect::Lose)),
        Rule::new(
            Frequency::EveryNth(5),
            completions(CompletionEffect::Delay(span)),
        ),
        Rule::new(
            Frequency::EveryNth(5),
            completions(CompletionEffect::Stale(span)),
        ),
        Rule::new(Frequency::EveryNth(2), events(EventEffect::Lose)),
        Rule::new(Frequency::EveryNth(2), events(EventEffect::Repeat(3))),
    ];
    world.network.faults(|faults| {
        for rule in rules {
            if random.ratio(1, 3) {
                faults.add(rule);
            }
        }
    });
}
