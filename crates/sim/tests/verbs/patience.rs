//! A peer may be asked without end.

use crate::bench::{Bench, End, SENT, Setup};
use legato_base::Duration;
use legato_sim::provider::Personality;
use legato_verbs::{AsyncEvent, CompletionKind, Event, Provider as _, QueuePairState, RetryCount};

fn patient(personality: Personality) -> Bench {
    Bench::connected(Setup {
        rnr_retry: 7,
        ..Setup::new(personality)
    })
}

#[test]
fn v_07_an_hour_without_a_receive() {
    for personality in [Personality::IDEAL, Personality::MLX5, Personality::RXE] {
        let mut bench = patient(personality);
        let start = bench.network.now();
        bench.left.send(1, 16);
        bench.run_for(Duration::from_secs(3600));
        assert_eq!(bench.left.polled(), []);
        // What a watchdog sees.
        let since = bench.left.nic.waiting_since(bench.left.queue_pair).unwrap();
        assert!(since.since(start) < Duration::from_micros(10));
        let warning = AsyncEvent::ReceiverNotReady(bench.left.queue_pair);
        assert_eq!(*bench.left.events(), [Event::Async(warning)]);
        let before = bench.right.nic.counters().packets_received;
        assert!(before < 100_000, "{before} packets were walked");
        bench.right.receive(2, 64);
        bench.run_for(Duration::from_millis(2));
        assert_eq!(bench.left.polled(), [(1, SENT)]);
        let received = CompletionKind::Receive { length: 16 };
        assert_eq!(bench.right.polled(), [(2, Ok(received))]);
        assert_eq!(bench.left.nic.waiting_since(bench.left.queue_pair), None);
    }
}

/// Packets that are left out do not hide a peer that has died.
#[test]
fn v_07_a_peer_that_dies_meanwhile_is_found_out() {
    let mut bench = patient(Personality::IDEAL);
    bench.left.send(1, 16);
    bench.run_for(Duration::from_secs(10));
    bench.network.kill("right");
    bench.run_for(Duration::from_secs(1));
    assert_eq!(bench.left.polled(), [(1, crate::bench::UNANSWERED)]);
    assert_eq!(bench.left.state(), QueuePairState::Error);
}

/// A peer that asks for seven retries does not get a device to ask for ever.
#[test]
fn v_05_a_retry_count_without_end_is_not_a_peers_to_choose() {
    for (personality, given) in [
        (Personality::IDEAL, RetryCount::SEVEN),
        (Personality::RXE, RetryCount::SEVEN.with_an_end()),
    ] {
        let bench = Bench::managed(Setup {
            retry_count: 7,
            ..Setup::new(personality)
        });
        let retries = |end: &End| {
            let attributes = end.nic.query_attributes(end.queue_pair).unwrap();
            attributes.retry_count
        };
        assert_eq!(retries(&bench.left), Some(RetryCount::SEVEN));
        assert_eq!(retries(&bench.right), Some(given), "{}", personality.name);
    }
}
