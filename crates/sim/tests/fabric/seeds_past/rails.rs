//! Writes that are sent again on another rail while the first may still arrive.

use super::stack::{Naive, Real, Said, Stack, limits};
use super::stage::Stage;
use crate::rig::{MILLISECOND, SECOND, link, quiet};
use legato_base::Duration;
use legato_fabric::FabricConfig;
use legato_sim::fault::{Effect, Frequency, PacketEffect, Rule, Scope, Span};
use legato_sim::naive::Habits;
use legato_sim::provider::{Personality, SimNetworkConfig};

const PLACE: u32 = 3;
/// How long the first write is on its way.
const LATE: Duration = Duration::from_secs(3);

/// A write of 1 is late and is given up. A write of 2 to the same place is done on another connection,
/// and then the place is used for something else. What is there in the end?
fn resent<S: Stack>(stage: &mut Stage<S>) -> u8 {
    let first = stage.connect();
    stage.client.fill(PLACE, 1);
    let way = link(&stage.network, "client", "server");
    let late = Effect::Packet(PacketEffect::Delay(Span::exactly(LATE)));
    let late = Rule::new(Frequency::Always, late).within(Scope::Link(way));
    let late = stage.network.faults(|faults| faults.add(late));
    let lost = stage.write(first, PLACE, Duration::from_millis(10));
    // What its end sends to the server is late too. It takes until then where nothing is flushed.
    stage.run_for(Duration::from_millis(1500));
    let over = Said::Over {
        operation: lost.unwrap(),
        succeeded: false,
    };
    assert_eq!(stage.client.count(&over), 1);
    stage.network.faults(|faults| faults.end(late));
    let second = stage.connect();
    for value in [2, 3] {
        stage.client.fill(PLACE, value);
        let again = stage.write(second, PLACE, SECOND).unwrap();
        stage.run_for(MILLISECOND);
        let over = Said::Over {
            operation: again,
            succeeded: true,
        };
        assert_eq!(stage.client.count(&over), 1);
        assert!(stage.server.holds(PLACE, value));
    }
    stage.server.fill(PLACE, 4);
    stage.run_for(LATE + SECOND);
    (0..=4)
        .find(|&value| stage.server.holds(PLACE, value))
        .unwrap_or(u8::MAX)
}

fn network() -> SimNetworkConfig {
    SimNetworkConfig {
        // 4.3 s, or 3.6 s: no packet is sent again before the late ones have arrived.
        timeout: 20,
        ..quiet()
    }
}

/// With or without saying which of its connections are gone.
fn real(incarnation: u64) -> impl FnMut(&mut dyn legato_verbs::Provider) -> Real {
    let mut lives = 0;
    move |nic| {
        lives += incarnation;
        let limits = FabricConfig {
            incarnation: lives,
            ..limits()
        };
        Real::limited(nic, limits)
    }
}

/// P-96: the design of o2iblnd before its fences: the resent write is complete, and then the first comes.
#[test]
fn a_write_that_comes_after_it_was_sent_again() {
    for personality in Personality::ALL {
        let personality = personality.attentive();
        let name = personality.name;
        let habits = Habits {
            returns_buffer_at_timeout: true,
            ..Habits::default()
        };
        let mut naive = Stage::on(personality, network(), Naive::with(habits));
        assert_eq!(resent(&mut naive), 1, "{name}");
        // A peer that does not know who asks cannot end what it has of them.
        let mut nameless = Stage::on(personality, network(), real(0));
        assert_eq!(resent(&mut nameless), 1, "{name}");
        let fabric = &nameless.client.stack.fabric;
        assert!(!fabric.is_after(nameless.client.stack.last(), 1), "{name}");
        let mut stage = Stage::on(personality, network(), real(1));
        assert_eq!(resent(&mut stage), 4, "{name}");
        let fabric = &stage.client.stack.fabric;
        assert!(fabric.is_after(stage.client.stack.last(), 1), "{name}");
        assert!(!fabric.is_after(stage.client.stack.last(), 2), "{name}");
    }
}

/// P-96: a rail that was there before is none to send again on, and says so.
#[test]
fn a_write_is_not_sent_again_on_an_older_rail() {
    let mut stage = Stage::on(Personality::IDEAL, network(), real(1));
    let [old, lost] = [0; 2].map(|_| stage.connect());
    stage.write(lost, PLACE, Duration::from_millis(1)).unwrap();
    let client = &mut stage.client;
    client.stack.close(&mut client.nic, lost);
    stage.run_for(SECOND + SECOND);
    let is_after = |stage: &Stage<Real>, rail| {
        let stack = &stage.client.stack;
        stack.fabric.is_after(stack.name(rail), 2)
    };
    assert!(!is_after(&stage, old));
    // Nor one that is made while the older one is there: it does not say that all before it is over.
    let new = stage.connect();
    assert!(!is_after(&stage, new));
    let client = &mut stage.client;
    client.stack.close(&mut client.nic, old);
    client.stack.close(&mut client.nic, new);
    stage.run_for(SECOND + SECOND);
    let newest = stage.connect();
    assert!(is_after(&stage, newest));
}
