//! The conformance suite: one library function over a pair of providers.
//!
//! A provider's crate implements [`World`] for two instances that can reach each other and calls
//! [`run`]. Each [`Rule`] runs in a fresh world, only through the [`Provider`] trait, and reports
//! what was expected and what came. The suite holds providers to what the trait's documentation
//! promises and no more: where the documentation allows two answers, both pass.

mod connections;
mod data;
mod endings;
mod one_sided;
mod queues;
mod receives;
mod regions;
mod session;
mod states;

use crate::{Address, Provider};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// A pair of providers that can reach each other, and the means to let time pass.
pub trait World {
    fn left(&mut self) -> &mut dyn Provider;

    fn right(&mut self) -> &mut dyn Provider;

    /// An address that `right` can listen on and `left` can connect to, fresh at each call.
    fn fresh_address(&mut self) -> Address;

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
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// A WRITE that leaves its region may place the bytes before the edge (as hardware does,
    /// packet by packet) before it is refused.
    pub refused_write_may_be_partial: bool,
    /// How often the connection cycles of V-24 run.
    pub cycles: u32,
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
        data::RULES,
        one_sided::RULES,
        receives::RULES,
        queues::RULES,
        regions::RULES,
        connections::RULES,
        endings::RULES,
    ]
    .concat()
}

/// Checks every rule, each in a world of its own.
pub fn run(make_world: &mut dyn FnMut() -> Box<dyn World>) -> Report {
    let mut report = Report::default();
    for rule in rules() {
        let mut world = make_world();
        match (rule.check)(&mut *world) {
            Ok(()) => report.passed.push(rule.name),
            Err(violation) => report.failed.push((rule.name, violation)),
        }
    }
    report
}
