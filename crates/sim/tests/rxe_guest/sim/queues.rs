//! T7 and T8: queues that are full, and a completion queue that runs over.

use super::rig::{End, NOBODY, QUEUE, Rig, Shape, Tune, USUAL};
use legato_verbs::{CompletionQueue, QueuePairState, VerbsError};

const DEPTHS: u32 = 4 * QUEUE;

pub(super) fn slots(rig: &mut Rig) {
    let (mut a, mut b) = rig.pair();
    for _ in 0..8 {
        rig.post_receive(&mut b, 64);
    }
    for _ in 0..7 {
        rig.post_silent(&mut a, 8);
    }
    rig.post_send(&mut a, 8);
    rig.watch(&mut [(&mut a, 1), (&mut b, 8)], 0);
    rig.line("T7 seven silent sends and one that completes");
    rig.put_sends(&a);
    rig.put_receives(&b);
    rig.line_end();

    // Nothing is polled at the sender, because nothing completes there.
    let mut accepted = 0;
    while accepted < DEPTHS {
        rig.post_receive(&mut b, 64);
        if rig.post_silent(&mut a, 8) != 0 {
            break;
        }
        let wanted = b.log.len() + 1;
        rig.watch(&mut [(&mut b, wanted)], 0);
        accepted += 1;
    }
    rig.line("T7 silent sends one by one, four times the queue's depth");
    let accepted = match accepted {
        DEPTHS => "all",
        QUEUE.. => "depth",
        _ => "few",
    };
    rig.field(&format!("accepted={accepted}"));
    rig.put_events();
    rig.line_end();
    rig.free_both(a, b);
    full(rig);
}

/// Sends and receives until one is refused.
fn full(rig: &mut Rig) {
    // It must not give up while it is being filled.
    let patient = Tune {
        timeout: 20,
        ..USUAL
    };
    let mut a = rig.end_new(Shape {
        sends: 2,
        receives: 2,
        ..Shape::default()
    });
    rig.reach(&a, NOBODY, &patient);
    for sends in [true, false] {
        let (mut accepted, mut refused) = (0, 0);
        while accepted < 64 {
            refused = if sends {
                rig.post_silent(&mut a, 8)
            } else {
                rig.post_receive(&mut a, 8)
            };
            if refused != 0 {
                break;
            }
            accepted += 1;
        }
        rig.line(if sends {
            "T7 sends to nobody, depth 2"
        } else {
            "T7 receives, depth 2"
        });
        rig.field(&format!("accepted={accepted} refused={refused}"));
        rig.line_end();
    }
    rig.end_free(a);
}

fn small_queue(rig: &mut Rig) -> CompletionQueue {
    rig.nic.create_overcommitted_completion_queue(1).unwrap()
}

/// An end on the queue that ran over. Where the queue is over, so is its use: the line says so and
/// has no more.
fn end_on(rig: &mut Rig, queue: CompletionQueue, line: &str) -> Option<End> {
    let shape = Shape {
        queue: Some(queue),
        ..Shape::default()
    };
    match rig.try_end_new(shape) {
        Ok(end) => Some(end),
        Err(VerbsError::CompletionQueueOverrun) => {
            rig.line(line);
            rig.field("made=no");
            rig.line_end();
            None
        }
        Err(other) => panic!("{other}"),
    }
}

fn overrun_of_receives(rig: &mut Rig) {
    let small = small_queue(rig);
    let mut a = rig.end_new(Shape {
        receives: 40,
        queue: Some(small),
        ..Shape::default()
    });
    rig.reach(&a, NOBODY, &USUAL);
    for _ in 0..40 {
        rig.post_receive(&mut a, 8);
    }
    // Not polled before everything has been flushed.
    assert_eq!(rig.modify_to(&a, QueuePairState::Error), 0);
    rig.pause_ms(100);
    rig.watch_events(1);
    rig.line("T8 forty flushed receives, room for one");
    // The trait's queues without a ledger have exactly the room that was asked for.
    rig.field("room=1");
    rig.put_events();
    rig.watch(&mut [(&mut a, 1)], 0);
    rig.put_receives(&a);
    rig.put_state("state", &a);
    rig.line_end();
    rig.end_free(a);

    // Is the queue of use to others after that?
    let name = "T8 another queue pair on the queue that ran over";
    if let Some(mut a) = end_on(rig, small, name) {
        let mut b = rig.end_new(Shape::default());
        rig.join(&a, &b, &USUAL);
        rig.post_receive(&mut b, 8);
        rig.post_send(&mut a, 8);
        rig.watch(&mut [(&mut a, 1), (&mut b, 1)], 0);
        rig.line(name);
        rig.put_sends(&a);
        rig.put_receives(&b);
        rig.put_state("sender", &a);
        rig.put_events();
        rig.line_end();
        rig.free_both(a, b);
    }
    rig.nic.destroy_completion_queue(small).unwrap();
}

fn overrun_of_sends(rig: &mut Rig, small: CompletionQueue) {
    let mut a = rig.end_new(Shape {
        queue: Some(small),
        ..Shape::default()
    });
    let mut b = rig.end_new(Shape::default());
    rig.join(&a, &b, &USUAL);
    for _ in 0..4 {
        rig.post_receive(&mut b, 8);
    }
    for _ in 0..4 {
        rig.post_send(&mut a, 8);
    }
    rig.watch(&mut [(&mut b, 4)], 1);
    rig.line("T8 four sends, room for one");
    rig.put_events();
    rig.watch(&mut [(&mut a, 1)], 0);
    rig.put_sends(&a);
    rig.put_receives(&b);
    rig.put_state("sender", &a);
    rig.put_state("receiver", &b);
    rig.line_end();
    rig.post_receive(&mut b, 8);
    rig.post_send(&mut a, 8);
    let wanted = a.log.len() + 1;
    rig.watch(&mut [(&mut a, wanted), (&mut b, 5)], 0);
    rig.line("T8 one more send after that");
    rig.put_sends(&a);
    rig.put_receives(&b);
    rig.put_state("sender", &a);
    rig.put_events();
    rig.line_end();
    rig.free_both(a, b);
}

fn overrun_of_messages(rig: &mut Rig, small: CompletionQueue) {
    let name = "T8 four messages received, room for one";
    let Some(mut a) = end_on(rig, small, name) else {
        return;
    };
    let mut b = rig.end_new(Shape::default());
    rig.join(&a, &b, &USUAL);
    for _ in 0..4 {
        rig.post_receive(&mut a, 8);
    }
    for _ in 0..4 {
        rig.post_send(&mut b, 8);
    }
    rig.watch(&mut [(&mut b, 4)], 1);
    rig.line(name);
    rig.put_events();
    rig.watch(&mut [(&mut a, 1), (&mut b, 4)], 0);
    rig.put_receives(&a);
    rig.put_sends(&b);
    rig.put_state("receiver", &a);
    rig.put_state("sender", &b);
    rig.line_end();
    rig.free_both(a, b);
}

pub(super) fn overrun(rig: &mut Rig) {
    overrun_of_receives(rig);
    let small = small_queue(rig);
    overrun_of_sends(rig, small);
    overrun_of_messages(rig, small);
    rig.nic.destroy_completion_queue(small).unwrap();
}
