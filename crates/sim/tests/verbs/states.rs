//! States of a queue pair, and what can be posted in each.

use crate::bench::{Bench, End, FLUSHED, Setup, attributes};
use legato_sim::provider::Personality;
use legato_verbs::{
    Provider, QueuePairAttributes, QueuePairNumber, QueuePairState as State, SendFlags, VerbsError,
};

/// Those that a reliable queue pair can be in.
const REACHABLE: [State; 6] = [
    State::Reset,
    State::Init,
    State::ReadyToReceive,
    State::ReadyToSend,
    State::SendQueueDrain,
    State::Error,
];
const ALL: [State; 7] = [
    State::Reset,
    State::Init,
    State::ReadyToReceive,
    State::ReadyToSend,
    State::SendQueueDrain,
    State::SendQueueError,
    State::Error,
];
/// Rows: from; columns: to; in the orders above.
const TABLE: [&str; 6] = [
    "xx-----", "xxx---x", "x--x--x", "x--xx-x", "x--xx-x", "x-----x",
];

/// Takes a fresh queue pair to a state.
fn reach(end: &mut End, peer: &End, setup: &Setup, state: State) {
    let number = QueuePairNumber::new(77);
    if state == State::Reset {
        return;
    }
    end.enter_init(setup);
    let (to_receive, to_send) = attributes(setup, peer, number);
    let none = QueuePairAttributes::NONE;
    let steps = [
        (State::ReadyToReceive, to_receive),
        (State::ReadyToSend, to_send),
        (State::SendQueueDrain, none),
    ];
    for (to, attributes) in steps {
        if end.state() == state {
            return;
        }
        if state == State::Error {
            return end.enter_error();
        }
        end.nic
            .modify_queue_pair(end.queue_pair, to, &attributes)
            .unwrap();
    }
}

/// What the change needs; nothing where it cannot be.
fn required(from: State, to: State, setup: &Setup, peer: &End) -> QueuePairAttributes {
    let (to_receive, to_send) = attributes(setup, peer, QueuePairNumber::new(77));
    match (from, to) {
        (State::Reset, State::Init) => QueuePairAttributes::INIT,
        (State::Init, State::ReadyToReceive) => to_receive,
        (State::ReadyToReceive, State::ReadyToSend) => to_send,
        _ => QueuePairAttributes::NONE,
    }
}

fn one_missing(
    from: State,
    to: State,
    mut all: QueuePairAttributes,
) -> Option<QueuePairAttributes> {
    match (from, to) {
        (State::Reset, State::Init) => all.port = None,
        (State::Init, State::ReadyToReceive) => all.destination = None,
        (State::ReadyToReceive, State::ReadyToSend) => all.timeout = None,
        _ => return None,
    }
    Some(all)
}

/// One that no change to these states takes.
fn one_foreign(from: State, to: State, mut all: QueuePairAttributes) -> QueuePairAttributes {
    if (from, to) == (State::Init, State::ReadyToReceive) {
        all.timeout = Some(9);
    } else {
        all.destination = Some(QueuePairNumber::new(5));
    }
    all
}

#[test]
fn v_01_state_table_of_every_personality() {
    for personality in Personality::ALL {
        for (from, row) in REACHABLE.into_iter().zip(TABLE) {
            for (to, cell) in ALL.into_iter().zip(row.chars()) {
                let setup = Setup::new(personality);
                let mut bench = Bench::unconnected(setup);
                reach(&mut bench.left, &bench.right, &setup, from);
                let all = required(from, to, &setup, &bench.right);
                let left = &mut bench.left;
                let mut wrong = vec![one_foreign(from, to, all)];
                wrong.extend(one_missing(from, to, all));
                if cell == '-' {
                    wrong.push(all);
                }
                for attributes in wrong {
                    let before = left.nic.query_attributes(left.queue_pair);
                    let modified = left.nic.modify_queue_pair(left.queue_pair, to, &attributes);
                    assert!(modified.is_err(), "{} {from:?} {to:?}", personality.name);
                    assert_eq!(left.state(), from);
                    assert_eq!(left.nic.query_attributes(left.queue_pair), before);
                }
                if cell == 'x' {
                    let modified = left.nic.modify_queue_pair(left.queue_pair, to, &all);
                    assert_eq!(modified, Ok(()), "{} {from:?} {to:?}", personality.name);
                    assert_eq!(left.state(), to);
                }
            }
        }
    }
}

