//! Waits without an end, and waits that burn a processor.

use super::stack::{Naive, Real, Stack};
use super::stage::Stage;
use crate::rig::{MILLISECOND, SECOND};
use legato_base::Duration;
use legato_sim::fault::{CompletionEffect, Effect, Frequency, Rule, Scope};
use legato_sim::naive::Habits;
use legato_transport::WorkQueue;

/// The completion of the server's first reply is lost. How many of three calls are answered.
fn answered<S: Stack>(stage: &mut Stage<S>) -> usize {
    let connection = stage.connect();
    let lost = Effect::Completion {
        of: Some(WorkQueue::Send),
        effect: CompletionEffect::Lose,
    };
    let server = Scope::Machine(stage.number("server"));
    stage.add(Rule::new(Frequency::First(1), lost).within(server));
    for call in 0..3 {
        stage.call(connection, b"?", SECOND).unwrap();
        stage.run_for(MILLISECOND);
        if stage.server.requests().len() > call {
            stage.server.answer(call, b"!");
        }
        stage.run_for(Duration::from_millis(10));
    }
    stage.client.answers().len()
}

/// LegoOS, 11 September 2018: "Fail to get the CQE from send_cq after 20 seconds", in the reply to
/// an open, and the storage node did nothing else any more.
#[test]
fn a_send_completion_that_never_comes() {
    let habits = Habits {
        waits_for_completion_for_ever: true,
        ..Habits::default()
    };
    let mut stage = Stage::new(Naive::with(habits));
    assert_eq!(answered(&mut stage), 1);
    assert!(stage.server.stack.stack.is_stuck());
    assert!(stage.server.stack.stack.counters().polls_stuck > 10_000);
    let none = Naive::with(Habits::default());
    assert_eq!(answered(&mut Stage::new(none)), 3);
    assert_eq!(answered(&mut Stage::new(Real::new)), 3);
}

/// How often a client runs while a server does not answer for ten milliseconds.
fn turns_of_a_waiter<S: Stack>(mut stage: Stage<S>) -> u64 {
    let connection = stage.connect();
    stage.server.paused = true;
    stage.call(connection, b"?", SECOND).unwrap();
    let before = stage.client.turns;
    stage.run_for(Duration::from_millis(10));
    stage.client.turns - before
}

/// LegoOS, 11 September 2018: "rcu_sched self-detected stall on CPU", in a handler of a queue of
/// waiting calls.
#[test]
fn a_waiting_loop_that_stalls_a_processor() {
    let habits = Habits {
        spins_while_waiting: true,
        ..Habits::default()
    };
    assert!(turns_of_a_waiter(Stage::new(Naive::with(habits))) > 9_000);
    assert!(turns_of_a_waiter(Stage::new(Naive::with(Habits::default()))) < 30);
    assert!(turns_of_a_waiter(Stage::new(Real::new)) < 30);
}
