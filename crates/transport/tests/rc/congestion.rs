//! Congestion control and recovery through a link with a queue, in virtual time: is the link used, is
//! the queue short, do flows share, and what does loss cost?

use crate::bottleneck::{Bottleneck, Link, Outcome, Verb};
use legato_base::Duration;
use legato_transport::PathMtu;

const GIGABIT: u64 = 1_000_000_000;
/// Four milliseconds of a gigabit.
const LINK: Link = Link {
    rate: GIGABIT,
    delay: Duration::from_micros(50),
    limit: 512 << 10,
    mark: None,
    lost_per_mille: 0,
    mtu: PathMtu::Bytes1024,
};
/// Bytes that wait at a gigabit for the longest delay that is steered to, twice a millisecond.
const TARGETS: f64 = 250_000.0;
const VERBS: [Verb; 2] = [Verb::Read, Verb::Write];
const MTUS: [PathMtu; 2] = [PathMtu::Bytes1024, PathMtu::Bytes4096];
const LENGTH: u32 = 256 << 10;

/// Flows of one verb begin one after the other.
fn measured(link: Link, verb: Verb, flows: u64) -> Outcome {
    let mut bottleneck = Bottleneck::new(link, flows);
    for number in 0..flows {
        bottleneck.flow(verb, LENGTH, Duration::from_millis(number * 3));
    }
    let outcome = bottleneck.measure(Duration::from_millis(300), Duration::from_millis(500));
    println!("{verb:?} {flows}: {outcome:?}");
    bottleneck.check();
    outcome
}

#[test]
fn one_flow_fills_the_link_with_a_short_queue() {
    for verb in VERBS {
        for mtu in MTUS {
            let outcome = measured(Link { mtu, ..LINK }, verb, 1);
            // Headers are 70 bytes of 1,094.
            assert!(outcome.utilisation > 0.92, "{outcome:?}");
            assert!(outcome.mean_queue < TARGETS, "{outcome:?}");
            assert_eq!((outcome.drops, outcome.resends), (0, 0), "{outcome:?}");
        }
    }
}

#[test]
fn flows_that_begin_one_after_the_other_become_equal() {
    for verb in VERBS {
        for flows in [2, 4, 16] {
            let outcome = measured(LINK, verb, flows);
            assert!(outcome.fairness > 0.95, "{outcome:?}");
            assert!(outcome.utilisation > 0.9, "{outcome:?}");
            assert!(outcome.mean_queue < TARGETS, "{outcome:?}");
            assert_eq!(outcome.drops, 0, "{outcome:?}");
        }
    }
}

/// A round trip has the queues of both directions in it, so the two take from each other though they
/// share nothing: more than one could have, and less than both.
#[test]
fn both_directions_are_used_at_the_same_time() {
    let mut bottleneck = Bottleneck::new(LINK, 1);
    bottleneck.flow(Verb::Read, LENGTH, Duration::ZERO);
    bottleneck.flow(Verb::Write, LENGTH, Duration::ZERO);
    let outcome = bottleneck.measure(Duration::from_millis(300), Duration::from_millis(500));
    bottleneck.check();
    assert!(outcome.utilisation > 0.5, "{outcome:?}");
}

#[test]
fn where_packets_are_marked_none_is_dropped() {
    // 0.33 ms: below what the delay alone is steered to.
    let link = Link {
        mark: Some(40 << 10),
        ..LINK
    };
    for verb in VERBS {
        for flows in [1, 2, 16] {
            let outcome = measured(link, verb, flows);
            assert!(outcome.marks > 0, "{outcome:?}");
            assert_eq!((outcome.drops, outcome.resends), (0, 0), "{outcome:?}");
            assert!(outcome.utilisation > 0.9, "{outcome:?}");
            assert!(outcome.mean_queue < 70_000.0, "{outcome:?}");
            assert!(outcome.fairness > 0.95, "{outcome:?}");
        }
    }
}

#[test]
fn loss_by_chance_does_not_make_the_rate_collapse() {
    for verb in VERBS {
        for mtu in MTUS {
            for (lost_per_mille, least) in [(1, 0.8), (10, 0.55)] {
                let link = Link {
                    lost_per_mille,
                    mtu,
                    ..LINK
                };
                let outcome = measured(link, verb, 1);
                assert!(outcome.utilisation > least, "{outcome:?}");
                // A gap is told at once, and the end of a message found by a probe.
                assert!(outcome.timeouts <= 4, "{outcome:?}");
            }
        }
    }
}

/// A queue of half a millisecond overflows before the delay says anything: then it is loss that keeps
/// the flows from more.
#[test]
fn a_short_queue_is_shared_by_loss() {
    let link = Link {
        limit: 60 << 10,
        ..LINK
    };
    for flows in [2, 4] {
        let outcome = measured(link, Verb::Write, flows);
        assert!(outcome.drops > 0, "{outcome:?}");
        assert!(outcome.utilisation > 0.65, "{outcome:?}");
        assert!(outcome.fairness > 0.8, "{outcome:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    let link = Link {
        lost_per_mille: 10,
        ..LINK
    };
    let run = || format!("{:?}", measured(link, Verb::Read, 2));
    assert_eq!(run(), run());
}
