//! Who may connect: two fabrics with a secret, without one, with different ones, and somebody on the way
//! between them.

use crate::rig::{MILLISECOND, Plan, RawPeer, SECOND, World};
use legato_base::Duration;
use legato_base::secret::SecureRandom;
use legato_base::wire::proof::{ASKING_SIZE, CONFIRMATION_SIZE};
use legato_fabric::{ConnectError, FabricConfig, FabricCounters, FabricEvent, ProofError};
use legato_sim::fault::{PacketEffect, Rule, Span};
use legato_verbs::{ConnectionEvent, Event, Provider};

/// A world whose sides have these secrets, and with an odd seed share receives among connections.
pub(super) fn world(seed: u64, left: Option<u8>, right: Option<u8>) -> World {
    let mut world = World::new(Plan {
        seed,
        config: FabricConfig {
            separate_peers: true,
            connections_max: 8,
            shared_receives: (seed % 2 == 1).then_some(100),
            ..crate::rig::config()
        },
        ..Plan::default()
    });
    world.prove(seed, left, right);
    world
}

/// Tries to connect: why it did not come about.
pub(super) fn refused(world: &mut World) -> ConnectError {
    let here = world.try_connect(SECOND).unwrap();
    let mut failed = Vec::new();
    world.run_until(|world| {
        failed = world.left.failed_connects();
        !failed.is_empty()
    });
    // What is left of it on the other side goes in its own time.
    world.run_for(Duration::from_secs(2));
    let took = |event: &FabricEvent<_>| matches!(event, FabricEvent::Connected { .. });
    assert!(!world.left.events.iter().any(took));
    assert_eq!(world.right.accepted(), []);
    assert_eq!(world.right.requests(), []);
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, here);
    failed[0].1
}

/// Nothing is left of anybody.
pub(super) fn end(mut world: World) -> (FabricCounters, FabricCounters) {
    world.left.end();
    world.right.end();
    (
        *world.left.fabric.counters(),
        *world.right.fabric.counters(),
    )
}

/// Connects and uses the connection both ways.
pub(super) fn works(world: &mut World) {
    let (here, _) = world.connect();
    world.ask(here, b"a question");
    let left = &mut world.left;
    left.fabric.close(&mut left.nic, here);
    world.run_until(|world| world.left.disconnected() == [here]);
    world.run_until(|world| !world.right.disconnected().is_empty());
}

#[test]
fn who_knows_the_secret_connects_and_uses_the_connection() {
    for seed in 0..20 {
        let mut world = world(seed, Some(1), Some(1));
        for _ in 0..3 {
            works(&mut world);
        }
        assert_eq!(world.right.nic.path.confirmations.len(), 3);
        let (left, right) = end(world);
        assert_eq!((left.proofs_wrong, right.peers_rejected), (0, 0));
        assert_eq!(right.connections_established, 3);
    }
}

#[test]
fn private_data_of_the_user_travels_sealed() {
    let mut world = world(3, Some(1), Some(1));
    let deadline = world.in_time(SECOND);
    let left = &mut world.left;
    let data = b"sixteen bytes ..";
    left.fabric
        .connect(&mut left.nic, &world.address, data, deadline)
        .unwrap();
    let mut accepted = Vec::new();
    world.run_until(|world| {
        accepted.extend(world.right.take(|event| match event {
            FabricEvent::Accepted { private_data, .. } => Some(private_data.clone()),
            _ => None,
        }));
        !accepted.is_empty()
    });
    assert_eq!(accepted, [data]);
    let seen = [
        &world.right.nic.path.private[..],
        &world.left.nic.path.confirmations,
    ];
    for bytes in seen.concat() {
        assert!(!bytes.windows(7).any(|piece| piece == b"sixteen"));
    }
    end(world);
}

// P-77
#[test]
fn whose_fault_it_is_is_said_when_the_secrets_do_not_fit() {
    for (left, right, expected) in [
        (Some(1), Some(2), ProofError::Wrong),
        (None, Some(1), ProofError::Required),
        (Some(1), None, ProofError::NotExpected),
    ] {
        for seed in 0..5 {
            let mut world = world(seed, left, right);
            assert_eq!(refused(&mut world), ConnectError::Proof(expected));
            // The refusal came before there was a queue pair.
            let (_, counters) = end(world);
            let counted = (
                counters.secrets_wrong,
                counters.secrets_missing,
                counters.secrets_unexpected,
            );
            let wanted = match expected {
                ProofError::Wrong => (1, 0, 0),
                ProofError::Required => (0, 1, 0),
                _ => (0, 0, 1),
            };
            assert_eq!(counted, wanted);
            assert_eq!(counters.peers_rejected, 1);
        }
    }
}

