//! What goes wrong: decided by rules, from a seed.
//!
//! The simulated NICs and their wire ask here what becomes of each packet, post, completion and
//! event; they know no rule.
//!
//! Each question that a rule is asked has a number, and its answer follows from the seed, the
//! rule's number, the place and the question's number alone. So a rule that is switched off, or
//! one decision, changes what another decides only as far as history itself becomes another.

mod decision;
mod notation;
mod record;
mod rule;
#[cfg(test)]
mod tests;

pub use decision::{Act, Action, Decision, DecisionId, Place, RuleId};
pub use notation::{DecisionList, NoDecision};
pub use rule::{
    CompletionEffect, Effect, EventEffect, Events, Frequency, PacketEffect, Refusal, Rule, Scope,
    Span,
};

use decision::Decisions;
use legato_base::{Duration, Time};
use legato_transport::WorkQueue;
use legato_verbs::{Completion, Event, VerbsError};
use record::Record;

/// All rules of a network.
#[derive(Debug, Default)]
pub struct Faults {
    seed: u64,
    rules: Vec<Record>,
    decisions: Decisions,
    /// What was done to machines, by the scenario itself.
    acts: u64,
}

/// The way from one machine to another, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    pub from: usize,
    pub to: usize,
}

/// A copy of a packet that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// So much later than the wire alone takes.
    pub later: Duration,
    /// With this bit flipped, counted from the packet's first; the wire takes it modulo the
    /// packet's length.
    pub flipped_bit: Option<u32>,
}

impl Delivery {
    /// As it was sent, without delay.
    pub const PLAIN: Self = Self {
        later: Duration::ZERO,
        flipped_bit: None,
    };
}

/// What becomes of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionFate {
    Deliver,
    /// It never comes, and its slot is never free.
    Lose,
    Delay(Duration),
    /// It comes, and so much later it comes again, whatever has become of its queue pair.
    Repeat(Duration),
}

/// What becomes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFate {
    Deliver,
    Lose,
    Delay(Duration),
    /// It comes so many times in all.
    Repeat(u32),
}

impl Faults {
    /// Says which copies of a packet of `length` bytes arrive, at the end of `into`: none if it is
    /// lost.
    pub fn packet(&mut self, now: Time, link: Link, length: usize, into: &mut Vec<Delivery>) {
        let first = into.len();
        into.push(Delivery::PLAIN);
        for (number, record) in self.rules.iter_mut().enumerate() {
            let Effect::Packet(effect) = record.rule.effect else {
                continue;
            };
            if !record.is_active(now) || !record.rule.scope.has_link(link) {
                continue;
            }
            let Some(mut question) = record.ask(self.seed, number, Place::Link(link)) else {
                continue;
            };
            // Lost by an earlier rule: nothing is left to decide about.
            if into.len() == first || !self.decisions.allows(question.id) {
                continue;
            }
            let action = record.on_packet(effect, &mut question, now, link, length, into, first);
            if let Some(action) = action {
                record.applied += 1;
                self.decisions.note(question.id, now, action);
            }
        }
    }

    pub fn completion(
        &mut self,
        now: Time,
        machine: usize,
        queue: WorkQueue,
        completion: &Completion,
    ) -> CompletionFate {
        // Every rule is asked about every completion of its scope, whatever it says.
        let _ = completion;
        let mut fate = CompletionFate::Deliver;
        let place = match queue {
            WorkQueue::Send => Place::Sends(machine),
            WorkQueue::Receive => Place::Receives(machine),
        };
        for (number, record) in self.rules.iter_mut().enumerate() {
            let Effect::Completion { of, effect } = record.rule.effect else {
                continue;
            };
            if of.is_some_and(|of| of != queue)
                || !record.is_active(now)
                || !record.rule.scope.has_machine(machine)
            {
                continue;
            }
            if let Some(mut question) = record.ask(self.seed, number, place)
                && fate == CompletionFate::Deliver
                && self.decisions.allows(question.id)
            {
                fate = effect.fate(&mut question.random);
                record.applied += 1;
                self.decisions
                    .note(question.id, now, Action::Completion(fate));
            }
        }
        fate
    }

