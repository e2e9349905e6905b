//! Completion queues and shared receive queues.

use crate::bench::{Bench, End, FLUSHED, MILLISECOND, SENT, Setup};
use legato_sim::provider::Personality;
use legato_transport::adapter::LastWorkRequestEvents;
use legato_transport::rc::LastWorkRequest;
use legato_verbs::{
    Arm, AsyncEvent, CompletionKind, Event, Provider, QueuePair, QueuePairState, SendOperation,
    VerbsError,
};

fn with_shared(personality: Personality, depth: u32) -> Bench {
    Bench::connected(Setup {
        shared: Some(depth),
        ..Setup::new(personality)
    })
}

#[test]
fn v_15_the_limit_of_a_shared_receive_queue() {
    for personality in Personality::ATTENTIVE {
        let mut bench = with_shared(personality, 10);
        let shared = bench.right.shared.unwrap();
        for wr_id in 0..10 {
            bench.right.receive(wr_id, 64);
        }
        let low = AsyncEvent::SharedReceiveQueueLimit(shared);
        let mut expected = Vec::new();
        for limit in [7, 4] {
            let right = &mut bench.right;
            right.nic.arm_shared_receive_queue(shared, limit).unwrap();
            for _ in 0..4 {
                bench.left.send(1, 16);
                bench.run_for(MILLISECOND);
                bench.left.polled();
            }
            expected.push(low);
            assert_eq!(bench.right.async_events(), expected, "{}", personality.name);
        }
    }
}

#[test]
fn v_16_an_overrun_says_so_and_corrupts_nothing() {
    for personality in [
        Personality::IDEAL,
        Personality::MLX5,
        Personality::RXE,
        Personality::HOSTILE,
    ] {
        let setup = Setup {
            overcommitted: Some(4),
            ..Setup::new(personality)
        };
        let mut bench = Bench::connected(setup);
        let name = personality.name;
        let other = bench.right.another(&setup).unwrap();
        bench.right.nic.modify_to_init(other).unwrap();
        for wr_id in 0..6 {
            bench.right.receive(wr_id, 64);
        }
        for wr_id in 0..5 {
            bench.left.send(wr_id, 16);
            bench.run_for(MILLISECOND);
            bench.left.polled();
        }
        let queue = bench.right.queue;
        let mut events = bench.right.async_events();
        let error = AsyncEvent::CompletionQueueError(queue);
        assert_eq!(events.remove(0), error, "{name}");
        let right = bench.right.queue_pair;
        let mut came = Vec::new();
        let polled = bench.right.nic.poll_completion_queue(queue, 100, &mut came);
        if name == "rxe" {
            // What the receiver's own end flushed finds no room either.
            assert_eq!(events, [error]);
            assert_eq!(polled, Ok(4), "what was in it can be polled");
            assert_eq!(bench.right.state(), QueuePairState::Error);
        } else {
            let fatal = [right, other].map(AsyncEvent::QueuePairFatal);
            assert_eq!(events, fatal, "{name}");
            assert_eq!(polled, Err(VerbsError::CompletionQueueOverrun));
            assert_eq!(bench.right.state(), QueuePairState::Error);
            let state = bench.right.nic.query_queue_pair(other);
            assert_eq!(state, Ok(QueuePairState::Error));
        }
        // On a new queue everything works, without a new NIC.
        for queue_pair in [right, other] {
            bench.right.nic.destroy_queue_pair(queue_pair).unwrap();
        }
        let left = bench.left.queue_pair;
        bench.left.nic.destroy_queue_pair(left).unwrap();
        for end in [&mut bench.left, &mut bench.right] {
            end.nic.destroy_completion_queue(end.queue).unwrap();
            end.queue = end.nic.create_completion_queue(16).unwrap();
            end.queue_pair = end.another(&setup).unwrap();
        }
        bench.connect();
        bench.right.receive(1, 64);
        bench.left.send(2, 16);
        bench.run_for(MILLISECOND);
        assert_eq!(bench.right.polled().len(), 1);
    }
}

