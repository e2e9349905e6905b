//! Each of the personality's deviations is one that the probes notice, except for the ticks of its
//! timers, the receive that a message half arrived takes with it, and the slots of receives.

use crate::compare::{Deviations, Races, Trace, compare};
use legato_sim::provider::Personality;
use legato_transport::adapter::{self, OverrunEnds, OverrunEvents};
use legato_transport::nic::{CompletionQueuePolicy, Destroyed, Overrun};
use legato_transport::rc::Policy;

const RXE: Personality = Personality::RXE;

const fn with(adapter: adapter::Policy) -> Personality {
    Personality { adapter, ..RXE }
}

/// The personality, once with each of its deviations left out, and a line that then is another.
fn without() -> Vec<(&'static str, Personality)> {
    macro_rules! policy {
        ($($field:ident: $key:literal,)*) => {
            [$(($key, with(adapter::Policy {
                transport: Policy {
                    $field: Policy::IDEAL.$field,
                    ..Policy::RXE
                },
                ..RXE.adapter
            })),)*]
        };
    }
    let transport = policy! {
        retry_count_infinite: "T2 nobody there, timeout 10, retry_count 7",
        receive_too_short: "T4 64 bytes into 16",
        receive_protection: "T11 a receive with a local key that nobody has",
        local_failure: "T11 a send with a local key that nobody has",
        answer_check: "T11 a read with a local key that nobody has",
        checks_posted_atomics: "T13 fetch and add, not a multiple of eight",
        invalidate_refusal: "T13 send with invalidate, the key of a region",
        write_check: "T6 write of four packets, the region has two",
        receive_before_key: "T13 write with immediate that the region forbids",
        refusal_events: "T5 write behind the region",
        established_events: "T10 the peer is in RTR",
        drain: "T12 back from SQD to RTS",
        last_work_request: "T9 last request, from ERR to ERR",
        flush: "T12 posts in ERR, a receive first",
        slot_reclaim: "T7 silent sends one by one, four times the queue's depth",
    };
    let queue = |overrun, destroyed| {
        with(adapter::Policy {
            completion_queue: CompletionQueuePolicy { overrun, destroyed },
            ..RXE.adapter
        })
    };
    let device = [
        (
            "T8 four sends, room for one",
            queue(Overrun::Ends, Destroyed::Stay),
        ),
        (
            "T10 destroyed with five flushed completions not polled",
            queue(Overrun::Drops, Destroyed::Removed),
        ),
        (
            "T8 four messages received, room for one",
            with(adapter::Policy {
                overrun_ends: OverrunEnds::Attached,
                ..RXE.adapter
            }),
        ),
        (
            "T8 four sends, room for one",
            with(adapter::Policy {
                overrun_events: OverrunEvents::Once,
                ..RXE.adapter
            }),
        ),
        (
            "T12 posts in RTR",
            with(adapter::Policy {
                refused_sends_stay: false,
                ..RXE.adapter
            }),
        ),
    ];
    transport.into_iter().chain(device).collect()
}

#[test]
fn each_deviation_of_rxe_shows() {
    let whole = Trace::parse(&super::lines(RXE)).unwrap();
    let races = Races::parse(crate::RACES).unwrap();
    for (key, personality) in without() {
        let found = Trace::parse(&super::lines(personality)).unwrap();
        let wrong = compare(&whole, &found, &races, &Deviations::none());
        let shown = wrong
            .iter()
            .any(|line| line.starts_with(&format!("{key}:")));
        assert!(shown, "{key}: {wrong:?}");
    }
}
