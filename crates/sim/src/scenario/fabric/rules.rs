//! What the scenarios of the fabric make go wrong with packets, completions, events and posts.

use crate::fault::{
    CompletionEffect, Effect, EventEffect, Events, Frequency, PacketEffect, Refusal, Rule, Scope,
    Span,
};
use legato_base::{Duration, Random};
use legato_transport::WorkQueue;

/// Each kind of rules with an even chance.
pub(super) fn anything(random: &mut Random) -> Vec<Rule> {
    let kinds = [weather, completions, events, posts];
    let mut rules = Vec::new();
    for kind in kinds {
        if random.below(2) == 0 {
            rules.extend(kind(random));
        }
    }
    rules
}

fn up_to(most: Duration) -> Span {
    Span {
        least: Duration::ZERO,
        most,
    }
}

pub(super) fn losses(random: &mut Random) -> Vec<Rule> {
    let per_cent = 1 + random.below(20) as u32;
    vec![
        Rule::packets(per_cent, PacketEffect::Drop),
        Rule::packets(
            per_cent,
            PacketEffect::Duplicate(up_to(Duration::from_millis(1))),
        ),
    ]
}

pub(super) fn weather(random: &mut Random) -> Vec<Rule> {
    let mut rules = losses(random);
    let slow = PacketEffect::Slow {
        bytes_per_second: 1_000_000 << random.below(10),
    };
    rules.push(Rule::packets(
        10,
        PacketEffect::Reorder(Duration::from_micros(40)),
    ));
    rules.push(Rule::packets(
        5,
        PacketEffect::Delay(up_to(Duration::from_millis(100))),
    ));
    rules.push(Rule::packets(3, PacketEffect::Corrupt));
    rules.push(
        Rule::new(Frequency::Always, Effect::Packet(slow))
            .within(Scope::Machine(random.below(3) as usize)),
    );
    rules
}

pub(super) fn completions(random: &mut Random) -> Vec<Rule> {
    let queues = [None, Some(WorkQueue::Send), Some(WorkQueue::Receive)];
    let mut rule = |effect| {
        let of = queues[random.below(3) as usize];
        let frequency = Frequency::one_in(20 << random.below(4));
        Rule::new(frequency, Effect::Completion { of, effect })
    };
    vec![
        rule(CompletionEffect::Lose).at_most(20),
        rule(CompletionEffect::Duplicate),
        rule(CompletionEffect::Delay(up_to(Duration::from_millis(500)))),
        rule(CompletionEffect::Stale(up_to(Duration::from_secs(2)))),
    ]
}

pub(super) fn events(random: &mut Random) -> Vec<Rule> {
    let ends = [Events::All, Events::Asynchronous, Events::Connection][random.below(3) as usize];
    let begins = [Events::Requested, Events::Established][random.below(2) as usize];
    let mut rules = Vec::new();
    // Without those of a beginning there is no connection at all.
    for (of, least) in [(ends, 2), (begins, 10)] {
        for effect in [
            EventEffect::Lose,
            EventEffect::Delay(up_to(Duration::from_secs(1))),
            EventEffect::Repeat(3),
        ] {
            let frequency = Frequency::one_in(least + random.below(4) as u32);
            rules.push(Rule::new(frequency, Effect::Event { of, effect }));
        }
    }
    rules
}

pub(super) fn posts(random: &mut Random) -> Vec<Rule> {
    let mut rule = |of, refusal| {
        let frequency = match random.below(3) {
            0 => Frequency::EveryNth(10 + random.below(90)),
            1 => Frequency::First(1),
            _ => Frequency::one_in(20 + random.below(200) as u32),
        };
        Rule::new(frequency, Effect::Post { of, refusal })
    };
    vec![
        rule(Some(WorkQueue::Send), Refusal::QueueFull),
        rule(Some(WorkQueue::Send), Refusal::NoMemory),
        rule(Some(WorkQueue::Receive), Refusal::NoMemory),
    ]
}