#[test]
fn v_17_the_ledger_refuses_what_could_overrun() {
    for personality in Personality::ALL {
        let setup = Setup::new(personality);
        let mut bench = Bench::unconnected(setup);
        let left = &mut bench.left;
        // Its queue has 16 entries, all of which the first queue pair needs.
        let refused = left.another(&setup);
        let too_small = VerbsError::CompletionQueueTooSmall {
            needed: 16,
            free: 0,
        };
        assert_eq!(refused, Err(too_small), "{}", personality.name);
        let before = left.nic.resource_counts();
        assert_eq!(before.queue_pairs, 1);
        left.nic.destroy_queue_pair(left.queue_pair).unwrap();
        left.queue_pair = left.another(&setup).unwrap();
        assert_eq!(left.nic.resource_counts(), before);
    }
}

fn ready(end: &mut End) -> bool {
    let ready = Event::CompletionQueueReady(end.queue);
    let events = end.events();
    let found = events.iter().position(|event| *event == ready);
    found.map(|place| events.remove(place)).is_some()
}

/// All orders of a message that comes while its receiver goes to sleep: arm, poll, sleep.
#[test]
fn v_18_no_order_leaves_a_completion_with_a_sleeper() {
    for personality in Personality::ALL {
        for comes_before in 0..3 {
            let mut bench = Bench::connected(Setup::new(personality));
            bench.right.receive(1, 64);
            bench.left.send(2, 16);
            let arrives = |bench: &Bench, step: usize| {
                if step == comes_before {
                    bench.run_for(MILLISECOND);
                }
            };
            arrives(&bench, 0);
            let queue = bench.right.queue;
            let waiting = bench.right.nic.arm_completion_queue(queue, Arm::Next);
            arrives(&bench, 1);
            let polled = bench.right.polled();
            arrives(&bench, 2);
            let woken = ready(&mut bench.right);
            // The receiver sleeps only if its poll found nothing; then the event wakes it.
            assert_eq!(waiting, Ok(comes_before == 0));
            assert_eq!(polled.len(), usize::from(comes_before < 2));
            assert_eq!(
                woken,
                comes_before > 0,
                "{} {comes_before}",
                personality.name
            );
            // The arming is for once: until now, or still to come.
            for wr_id in 3..5 {
                bench.right.receive(wr_id, 64);
                bench.left.send(wr_id, 16);
                bench.run_for(MILLISECOND);
                let expected = comes_before == 0 && wr_id == 3;
                assert_eq!(ready(&mut bench.right), expected);
            }
        }
    }
}

#[test]
fn v_19_a_number_used_again_gets_no_completions_of_before() {
    for personality in Personality::ALL {
        let setup = Setup::new(personality);
        let mut bench = Bench::connected(setup);
        let name = personality.name;
        for wr_id in 0..3 {
            bench.right.receive(wr_id, 64);
            bench.left.send(wr_id, 16);
        }
        bench.run_for(MILLISECOND);
        bench.right.receive(7, 64);
        let right = &mut bench.right;
        let old = right.queue_pair;
        let number = right.nic.queue_pair_number(old).unwrap();
        right.nic.destroy_queue_pair(old).unwrap();
        // Those that stay hold their entries of the ledger until they are polled.
        let stays = matches!(name, "rxe" | "ehca" | "hostile");
        if stays {
            assert!(right.another(&setup).is_err(), "{name}");
        }
        let came = polled_of(right);
        let expected = if stays { vec![old; 3] } else { vec![] };
        assert_eq!(came, expected, "{name}");
        let heir = right.another(&setup).unwrap();
        assert_ne!(heir, old);
        let again = right.nic.queue_pair_number(heir).unwrap() == number;
        assert_eq!(again, personality.adapter.reuses_numbers, "{name}");
        right.queue_pair = heir;
        right.enter_init(&setup);
        right.receive(8, 64);
        right.enter_error();
        let came = polled_of(right);
        let expected = if name == "ehca" { vec![] } else { vec![heir] };
        assert_eq!(came, expected, "{name}");
    }
}

fn polled_of(end: &mut End) -> Vec<QueuePair> {
    let mut came = Vec::new();
    end.nic
        .poll_completion_queue(end.queue, 100, &mut came)
        .unwrap();
    came.iter()
        .map(|completion| completion.queue_pair)
        .collect()
}

