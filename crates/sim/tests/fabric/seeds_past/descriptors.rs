//! Buffers of one-sided operations that came back too early, or twice.

use super::stack::{Naive, Real, Said, Stack, limits};
use super::stage::Stage;
use crate::rig::{MILLISECOND, SECOND};
use legato_base::Duration;
use legato_fabric::FabricConfig;
use legato_sim::naive::Habits;
use legato_sim::provider::{LateWrites, Personality, SimNetworkConfig};
use legato_verbs::Provider;

const CODE: u8 = 0xC0;

/// A read times out while the server's NIC stands still. When the buffer is back something else
/// is put there; then the server's NIC goes on. Is it still there?
fn code_survives_a_read<S: Stack>(mut stage: Stage<S>) -> bool {
    let connection = stage.connect();
    stage.network.freeze("server");
    let operation = stage.read(connection, 5, MILLISECOND).unwrap();
    let returned = Said::Returned { operation };
    let mut filled = false;
    for thaws in [false, true] {
        if thaws {
            stage.network.unfreeze("server");
        }
        for _ in 0..100 {
            stage.run_for(Duration::from_micros(500));
            if !filled && stage.client.count(&returned) > 0 {
                stage.client.fill(5, CODE);
                filled = true;
            }
        }
    }
    assert_eq!(stage.client.count(&returned), 1);
    assert_eq!(
        stage.client.count(&Said::Over {
            operation,
            succeeded: false
        }),
        1
    );
    stage.client.holds(5, CODE)
}

/// LegoOS, 3 September 2018, by the other way in which a NIC writes late.
#[test]
fn a_code_page_overwritten_by_a_late_read() {
    let habits = Habits {
        returns_buffer_at_timeout: true,
        ..Habits::default()
    };
    assert!(!code_survives_a_read(Stage::new(Naive::with(habits))));
    assert!(code_survives_a_read(Stage::new(Naive::with(
        Habits::default()
    ))));
    assert!(code_survives_a_read(Stage::new(Real::new)));
}

/// A peer that dies is found out before its requests have run out of retries.
fn found_quickly() -> SimNetworkConfig {
    SimNetworkConfig {
        detection_time: Some(Duration::from_millis(5)),
        ..SimNetworkConfig::default()
    }
}

/// The peer dies under three writes: how often each is over, and how often each buffer comes back.
fn ends_under_a_dead_peer<S: Stack>(mut stage: Stage<S>) -> Vec<(usize, usize)> {
    let connection = stage.connect();
    stage.network.kill("server");
    stage.server.paused = true;
    for piece in 0..3 {
        stage.write(connection, piece, SECOND).unwrap();
    }
    stage.run_for(SECOND);
    assert_eq!(stage.client.queue_pairs(), 0);
    (0..3)
        .map(|operation| {
            let over = [true, false].map(|succeeded| {
                stage.client.count(&Said::Over {
                    operation,
                    succeeded,
                })
            });
            let returned = stage.client.count(&Said::Returned { operation });
            (over[0] + over[1], returned)
        })
        .collect()
}

/// Lustre, 2008: "invalidate the state of the various buffer descriptors, and wait for them to
/// trickle out", and the question what to finalise, and when.
#[test]
fn descriptors_pulled_back_while_the_engine_runs_are_finalised_twice() {
    let habits = Habits {
        pulls_descriptors_back: true,
        ..Habits::default()
    };
    let ideal = Personality::IDEAL;
    let naive = Stage::on(ideal, found_quickly(), Naive::with(habits));
    assert_eq!(ends_under_a_dead_peer(naive), [(2, 2); 3]);
    let none = Stage::on(ideal, found_quickly(), Naive::with(Habits::default()));
    assert_eq!(ends_under_a_dead_peer(none), [(1, 1); 3]);
    let real = Stage::on(ideal, found_quickly(), Real::new);
    assert_eq!(ends_under_a_dead_peer(real), [(1, 1); 3]);
}

