//! Decisions: what rules have done, so that it can be left undone in a replay.

use super::{CompletionFate, EventFate, Link, Refusal};
use legato_base::{Duration, Time};
use std::collections::BTreeSet;
use std::fmt;

/// The number of a rule, in the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub u32);

impl RuleId {
    /// Stands for what the scenario itself does.
    pub const SCENARIO: Self = Self(u32::MAX);
}

/// Where questions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    Link(Link),
    /// Completions of sends on a machine.
    Sends(usize),
    Receives(usize),
    PostedSends(usize),
    PostedReceives(usize),
    Events(usize),
    Scenario,
}

/// Names one decision of a run. In another run of the same seed it is the same decision as long as
/// history is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionId {
    pub rule: RuleId,
    pub place: Place,
    /// How many questions the rule was asked there before.
    pub question: u64,
}

/// A decision that did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub id: DecisionId,
    pub at: Time,
    pub action: Action,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    PacketLost,
    PacketDelayed(Duration),
    /// The copy comes so much later.
    PacketDoubled(Duration),
    BitFlipped(u32),
    Completion(CompletionFate),
    Refused(Refusal),
    Event(EventFate),
    Act(Act),
}

/// What a scenario does to machines by itself. What follows from it, such as a start after a kill,
/// is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Kill(usize),
    /// All of it stands still, its NIC too.
    Freeze(usize),
    /// Its software stands still. Its NIC acknowledges, and serves what needs no software.
    Stop(usize),
    RemoveDevice(usize),
    PortDown(usize),
}

/// What was decided, and what may be.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    list: Vec<Decision>,
    not_kept: u64,
    choice: Choice,
}

/// Which decisions may do something.
#[derive(Debug, Default)]
enum Choice {
    #[default]
    All,
    Except(BTreeSet<DecisionId>),
    Only(BTreeSet<DecisionId>),
}

impl Decisions {
    /// Decisions kept.
    pub(super) const MAX: usize = 1 << 18;

    pub(super) fn allows(&self, id: DecisionId) -> bool {
        match &self.choice {
            Choice::All => true,
            Choice::Except(suppressed) => !suppressed.contains(&id),
            Choice::Only(kept) => kept.contains(&id),
        }
    }

    pub(super) fn note(&mut self, id: DecisionId, at: Time, action: Action) {
        if self.list.len() < Self::MAX {
            self.list.push(Decision { id, at, action });
        } else {
            self.not_kept += 1;
        }
    }

    pub(super) fn suppress(&mut self, decisions: &[DecisionId]) {
        match &mut self.choice {
            Choice::Except(suppressed) => suppressed.extend(decisions),
            Choice::Only(kept) => kept.retain(|id| !decisions.contains(id)),
            Choice::All => self.choice = Choice::Except(decisions.iter().copied().collect()),
        }
    }

    pub(super) fn keep_only(&mut self, decisions: &[DecisionId]) {
        self.choice = Choice::Only(decisions.iter().copied().collect());
    }

    pub(super) fn list(&self) -> &[Decision] {
        &self.list
    }

    pub(super) const fn not_kept(&self) -> u64 {
        self.not_kept
    }
}

impl Place {
    /// Differs for each place of machines below 2^28.
    pub(super) const fn code(self) -> u64 {
        let (kind, a, b) = match self {
            Self::Link(link) => (0, link.from, link.to),
            Self::Sends(machine) => (1, machine, 0),
            Self::Receives(machine) => (2, machine, 0),
            Self::PostedSends(machine) => (3, machine, 0),
            Self::PostedReceives(machine) => (4, machine, 0),
            Self::Events(machine) => (5, machine, 0),
            Self::Scenario => (6, 0, 0),
        };
        (kind << 56) | ((a as u64) << 28) | b as u64
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SCENARIO => f.write_str("scenario"),
            Self(number) => write!(f, "rule {number}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(link) => write!(f, "packet {link}"),
            Self::Sends(machine) => write!(f, "send completion of {machine}"),
            Self::Receives(machine) => write!(f, "receive completion of {machine}"),
            Self::PostedSends(machine) => write!(f, "posted send of {machine}"),
            Self::PostedReceives(machine) => write!(f, "posted receive of {machine}"),
            Self::Events(machine) => write!(f, "event of {machine}"),
            Self::Scenario => f.write_str("act"),
        }
    }
}

impl fmt::Display for DecisionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} #{}", self.rule, self.place, self.question)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.since(Time::ZERO);
        write!(f, "{at} {}: {}", self.id, self.action)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PacketLost | Self::Completion(CompletionFate::Lose) => f.write_str("lost"),
            Self::PacketDelayed(time) | Self::Completion(CompletionFate::Delay(time)) => {
                write!(f, "{time} late")
            }
            Self::PacketDoubled(time) | Self::Completion(CompletionFate::Repeat(time)) => {
                write!(f, "again {time} later")
            }
            Self::BitFlipped(bit) => write!(f, "bit {bit} flipped"),
            Self::Refused(Refusal::QueueFull) => f.write_str("refused, the queue is full"),
            Self::Refused(Refusal::NoMemory) => f.write_str("refused, no memory"),
            Self::Event(EventFate::Lose) => f.write_str("lost"),
            Self::Event(EventFate::Delay(time)) => write!(f, "{time} late"),
            Self::Event(EventFate::Repeat(times)) => write!(f, "{times} times"),
            Self::Completion(CompletionFate::Deliver) | Self::Event(EventFate::Deliver) => {
                f.write_str("delivered")
            }
            Self::Act(act) => write!(f, "{act}"),
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(machine) => write!(f, "machine {machine} killed"),
            Self::Freeze(machine) => write!(f, "machine {machine} frozen"),
            Self::Stop(machine) => write!(f, "software of machine {machine} stopped"),
            Self::RemoveDevice(machine) => write!(f, "NIC of machine {machine} removed"),
            Self::PortDown(machine) => write!(f, "port of machine {machine} down"),
        }
    }
}