/// A message of two packets, of which one has come when the queue pair ends.
#[test]
fn v_31_the_receive_of_half_a_message() {
    for personality in [Personality::IDEAL, Personality::RXE] {
        let mut bench = with_shared(personality, 4);
        for wr_id in 0..4 {
            bench.right.receive(wr_id, 4096);
        }
        bench.left.send(1, 2048);
        while bench.right.nic.counters().packets_received == 0 {
            bench.step();
        }
        bench.right.enter_error();
        let came = bench.right.polled();
        if personality.name == "rxe" {
            // It is lost, and only who counts what was posted finds that out.
            assert_eq!(came, []);
        } else {
            assert_eq!(came, [(0, FLUSHED)]);
        }
        // In both cases the queue takes one more, and no more.
        bench.right.receive(10, 64);
        let right = bench.right.queue_pair;
        bench.right.nic.destroy_queue_pair(right).unwrap();
        let full = bench.right.try_receive(11, 64);
        assert_eq!(full, Err(VerbsError::QueueFull("receive")));
    }
}

#[test]
fn v_32_an_idle_queue_pair_on_an_empty_shared_queue() {
    for personality in Personality::ALL {
        let mut bench = with_shared(personality, 4);
        bench.right.enter_error();
        let event = AsyncEvent::LastWorkRequestReached(bench.right.queue_pair);
        let adapter = personality.adapter;
        let times = match (
            adapter.transport.last_work_request,
            adapter.last_work_request,
        ) {
            (LastWorkRequest::Never, _) | (_, LastWorkRequestEvents::AfterFlush) => 0,
            (_, LastWorkRequestEvents::Times(times)) => times as usize,
            (_, LastWorkRequestEvents::AsTransport) => 1,
        };
        assert_eq!(bench.right.async_events(), vec![event; times]);
        bench.right.nic.modify_to_error(bench.right.queue_pair).ok();
        bench.right.try_send_in_error();
        let repeats = if personality.name == "rxe" { 2 } else { 0 };
        let came = bench.right.async_events().len();
        assert_eq!(came, times + repeats, "{}", personality.name);
        // Nothing of it is left.
        let right = bench.right.queue_pair;
        bench.right.nic.destroy_queue_pair(right).unwrap();
        assert_eq!(bench.right.async_events().len(), came);
    }
}

/// Condition (b) alone: a device that tells only of a receive which it has flushed.
#[test]
fn v_32_a_device_that_tells_only_after_a_flushed_receive() {
    let mut bench = with_shared(Personality::CLOCKED, 4);
    bench.right.enter_error();
    assert_eq!(bench.right.async_events(), []);
    let mut bench = with_shared(Personality::CLOCKED, 4);
    bench.right.receive(1, 4096);
    bench.left.send(1, 2048);
    while bench.right.nic.counters().packets_received == 0 {
        bench.step();
    }
    bench.right.enter_error();
    let event = AsyncEvent::LastWorkRequestReached(bench.right.queue_pair);
    assert_eq!(bench.right.async_events(), [event]);
}

/// Events of an object go with it.
#[test]
fn v_35_events_of_a_destroyed_queue_pair_are_not_delivered() {
    let mut bench = with_shared(Personality::IDEAL, 4);
    let right = bench.right.queue_pair;
    bench.right.nic.modify_to_error(right).unwrap();
    bench.right.nic.destroy_queue_pair(right).unwrap();
    assert_eq!(bench.right.async_events(), []);
}

/// A shared queue has a protection domain of its own.
#[test]
fn a_receive_of_a_shared_queue_lies_in_the_domain_of_the_queue() {
    let setup = Setup {
        shared: Some(4),
        ..Setup::new(Personality::IDEAL)
    };
    let mut bench = Bench::unconnected(setup);
    let right = &mut bench.right;
    let other = right.nic.create_protection_domain().unwrap();
    right.nic.destroy_queue_pair(right.queue_pair).unwrap();
    let domain = std::mem::replace(&mut right.domain, other);
    right.queue_pair = right.another(&setup).unwrap();
    right.domain = domain;
    bench.connect();
    bench.right.receive(1, 64);
    bench.left.fill(0, &[5; 16]);
    bench.left.send(2, 16);
    bench.run_for(MILLISECOND);
    assert_eq!(bench.left.polled(), [(2, SENT)]);
    let received = CompletionKind::Receive { length: 16 };
    assert_eq!(bench.right.polled(), [(1, Ok(received))]);
    // What a peer writes goes to the queue pair's domain only.
    let target = bench.right.at(0);
    bench.left.post(3, SendOperation::RdmaWrite(target), 16);
    bench.run_for(MILLISECOND);
    assert!(bench.left.polled()[0].1.is_err());
}
