use super::*;
use legato_verbs::{AsyncEvent, CompletionKind, QueuePair, WorkRequestId};

const LINK: Link = Link { from: 0, to: 1 };
const BACK: Link = Link { from: 1, to: 0 };

const fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

fn with(rules: &[Rule]) -> Faults {
    let mut faults = Faults::default();
    faults.set_seed(7);
    for &rule in rules {
        faults.add(rule);
    }
    faults
}

/// What becomes of each of `count` packets of 100 bytes, one every microsecond.
fn packets(faults: &mut Faults, link: Link, count: u64) -> Vec<Vec<Delivery>> {
    let one = |number: u64| {
        let mut into = Vec::new();
        faults.packet(at(number * 1000), link, 100, &mut into);
        into
    };
    (0..count).map(one).collect()
}

fn lost(packets: &[Vec<Delivery>]) -> Vec<usize> {
    let is_lost = |&number: &usize| packets[number].is_empty();
    (0..packets.len()).filter(is_lost).collect()
}

fn completion(faults: &mut Faults, queue: WorkQueue) -> CompletionFate {
    let completion = Completion {
        wr_id: WorkRequestId(1),
        queue_pair: QueuePair {
            index: 0,
            generation: 0,
        },
        result: Ok(CompletionKind::Send),
        vendor_error: 0,
    };
    faults.completion(at(0), 0, queue, &completion)
}

#[test]
fn without_rules_nothing_goes_wrong() {
    let mut faults = Faults::default();
    assert_eq!(
        packets(&mut faults, LINK, 3),
        vec![vec![Delivery::PLAIN]; 3]
    );
    assert_eq!(
        completion(&mut faults, WorkQueue::Send),
        CompletionFate::Deliver
    );
    assert_eq!(faults.post(at(0), 0, WorkQueue::Send), None);
    let event = Event::Async(AsyncEvent::DeviceFatal);
    assert_eq!(faults.event(at(0), 0, &event), EventFate::Deliver);
    assert!(faults.decisions().is_empty());
}

#[test]
fn a_chance_is_about_kept_and_every_decision_is_recorded() {
    let mut faults = with(&[Rule::packets(30, PacketEffect::Drop)]);
    let lost = lost(&packets(&mut faults, LINK, 10_000)).len();
    assert!((2800..3200).contains(&lost), "{lost}");
    assert_eq!(faults.decisions().len(), lost);
    let (id, _, count) = faults.rules().next().unwrap();
    assert_eq!((id, count), (RuleId(0), lost as u64));
}

