//! T9: a shared receive queue, its limit, and the event Last WQE Reached.

use super::rig::{End, NOBODY, Rig, Shape, USUAL, errno};
use legato_verbs::{QueuePairState, SharedReceiveQueue, SharedReceiveQueueCapabilities};

fn shared_new(rig: &mut Rig, receives: u64) -> SharedReceiveQueue {
    let capabilities = SharedReceiveQueueCapabilities {
        requests_max: 16,
        entries_max: 1,
    };
    let domain = rig.domain;
    let queue = rig.nic.create_shared_receive_queue(domain, capabilities);
    let queue = queue.unwrap();
    for number in 1..=receives {
        rig.post_shared(queue, number, 64);
    }
    queue
}

fn on(queue: SharedReceiveQueue) -> Shape {
    Shape {
        shared: Some(queue),
        ..Shape::default()
    }
}

/// A sender, and a receiver on the queue.
fn pair_on(rig: &mut Rig, queue: SharedReceiveQueue) -> (End, End) {
    let (a, b) = (rig.end_new(Shape::default()), rig.end_new(on(queue)));
    rig.join(&a, &b, &USUAL);
    (a, b)
}

fn put_armed(rig: &mut Rig, queue: SharedReceiveQueue, limit: u32) {
    let armed = errno(rig.nic.arm_shared_receive_queue(queue, limit));
    rig.field(&format!("armed={armed}"));
}

fn messages(rig: &mut Rig, from: &mut End, to: &mut End, count: usize, events: u32) {
    for _ in 0..count {
        rig.post_send(from, 8);
    }
    let wanted = (from.log.len() + count, to.log.len() + count);
    rig.watch(&mut [(from, wanted.0), (to, wanted.1)], events);
}

fn put_left(rig: &mut Rig, left: u32) {
    rig.field(&format!("left={left}"));
    rig.put_events();
}

fn limits(rig: &mut Rig) {
    let queue = shared_new(rig, 10);
    let (mut a, mut b) = pair_on(rig, queue);
    rig.line("T9 limit 7 of ten");
    put_armed(rig, queue, 7);
    messages(rig, &mut a, &mut b, 3, 0);
    put_left(rig, 7);
    messages(rig, &mut a, &mut b, 1, 1);
    put_left(rig, 6);
    let limit = rig.nic.query_shared_receive_queue(queue).unwrap();
    rig.field(&format!("limit={limit}"));
    messages(rig, &mut a, &mut b, 1, 0);
    put_left(rig, 5);
    rig.line_end();
    for (name, limit, left) in [
        ("T9 limit 5 of five, armed again", 5, 5),
        ("T9 limit 8 of four", 8, 4),
    ] {
        rig.line(name);
        put_armed(rig, queue, limit);
        rig.watch_events(0);
        put_left(rig, left);
        messages(rig, &mut a, &mut b, 1, 1);
        put_left(rig, left - 1);
        rig.line_end();
    }
    rig.line("T9 limit above the queue's size");
    put_armed(rig, queue, 1000);
    rig.line_end();
    rig.line("T9 messages into a shared queue");
    rig.put_sends(&a);
    rig.put_receives(&b);
    rig.line_end();
    rig.free_both(a, b);
    rig.nic.destroy_shared_receive_queue(queue).unwrap();
}

/// To ERR, by its owner, and a line with what comes of it.
fn put_error(rig: &mut Rig, end: &End, name: &str) {
    assert_eq!(rig.modify_to(end, QueuePairState::Error), 0, "to ERR");
    rig.watch_events(1);
    rig.line(name);
    rig.put_events();
}

fn unused(rig: &mut Rig, queue: SharedReceiveQueue) {
    let (a, mut b) = pair_on(rig, queue);
    rig.watch_events(0);
    rig.line("T9 last request, connected and idle");
    rig.put_events();
    rig.line_end();
    let name = "T9 last request, to ERR with four receives in the queue";
    put_error(rig, &b, name);
    rig.put_receives(&b);
    rig.line_end();
    rig.line("T9 last request, from ERR to ERR");
    let modified = rig.modify_to(&b, QueuePairState::Error);
    rig.field(&format!("modify={modified}"));
    rig.watch_events(1);
    rig.put_events();
    rig.line_end();
    rig.line("T9 last request, a send posted in ERR");
    let posted = rig.post_send(&mut b, 0);
    rig.field(&format!("post={posted}"));
    rig.watch(&mut [(&mut b, 1)], 1);
    rig.put_sends(&b);
    rig.put_events();
    rig.line_end();
    rig.destroy(&mut b);
    rig.watch_events(0);
    rig.line("T9 last request, destroyed");
    rig.put_events();
    rig.line_end();
    rig.free_both(a, b);
}

fn used_up(rig: &mut Rig, queue: SharedReceiveQueue) {
    let (mut a, mut b) = pair_on(rig, queue);
    messages(rig, &mut a, &mut b, 4, 0);
    rig.line("T9 the four receives serve another queue pair");
    rig.put_sends(&a);
    rig.put_receives(&b);
    rig.put_events();
    rig.line_end();
    let name = "T9 last request, to ERR after the queue was used up";
    put_error(rig, &b, name);
    rig.line_end();
    rig.free_both(a, b);

    let b = rig.end_new(on(queue));
    rig.reach(&b, NOBODY, &USUAL);
    let name = "T9 last request, to ERR with nothing in the queue";
    put_error(rig, &b, name);
    rig.line_end();
    rig.end_free(b);
}

/// The transport moves it to ERR here, not its owner.
fn too_long(rig: &mut Rig, queue: SharedReceiveQueue) {
    rig.post_shared(queue, 5, 8);
    rig.post_shared(queue, 6, 8);
    let (mut a, mut b) = pair_on(rig, queue);
    rig.post_send(&mut a, 64);
    rig.watch(&mut [(&mut a, 1), (&mut b, 1)], 1);
    rig.line("T9 last request, a message that is too long");
    rig.put_sends(&a);
    rig.put_receives(&b);
    rig.put_state("receiver", &b);
    rig.put_events();
    rig.line_end();
    rig.free_both(a, b);
}

pub(super) fn shared(rig: &mut Rig) {
    limits(rig);
    let queue = shared_new(rig, 4);
    unused(rig, queue);
    used_up(rig, queue);
    too_long(rig, queue);
    rig.nic.destroy_shared_receive_queue(queue).unwrap();
}
