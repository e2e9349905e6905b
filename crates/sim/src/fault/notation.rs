//! Decisions in a few characters, for a command line.
//!
//! `2.l0-1.5+17,0.cs1.3,act.7`: of rule 2, on the link from machine 0 to 1, the questions 5 and 17; of rule 0, of
//! the completions of sends on machine 1, question 3; of what the scenario does itself, the seventh after the first.

use super::{DecisionId, Link, Place, RuleId};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Decisions, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionList(pub Vec<DecisionId>);

/// A text that is no list of decisions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no decision; a report has them as RULE.PLACE.QUESTION+QUESTION, with commas between, or none"
)]
pub struct NoDecision(pub String);

/// Stands for a list without any.
const NONE: &str = "none";
/// What the scenario does itself has no rule.
const ACT: &str = "act";

impl DecisionList {
    pub fn new(mut decisions: Vec<DecisionId>) -> Self {
        decisions.sort_unstable();
        decisions.dedup();
        Self(decisions)
    }
}

impl fmt::Display for DecisionList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut places: BTreeMap<(RuleId, Place), Vec<u64>> = BTreeMap::new();
        for id in &self.0 {
            let questions = places.entry((id.rule, id.place)).or_default();
            questions.push(id.question);
        }
        if places.is_empty() {
            return f.write_str(NONE);
        }
        for (number, ((rule, place), questions)) in places.into_iter().enumerate() {
            if number > 0 {
                f.write_str(",")?;
            }
            match place {
                Place::Scenario => f.write_str(ACT)?,
                Place::Link(Link { from, to }) => write!(f, "{}.l{from}-{to}", rule.0)?,
                Place::Sends(machine) => write!(f, "{}.cs{machine}", rule.0)?,
                Place::Receives(machine) => write!(f, "{}.cr{machine}", rule.0)?,
                Place::PostedSends(machine) => write!(f, "{}.ps{machine}", rule.0)?,
                Place::PostedReceives(machine) => write!(f, "{}.pr{machine}", rule.0)?,
                Place::Events(machine) => write!(f, "{}.e{machine}", rule.0)?,
            }
            for (number, question) in questions.into_iter().enumerate() {
                let before = if number == 0 { '.' } else { '+' };
                write!(f, "{before}{question}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for DecisionList {
    type Err = NoDecision;

    fn from_str(text: &str) -> Result<Self, NoDecision> {
        if text == NONE {
            return Ok(Self(Vec::new()));
        }
        let mut decisions = Vec::new();
        for part in text.split(',') {
            let parsed = parse(part).ok_or_else(|| NoDecision(part.to_owned()))?;
            decisions.extend(parsed);
        }
        Ok(Self::new(decisions))
    }
}

/// The decisions of one place.
fn parse(text: &str) -> Option<Vec<DecisionId>> {
    let (before, questions) = text.rsplit_once('.')?;
    let (rule, place) = match before.split_once('.') {
        None if before == ACT => (RuleId::SCENARIO, Place::Scenario),
        None => return None,
        Some((rule, place)) => (RuleId(number(rule)?), parse_place(place)?),
    };
    let ids = questions.split('+').map(|question| {
        let question = number(question)?;
        Some(DecisionId {
            rule,
            place,
            question,
        })
    });
    ids.collect()
}

fn parse_place(text: &str) -> Option<Place> {
    // Nothing is told by a place of so many machines.
    let machine = |text| number::<u16>(text).map(usize::from);
    let at = text.find(|letter: char| letter.is_ascii_digit())?;
    let (kind, which) = text.split_at(at);
    Some(match kind {
        "l" => {
            let (from, to) = which.split_once('-')?;
            let (from, to) = (machine(from)?, machine(to)?);
            Place::Link(Link { from, to })
        }
        "cs" => Place::Sends(machine(which)?),
        "cr" => Place::Receives(machine(which)?),
        "ps" => Place::PostedSends(machine(which)?),
        "pr" => Place::PostedReceives(machine(which)?),
        "e" => Place::Events(machine(which)?),
        _ => return None,
    })
}

/// Digits alone, without a sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(rule: RuleId, place: Place, question: u64) -> DecisionId {
        DecisionId {
            rule,
            place,
            question,
        }
    }

    #[test]
    fn a_list_says_and_reads_every_place() {
        let link = Link { from: 0, to: 11 };
        let places = [
            Place::Link(link),
            Place::Sends(1),
            Place::Receives(2),
            Place::PostedSends(3),
            Place::PostedReceives(4),
            Place::Events(5),
        ];
        let mut ids = vec![id(RuleId::SCENARIO, Place::Scenario, 9)];
        for (number, place) in places.into_iter().enumerate() {
            ids.extend([7, u64::MAX, 0].map(|it| id(RuleId(number as u32), place, it)));
        }
        let list = DecisionList::new(ids);
        let text = list.to_string();
        assert_eq!(
            text,
            "0.l0-11.0+7+18446744073709551615,1.cs1.0+7+18446744073709551615,\
             2.cr2.0+7+18446744073709551615,3.ps3.0+7+18446744073709551615,\
             4.pr4.0+7+18446744073709551615,5.e5.0+7+18446744073709551615,act.9"
        );
        assert_eq!(text.parse(), Ok(list));
        let none = DecisionList::new(Vec::new());
        assert_eq!(none.to_string(), "none");
        assert_eq!("none".parse(), Ok(none));
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_part_that_is_none() {
        for (text, part) in [
            ("", ""),
            ("act", "act"),
            ("act.", "act."),
            ("act.1,,act.2", ""),
            ("act.1,none", "none"),
            ("1.act.2", "1.act.2"),
            ("1.l0.2", "1.l0.2"),
            ("1.l0-1-2.2", "1.l0-1-2.2"),
            ("1.e0.+2", "1.e0.+2"),
            ("1.e0.-2", "1.e0.-2"),
            ("1.e.2", "1.e.2"),
            ("1.cs70000.2", "1.cs70000.2"),
            ("4294967296.e0.2", "4294967296.e0.2"),
            ("1.e0.18446744073709551616", "1.e0.18446744073709551616"),
            ("rule 1, act #2", "rule 1"),
        ] {
            let refused = text.parse::<DecisionList>();
            assert_eq!(refused, Err(NoDecision(part.to_owned())), "{text}");
        }
    }
}
