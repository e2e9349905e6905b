//! Named scenarios: each a function of a seed, in three phases.
//!
//! Safety: work under faults, with every invariant checked after each step. Liveness: all faults
//! are healed, and all work must finish within a bound of virtual time. Teardown: everything is
//! given back, and nothing may be left over.

mod explain;
mod fabric;
mod list;
mod memory;
mod stage;
mod toy;
mod traffic;

pub use explain::{Report, Size, explain};
pub use fabric::{CREDULOUS, UNFENCED};
pub use list::{ALL, find};
pub use toy::TOY;
pub use traffic::LOST_COMPLETION;

use crate::fault::{Decision, DecisionId, DecisionList};
use legato_base::{Duration, Time};

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// In one line.
    pub what: &'static str,
    /// Steps of the first phase if nothing else is said.
    pub steps: u64,
    /// The personalities of NICs that it can be run with; without any, its world has its own.
    pub personalities: &'static [&'static str],
    /// Where it is known to fail today.
    pub known: &'static [Known],
    run: fn(&Options) -> Outcome,
}

/// A failure that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Under any if it is not said.
    pub personality: Option<&'static str>,
    pub why: &'static str,
}

/// Which run of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub seed: u64,
    pub steps: u64,
    /// Drawn from the seed if it is not said.
    pub personality: Option<&'static str>,
    /// Only these decisions of the faults may do anything; all, if it is not said.
    pub only: Option<Vec<DecisionId>>,
    /// Keep readable lines.
    pub lines: bool,
}

/// What a run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The personality that it had, if its world has any.
    pub personality: Option<&'static str>,
    /// Two runs with equal hashes had the same history.
    pub trace_hash: u64,
    /// In virtual time.
    pub elapsed: Duration,
    /// What was done, by name.
    pub counts: Vec<(&'static str, u64)>,
    /// Every rule of the faults, and how often it did something.
    pub rules: Vec<(String, u64)>,
    /// The decisions that did something, the oldest first.
    pub decisions: Vec<Decision>,
    /// The history, if lines were asked for.
    pub lines: Vec<Line>,
    pub violation: Option<Violation>,
}

/// A line of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub at: Time,
    pub text: String,
}

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {detail}")]
pub struct Violation {
    /// Its name, which a shorter run must break too to be the same failure.
    pub invariant: &'static str,
    pub detail: String,
    pub at: Time,
    /// Steps begun.
    pub step: u64,
    /// The names of the machines that it is about; all, if there are none.
    pub machines: Vec<String>,
}

impl Scenario {
    /// The options of a seed.
    pub const fn options(&self, seed: u64) -> Options {
        Options {
            seed,
            steps: self.steps,
            personality: None,
            only: None,
            lines: false,
        }
    }

    pub fn run(&self, options: &Options) -> Outcome {
        (self.run)(options)
    }

    /// Why it is known to fail under a personality.
    pub fn known_to_fail(&self, personality: Option<&str>) -> Option<&'static str> {
        self.known
            .iter()
            .find(|known| known.personality.is_none() || known.personality == personality)
            .map(|known| known.why)
    }

    /// The personalities that it is run with unless others are asked for.
    pub fn ordinary(&self) -> impl Iterator<Item = &'static str> {
        self.personalities
            .iter()
            .copied()
            .filter(|&name| self.known_to_fail(Some(name)).is_none())
    }

    /// The personality of a run: the one that is asked for, or one of the ordinary.
    fn personality(&self, options: &Options) -> Option<&'static str> {
        options.personality.or_else(|| {
            let ordinary: Vec<_> = self.ordinary().collect();
            let of_all = if ordinary.is_empty() {
                self.personalities
            } else {
                &ordinary
            };
            let count = of_all.len() as u64;
            (count > 0).then(|| of_all[(options.seed % count) as usize])
        })
    }

    /// The one command that runs this again.
    pub fn command(&self, options: &Options) -> String {
        let mut command = format!(
            "legato sim --scenario {} --seed {} --steps {}",
            self.name, options.seed, options.steps
        );
        if let Some(personality) = options.personality {
            command.push_str(" --personality ");
            command.push_str(personality);
        }
        if let Some(only) = &options.only {
            let only = DecisionList::new(only.clone());
            command.push_str(&format!(" --only {only}"));
        }
        command
    }
}