// P-77
#[test]
fn random_bytes_are_refused_and_the_next_peer_is_not() {
    let mut world = world(4, Some(1), Some(1));
    let mut random = SecureRandom::from_seed([9; 32]);
    for round in 0..100 {
        let mut bytes = vec![0; (random.next_u64() % 57) as usize];
        random.fill(&mut bytes);
        if round % 2 == 0 && bytes.len() > 2 {
            bytes[..2].copy_from_slice(b"L?");
        }
        let mut peer = RawPeer::connect(&world, &bytes, 1);
        world.run_for(Duration::from_millis(100));
        let rejected = |event: &Event| {
            let rejected = |of| peer.queue_pair == of;
            matches!(event, Event::Connection(ConnectionEvent::Rejected { queue_pair, .. })
                if rejected(*queue_pair))
        };
        let events: Vec<_> = std::iter::from_fn(|| peer.nic.poll_event()).collect();
        assert!(events.iter().any(rejected), "{events:?}");
        peer.end();
    }
    assert_eq!(world.right.fabric.counters().peers_rejected, 100);
    works(&mut world);
    end(world);
}

// P-78
#[test]
fn every_changed_byte_of_the_handshake_is_noticed() {
    // What the responder reads: the run, and the opening. Zeros may follow it.
    for place in 0..ASKING_SIZE {
        let mut world = world(place as u64, Some(1), Some(1));
        world.right.nic.path.change_private = Some(place);
        let error = refused(&mut world);
        let expected = match place {
            0..2 => ProofError::Required,
            _ => ProofError::Wrong,
        };
        assert_eq!(error, ConnectError::Proof(expected), "byte {place}");
        world.right.nic.path.change_private = None;
        works(&mut world);
        end(world);
    }
    for place in 0..50 {
        let mut world = world(place as u64, Some(1), Some(1));
        world.left.nic.path.change_private = Some(place);
        let error = refused(&mut world);
        assert_eq!(error, ConnectError::Proof(ProofError::PeerWrong));
        world.left.nic.path.change_private = None;
        works(&mut world);
        end(world);
    }
}

// P-78
#[test]
fn every_changed_byte_of_a_confirmation_is_noticed() {
    for place in 0..CONFIRMATION_SIZE {
        let mut one = world(place as u64, Some(1), Some(1));
        one.left.nic.path.change_confirmation = Some(place);
        let error = refused(&mut one);
        assert_eq!(
            error,
            ConnectError::Proof(ProofError::Ended),
            "byte {place}"
        );
        assert_eq!(one.right.fabric.counters().proofs_wrong, 1);
        one.left.nic.path.change_confirmation = None;
        works(&mut one);
        end(one);
        let mut other = world(place as u64, Some(1), Some(1));
        other.right.nic.path.change_confirmation = Some(place);
        let deadline = other.in_time(SECOND);
        let left = &mut other.left;
        left.fabric
            .connect(&mut left.nic, &other.address, &[], deadline)
            .unwrap();
        let mut failed = Vec::new();
        other.run_until(|world| {
            failed = world.left.failed_connects();
            !failed.is_empty()
        });
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].1, ConnectError::Proof(ProofError::PeerWrong));
        // The responder had its proof, and was told that the initiator has not.
        other.run_until(|world| world.right.disconnected().len() == 1);
        end(other);
    }
}

// P-80
#[test]
fn somebody_in_between_who_joins_other_queue_pairs_is_noticed() {
    for seed in 0..10 {
        for swap in [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0x0F_0F_0F, 3, 7]] {
            for at_left in [true, false] {
                let mut world = world(seed, Some(1), Some(1));
                let side = match at_left {
                    true => &mut world.left,
                    false => &mut world.right,
                };
                side.nic.path.swap = Some(swap);
                // Whose queue pairs are others notices it by itself only where it hears first.
                assert_eq!(refused(&mut world), ConnectError::Proof(ProofError::Ended));
                assert_eq!(world.right.fabric.counters().proofs_wrong, 1);
                end(world);
            }
        }
    }
}

#[test]
fn packets_that_are_lost_late_or_out_of_order_do_no_harm() {
    for seed in 0..20 {
        let mut world = world(seed, Some(1), Some(1));
        world.network.faults(|faults| {
            faults.add(Rule::packets(5, PacketEffect::Drop));
            faults.add(Rule::packets(
                10,
                PacketEffect::Duplicate(Span::exactly(MILLISECOND)),
            ));
            faults.add(Rule::packets(20, PacketEffect::Reorder(MILLISECOND)));
        });
        for _ in 0..3 {
            works(&mut world);
        }
        end(world);
    }
}

#[test]
fn a_connection_that_is_closed_or_cut_while_it_is_proved_leaves_nothing() {
    for steps in 1..60 {
        for cut in [true, false] {
            let mut world = world(steps, Some(1), Some(1));
            let deadline = world.in_time(SECOND);
            let left = &mut world.left;
            let here = left
                .fabric
                .connect(&mut left.nic, &world.address, &[], deadline);
            let here = here.unwrap();
            for _ in 0..steps {
                world.step();
            }
            match cut {
                true => world.network.kill("left"),
                false => world.left.fabric.close(&mut world.left.nic, here),
            }
            world.run_for(Duration::from_secs(30));
            world.right.take(|_| Some(()));
            assert_eq!(
                world.right.nic.resource_counts().queue_pairs,
                0,
                "step {steps}"
            );
            world.right.end();
        }
    }
}
