//! Sends that nobody is told of, and sends that nobody answers.

use crate::bench::{Bench, FLUSHED, MILLISECOND, SENT, Setup, UNANSWERED};
use legato_sim::provider::Personality;
use legato_verbs::{CompletionStatus, QueuePairState, SendFlags, VerbsError};

#[test]
fn v_03_unsignaled_sends_complete_silently() {
    for personality in Personality::ALL {
        let mut bench = Bench::connected(Setup::new(personality));
        for round in 0..3 {
            for wr_id in 0..8 {
                bench.right.receive(wr_id, 64);
            }
            for wr_id in 0..8 {
                let flags = if wr_id == 7 {
                    SendFlags::SIGNALED
                } else {
                    SendFlags::NONE
                };
                let posted = bench.left.try_send(wr_id, flags);
                assert_eq!(posted, Ok(()), "{} round {round}", personality.name);
            }
            bench.run_for(MILLISECOND);
            assert_eq!(bench.left.polled(), [(7, SENT)]);
            assert_eq!(bench.right.polled().len(), 8);
        }
    }
}

#[test]
fn v_03_a_queue_of_unsignaled_sends_is_full_and_does_not_hang() {
    for personality in Personality::ALL {
        let mut bench = Bench::connected(Setup::new(personality));
        let mut taken = 0;
        for wr_id in 0..32 {
            bench.right.polled();
            bench.right.receive(wr_id, 64);
            match bench.left.try_send(wr_id, SendFlags::NONE) {
                Ok(()) => taken += 1,
                Err(error) => {
                    assert_eq!(error, VerbsError::QueueFull("send"));
                    break;
                }
            }
            bench.run_for(MILLISECOND);
        }
        // rxe frees slots by itself; the others as hardware does.
        let expected = if personality.name == "rxe" { 32 } else { 8 };
        assert_eq!(taken, expected, "{}", personality.name);
    }
}

#[test]
fn v_04_a_dead_peer_completes_unsignaled_sends() {
    for (personality, millis) in [
        (Personality::IDEAL, 268..269),
        // Its timeouts are not shorter than 268 ms: 5.7 of them.
        (Personality::MLX5, 1530..1531),
        (Personality::RXE, 272..273),
        (Personality::HOSTILE, 268..269),
    ] {
        let mut bench = Bench::alone(Setup::new(personality));
        for wr_id in 1..4 {
            bench.left.try_send(wr_id, SendFlags::NONE).unwrap();
        }
        for wr_id in 11..13 {
            bench.left.receive(wr_id, 64);
        }
        let (at, came) = bench.time_of_completion();
        let name = personality.name;
        assert!(
            millis.contains(&(at.as_nanos() / 1_000_000)),
            "{name} {at:?}"
        );
        assert_eq!(bench.left.state(), QueuePairState::Error);
        let (sends, receives): (Vec<_>, Vec<_>) = came.iter().partition(|(wr_id, _)| *wr_id < 10);
        let expected = [(1, UNANSWERED), (2, FLUSHED), (3, FLUSHED)];
        assert_eq!(receives, [(11, FLUSHED), (12, FLUSHED)], "{name}");
        if name == "hostile" {
            assert!(sends.iter().all(|it| expected.contains(it)));
        } else {
            assert_eq!(sends, expected, "{name}");
        }
    }
}

/// What a ConnectX says besides: 0x81 of the request whose peer is dead, 0xf5 of those behind it.
#[test]
fn v_04_v_20_a_failure_has_its_makers_number() {
    for (personality, expected) in [
        (Personality::MLX5, [0x81, 0xF5]),
        (Personality::IDEAL, [0; 2]),
    ] {
        let mut bench = Bench::alone(Setup::new(personality));
        bench.left.send(1, 16);
        bench.left.send(2, 16);
        let mut came = Vec::new();
        while came.len() < 2 {
            bench.step();
            came.extend(bench.left.completions());
        }
        let numbers = [&came[0], &came[1]].map(|it| it.vendor_error);
        assert_eq!(numbers, expected, "{}", personality.name);
    }
}

fn silence(personality: Personality, timeout: u8, retry_count: u8) -> u64 {
    let mut bench = Bench::alone(Setup {
        timeout,
        retry_count,
        ..Setup::new(personality)
    });
    bench.left.send(1, 16);
    // The packet leaves when the NIC gets round to it.
    while bench
        .left
        .nic
        .waiting_since(bench.left.queue_pair)
        .is_none()
    {
        bench.step();
    }
    let start = bench.network.now();
    let (at, came) = bench.time_of_completion();
    assert_eq!(came, [(1, UNANSWERED)]);
    at.since(start).as_nanos()
}

#[test]
fn v_05_the_retry_timer_of_the_specification_is_exact() {
    for (timeout, retries) in [(14, 3), (10, 6), (10, 7), (8, 0), (20, 7)] {
        let nanos = (u64::from(retries) + 1) * (4096 << timeout);
        assert_eq!(silence(Personality::IDEAL, timeout, retries), nanos);
    }
}

#[test]
fn v_05_mlx5_is_within_what_was_published() {
    for (timeout, seconds) in [(14, 3.50..3.76), (10, 3.50..3.76), (20, 58.5..59.8)] {
        let took = silence(Personality::MLX5, timeout, 7) as f64 / 1e9;
        assert!(seconds.contains(&took), "timeout {timeout}: {took} s");
    }
}

#[test]
fn v_05_rxe_counts_jiffies_and_never_gives_up_at_seven() {
    for (timeout, retries, millis) in [(14, 3, 271..288), (10, 6, 55..60)] {
        let took = silence(Personality::RXE, timeout, retries) / 1_000_000;
        assert!(millis.contains(&took), "timeout {timeout}: {took} ms");
    }
    let mut bench = Bench::alone(Setup {
        timeout: 10,
        retry_count: 7,
        ..Setup::new(Personality::RXE)
    });
    bench.left.send(1, 16);
    bench.run_for(legato_base::Duration::from_secs(6));
    assert_eq!(bench.left.polled(), []);
    assert_eq!(bench.left.state(), QueuePairState::ReadyToSend);
}

#[test]
fn v_06_a_peer_without_receives_is_asked_so_often() {
    // Two waits of 0.64 ms between three refusals; rxe waits two jiffies each.
    for (personality, waits) in [
        (Personality::IDEAL, 1_280_000),
        (Personality::MLX5, 1_280_000),
        (Personality::RXE, 16_000_000),
    ] {
        let setup = Setup::new(personality);
        let mut bench = Bench::connected(setup);
        bench.network.keep_trace_lines(100);
        let start = bench.network.now();
        bench.left.send(1, 16);
        let (at, came) = bench.time_of_completion();
        let exhausted = Err(CompletionStatus::ReceiverNotReadyRetryExceeded);
        assert_eq!(came, [(1, exhausted)]);
        let took = at.since(start).as_nanos();
        assert!((waits..waits + 20_000).contains(&took), "{took} ns");
        let lines = bench.network.trace_lines();
        let refusals = lines
            .iter()
            .filter(|line| line.contains("right->left") && line.ends_with("receiver not ready"));
        assert_eq!(refusals.count(), 3);
        assert_eq!(bench.left.state(), QueuePairState::Error);
        assert_eq!(bench.right.state(), QueuePairState::ReadyToSend);
    }
}