/// The engine goes on writing into what it was made to give back, whether or not the link is up.
const RUNS: Personality = Personality {
    late_writes: Some(LateWrites {
        stops_with_link: false,
        ..HABIT
    }),
    ..Personality::CLOCKED
};
const HABIT: LateWrites = Personality::CLOCKED.late_writes.unwrap();

/// The peer dies under a read, or the link goes down with it. When the buffer is back something
/// else is put there: is it still there later?
fn code_survives_a_dead_peer<S: Stack>(mut stage: Stage<S>, link_fails: bool) -> bool {
    let connection = stage.connect();
    stage.network.kill("server");
    stage.server.paused = true;
    let operation = stage.read(connection, 5, SECOND).unwrap();
    stage.run_for(MILLISECOND);
    if link_fails {
        stage.network.set_link("client", false);
    }
    let returned = Said::Returned { operation };
    let mut filled = false;
    for _ in 0..1000 {
        stage.run_for(Duration::from_micros(200));
        if !filled && stage.client.count(&returned) > 0 {
            stage.client.fill(5, CODE);
            filled = true;
        }
    }
    assert!(filled);
    stage.client.holds(5, CODE)
}

fn bounded(nic: &mut dyn Provider) -> Real {
    let config = FabricConfig {
        late_write_bound: HABIT.lasts,
        ..limits()
    };
    Real::limited(nic, config)
}

/// The same plan: "it's safe to yank out the pending buffer descriptors without having it scribble
/// all over the memory later" only where the engine is known to have stopped.
#[test]
fn a_peer_failure_is_not_a_link_failure() {
    let habits = Habits {
        pulls_descriptors_back: true,
        ..Habits::default()
    };
    let (runs, stops) = (RUNS, Personality::CLOCKED);
    let naive = |engine| Stage::on(engine, found_quickly(), Naive::with(habits));
    // With the link down the engine is not clocked.
    assert!(code_survives_a_dead_peer(naive(stops), true));
    assert!(!code_survives_a_dead_peer(naive(stops), false));
    assert!(!code_survives_a_dead_peer(naive(runs), true));
    for (engine, link_fails) in [(stops, true), (stops, false), (runs, true), (runs, false)] {
        let real = Stage::on(engine, found_quickly(), bounded);
        assert!(code_survives_a_dead_peer(real, link_fails));
    }
}

/// A write is done, and before the client looks the server is gone. What the client is told.
fn lost_race<S: Stack>(mut stage: Stage<S>) -> Vec<Said> {
    let connection = stage.connect();
    stage.client.fill(3, 7);
    stage.write(connection, 3, SECOND).unwrap();
    stage.client.paused = true;
    stage.run_for(MILLISECOND);
    assert!(stage.server.holds(3, 7));
    stage.network.kill("server");
    stage.server.paused = true;
    stage.run_for(Duration::from_millis(20));
    stage.client.paused = false;
    stage.client.said.clear();
    stage.run_for(SECOND);
    let ended = stage.client.said.iter();
    ended
        .filter(|said| matches!(said, Said::Over { .. } | Said::Returned { .. }))
        .cloned()
        .collect()
}

/// The same plan: "If they come back ok, presumably that means I lost the race, and they get
/// finalized as normal."
#[test]
fn a_transmit_that_comes_back_well_after_the_peer_is_down() {
    let habits = Habits {
        pulls_descriptors_back: true,
        ..Habits::default()
    };
    let over = |succeeded| Said::Over {
        operation: 0,
        succeeded,
    };
    let returned = Said::Returned { operation: 0 };
    let ideal = Personality::IDEAL;
    let naive = Stage::on(ideal, found_quickly(), Naive::with(habits));
    let both = [over(false), returned.clone(), over(true), returned.clone()];
    assert_eq!(lost_race(naive), both);
    let real = Stage::on(ideal, found_quickly(), Real::new);
    assert_eq!(lost_race(real), [over(true), returned]);
}
