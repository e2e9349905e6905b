//! What tests look at: late writes, traces, removed devices, pulled cables, and faults that are
//! asked for at every hook.

use crate::bench::{Bench, FLUSHED, MILLISECOND, SENT, Setup, UNANSWERED};
use legato_base::Duration;
use legato_sim::fault::{
    CompletionEffect, Effect, EventEffect, Events, Frequency, Refusal, Rule, Span,
};
use legato_sim::provider::{Personality, WatchId};
use legato_transport::WorkQueue;
use legato_verbs::{
    AsyncEvent, ConnectionEvent, Provider, QueuePairState, SendOperation, VerbsError,
};

const SECOND: Duration = Duration::from_secs(1);

/// A READ of a dead peer is given back, and its buffer is watched.
fn read_given_back(personality: Personality) -> (Bench, WatchId) {
    let mut bench = Bench::alone(Setup::new(personality.attentive()));
    let target = bench.right.at(0);
    bench.left.post(1, SendOperation::RdmaRead(target), 64);
    let (_, came) = bench.time_of_completion();
    assert_eq!(came, [(1, UNANSWERED)]);
    let watch = watch(&bench);
    (bench, watch)
}

fn watch(bench: &Bench) -> WatchId {
    let region = bench.left.region;
    bench.network.watch("left", &region, 0..64).unwrap()
}

#[test]
fn a_late_writer_is_seen_for_ten_seconds_and_no_longer() {
    let (bench, early) = read_given_back(Personality::HOSTILE);
    assert!(!bench.network.touched(early));
    bench.run_for(Duration::from_secs(9));
    assert!(bench.network.touched(early));
    bench.run_for(Duration::from_secs(2));
    let late = watch(&bench);
    bench.run();
    assert!(!bench.network.touched(late));
    bench.network.unwatch(early);
    assert!(!bench.network.touched(early));
}

#[test]
fn a_nic_that_keeps_the_rules_touches_nothing_late() {
    for personality in [Personality::IDEAL, Personality::MLX5, Personality::RXE] {
        let (bench, watch) = read_given_back(personality);
        bench.run_for(Duration::from_secs(20));
        assert!(!bench.network.touched(watch), "{}", personality.name);
    }
}

#[test]
fn a_late_writer_stops_with_the_region_the_device_or_its_link() {
    let (mut bench, watch_id) = read_given_back(Personality::HOSTILE);
    let region = bench.left.region;
    bench.left.nic.deregister_region(&region).unwrap();
    bench.run_for(Duration::from_secs(9));
    assert!(!bench.network.touched(watch_id));

    let (bench, watch_id) = read_given_back(Personality::HOSTILE);
    bench.network.remove_device("left");
    bench.run_for(Duration::from_secs(9));
    assert!(!bench.network.touched(watch_id));

    let (bench, watch_id) = read_given_back(Personality::CLOCKED);
    bench.network.set_link("left", false);
    bench.run_for(Duration::from_millis(20));
    assert!(!bench.network.touched(watch_id));
    bench.network.set_link("left", true);
    bench.run_for(Duration::from_millis(20));
    assert!(bench.network.touched(watch_id));
}

#[test]
fn a_removed_device_ends_everything_and_can_only_be_taken_apart() {
    for personality in Personality::ALL {
        let mut bench = Bench::managed(Setup::new(personality));
        bench.left.receive(1, 64);
        bench.network.remove_device("left");
        let queue_pair = bench.left.queue_pair;
        let removed = ConnectionEvent::DeviceRemoved { queue_pair };
        assert_eq!(bench.left.connection_events()[0], removed);
        assert_eq!(bench.left.async_events(), [AsyncEvent::DeviceFatal]);
        if personality.name != "ehca" {
            assert_eq!(bench.left.polled(), [(1, FLUSHED)]);
        }
        let gone = Err(VerbsError::DeviceRemoved);
        assert_eq!(bench.left.try_receive(2, 64), gone);
        assert_eq!(bench.left.nic.modify_to_error(queue_pair), gone);
        let left = &mut bench.left;
        left.nic.destroy_queue_pair(queue_pair).unwrap();
        left.nic.deregister_region(&left.region).unwrap();
        left.nic.destroy_completion_queue(left.queue).unwrap();
        left.nic.destroy_protection_domain(left.domain).unwrap();
        let counts = left.nic.resource_counts();
        assert_eq!(counts, Default::default());
        // The peer finds out by silence.
        bench.right.send(3, 16);
        bench.run();
        assert_eq!(bench.right.state(), QueuePairState::Error);
    }
}

