//! Verbs without the fabric: queue pairs that are connected by hand, every kind of request over a
//! bad wire, and a model of the peer's memory.

mod ending;
mod ends;
mod model;
mod world;

use super::memory::NONE_KNOWN;
use super::{Options, Outcome, Scenario};
use crate::fault::{Effect, Frequency, PacketEffect, Rule, Span};
use legato_base::{Duration, Random};

pub(super) const TRAFFIC: Scenario = Scenario {
    name: "traffic",
    what: "SEND, WRITE, READ and atomics at up to 30 % loss, doubling and reordering: once, in order",
    steps: 400,
    personalities: &[
        "ideal", "mlx5", "rxe", "iwarp", "ehca", "hostile", "clocked",
    ],
    known: NONE_KNOWN,
    run: |options| world::run(&TRAFFIC, rules, options),
};

/// A model that is not told that completions are lost: broken on purpose, and in no list.
pub const LOST_COMPLETION: Scenario = Scenario {
    name: "lost-completion",
    what: "a completion that never comes, and nobody expects it: broken on purpose",
    personalities: &["ideal"],
    run: |options: &Options| -> Outcome {
        let rules = |random: &mut Random| {
            let mut rules = rules(random);
            let lost = Effect::Completion {
                of: Some(legato_transport::WorkQueue::Send),
                effect: crate::fault::CompletionEffect::Lose,
            };
            rules.push(Rule::new(Frequency::EveryNth(100), lost).at_most(3));
            rules
        };
        world::run(&LOST_COMPLETION, rules, options)
    },
    ..TRAFFIC
};

fn rules(random: &mut Random) -> Vec<Rule> {
    let mut per_cent = || random.below(31) as u32;
    let late = Span {
        least: Duration::ZERO,
        most: Duration::from_micros(300),
    };
    vec![
        Rule::packets(per_cent(), PacketEffect::Drop),
        Rule::packets(per_cent(), PacketEffect::Duplicate(late)),
        Rule::packets(per_cent(), PacketEffect::Reorder(Duration::from_micros(20))),
        Rule::packets(per_cent() / 10, PacketEffect::Corrupt),
    ]
}

/// The bytes that request `number` carries: none is 0.
fn content(number: u64, length: usize) -> Vec<u8> {
    let mut random = Random::from_seed(number);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&(random.next_u64() | 0x0101_0101_0101_0101).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
