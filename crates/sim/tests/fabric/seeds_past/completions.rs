//! Completions that say that something failed, and queues without room for them.

use super::stack::{Naive, Real, Stack};
use super::stage::Stage;
use crate::rig::{MILLISECOND, SECOND, quiet};
use legato_base::Duration;
use legato_sim::naive::{Habits, NaiveConfig};
use legato_sim::provider::Personality;
use legato_verbs::CompletionStatus;
use std::collections::BTreeSet;

const SHORTLY: Duration = Duration::from_micros(10);

/// One call is answered; then the server dies without a word, and another call is made.
fn dead_server<S: Stack>(mut stage: Stage<S>) -> Stage<S> {
    let connection = stage.connect();
    stage.call(connection, b"first", SECOND).unwrap();
    stage.run_for(MILLISECOND);
    stage.server.answer(0, b"of the first");
    stage.run_for(MILLISECOND);
    stage.network.kill("server");
    stage.server.paused = true;
    stage
        .call(connection, b"second", Duration::from_secs(30))
        .unwrap();
    for _ in 0..1000 {
        if stage.client.replies().len() == 2 {
            break;
        }
        stage.run_for(MILLISECOND);
    }
    stage
}

/// LegoOS, 1 April 2018: "send request failed at connection 6 as 12" (mlx4's syndrome 21 is this
/// status), then status 5 again and again, each read as a message: "Recv weird event as -30704".
#[test]
fn flushes_after_retry_exceeded_read_as_messages() {
    let habits = Habits {
        reads_failed_completions: true,
        slots_without_generation: true,
        ..Habits::default()
    };
    let make = || Stage::on(Personality::IDEAL, quiet(), Naive::with(habits));
    let stage = dead_server(make());
    let old = b"of the first".to_vec();
    let answers = [(0, old.clone()), (1, old.clone())];
    assert_eq!(stage.client.answers(), answers, "a dead peer has answered");
    let failures = &stage.client.stack.stack.counters().failures;
    assert_eq!(failures[0], CompletionStatus::RetryExceeded);
    let flushed = CompletionStatus::WorkRequestFlushed;
    assert!(failures[1..].iter().all(|&status| status == flushed));
    assert!(failures.len() > 8);
    // Without the habit each failure is one, and so it is in the fabric.
    let fine = [(0, Some(old)), (1, None)];
    let none = Naive::with(Habits::default());
    let stage = dead_server(Stage::on(Personality::IDEAL, quiet(), none));
    assert_eq!(stage.client.replies(), fine);
    let stage = dead_server(Stage::on(Personality::IDEAL, quiet(), Real::new));
    assert_eq!(stage.client.replies(), fine);
}

/// Three calls on each of four connections, all before the server looks: what is answered.
fn many_at_once<S: Stack>(mut stage: Stage<S>) -> (Stage<S>, usize) {
    let connections: Vec<usize> = (0..4).map(|_| stage.connect()).collect();
    stage.server.paused = true;
    for connection in connections.iter().cycle().take(12) {
        stage.call(*connection, b"?", SECOND).unwrap();
        stage.run_for(SHORTLY);
    }
    stage.server.paused = false;
    stage.run_for(MILLISECOND);
    for (request, _) in stage.server.requests() {
        stage.server.answer(request, b"!");
        stage.run_for(SHORTLY);
    }
    stage.run_for(SECOND);
    let answers = stage.client.answers();
    let distinct: BTreeSet<usize> = answers.iter().map(|answer| answer.0).collect();
    assert_eq!(distinct.len(), answers.len());
    (stage, distinct.len())
}

/// P-55: LegoOS, 8 September 2018: "CQ overrun on CQN 000082", then "event qp_event arrived" for each
/// queue pair of it.
#[test]
fn a_completion_queue_that_is_overrun() {
    let stage = |undersized_completion_queue| {
        let config = NaiveConfig {
            habits: Habits {
                undersized_completion_queue,
                ..Habits::default()
            },
            slots: 16,
            ..NaiveConfig::default()
        };
        Stage::new(move |nic| Naive::new(nic, config))
    };
    let (stage_of_habit, answered) = many_at_once(stage(true));
    assert_eq!(stage_of_habit.server.stack.stack.counters().overruns, 1);
    assert_eq!(answered, 0, "one queue is the end of all connections");
    let (stage, answered) = many_at_once(stage(false));
    assert_eq!(stage.server.stack.stack.counters().overruns, 0);
    assert_eq!(answered, 12);
    let (stage, answered) = many_at_once(Stage::new(Real::new));
    assert_eq!(answered, 12);
    assert_eq!(stage.server.stack.fabric.counters().connections_reset, 0);
}