#[test]
fn a_pulled_cable_says_so_and_loses_what_is_sent() {
    let mut bench = Bench::connected(Setup::new(Personality::IDEAL));
    bench.right.receive(1, 64);
    bench.network.set_link("left", false);
    bench.network.set_link("left", false);
    bench.left.send(2, 16);
    bench.run_for(MILLISECOND);
    assert_eq!(bench.right.polled(), []);
    bench.network.set_link("left", true);
    bench.run_for(Duration::from_millis(100));
    assert_eq!(bench.left.polled(), [(2, SENT)]);
    let events = [AsyncEvent::PortError(1), AsyncEvent::PortActive(1)];
    assert_eq!(bench.left.async_events(), events);
}

#[test]
fn what_others_cause_reaches_the_owner() {
    let mut bench = Bench::connected(Setup::new(Personality::IDEAL));
    let queue_pair = bench.left.queue_pair;
    let events = [
        AsyncEvent::LocalIdentifierChange(1),
        AsyncEvent::PartitionKeyChange(1),
        AsyncEvent::SubnetManagerChange(1),
        AsyncEvent::ClientReregister(1),
        AsyncEvent::AddressChange(1),
        AsyncEvent::PathMigrated(queue_pair),
        AsyncEvent::PathMigrationError(queue_pair),
    ];
    events
        .iter()
        .for_each(|&event| bench.network.raise("left", event));
    bench.run();
    assert_eq!(bench.left.async_events(), events);
    assert_eq!(bench.right.async_events(), []);
    assert_eq!(bench.left.state(), QueuePairState::ReadyToSend);
}

fn history(personality: Personality, seed: u64) -> u64 {
    let mut bench = Bench::managed(Setup {
        seed,
        ..Setup::new(personality)
    });
    bench
        .network
        .faults(|faults| faults.add(Rule::packets(10, legato_sim::fault::PacketEffect::Drop)));
    for wr_id in 0..4 {
        bench.right.receive(wr_id, 64);
        bench.left.send(wr_id, 16);
        let target = bench.right.at(64);
        bench.left.post(10, SendOperation::RdmaRead(target), 64);
        bench.run_for(MILLISECOND);
        bench.left.polled();
    }
    bench.left.nic.disconnect(bench.left.queue_pair).unwrap();
    bench.run();
    bench.network.trace_hash()
}

#[test]
fn v_41_a_seed_is_one_history() {
    for personality in Personality::ALL {
        assert_eq!(history(personality, 1), history(personality, 1));
        assert_ne!(history(personality, 1), history(personality, 2));
    }
}

#[test]
fn a_trace_can_be_read() {
    let mut bench = Bench::connected(Setup::new(Personality::IDEAL));
    bench.network.keep_trace_lines(3);
    bench.right.receive(1, 64);
    bench.left.send(2, 16);
    bench.run_for(MILLISECOND);
    let lines = bench.network.trace_lines();
    assert_eq!(lines.len(), 3);
    assert!(
        lines[0].contains("us right->left Acknowledge qp "),
        "{lines:?}"
    );
    assert!(lines[2].contains("left completes 0x2 of"), "{lines:?}");
    bench.network.keep_trace_lines(0);
    assert_eq!(bench.network.trace_lines(), Vec::<String>::new());
}

fn with_completion_fault(effect: CompletionEffect) -> Bench {
    let bench = Bench::connected(Setup::new(Personality::IDEAL));
    let of = Some(WorkQueue::Send);
    let rule = Rule::new(Frequency::First(1), Effect::Completion { of, effect });
    bench.network.faults(|faults| faults.add(rule));
    bench
}

fn one_message(bench: &mut Bench) -> Vec<(u64, crate::bench::Outcome)> {
    bench.right.receive(1, 64);
    bench.left.send(2, 16);
    bench.run_for(MILLISECOND);
    assert_eq!(bench.right.polled().len(), 1);
    bench.left.polled()
}

#[test]
fn completions_are_lost_doubled_and_late() {
    let mut bench = with_completion_fault(CompletionEffect::Lose);
    assert_eq!(one_message(&mut bench), []);
    let mut bench = with_completion_fault(CompletionEffect::Duplicate);
    assert_eq!(one_message(&mut bench), [(2, SENT), (2, SENT)]);
    let later = Span::exactly(SECOND);
    let mut bench = with_completion_fault(CompletionEffect::Delay(later));
    assert_eq!(one_message(&mut bench), []);
    bench.run_for(SECOND);
    assert_eq!(bench.left.polled(), [(2, SENT)]);
    let mut bench = with_completion_fault(CompletionEffect::Stale(later));
    assert_eq!(one_message(&mut bench), [(2, SENT)]);
    let left = bench.left.queue_pair;
    bench.left.nic.destroy_queue_pair(left).unwrap();
    bench.run_for(SECOND);
    assert_eq!(bench.left.polled(), [(2, SENT)]);
}

