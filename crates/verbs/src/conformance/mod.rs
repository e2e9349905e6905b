//! The conformance suite: one library function over a pair of providers.
//!
//! A provider's crate implements [`World`] for two instances that can reach each other and calls
//! [`run`]. Each [`Rule`] runs in a fresh world, only through the [`Provider`] trait, and reports
//! what was expected and what came. The suite holds providers to what the trait's documentation
//! promises and no more: where the documentation allows two answers, both pass.

mod arming;
mod by_hand;
mod connections;
mod data;
mod endings;
mod expect;
mod one_sided;
mod operations;
mod queues;
mod receives;
mod regions;
mod session;
mod shared_receives;
mod states;
mod windows;

pub use session::Side;

use crate::{Address, CompletionStatus, Provider};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A pair of providers that can reach each other, and the means to let time pass.
pub trait World {
    fn left(&mut self) -> &mut dyn Provider;

    fn right(&mut self) -> &mut dyn Provider;

    /// An address that this side can listen on and the other one can connect to, fresh at each call.
    fn fresh_address(&mut self, of: Side) -> Address;

    /// A wait begins: the bound of [`Self::advance`] counts from here.
    fn begin_wait(&mut self);

    /// One small step, calling `progress` on both providers: in virtual time up to the next event
    /// at the latest, in real time without spinning for longer than it takes the other side to
    /// run.
    fn advance(&mut self) -> Advance;

    /// Lets everything that is under way arrive: after it, what has not happened is held not to
    /// happen. Virtual time runs until no event is left; real time for as long as the provider
    /// needs when nobody is slow.
    fn settle(&mut self);

    fn facts(&self) -> Facts;
}

/// What a step of a [`World`] led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// Time passed; more may happen.
    Stepped,
    /// Nothing more can happen, or the bound within which the provider says that everything
    /// happens has passed since [`World::begin_wait`].
    Exhausted,
}

/// Deviations that a provider documents, and sizes that keep the suite short on slow ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// A WRITE that leaves its region may place the bytes before the edge (as hardware does,
    /// packet by packet) before it is refused.
    pub refused_write_may_be_partial: bool,
    /// How often the connection cycles of V-24 run.
    pub cycles: u32,
    /// What a message that is longer than its receive is to its sender.
    pub too_long_at_sender: CompletionStatus,
    /// What it is to its receiver.
    pub too_long_at_receiver: CompletionStatus,
    /// A refused request raises an asynchronous event at the responder, or ends the connection
    /// there.
    pub refusals_are_told: bool,
    /// Completions of a destroyed queue pair stay in the completion queue, with its handle.
    pub destroyed_completions_stay: bool,
    /// An overrun ends the completion queue and its queue pairs; otherwise it only loses
    /// completions.
    pub overrun_is_fatal: bool,
    /// How often Last WQE Reached comes for each way into the error state.
    pub last_work_request: RangeInclusive,
    /// A READ whose answer the network lost is executed again, and finds what requests after it
    /// have written that did not wait (`FENCE`; IB spec 9.7.5.1.1 and table 79).
    pub reads_are_repeated: bool,
}

/// Bounds of a count, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeInclusive {
    pub least: usize,
    pub most: usize,
}

impl Facts {
    /// As the specification says.
    pub const IDEAL: Self = Self {
        refused_write_may_be_partial: true,
        cycles: 100,
        too_long_at_sender: CompletionStatus::RemoteInvalidRequest,
        too_long_at_receiver: CompletionStatus::LocalLength,
        refusals_are_told: true,
        destroyed_completions_stay: false,
        overrun_is_fatal: true,
        last_work_request: RangeInclusive { least: 1, most: 1 },
        reads_are_repeated: false,
    };
}

/// One rule of the model.
#[derive(Clone, Copy)]
pub struct Rule {
    pub name: &'static str,
    pub check: fn(&mut dyn World) -> Result<(), Violation>,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// How a provider broke a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: expected {expected}, got {got}")]
pub struct Violation {
    /// The step of the rule.
    pub what: String,
    pub expected: String,
    pub got: String,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub passed: Vec<&'static str>,
    pub failed: Vec<(&'static str, Violation)>,
}

impl Report {
    pub const fn is_clean(&self) -> bool {
        self.failed.is_empty()
    }

    /// True if the rule whose name starts with `name` was broken.
    pub fn names(&self, name: &str) -> bool {
        self.failed.iter().any(|(rule, _)| rule.starts_with(name))
    }
}

/// Of rules by name, and what came of each.
impl FromIterator<(&'static str, Result<(), Violation>)> for Report {
    fn from_iter<I>(results: I) -> Self
    where
        I: IntoIterator<Item = (&'static str, Result<(), Violation>)>,
    {
        let mut report = Self::default();
        for (rule, result) in results {
            match result {
                Ok(()) => report.passed.push(rule),
                Err(violation) => report.failed.push((rule, violation)),
            }
        }
        report
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} rules kept, {} broken",
            self.passed.len(),
            self.failed.len()
        )?;
        for (rule, violation) in &self.failed {
            writeln!(f, "  {rule}\n    {violation}")?;
        }
        Ok(())
    }
}

/// All rules, in the order in which [`run`] takes them.
pub fn rules() -> Vec<Rule> {
    [
        states::RULES,
        by_hand::RULES,
        data::RULES,
        one_sided::RULES,
        operations::RULES,
        windows::RULES,
        receives::RULES,
        queues::RULES,
        arming::RULES,
        shared_receives::RULES,
        regions::RULES,
        connections::RULES,
        endings::RULES,
    ]
    .concat()
}

/// Checks every rule, each in a world of its own.
pub fn run(make_world: &mut dyn FnMut() -> Box<dyn World>) -> Report {
    let check = |rule: Rule| (rule.name, (rule.check)(&mut *make_world()));
    rules().into_iter().map(check).collect()
}
