//! T12: which posts and which changes of state are accepted in which state.

use super::lines::state_name;
use super::rig::{ALL_ACCESS, End, NOBODY, PORT, Rig, Shape, USUAL};
use legato_verbs::QueuePairState::{
    self, Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError,
};
use legato_verbs::{QueuePairAttributes, RetryCount};

const ALL: [QueuePairState; 7] = [
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    SendQueueDrain,
    SendQueueError,
    Error,
];

/// Where a probe starts. A queue pair cannot be put into SQE by its owner.
fn starts() -> impl Iterator<Item = QueuePairState> {
    ALL.into_iter().filter(|state| *state != SendQueueError)
}

/// What each state requires when it comes from the one before it.
fn go(rig: &mut Rig, end: &End, state: QueuePairState) -> i32 {
    match (state, rig.state_of(end)) {
        (Init, _) => rig.modify_to_init(end, ALL_ACCESS),
        (ReadyToReceive, _) => rig.modify_to_rtr(end, NOBODY),
        // From the states behind RTS, and from itself, nothing but the state is needed.
        (ReadyToSend, ReadyToSend | SendQueueDrain | SendQueueError) => rig.modify_to(end, state),
        (ReadyToSend, _) => rig.modify_to_rts(end, &USUAL),
        _ => rig.modify_to(end, state),
    }
}

fn fresh(rig: &mut Rig, state: QueuePairState) -> End {
    let path: &[QueuePairState] = match state {
        Error => &[Init, Error],
        _ => &[Init, ReadyToReceive, ReadyToSend, SendQueueDrain],
    };
    let end = rig.end_new(Shape::default());
    for next in path {
        if rig.state_of(&end) != state {
            assert_eq!(go(rig, &end, *next), 0, "to {next:?}");
        }
    }
    end
}

fn transitions(rig: &mut Rig) {
    for from in starts() {
        rig.line(&format!("T12 from {} to", state_name(from)));
        let mut kept = true;
        for to in ALL {
            let end = fresh(rig, from);
            let result = go(rig, &end, to);
            rig.field(&format!("{}={result}", state_name(to)));
            let expected = if result == 0 { to } else { from };
            kept &= rig.state_of(&end) == expected;
            rig.end_free(end);
        }
        rig.field(if kept {
            "consistent=yes"
        } else {
            "consistent=no"
        });
        rig.line_end();
    }
    rig.watch_events(0);
    rig.line("T12 events of all those changes");
    rig.put_events();
    rig.line_end();
}

fn masks(rig: &mut Rig) {
    let init = QueuePairAttributes {
        access_flags: Some(ALL_ACCESS),
        ..QueuePairAttributes::INIT
    };
    let changes = [
        (
            "INIT without its access flags",
            QueuePairAttributes {
                access_flags: None,
                ..init
            },
        ),
        (
            "INIT with a retry count",
            QueuePairAttributes {
                retry_count: RetryCount::new(0),
                ..init
            },
        ),
        (
            "INIT on port 2 of 1",
            QueuePairAttributes {
                port: Some(PORT + 1),
                ..init
            },
        ),
        (
            "RTS without a sequence number",
            QueuePairAttributes {
                timeout: Some(14),
                retry_count: RetryCount::new(3),
                rnr_retry: Some(0),
                initiator_depth: Some(0),
                ..QueuePairAttributes::NONE
            },
        ),
    ];
    for (name, attributes) in changes {
        let (from, to) = if name.starts_with("RTS") {
            (ReadyToReceive, ReadyToSend)
        } else {
            (Reset, Init)
        };
        let end = fresh(rig, from);
        rig.line(&format!("T12 to {name}"));
        let modified = rig.modify(&end, to, &attributes);
        rig.field(&format!("modify={modified}"));
        rig.put_state("state", &end);
        rig.line_end();
        rig.end_free(end);
    }
}

fn put_both(rig: &mut Rig, end: &End) {
    rig.put_sends(end);
    rig.put_receives(end);
}

fn posts(rig: &mut Rig) {
    for state in starts() {
        let mut end = fresh(rig, state);
        rig.line(&format!("T12 posts in {}", state_name(state)));
        let send = rig.post_send(&mut end, 8);
        rig.field(&format!("send={send}"));
        let receive = rig.post_receive(&mut end, 8);
        rig.field(&format!("receive={receive}"));
        rig.watch(&mut [(&mut end, usize::from(state == Error))], 0);
        put_both(rig, &end);
        // Then everything that is posted, and maybe what was refused, is flushed.
        if !matches!(state, Reset | Error) {
            end.log.clear();
            assert_eq!(rig.modify_to(&end, Error), 0, "to ERR");
            rig.watch(&mut [(&mut end, 1)], 0);
            rig.field("then in ERR");
            put_both(rig, &end);
        }
        rig.line_end();
        rig.end_free(end);
    }
    // Which of the two lets the other go?
    for (name, send_first) in [("receive", false), ("send", true)] {
        let mut end = fresh(rig, Error);
        let one = |rig: &mut Rig, end: &mut End, send| {
            if send {
                rig.post_send(end, 8)
            } else {
                rig.post_receive(end, 8)
            }
        };
        rig.line(&format!("T12 posts in ERR, a {name} first"));
        let posted = one(rig, &mut end, send_first);
        rig.field(&format!("post={posted}"));
        rig.watch(&mut [(&mut end, usize::from(send_first))], 0);
        put_both(rig, &end);
        let posted = one(rig, &mut end, !send_first);
        rig.field(&format!("then post={posted}"));
        rig.pause_ms(100);
        let wanted = if send_first { 1 } else { 2 };
        rig.watch(&mut [(&mut end, wanted)], 0);
        put_both(rig, &end);
        rig.line_end();
        rig.end_free(end);
    }
    rig.watch_events(0);
    rig.line("T12 events of all those posts");
    rig.put_events();
    rig.line_end();
}

