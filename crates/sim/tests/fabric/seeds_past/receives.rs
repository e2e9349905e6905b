//! Receives that were posted twice, or not at all.

use super::stack::{Naive, Real, Said, Stack};
use super::stage::Stage;
use crate::rig::{MILLISECOND, SECOND};
use legato_base::Duration;
use legato_sim::naive::Habits;
use legato_verbs::VerbsError;

/// As many calls as there are receives, answered; then two that come before the server looks. The
/// requests that it sees of those.
fn two_at_once<S: Stack>(mut stage: Stage<S>) -> (Stage<S>, Vec<Vec<u8>>) {
    let connection = stage.connect();
    for call in 0..8 {
        stage.call(connection, b"warm up", SECOND).unwrap();
        stage.run_for(MILLISECOND);
        stage.server.answer(call, b"!");
        stage.run_for(MILLISECOND);
    }
    stage.server.paused = true;
    for body in [b"one", b"two"] {
        stage.call(connection, body, SECOND).unwrap();
        stage.run_for(MILLISECOND);
    }
    stage.server.paused = false;
    stage.run_for(MILLISECOND);
    let requests = stage.server.requests().split_off(8);
    let bodies = requests.into_iter().map(|(_, body)| body).collect();
    (stage, bodies)
}

/// LegoOS, 15 September 2018: poller and worker both posted what had been used.
#[test]
fn a_receive_posted_twice() {
    let habits = Habits {
        posts_receives_twice: true,
        posts_unchecked: true,
        ..Habits::default()
    };
    let (stage, bodies) = two_at_once(Stage::new(Naive::with(habits)));
    assert_eq!(bodies, [b"two", b"two"], "both came into one buffer");
    // "Fail to post recv conn_id: 12": nothing but a warning.
    assert!(stage.server.stack.stack.counters().receives_refused > 0);
    let (_, bodies) = two_at_once(Stage::new(Naive::with(Habits::default())));
    assert_eq!(bodies, [b"one", b"two"]);
    let (_, bodies) = two_at_once(Stage::new(Real::new));
    assert_eq!(bodies, [b"one", b"two"]);
}

/// The server's NIC refuses every receive while eight calls come, and takes them again afterwards.
/// True if the client gets an answer afterwards, if need be on another connection.
fn served_after_refusals<S: Stack>(stage: &mut Stage<S>) -> bool {
    let mut connection = stage.connect();
    stage.server.nic.refuse_receives = Some(VerbsError::QueueFull("receive"));
    for call in 0..8 {
        // It may know by now that the connection is over.
        stage.call(connection, b"?", MILLISECOND);
        stage.run_for(Duration::from_micros(500));
        if stage.server.requests().len() > call {
            stage.server.answer(call, b"!");
        }
        stage.run_for(Duration::from_micros(500));
    }
    stage.server.nic.refuse_receives = None;
    stage.run_for(Duration::from_millis(100));
    let over = Said::Ended { connection };
    if stage.client.count(&over) > 0 {
        connection = stage.connect();
    }
    let (asked, answered) = (stage.server.requests().len(), stage.client.answers().len());
    stage.call(connection, b"alive?", SECOND).unwrap();
    stage.run_for(MILLISECOND);
    if stage.server.requests().len() > asked {
        stage.server.answer(asked, b"yes");
    }
    stage.run_for(SECOND);
    stage.client.answers().len() > answered
}

/// LegoOS, 15 September 2018: "there is no error checking for ib_post_recv()".
#[test]
fn a_receive_that_was_refused_and_nobody_looked() {
    let habits = Habits {
        posts_unchecked: true,
        ..Habits::default()
    };
    let mut stage = Stage::new(Naive::with(habits));
    assert!(!served_after_refusals(&mut stage));
    // Eight were refused, and the server believes that all are there.
    assert_eq!(stage.server.stack.stack.counters().receives_refused, 8);
    assert!(served_after_refusals(&mut Stage::new(Naive::with(
        Habits::default()
    ))));
    let mut stage = Stage::new(Real::new);
    assert!(served_after_refusals(&mut stage));
    assert!(stage.server.stack.fabric.counters().posts_refused > 0);
}
