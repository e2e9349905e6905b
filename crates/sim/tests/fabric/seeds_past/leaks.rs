//! Queue pairs that nobody releases.

use super::stack::{Naive, Real, Stack, limits};
use super::stage::Stage;
use crate::rig::{MILLISECOND, quiet};
use legato_base::Duration;
use legato_fabric::FabricConfig;
use legato_sim::naive::{Habits, NaiveConfig};
use legato_sim::provider::{Personality, SimNetworkConfig};

/// How many of twenty times a connection can be made and ended, and the queue pairs of both sides
/// that are left.
fn cycles<S: Stack>(mut stage: Stage<S>) -> (usize, [usize; 2]) {
    let mut made = 0;
    for _ in 0..20 {
        let Some(connection) = stage.try_connect() else {
            break;
        };
        stage.call(connection, b"ping", MILLISECOND);
        stage.run_for(MILLISECOND);
        let client = &mut stage.client;
        client.stack.close(&mut client.nic, connection);
        // Longer than a time-wait state and any wait of the fabric.
        stage.run_for(Duration::from_secs(3));
        made += 1;
    }
    let left = [stage.client.queue_pairs(), stage.server.queue_pairs()];
    (made, left)
}

fn config(habits: Habits, shares_receives: bool) -> NaiveConfig {
    NaiveConfig {
        habits,
        shares_receives,
        ..NaiveConfig::default()
    }
}

fn naive_cycles(
    personality: Personality,
    habits: Habits,
    shares_receives: bool,
) -> (usize, [usize; 2]) {
    let config = config(habits, shares_receives);
    let make = |nic: &mut dyn legato_verbs::Provider| Naive::new(nic, config);
    cycles(Stage::on(personality, SimNetworkConfig::default(), make))
}

/// IPoIB, July 2008: "We have seen heavy QP resource leakages in ehca for both nonSRQ and SRQ".
/// With a shared receive queue it waited for Last Work Request Reached, and then for a request
/// posted behind it. ehca completes no such request; others never raise the event.
#[test]
fn queue_pairs_that_wait_for_their_last_work_request() {
    let habits = Habits {
        waits_for_last_work_request_event: true,
        ..Habits::default()
    };
    for personality in [Personality::EHCA, Personality::IWARP] {
        let (made, left) = naive_cycles(personality, habits, true);
        assert_eq!((made, left), (4, [4, 4]), "{}", personality.name);
    }
    assert_eq!(naive_cycles(Personality::IDEAL, habits, true), (20, [0, 0]));
}

/// Without a shared receive queue it counted flushed receives, or looked at nothing.
#[test]
fn queue_pairs_that_wait_for_their_receives() {
    let habits = Habits {
        counts_flushed_receives: true,
        ..Habits::default()
    };
    let (made, left) = naive_cycles(Personality::EHCA, habits, false);
    assert_eq!((made, left), (4, [4, 4]));
    assert_eq!(
        naive_cycles(Personality::IDEAL, habits, false),
        (20, [0, 0])
    );
    let event = Habits {
        waits_for_last_work_request_event: true,
        ..Habits::default()
    };
    // The event is one of queue pairs that share their receives.
    let (made, left) = naive_cycles(Personality::IDEAL, event, false);
    assert_eq!((made, left), (4, [4, 4]));
}

/// The fabric with receives of each connection's own, and with shared ones.
fn real(shared_receives: Option<u32>) -> impl FnMut(&mut dyn legato_verbs::Provider) -> Real {
    move |nic| {
        let limits = FabricConfig {
            shared_receives,
            ..limits()
        };
        Real::limited(nic, limits)
    }
}

/// For four connections with all their credits, and what they may keep.
const SHARED: Option<u32> = Some(80);

#[test]
fn the_fabric_waits_for_nothing_that_may_not_come() {
    for personality in Personality::ALL {
        for shared in [None, SHARED] {
            let stage = Stage::on(personality, SimNetworkConfig::default(), real(shared));
            assert_eq!(
                cycles(stage),
                (20, [0, 0]),
                "{} {shared:?}",
                personality.name
            );
        }
    }
}

/// The same letter: "If node-1 fails to send DREQ for any reason to remote, like node-1 shutdown,
/// then RX QP in node-2 will be put in the error list after around 21 mins".
fn left_by_a_dead_client<S: Stack>(mut stage: Stage<S>) -> usize {
    stage.connect();
    stage.network.kill("client");
    stage.client.paused = true;
    stage.run_for(Duration::from_secs(12));
    stage.server.queue_pairs()
}

#[test]
fn a_queue_pair_whose_disconnect_was_lost() {
    let make = Naive::with(Habits::default());
    let naive = Stage::on(Personality::IDEAL, quiet(), make);
    assert_eq!(left_by_a_dead_client(naive), 1);
    for personality in Personality::ALL {
        for shared in [None, SHARED] {
            let real = Stage::on(personality, quiet(), real(shared));
            assert_eq!(
                left_by_a_dead_client(real),
                0,
                "{} {shared:?}",
                personality.name
            );
        }
    }
}