/// How often something came at once or later, of what was to come once.
#[derive(Debug, Default)]
struct Came {
    never: u32,
    twice: u32,
    late: u32,
}

impl Came {
    fn note(&mut self, at_once: usize, later: usize) {
        match (at_once, later) {
            (1, 0) => {}
            (0, 0) => self.never += 1,
            (0, 1) => self.late += 1,
            (1, 1) | (2, 0) => self.twice += 1,
            other => panic!("{other:?}"),
        }
    }

    fn all_occur(&self) -> bool {
        self.never > 0 && self.twice > 0 && self.late > 0
    }
}

/// And what a careless NIC does by itself; all else that it does is in order.
#[test]
fn a_careless_nic_loses_repeats_and_delays_what_it_tells() {
    let mut bench = Bench::connected(Setup::new(Personality::CARELESS));
    let [mut sends, mut receives, mut events] = [(); 3].map(|()| Came::default());
    for number in 0..300 {
        bench.right.receive(number, 64);
        bench.left.send(number, 16);
        // All that have come so far.
        let before = bench.left.async_events().len();
        bench.network.raise("left", AsyncEvent::ClientReregister(1));
        let [at_once, later] = [MILLISECOND, SECOND].map(|time| {
            bench.run_for(time);
            let (left, right) = (&mut bench.left, &mut bench.right);
            let told = [left.polled(), right.polled()].map(|came| {
                assert!(came.iter().all(|it| it.0 == number && it.1.is_ok()));
                came.len()
            });
            (told, left.async_events().len())
        });
        sends.note(at_once.0[0], later.0[0]);
        receives.note(at_once.0[1], later.0[1]);
        events.note(at_once.1 - before, later.1 - at_once.1);
    }
    for came in [sends, receives, events] {
        assert!(came.all_occur(), "{came:?}");
    }
    assert_eq!(bench.left.state(), QueuePairState::ReadyToSend);
}

/// A completion that comes twice frees one slot.
#[test]
fn a_doubled_completion_frees_one_slot() {
    let mut bench = with_completion_fault(CompletionEffect::Duplicate);
    for wr_id in 0..2 {
        bench.right.receive(wr_id, 64);
        bench.left.send(wr_id, 16);
        bench.run_for(MILLISECOND);
    }
    let (queue, mut came) = (bench.left.queue, Vec::new());
    bench
        .left
        .nic
        .poll_completion_queue(queue, 2, &mut came)
        .unwrap();
    assert_eq!(came[0], came[1]);
    // The second request's completion has not been polled.
    let posts = (0..9).filter(|_| {
        let flags = legato_verbs::SendFlags::SIGNALED;
        bench.left.try_send(9, flags).is_ok()
    });
    assert_eq!(posts.count(), 7);
}

#[test]
fn posts_are_refused_and_events_are_lost_and_repeated() {
    let mut bench = Bench::connected(Setup::new(Personality::IDEAL));
    let (of, refusal) = (Some(WorkQueue::Receive), Refusal::NoMemory);
    let rule = Rule::new(Frequency::First(1), Effect::Post { of, refusal });
    bench.network.faults(|faults| faults.add(rule));
    let refused = bench.right.try_receive(1, 64);
    assert!(matches!(refused, Err(VerbsError::System { errno: 12, .. })));
    bench.right.receive(1, 64);
    for (effect, times) in [(EventEffect::Lose, 0), (EventEffect::Repeat(3), 3)] {
        let bench = &mut Bench::connected(Setup::new(Personality::IDEAL));
        let of = Events::Asynchronous;
        let rule = Rule::new(Frequency::Always, Effect::Event { of, effect });
        bench.network.faults(|faults| faults.add(rule));
        bench.network.set_link("left", false);
        assert_eq!(bench.left.async_events().len(), times);
    }
}

#[test]
fn events_are_late_and_others_overtake_them() {
    let mut bench = Bench::connected(Setup::new(Personality::IDEAL));
    let (of, effect) = (
        Events::Asynchronous,
        EventEffect::Delay(Span::exactly(SECOND)),
    );
    let rule = Rule::new(Frequency::First(1), Effect::Event { of, effect });
    bench.network.faults(|faults| faults.add(rule));
    bench.network.set_link("left", false);
    bench.run_for(MILLISECOND);
    bench.network.set_link("left", true);
    assert_eq!(bench.left.async_events(), [AsyncEvent::PortActive(1)]);
    bench.run_for(SECOND - MILLISECOND - Duration::from_nanos(1));
    assert_eq!(bench.left.async_events(), [AsyncEvent::PortActive(1)]);
    bench.run_for(MILLISECOND);
    let both = [AsyncEvent::PortActive(1), AsyncEvent::PortError(1)];
    assert_eq!(bench.left.async_events(), both);
}
