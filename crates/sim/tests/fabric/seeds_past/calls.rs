//! Replies that come when nobody waits for them any more.

use super::stack::{Naive, Real, Stack};
use super::stage::Stage;
use crate::rig::{MILLISECOND, SECOND};
use legato_base::Duration;
use legato_sim::naive::Habits;

/// Call 0 times out, call 1 follows it, and then the reply of call 0 comes.
fn late_reply<S: Stack>(mut stage: Stage<S>) -> Vec<(usize, Option<Vec<u8>>)> {
    let connection = stage.connect();
    stage.call(connection, b"first", MILLISECOND).unwrap();
    stage.run_for(Duration::from_millis(2));
    stage.call(connection, b"second", SECOND).unwrap();
    stage.run_for(MILLISECOND);
    stage.server.answer(0, b"of the first");
    stage.run_for(MILLISECOND);
    stage.server.answer(1, b"of the second");
    stage.run_for(MILLISECOND);
    stage.client.replies()
}

/// LegoOS, 1 April 2018: a call timed out, and 137 s later its reply went through the slot that it
/// had had.
#[test]
fn a_late_reply_through_a_freed_slot() {
    let habits = Habits {
        slots_without_generation: true,
        ..Habits::default()
    };
    let wrong = [(0, None), (1, Some(b"of the first".to_vec()))];
    assert_eq!(late_reply(Stage::new(Naive::with(habits))), wrong);
    let right = [(0, None), (1, Some(b"of the second".to_vec()))];
    let none = Habits::default();
    assert_eq!(late_reply(Stage::new(Naive::with(none))), right);
    assert_eq!(late_reply(Stage::new(Real::new)), right);
}

/// How many of 20 calls, all answered late, could be made.
fn calls_made<S: Stack>(mut stage: Stage<S>) -> usize {
    let connection = stage.connect();
    let mut made = 0;
    for _ in 0..20 {
        if stage.call(connection, b"?", MILLISECOND).is_some() {
            stage.run_for(Duration::from_millis(2));
            stage.server.answer(made, b"late");
            stage.run_for(MILLISECOND);
            made += 1;
        }
    }
    assert_eq!(stage.client.answers(), []);
    made
}

/// LegoOS, 1 April 2018: a time-out returned without giving the slot back; after as many time-outs
/// as there were slots the next call stopped the machine.
#[test]
fn slots_lost_to_time_outs() {
    let habits = Habits {
        leaks_slot_at_timeout: true,
        ..Habits::default()
    };
    assert_eq!(calls_made(Stage::new(Naive::with(habits))), 8);
    assert_eq!(calls_made(Stage::new(Naive::with(Habits::default()))), 20);
    assert_eq!(calls_made(Stage::new(Real::new)), 20);
}

const CODE: u8 = 0xC0;

/// Memory for a reply is something else by the time that the reply is written.
fn code_survives_a_reply<S: Stack>(mut stage: Stage<S>) -> bool {
    let connection = stage.connect();
    stage.call_into(connection, b"?", 5, MILLISECOND).unwrap();
    stage.run_for(Duration::from_millis(2));
    assert_eq!(stage.client.replies(), [(0, None)]);
    stage.client.fill(5, CODE);
    stage.server.answer(0, b"eight by");
    stage.run_for(MILLISECOND);
    stage.client.holds(5, CODE)
}

/// LegoOS, 3 September 2018: "Who wrote to this code memory?? Remote RDMA?"
#[test]
fn a_code_page_overwritten_by_a_late_reply() {
    let habits = Habits {
        replies_by_remote_write: true,
        ..Habits::default()
    };
    assert!(!code_survives_a_reply(Stage::new(Naive::with(habits))));
    assert!(code_survives_a_reply(Stage::new(Naive::with(
        Habits::default()
    ))));
    assert!(code_survives_a_reply(Stage::new(Real::new)));
}
