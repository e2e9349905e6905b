//! Connecting: failures, back-off, and both sides at once.

use super::machine::{address, answer};
use super::world::{World, config, network, seconds};
use legato_fabric::session::{CallKind, Session, SessionCause, SessionConfig};
use legato_fabric::{Blame, ConnectError, Effect, FabricConfig};
use legato_sim::fault::{PacketEffect, Rule};
use legato_sim::provider::Personality;

/// Why a peer cannot be reached, and how that ends.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    NoMachine,
    NoListener,
    NoRoom,
    Silence,
    Stranger,
}

fn blamed(obstacle: Obstacle) -> &'static [Blame] {
    match obstacle {
        Obstacle::NoMachine => &[Blame::Path],
        Obstacle::NoListener => &[Blame::Peer, Blame::Path],
        Obstacle::NoRoom | Obstacle::Stranger => &[Blame::Peer],
        Obstacle::Silence => &[Blame::Unknown],
    }
}

/// A session of a caller to "server", which cannot be reached.
fn hindered(obstacle: Obstacle, personality: Personality) -> World {
    let mut world = World::new(1, network(personality));
    world.start("caller", config());
    match obstacle {
        Obstacle::NoMachine => {
            let machine = &mut world.machines[0];
            let limits = SessionConfig::default();
            let nowhere = address("nowhere");
            let session = Session::new(&machine.fabric, 0, nowhere, limits, 0).unwrap();
            machine.sessions.push(session);
            return world;
        }
        Obstacle::NoRoom => {
            let one = FabricConfig {
                connections_max: 1,
                ..config()
            };
            world.start("server", one);
            world.start("first", config());
            world.session(2, 0, SessionConfig::default());
            world.session(2, 1, SessionConfig::default());
            world.run_until_up();
        }
        _ => {
            world.start("server", config());
        }
    }
    world.session(0, 1, SessionConfig::default());
    match obstacle {
        Obstacle::NoListener => {
            let server = &mut world.machines[1];
            server.fabric.disconnect_all(&mut server.nic).unwrap();
        }
        Obstacle::Silence => world.cut_both(0, 1),
        Obstacle::Stranger => world.machines[1].is_stranger = true,
        Obstacle::NoMachine | Obstacle::NoRoom => {}
    }
    world
}

/// L-42, P-66: whatever keeps it from connecting, nothing was sent, the blame is right, each attempt has
/// its own end, and they become rarer.
#[test]
fn l_42_what_was_never_sent_is_not_executed_and_blames_who_is_to_blame() {
    use Obstacle::{NoListener, NoMachine, NoRoom, Silence, Stranger};
    for obstacle in [NoMachine, NoListener, NoRoom, Silence, Stranger] {
        for personality in Personality::ATTENTIVE {
            let mut world = hindered(obstacle, personality);
            let start = world.network.now();
            let call = world.call(b"?", CallKind::Once, seconds(10));
            world.run_until_ended(0, seconds(10), &[call]);
            let (outcome, at) = world.machines[0].ends[&call].clone();
            assert_eq!(at.since(start), seconds(10));
            let error = outcome.unwrap_err();
            assert_eq!(error.effect, Effect::NotExecuted);
            let name = personality.name;
            assert!(
                blamed(obstacle).contains(&error.blame),
                "{obstacle:?}, {name}: {error}"
            );
            let SessionCause::NotConnected(cause) = error.cause else {
                panic!("{obstacle:?}, {name}: {error}");
            };
            let is_silence = matches!(obstacle, Silence);
            assert_eq!(
                cause == ConnectError::DeadlineExpired,
                is_silence,
                "{error}"
            );
            // Waits of 5 to 10 ms, doubled up to a second, or attempts of two seconds.
            let attempts = world.machines[0].sessions[0].counters().connects_started;
            let expected = if is_silence { 4..=6 } else { 15..=32 };
            assert!(expected.contains(&attempts), "{obstacle:?}: {attempts}");
            world.end();
        }
    }
}

/// L-42: and what waited meanwhile goes over the first connection that there is.
#[test]
fn l_42_calls_wait_for_the_connection_that_comes_in_time() {
    use Obstacle::{NoListener, NoRoom, Silence, Stranger};
    for obstacle in [NoListener, NoRoom, Silence, Stranger] {
        for personality in Personality::ALL {
            let mut world = hindered(obstacle, personality);
            let call = world.call(b"?", CallKind::Once, seconds(10));
            world.run_for(seconds(3));
            match obstacle {
                NoListener => {
                    let server = &mut world.machines[1];
                    let listening = server.fabric.listen(&mut server.nic, &address("server"));
                    listening.unwrap();
                }
                NoRoom => {
                    let first = &mut world.machines[2];
                    first.sessions[1].close(&mut first.fabric, &mut first.nic);
                }
                Stranger => world.machines[1].is_stranger = false,
                Obstacle::NoMachine | Silence => world.heal(),
            }
            world.run_until_ended(0, seconds(7), &[call]);
            let outcome = world.machines[0].ends[&call].0.clone();
            assert_eq!(
                outcome,
                Ok(answer(b"?")),
                "{obstacle:?}, {}",
                personality.name
            );
            assert_eq!(world.machines[1].executed.len(), 1);
            world.end();
        }
    }
}

/// L-44: both sides connect to each other at the same moment, again and again, and packets are
/// lost.
#[test]
fn l_44_a_thousand_simultaneous_connects_with_packet_loss_converge() {
    let mut attempts = 0;
    for (number, personality) in Personality::ATTENTIVE.into_iter().enumerate() {
        let mut world = World::new(number as u64, network(personality));
        for name in ["left", "right"] {
            world.start(name, config());
        }
        world.add(Rule::packets(5, PacketEffect::Drop));
        let rounds = 1000 / Personality::ATTENTIVE.len() + 1;
        for round in 0..rounds {
            for (from, to) in [(0, 1), (1, 0)] {
                world.machines[from].sessions.clear();
                world.machines[from].ends.clear();
                world.session(from, to, SessionConfig::default());
            }
            let calls = [0, 1].map(|machine| {
                let body = [machine as u8, round as u8];
                world.call_on((machine, 0), &body, CallKind::Once, seconds(60))
            });
            let name = personality.name;
            for (machine, call) in calls.into_iter().enumerate() {
                world.run_until_ended(machine, seconds(60), &[call]);
                let outcome = world.machines[machine].ends[&call].0.clone();
                let reply = answer(&[machine as u8, round as u8]);
                assert_eq!(outcome, Ok(reply), "{name}, round {round}");
                assert_eq!(world.machines[1 - machine].executed.len(), round + 1);
            }
            for machine in &mut world.machines {
                attempts += machine.sessions[0].counters().connects_started;
                machine.sessions[0].close(&mut machine.fabric, &mut machine.nic);
            }
            // Until both sides know that it is over.
            world.run_until(seconds(60), |world| {
                let mut fabrics = world.machines.iter().map(|machine| &machine.fabric);
                fabrics.all(|fabric| fabric.connections() == 0)
            });
        }
        world.end();
    }
    // One for each side and round is the least; lost packets cost some more.
    assert!((2000..4000).contains(&attempts), "{attempts}");
}
