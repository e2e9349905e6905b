//! T10: what is left of a queue pair that ends, and how its peer learns of it.

use super::rig::{ALL_ACCESS, End, NOBODY, Rig, Shape, Tune, USUAL};
use legato_verbs::QueuePairState;

#[derive(Clone, Copy)]
enum Way {
    Destroyed,
    Erred,
    WentReset,
}

fn leave(rig: &mut Rig, end: &mut End, way: Way) {
    let state = match way {
        Way::Destroyed => return rig.destroy(end),
        Way::Erred => QueuePairState::Error,
        Way::WentReset => QueuePairState::Reset,
    };
    assert_eq!(rig.modify_to(end, state), 0, "{state:?}");
}

/// Two sends that nobody answers and three receives.
fn busy(rig: &mut Rig) -> End {
    let mut a = rig.end_new(Shape::default());
    let never = Tune {
        timeout: 20,
        ..USUAL
    };
    rig.reach(&a, NOBODY, &never);
    for _ in 0..3 {
        rig.post_receive(&mut a, 8);
    }
    for _ in 0..2 {
        rig.post_send(&mut a, 8);
    }
    a
}

fn own_end(rig: &mut Rig) {
    for (name, way, hoped) in [
        ("to ERR", Way::Erred, 5),
        ("destroyed", Way::Destroyed, 0),
        ("to RESET", Way::WentReset, 0),
    ] {
        let mut a = busy(rig);
        leave(rig, &mut a, way);
        rig.watch(&mut [(&mut a, hoped)], 0);
        rig.line(&format!("T10 {name} with two sends and three receives"));
        rig.put_sends(&a);
        rig.put_receives(&a);
        if !matches!(way, Way::WentReset) {
            rig.put_events();
        }
        rig.line_end();
        rig.end_free(a);
    }

    for (name, way) in [("destroyed", Way::Destroyed), ("to RESET", Way::WentReset)] {
        let mut a = busy(rig);
        leave(rig, &mut a, Way::Erred);
        rig.pause_ms(100);
        leave(rig, &mut a, way);
        rig.watch(&mut [(&mut a, 0)], 0);
        rig.line(&format!(
            "T10 {name} with five flushed completions not polled"
        ));
        rig.put_sends(&a);
        rig.put_receives(&a);
        rig.line_end();
        rig.end_free(a);
    }

    let (mut a, mut b) = rig.pair();
    rig.post_receive(&mut b, 8);
    rig.post_send(&mut a, 8);
    rig.watch(&mut [(&mut b, 1)], 0);
    leave(rig, &mut a, Way::Destroyed);
    rig.watch(&mut [(&mut a, 0)], 0);
    rig.line("T10 destroyed with a good send's completion not polled");
    rig.put_sends(&a);
    rig.line_end();
    rig.free_both(a, b);
}

fn peer_end(rig: &mut Rig, name: &str, state: QueuePairState, destroyed: bool) {
    use QueuePairState::{Error, Init, ReadyToReceive, Reset};
    let (mut a, mut b) = rig.two_ends();
    rig.reach(&a, b.number, &USUAL);
    if state != Reset {
        assert_eq!(rig.modify_to_init(&b, ALL_ACCESS), 0, "to INIT");
    }
    if !matches!(state, Reset | Init) {
        assert_eq!(rig.modify_to_rtr(&b, a.number), 0, "to RTR");
    }
    if !matches!(state, Reset | Init | ReadyToReceive) {
        assert_eq!(rig.modify_to_rts(&b, &USUAL), 0, "to RTS");
    }
    if state != Reset {
        rig.post_receive(&mut b, 8);
    }
    if destroyed {
        leave(rig, &mut b, Way::Destroyed);
    } else if state == Error {
        leave(rig, &mut b, Way::Erred);
    }
    rig.post_send(&mut a, 8);
    rig.watch(&mut [(&mut a, 1), (&mut b, 0)], 0);
    rig.line(&format!("T10 the peer {name}"));
    rig.put_sends(&a);
    rig.put_receives(&b);
    rig.put_state("sender", &a);
    rig.put_events();
    rig.line_end();
    rig.free_both(a, b);
}

/// Objects that come and go: what is left over would make a later creation fail.
fn many(rig: &mut Rig) {
    let mut made = 0;
    for _ in 0..200 {
        let (mut a, mut b) = rig.pair();
        rig.post_receive(&mut b, 8);
        leave(rig, &mut b, Way::Erred);
        leave(rig, &mut a, Way::Erred);
        rig.free_both(a, b);
        made += 1;
    }
    rig.line("T10 two hundred pairs that come and go");
    rig.field(&format!("made={made}"));
    rig.put_events();
    rig.line_end();
}

pub(super) fn ends(rig: &mut Rig) {
    own_end(rig);
    peer_end(rig, "is destroyed", QueuePairState::ReadyToSend, true);
    peer_end(rig, "is in ERR", QueuePairState::Error, false);
    peer_end(rig, "is in RESET", QueuePairState::Reset, false);
    peer_end(rig, "is in INIT", QueuePairState::Init, false);
    peer_end(rig, "is in RTR", QueuePairState::ReadyToReceive, false);
    many(rig);
}
