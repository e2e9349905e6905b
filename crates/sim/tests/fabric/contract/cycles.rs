//! Connections that come and go.

use crate::rig::{
    MILLISECOND, Net, Plan, SECOND, Side, World, answer, config, cycles, life, quiet, times,
};
use legato_base::{Duration, Random};
use legato_fabric::ConnectionId;
use legato_sim::provider::Personality;
use legato_verbs::{Provider, ResourceCounts};

fn held<N: Net>(world: &World<N>) -> [ResourceCounts; 2] {
    [
        world.left.nic.resource_counts(),
        world.right.nic.resource_counts(),
    ]
}

#[test]
fn v_24_ten_thousand_cycles_of_connections_leave_nothing() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        // The full number on one of them; the others differ in how they end, not in how much.
        let number = match personality.name {
            "ideal" => 10_000,
            _ => 300,
        };
        let number = times("LEGATO_CYCLES", number);
        let mut world = World::new(Plan::both(personality));
        cycles(&mut world, number, held);
        for side in [&world.left, &world.right] {
            assert_eq!(side.fabric.counters().connections_established, number);
        }
        world.left.end();
        world.right.end();
    }
}

/// What the other side is doing when a side dies.
fn under_way(world: &mut World, random: &mut Random) -> ConnectionId {
    let here = world.try_connect(SECOND).unwrap();
    // From before the first packet to long after the last.
    world.run_for(Duration::from_micros(random.below(20)));
    // Refused until the connection is there.
    let _ = world.try_call(here, b"?", SECOND);
    let _ = world.write(here, 1, SECOND);
    let _ = world.read(here, 2, SECOND);
    world.run_for(Duration::from_micros(random.below(10)));
    world.right.serve(answer);
    world.run_for(Duration::from_micros(random.below(10)));
    here
}

/// Either side's machine dies at some moment, nobody is told, and it comes back empty.
#[test]
fn v_25_a_thousand_deaths_leave_nothing() {
    for personality in Personality::ALL {
        let deaths = match personality.name {
            "ideal" => 1000,
            _ => 60,
        };
        let mut random = Random::from_seed(25);
        let mut world = World::new(Plan {
            network: quiet(),
            ..Plan::both(personality)
        });
        let before = held(&world);
        for death in 0..times("LEGATO_DEATHS", deaths) {
            let here = under_way(&mut world, &mut random);
            let name = if death % 2 == 0 { "left" } else { "right" };
            let life = life(config(), death + 3);
            let nic = world.network.restart(name);
            if name == "left" {
                world.left = Side::new(nic, life);
            } else {
                world.right = Side::new(nic, life);
                world.listen();
            }
            // Silence, then the end of the queue pair, and of what a careless device forgets.
            world.run_for(Duration::from_secs(14));
            if world.left.nic.resource_counts().queue_pairs > 0 {
                // What asked to be connected went on to the next life.
                world.left.events.clear();
                world.ask(here, b"?");
                world.left.fabric.close(&mut world.left.nic, here);
                world.run_for(SECOND + SECOND);
            }
            let name = personality.name;
            assert_eq!(before, held(&world), "{name}: death {death}");
            world.left.events.clear();
            world.right.events.clear();
        }
        world.network.check_canaries().unwrap();
        world.left.end();
        world.right.end();
    }
}

/// A connection on which nothing ever happened.
fn idle<N: Net>(mut world: World<N>, name: &str) {
    let (here, there) = world.connect();
    world.left.fabric.close(&mut world.left.nic, here);
    world.run_for(Duration::from_millis(2500));
    assert_eq!(world.left.disconnected(), [here], "{name}");
    assert_eq!(world.right.disconnected(), [there], "{name}");
    for counts in held(&world) {
        assert_eq!(counts.queue_pairs, 0, "{name}");
    }
    world.left.end();
    world.right.end();
}

#[test]
fn v_32_an_idle_connection_is_reaped_without_any_traffic() {
    for personality in Personality::ALL {
        idle(World::new(Plan::both(personality)), personality.name);
    }
    idle(World::shm(config()), "shm");
    idle(World::roce(config()), "roce");
}

/// A message of several packets, half of which have come when its receiver's queue pair ends.
#[test]
fn v_31_half_a_message_leaves_nothing() {
    use legato_sim::provider::SimNetworkConfig;
    use legato_transport::PathMtu;
    for personality in Personality::ALL {
        let mut plan = Plan::both(personality);
        plan.config.message_length_max = 4000;
        plan.network = SimNetworkConfig {
            path_mtu: PathMtu::Bytes256,
            bytes_per_second: Some(100_000_000),
            ..SimNetworkConfig::default()
        };
        let mut world = World::new(plan);
        let (here, there) = world.connect();
        let call = world.call(here, &[7; 4000], Duration::from_secs(3));
        // About half of the 40 us that it takes.
        world.run_for(Duration::from_micros(25));
        world.right.fabric.close(&mut world.right.nic, there);
        world.run_for(Duration::from_secs(3));
        assert_eq!(world.right.requests(), [], "{}", personality.name);
        assert_eq!(world.right.disconnected(), [there]);
        assert_eq!(world.left.disconnected(), [here]);
        let replies = world.left.replies();
        assert_eq!((replies.len(), replies[0].0), (1, call));
        let (again, _) = world.connect();
        world.ask(again, b"?");
        world.run_for(MILLISECOND);
        world.left.end();
        world.right.end();
    }
}