#[test]
fn a_seed_decides_the_same_again_and_another_does_not() {
    let run = |seed| {
        let mut faults = with(&[Rule::packets(30, PacketEffect::Drop)]);
        faults.set_seed(seed);
        lost(&packets(&mut faults, LINK, 100))
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_rule_that_is_switched_off_changes_no_other_rule() {
    let drop = Rule::packets(20, PacketEffect::Drop);
    let corrupt = Rule::packets(20, PacketEffect::Corrupt);
    let flipped = |packets: &[Vec<Delivery>]| -> Vec<Option<u32>> {
        packets
            .iter()
            .map(|copies| copies.first().and_then(|copy| copy.flipped_bit))
            .collect()
    };
    let mut both = with(&[drop, corrupt]);
    let with_both = packets(&mut both, LINK, 1000);
    let mut one = with(&[drop, corrupt]);
    one.end(RuleId(0));
    let with_one = packets(&mut one, LINK, 1000);
    for (both, (one, copies)) in flipped(&with_both)
        .iter()
        .zip(flipped(&with_one).iter().zip(&with_both))
    {
        assert!(copies.is_empty() || both == one);
    }
}

#[test]
fn traffic_of_one_link_does_not_change_what_happens_on_another() {
    let mut alone = with(&[Rule::packets(30, PacketEffect::Drop)]);
    let mut beside = with(&[Rule::packets(30, PacketEffect::Drop)]);
    packets(&mut beside, BACK, 77);
    let expected = lost(&packets(&mut alone, LINK, 200));
    assert_eq!(lost(&packets(&mut beside, LINK, 200)), expected);
    let other = lost(&packets(&mut alone, BACK, 200));
    assert_ne!(
        other, expected,
        "the two directions have streams of their own"
    );
}

#[test]
fn a_cut_is_one_way_and_ends_with_its_window() {
    let rule = Rule::one_way_cut(LINK).between(at(2_000), at(4_000));
    let mut faults = with(&[rule]);
    assert_eq!(lost(&packets(&mut faults, LINK, 6)), [2, 3]);
    assert!(lost(&packets(&mut faults, BACK, 6)).is_empty());
}

#[test]
fn a_blackhole_takes_both_ways_until_it_heals() {
    let mut faults = with(&[Rule::blackhole(1)]);
    let elsewhere = Link { from: 0, to: 2 };
    assert_eq!(lost(&packets(&mut faults, LINK, 2)), [0, 1]);
    assert_eq!(lost(&packets(&mut faults, BACK, 2)), [0, 1]);
    assert!(lost(&packets(&mut faults, elsewhere, 2)).is_empty());
    faults.heal();
    assert!(lost(&packets(&mut faults, LINK, 2)).is_empty());
    let (_, _, count) = faults.rules().next().unwrap();
    assert_eq!(count, 4, "a healed rule keeps its count");
}

#[test]
fn counts_limit_a_rule() {
    let drop = Effect::Packet(PacketEffect::Drop);
    let mut third = with(&[Rule::new(Frequency::EveryNth(3), drop).at_most(2)]);
    assert_eq!(lost(&packets(&mut third, LINK, 12)), [2, 5]);
    let mut first = with(&[Rule::new(Frequency::First(2), drop)]);
    assert_eq!(lost(&packets(&mut first, LINK, 12)), [0, 1]);
}

#[test]
fn copies_delays_and_flipped_bits_add_up() {
    let always = |effect| Rule::new(Frequency::Always, Effect::Packet(effect));
    let time = Duration::from_micros(3);
    let mut faults = with(&[
        always(PacketEffect::Delay(Span::exactly(time))),
        always(PacketEffect::Duplicate(Span::exactly(time))),
        always(PacketEffect::Corrupt),
    ]);
    let copies = packets(&mut faults, LINK, 1).remove(0);
    assert_eq!(copies.len(), 2);
    assert_eq!((copies[0].later, copies[1].later), (time, time + time));
    assert!(copies[0].flipped_bit.is_some_and(|bit| bit < 800));
    assert_eq!(copies[1].flipped_bit, None);
}

#[test]
fn packets_queue_up_before_a_slow_link() {
    let slow = PacketEffect::Slow {
        bytes_per_second: 10_000_000,
    };
    let mut faults = with(&[Rule::new(Frequency::Always, Effect::Packet(slow))]);
    let later: Vec<_> = packets(&mut faults, LINK, 3)
        .iter()
        .map(|copies| copies[0].later.as_nanos())
        .collect();
    // 100 bytes take 10 us and one comes every microsecond.
    assert_eq!(later, [10_000, 19_000, 28_000]);
}

#[test]
fn a_reordered_packet_is_held_back_a_little() {
    let most = Duration::from_micros(5);
    let mut faults = with(&[Rule::packets(50, PacketEffect::Reorder(most))]);
    let late = packets(&mut faults, LINK, 100)
        .iter()
        .filter(|copies| copies[0].later > Duration::ZERO)
        .inspect(|copies| assert!(copies[0].later <= most))
        .count();
    assert!((30..70).contains(&late), "{late}");
}

#[test]
fn a_suppressed_decision_is_as_if_the_rule_had_not_hit() {
    let rules = [Rule::packets(30, PacketEffect::Drop)];
    let mut faults = with(&rules);
    let all = lost(&packets(&mut faults, LINK, 100));
    let ids: Vec<_> = faults.decisions().iter().map(|one| one.id).collect();
    let mut replay = with(&rules);
    replay.suppress(&ids[1..3]);
    let mut expected = all.clone();
    expected.drain(1..3);
    assert_eq!(lost(&packets(&mut replay, LINK, 100)), expected);
    let mut replay = with(&rules);
    replay.keep_only(&ids[..2]);
    replay.suppress(&ids[..1]);
    assert_eq!(lost(&packets(&mut replay, LINK, 100)), all[1..2]);
}

#[test]
fn completions_posts_and_events_have_rules_of_their_queues() {
    let send = Some(WorkQueue::Send);
    let mut faults = with(&[
        Rule::new(
            Frequency::First(1),
            Effect::Completion {
                of: send,
                effect: CompletionEffect::Lose,
            },
        ),
        Rule::new(
            Frequency::Always,
            Effect::Post {
                of: Some(WorkQueue::Receive),
                refusal: Refusal::NoMemory,
            },
        ),
        Rule::new(
            Frequency::Always,
            Effect::Event {
                of: Events::Asynchronous,
                effect: EventEffect::Repeat(3),
            },
        ),
    ]);
    assert_eq!(
        completion(&mut faults, WorkQueue::Receive),
        CompletionFate::Deliver
    );
    let sends = [(); 2].map(|()| completion(&mut faults, WorkQueue::Send));
    assert_eq!(sends, [CompletionFate::Lose, CompletionFate::Deliver]);
    assert_eq!(faults.post(at(0), 0, WorkQueue::Send), None);
    assert!(matches!(
        faults.post(at(0), 0, WorkQueue::Receive),
        Some(VerbsError::System { errno: 12, .. })
    ));
    let event = Event::Async(AsyncEvent::DeviceFatal);
    assert_eq!(faults.event(at(0), 0, &event), EventFate::Repeat(3));
}

#[test]
fn acts_of_a_scenario_are_decisions_too() {
    let mut faults = Faults::default();
    assert!(faults.act(at(1), Act::Kill(2)));
    let id = faults.decisions()[0].id;
    let mut replay = Faults::default();
    replay.suppress(&[id]);
    assert!(!replay.act(at(1), Act::Kill(2)));
    assert!(replay.act(at(2), Act::Freeze(2)));
}

#[test]
fn rules_and_decisions_read_as_text() {
    let rule = Rule::packets(30, PacketEffect::Drop)
        .within(Scope::Link(LINK))
        .between(at(1_000_000), at(5_000_000))
        .at_most(4);
    assert_eq!(
        rule.to_string(),
        "lose packets, 30 in 100, link 0->1, from 1.0 ms, until 5.0 ms, at most 4 times"
    );
    let mut faults = with(&[Rule::one_way_cut(LINK)]);
    packets(&mut faults, LINK, 2);
    assert_eq!(
        faults.decisions()[1].to_string(),
        "1.0 us rule 0, packet 0->1 #1: lost"
    );
}