    /// Why a post is refused that the NIC would take.
    pub fn post(&mut self, now: Time, machine: usize, queue: WorkQueue) -> Option<VerbsError> {
        let mut refused = None;
        let place = match queue {
            WorkQueue::Send => Place::PostedSends(machine),
            WorkQueue::Receive => Place::PostedReceives(machine),
        };
        for (number, record) in self.rules.iter_mut().enumerate() {
            let Effect::Post { of, refusal } = record.rule.effect else {
                continue;
            };
            if of.is_some_and(|of| of != queue)
                || !record.is_active(now)
                || !record.rule.scope.has_machine(machine)
            {
                continue;
            }
            if let Some(question) = record.ask(self.seed, number, place)
                && refused.is_none()
                && self.decisions.allows(question.id)
            {
                refused = Some(refusal.error(queue));
                record.applied += 1;
                self.decisions
                    .note(question.id, now, Action::Refused(refusal));
            }
        }
        refused
    }

    pub fn event(&mut self, now: Time, machine: usize, event: &Event) -> EventFate {
        let mut fate = EventFate::Deliver;
        for (number, record) in self.rules.iter_mut().enumerate() {
            let Effect::Event { of, effect } = record.rule.effect else {
                continue;
            };
            if !of.has(event) || !record.is_active(now) || !record.rule.scope.has_machine(machine) {
                continue;
            }
            if let Some(mut question) = record.ask(self.seed, number, Place::Events(machine))
                && fate == EventFate::Deliver
                && self.decisions.allows(question.id)
            {
                fate = effect.fate(&mut question.random);
                record.applied += 1;
                self.decisions.note(question.id, now, Action::Event(fate));
            }
        }
        fate
    }

    /// From now on decisions come from this seed.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// A rule more. Its number says which it is, also in another run.
    pub fn add(&mut self, rule: Rule) -> RuleId {
        self.rules.push(Record::new(rule));
        RuleId(self.rules.len() as u32 - 1)
    }

    /// Ends a rule. It keeps its number and its count.
    pub fn end(&mut self, rule: RuleId) {
        if let Some(record) = self.rules.get_mut(rule.0 as usize) {
            record.ended = true;
        }
    }

    /// Ends all rules. What they have delayed still comes.
    pub fn heal(&mut self) {
        for record in &mut self.rules {
            record.ended = true;
        }
    }

    /// Asks whether the scenario may do this to a machine now: always, unless it is switched off
    /// in a replay.
    pub fn act(&mut self, now: Time, act: Act) -> bool {
        let id = DecisionId {
            rule: RuleId::SCENARIO,
            place: Place::Scenario,
            question: self.acts,
        };
        self.acts += 1;
        let allowed = self.decisions.allows(id);
        if allowed {
            self.decisions.note(id, now, Action::Act(act));
        }
        allowed
    }

    /// Switches decisions off, as if their rules had decided otherwise.
    pub fn suppress(&mut self, decisions: &[DecisionId]) {
        self.decisions.suppress(decisions);
    }

    /// Switches all decisions off but these.
    pub fn keep_only(&mut self, decisions: &[DecisionId]) {
        self.decisions.keep_only(decisions);
    }

    /// The decisions that did something, the oldest first; see [`Self::decisions_not_kept`].
    pub fn decisions(&self) -> &[Decision] {
        self.decisions.list()
    }

    /// Decisions that did something and are not in the list.
    pub const fn decisions_not_kept(&self) -> u64 {
        self.decisions.not_kept()
    }

    /// Each rule with its number and how often it did something.
    pub fn rules(&self) -> impl Iterator<Item = (RuleId, &Rule, u64)> {
        self.rules
            .iter()
            .enumerate()
            .map(|(number, record)| (RuleId(number as u32), &record.rule, record.applied))
    }
}