/// Each so-many-th change to the error state fails, and changes nothing.
#[test]
fn v_01_a_device_that_refuses_the_error_state_stays_where_it_is() {
    let setup = Setup::new(Personality::HOSTILE);
    let mut bench = Bench::connected(setup);
    let mut failed = 0;
    for _ in 0..5 {
        let left = &mut bench.left;
        match left.nic.modify_to_error(left.queue_pair) {
            Ok(()) => {
                let to = State::Reset;
                let none = QueuePairAttributes::NONE;
                left.nic
                    .modify_queue_pair(left.queue_pair, to, &none)
                    .unwrap();
                left.enter_init(&setup);
            }
            Err(error) => {
                assert!(matches!(error, VerbsError::System { errno: 5, .. }));
                assert_eq!(left.state(), State::Init);
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 1);
}

#[test]
fn v_02_posting_by_state() {
    for personality in Personality::ALL {
        let name = personality.name;
        let setup = Setup::new(personality);
        let mut flushed: Vec<u64> = Vec::new();
        for (number, state) in REACHABLE.into_iter().enumerate() {
            let mut bench = Bench::unconnected(setup);
            reach(&mut bench.left, &bench.right, &setup, state);
            let left = &mut bench.left;
            let sends = matches!(
                state,
                State::ReadyToSend | State::SendQueueDrain | State::Error
            );
            let sent = left.try_send(1, SendFlags::SIGNALED);
            assert_eq!(sent.is_ok(), sends, "{name} {state:?}: {sent:?}");
            let received = left.try_receive(2, 16);
            let receives = state != State::Reset;
            assert_eq!(received.is_ok(), receives, "{name} {state:?}: {received:?}");
            // A refused request of Reset is forgotten with the state.
            if number > 0 && state != State::Error {
                left.enter_error();
            }
            bench.run_for(crate::bench::MILLISECOND);
            let came = bench.left.polled();
            assert!(came.iter().all(|(_, result)| *result == FLUSHED));
            flushed.extend(came.iter().map(|(wr_id, _)| wr_id + 10 * number as u64));
        }
        // In the error state both complete at once; before it, they wait for it. On rxe a receive
        // that is posted in it waits for the next send.
        let expected: &[u64] = match name {
            "rxe" => &[11, 12, 21, 22, 31, 32, 41, 42, 51],
            "iwarp" => &[12, 22, 31, 32, 41, 42],
            "ehca" => &[],
            _ => &[12, 22, 31, 32, 41, 42, 51, 52],
        };
        flushed.sort_unstable();
        if name == "hostile" {
            // A send's completion may be lost.
            assert!(
                flushed.iter().all(|it| expected.contains(it)),
                "{flushed:?}"
            );
        } else {
            assert_eq!(flushed, expected, "{name}");
        }
    }
}

#[test]
fn v_01_a_port_that_the_device_does_not_have_is_refused() {
    for personality in Personality::ALL {
        let mut bench = Bench::unconnected(Setup::new(personality));
        let left = &mut bench.left;
        for port in [0, 2, u8::MAX] {
            let attributes = QueuePairAttributes {
                port: Some(port),
                ..QueuePairAttributes::INIT
            };
            let to = State::Init;
            let refused = left.nic.modify_queue_pair(left.queue_pair, to, &attributes);
            assert!(
                matches!(refused, Err(VerbsError::Attributes(_))),
                "{port}: {refused:?}"
            );
            assert_eq!(left.state(), State::Reset);
        }
    }
}
