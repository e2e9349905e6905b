//! T1 to T4: messages that arrive, and messages for which there is nobody, no receive, or no room.

use super::rig::{End, MTU, NOBODY, RECEIVES, Rig, Shape, Tune, USUAL};
use legato_base::Duration;
use legato_verbs::{Completion, CompletionKind};

const SENDER: [&str; 2] = ["sender", "receiver"];

pub(super) fn order(rig: &mut Rig) {
    let (mut a, mut b) = rig.pair();
    for _ in 0..4 {
        rig.post_receive(&mut b, 64);
    }
    for _ in 0..4 {
        rig.post_send(&mut a, 32);
    }
    rig.watch(&mut [(&mut a, 4), (&mut b, 4)], 0);
    rig.line("T1 four messages");
    rig.put_pair(&a, &b, SENDER);

    rig.post_receive(&mut b, 64);
    rig.post_send(&mut a, 0);
    rig.post_receive(&mut b, 2 * MTU + 1);
    rig.post_send(&mut a, 2 * MTU + 1);
    rig.watch(&mut [(&mut a, 6), (&mut b, 6)], 0);
    rig.line("T1 lengths none and three packets");
    let lengths = [length_of(&b, 4), length_of(&b, 5)];
    rig.field(&format!("received={},{}", lengths[0], lengths[1]));
    let inbox = rig.inbox;
    let right = rig.written(&inbox) == 2 * MTU as usize + 1;
    rig.field(if right { "bytes=right" } else { "bytes=wrong" });
    rig.put_events();
    rig.line_end();
    rig.wipe_inbox();
    rig.free_both(a, b);
    one_queue(rig);
}

fn length_of(end: &End, number: usize) -> u32 {
    match end.log.get(number).map(|completion| completion.result) {
        Some(Ok(CompletionKind::Receive { length })) => length,
        other => panic!("no message: {other:?}"),
    }
}

/// Both ends' completions in one queue: those of each end in their order, the merge is open.
fn one_queue(rig: &mut Rig) {
    let queue = rig.nic.create_completion_queue(64).unwrap();
    let shape = Shape {
        queue: Some(queue),
        ..Shape::default()
    };
    let (mut a, mut b) = (rig.end_new(shape), rig.end_new(shape));
    rig.join(&a, &b, &USUAL);
    for _ in 0..2 {
        rig.post_receive(&mut b, 64);
    }
    for _ in 0..2 {
        rig.post_send(&mut a, 32);
    }
    rig.watch(&mut [(&mut a, 4)], 0);
    rig.line("T1 one completion queue, two messages");
    let name = |completion: &Completion| {
        let number = completion.wr_id.0;
        let queue = if number > RECEIVES { 'r' } else { 's' };
        format!("{queue}{}", number % RECEIVES)
    };
    let names: Vec<_> = a.log.iter().map(name).collect();
    rig.field(&format!("order={}", names.join(",")));
    rig.line_end();
    rig.free_both(a, b);
    rig.nic.destroy_completion_queue(queue).unwrap();
}

pub(super) fn nobody(rig: &mut Rig) {
    let mut a = rig.end_new(Shape::default());
    rig.reach(&a, NOBODY, &USUAL);
    rig.post_receive(&mut a, 64);
    rig.post_receive(&mut a, 64);
    let start = rig.now();
    for _ in 0..3 {
        rig.post_silent(&mut a, 64);
    }
    // The moment that is waited longer is in the C program's measure too.
    rig.watch(&mut [(&mut a, 1)], 0);
    let retried = rig.now().since(start) > Duration::from_millis(134);
    rig.watch(&mut [(&mut a, 5)], 0);
    rig.line("T2 nobody there, three silent sends and two receives");
    rig.put_sends(&a);
    rig.put_receives(&a);
    rig.put_state("sender", &a);
    rig.field(if retried { "retried=yes" } else { "retried=no" });
    rig.put_events();
    rig.line_end();
    rig.end_free(a);

    for retry_count in 5..=7 {
        let tune = Tune {
            timeout: 10,
            retry_count,
            ..USUAL
        };
        let mut a = rig.end_new(Shape::default());
        rig.reach(&a, NOBODY, &tune);
        rig.post_send(&mut a, 64);
        // The seventh would be 34 ms; what has not given up after a second never will.
        for _ in 0..10 {
            if !a.log.is_empty() {
                break;
            }
            let (pause, wanted) = if retry_count == 7 { (100, 0) } else { (0, 1) };
            rig.pause_ms(pause);
            rig.watch(&mut [(&mut a, wanted)], 0);
        }
        rig.line(&format!(
            "T2 nobody there, timeout 10, retry_count {retry_count}"
        ));
        rig.put_sends(&a);
        rig.put_state("sender", &a);
        rig.line_end();
        rig.end_free(a);
    }
}

pub(super) fn no_receive(rig: &mut Rig) {
    for rnr_retry in [0, 2] {
        let (mut a, mut b) = rig.two_ends();
        rig.join(&a, &b, &Tune { rnr_retry, ..USUAL });
        rig.post_send(&mut a, 8);
        rig.post_send(&mut a, 8);
        rig.watch(&mut [(&mut a, 2), (&mut b, 0)], 0);
        rig.line(&format!("T3 no receive, rnr_retry {rnr_retry}"));
        rig.put_pair(&a, &b, SENDER);
        rig.free_both(a, b);
    }

    let tune = Tune {
        rnr_retry: 7,
        ..USUAL
    };
    let (mut a, mut b) = rig.two_ends();
    rig.join(&a, &b, &tune);
    rig.post_send(&mut a, 8);
    rig.watch(&mut [(&mut a, 0), (&mut b, 0)], 0);
    rig.pause_ms(100);
    rig.watch(&mut [(&mut a, 0), (&mut b, 0)], 0);
    rig.line("T3 no receive, rnr_retry 7, before the receive");
    rig.put_sends(&a);
    rig.put_state("sender", &a);
    rig.line_end();
    rig.post_receive(&mut b, 8);
    rig.watch(&mut [(&mut a, 1), (&mut b, 1)], 0);
    rig.line("T3 no receive, rnr_retry 7, after the receive");
    rig.put_pair(&a, &b, SENDER);
    rig.free_both(a, b);
}

pub(super) fn too_long(rig: &mut Rig) {
    for (name, room, length) in [
        ("64 bytes into 64", 64, 64),
        ("64 bytes into 16", 16, 64),
        ("four packets into two", 2 * MTU, 4 * MTU),
    ] {
        let (mut a, mut b) = rig.pair();
        rig.wipe_inbox();
        rig.post_receive(&mut b, room);
        rig.post_receive(&mut b, room);
        rig.post_send(&mut a, length);
        rig.post_send(&mut a, 8);
        rig.watch(&mut [(&mut a, 2), (&mut b, 2)], 0);
        rig.line(&format!("T4 {name}"));
        rig.put_pair(&a, &b, SENDER);
        rig.free_both(a, b);
        rig.wipe_inbox();
    }
}