/// A send that is refused before RTS: is it forgotten?
fn refused_sends(rig: &mut Rig) {
    let (mut a, mut b) = rig.two_ends();
    assert_eq!(rig.modify_to_init(&a, ALL_ACCESS), 0, "to INIT");
    rig.line("T12 a send refused in INIT");
    let posted = rig.post_send(&mut a, 8);
    rig.field(&format!("post={posted}"));
    assert_eq!(rig.modify_to_rtr(&a, b.number), 0, "to RTR");
    assert_eq!(rig.modify_to_rts(&a, &USUAL), 0, "to RTS");
    rig.reach(&b, a.number, &USUAL);
    for _ in 0..3 {
        rig.post_receive(&mut b, 8);
    }
    rig.watch(&mut [(&mut a, 0), (&mut b, 0)], 0);
    rig.field("then in RTS");
    put_ends(rig, &a, &b);
    rig.line_end();
    rig.line("T12 a send after one that was refused in INIT");
    put_second(rig, &mut a, &mut b);
    rig.free_both(a, b);

    let (mut a, mut b) = rig.two_ends();
    rig.line("T12 a send after one that was refused in RESET");
    let posted = rig.post_send(&mut a, 8);
    rig.field(&format!("refused={posted}"));
    rig.join(&a, &b, &USUAL);
    for _ in 0..3 {
        rig.post_receive(&mut b, 8);
    }
    put_second(rig, &mut a, &mut b);
    rig.free_both(a, b);
}

/// A send in RTS, and all that has arrived.
fn put_second(rig: &mut Rig, a: &mut End, b: &mut End) {
    let posted = rig.post_send(a, 8);
    rig.field(&format!("post={posted}"));
    rig.watch(&mut [(a, 2), (b, 2)], 0);
    put_ends(rig, a, b);
    rig.put_state("sender", a);
    rig.line_end();
}

fn draining(rig: &mut Rig) {
    let (mut a, mut b) = rig.pair();
    for _ in 0..3 {
        rig.post_receive(&mut b, 8);
    }
    rig.post_send(&mut a, 8);
    rig.watch(&mut [(&mut a, 1), (&mut b, 1)], 0);
    let notify = QueuePairAttributes {
        drained_event: Some(true),
        ..QueuePairAttributes::NONE
    };
    rig.line("T12 to SQD with nothing outstanding");
    let modified = rig.modify(&a, SendQueueDrain, &notify);
    rig.field(&format!("modify={modified}"));
    rig.watch_events(1);
    rig.put_state("state", &a);
    rig.put_events();
    rig.line_end();

    rig.line("T12 to SQD once more, without notification");
    let modified = rig.modify_to(&a, SendQueueDrain);
    rig.field(&format!("modify={modified}"));
    rig.watch_events(1);
    rig.put_events();
    rig.line_end();

    rig.line("T12 a send in SQD");
    let posted = rig.post_send(&mut a, 8);
    rig.field(&format!("post={posted}"));
    rig.watch(&mut [(&mut a, 1), (&mut b, 1)], 0);
    put_ends(rig, &a, &b);
    rig.line_end();

    rig.line("T12 back from SQD to RTS");
    let modified = rig.modify_to(&a, ReadyToSend);
    rig.field(&format!("modify={modified}"));
    // rxe does not take up the send again before the next one: no reason to hope for long.
    rig.pause_ms(500);
    rig.watch(&mut [(&mut a, 1), (&mut b, 1)], 0);
    put_ends(rig, &a, &b);
    rig.put_state("state", &a);
    rig.line_end();

    rig.line("T12 a send after that");
    let posted = rig.post_send(&mut a, 8);
    rig.field(&format!("post={posted}"));
    rig.watch(&mut [(&mut a, 3), (&mut b, 3)], 0);
    put_ends(rig, &a, &b);
    rig.line_end();
    rig.free_both(a, b);
}

fn put_ends(rig: &mut Rig, a: &End, b: &End) {
    rig.put_sends(a);
    rig.put_receives(b);
}

pub(super) fn states(rig: &mut Rig) {
    transitions(rig);
    masks(rig);
    posts(rig);
    refused_sends(rig);
    draining(rig);
}
