//! A rule at work: its questions, its streams, its count.

use super::{Action, DecisionId, Delivery, Frequency, Link, PacketEffect, Place, Rule, RuleId};
use legato_base::{Duration, Random, Time};
use std::collections::BTreeMap;

#[derive(Debug)]
pub(super) struct Record {
    pub(super) rule: Rule,
    pub(super) ended: bool,
    /// How often it did something.
    pub(super) applied: u64,
    /// How often it was to do something, also where that is switched off.
    hits: u64,
    /// Questions so far.
    asked: BTreeMap<Place, u64>,
    /// When a slow link has carried what it was given.
    link_free: BTreeMap<Link, Time>,
}

/// A question that the rule answers with yes.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) id: DecisionId,
    /// For the rest of the answer.
    pub(super) random: Random,
}

impl Record {
    pub(super) fn new(rule: Rule) -> Self {
        Self {
            rule,
            ended: false,
            applied: 0,
            hits: 0,
            asked: BTreeMap::new(),
            link_free: BTreeMap::new(),
        }
    }

    pub(super) fn is_active(&self, now: Time) -> bool {
        !self.ended && (self.rule.from..self.rule.until).contains(&now)
    }

    /// The next question at a place.
    pub(super) fn ask(&mut self, seed: u64, number: usize, place: Place) -> Option<Question> {
        let asked = self.asked.entry(place).or_default();
        let question = *asked;
        *asked += 1;
        if self.hits >= self.rule.most {
            return None;
        }
        let words = [number as u64, place.code(), question];
        let mut random = Random::from_seed(words.iter().fold(seed, |sum, &word| mix(sum, word)));
        if !self.rule.frequency.hits(question, &mut random) {
            return None;
        }
        self.hits += 1;
        let rule = RuleId(number as u32);
        let id = DecisionId {
            rule,
            place,
            question,
        };
        Some(Question { id, random })
    }

    /// Does to a packet's copies from `first` on what the rule says. None if it is nothing.
    #[expect(clippy::too_many_arguments, reason = "all of it is one packet")]
    pub(super) fn on_packet(
        &mut self,
        effect: PacketEffect,
        question: &mut Question,
        now: Time,
        link: Link,
        length: usize,
        into: &mut Vec<Delivery>,
        first: usize,
    ) -> Option<Action> {
        let random = &mut question.random;
        let mut delay = |time: Duration| {
            for copy in &mut into[first..] {
                copy.later = copy.later + time;
            }
            (time > Duration::ZERO).then_some(Action::PacketDelayed(time))
        };
        match effect {
            PacketEffect::Drop => {
                into.truncate(first);
                Some(Action::PacketLost)
            }
            PacketEffect::Delay(span) => delay(span.draw(random)),
            PacketEffect::Reorder(most) => delay(Duration::from_nanos(
                1 + random.below(most.as_nanos().max(1)),
            )),
            PacketEffect::Duplicate(span) => {
                let later = span.draw(random);
                let copy = into[first];
                into.push(Delivery {
                    later: copy.later + later,
                    ..copy
                });
                Some(Action::PacketDoubled(later))
            }
            PacketEffect::Corrupt => {
                let bits = (length as u64).saturating_mul(8).max(1);
                let bit = random.below(bits) as u32;
                into[first].flipped_bit = Some(bit);
                Some(Action::BitFlipped(bit))
            }
            PacketEffect::Slow { bytes_per_second } => {
                let nanos = (length as u64).saturating_mul(1_000_000_000) / bytes_per_second.max(1);
                let free = self.link_free.entry(link).or_default();
                *free = (*free).max(now) + Duration::from_nanos(nanos);
                delay(free.since(now))
            }
        }
    }
}

impl Frequency {
    /// Once in so many.
    pub const fn one_in(denominator: u32) -> Self {
        Self::Chance {
            numerator: 1,
            denominator,
        }
    }
}

/// The finaliser of SplitMix64 over two words.
const fn mix(sum: u64, word: u64) -> u64 {
    let mut z = sum.rotate_left(23) ^ word.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
