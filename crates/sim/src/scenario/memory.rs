//! The whole product in one world: a random program on far memory, every page checked.

use super::{Known, Options, Outcome, Scenario, Violation};
use crate::world::{self, FailureKind, WorldConfig};
use legato_base::Time;

pub(super) const MEMORY: Scenario = Scenario {
    name: "memory",
    what: "a random program on far memory, every page checked against a model",
    steps: 20_000,
    personalities: &[],
    known: NONE_KNOWN,
    run,
};

pub(super) const NONE_KNOWN: &[Known] = &[];

fn run(options: &Options) -> Outcome {
    let config = WorldConfig {
        seed: options.seed,
        steps: options.steps,
        ..WorldConfig::default()
    };
    let mut outcome = Outcome {
        personality: None,
        trace_hash: 0,
        elapsed: legato_base::Duration::ZERO,
        counts: Vec::new(),
        rules: Vec::new(),
        decisions: Vec::new(),
        lines: Vec::new(),
        violation: None,
    };
    match world::run(config) {
        Ok(report) => {
            outcome.trace_hash = report.trace_hash;
            outcome.elapsed = report.elapsed.since(Time::ZERO);
            outcome.counts = vec![
                ("accesses", report.accesses),
                ("bus errors", report.bus_errors),
                ("forks", report.forks),
                ("faults", report.counters.faults),
                ("pages evicted", report.counters.pages_evicted),
            ];
        }
        Err(failure) => {
            outcome.elapsed = failure.at.since(Time::ZERO);
            outcome.violation = Some(Violation {
                invariant: invariant(&failure.kind),
                detail: failure.kind.to_string(),
                at: failure.at,
                step: options.steps,
                machines: Vec::new(),
            });
        }
    }
    outcome
}

const fn invariant(kind: &FailureKind) -> &'static str {
    match kind {
        FailureKind::WrongData { .. } => "a page holds what was written",
        FailureKind::BusError { .. }
        | FailureKind::LostWithCopy { .. }
        | FailureKind::LostWithoutReason { .. } => "only pages without a copy are lost",
        FailureKind::GivenUp { .. } => "only nodes that cannot be reached are given up",
        FailureKind::WrongCopy { .. } => "a slot holds what was written to it",
        FailureKind::NotMapped { .. } => "the program touches what it has mapped",
        FailureKind::OverLimit { .. } => "local memory stays in its limit",
        FailureKind::GaveUp(_) => "the pager goes on",
        FailureKind::OutOfCare { .. } => "what is resident is known",
        FailureKind::NotResident { .. } => "what is taken for resident is",
        FailureKind::Miscounted(_) => "the pager counts right",
        FailureKind::Stuck(_) => "everything finishes",
        FailureKind::Leak { .. } => "nothing is left over",
        FailureKind::Setup => "the network can be set up",
    }
}
