//! What every scenario on simulated NICs stands on: the network, its faults, its history.

use super::{Line, Options, Outcome, Scenario, Violation};
use crate::fault::{Act, Faults, Rule};
use crate::provider::{Personality, SimNetwork, SimNetworkConfig, SimProvider};
use legato_base::{Duration, Random, Time};

/// Lines of history that are kept.
const LINES_MAX: usize = 4000;

#[derive(Debug)]
pub(super) struct Stage {
    pub(super) network: SimNetwork,
    pub(super) personality: Personality,
    /// For what the scenario draws. Nothing else draws from it.
    pub(super) random: Random,
    notes: Option<Vec<Line>>,
}

impl Stage {
    /// NICs of the run's personality, with a change that the scenario makes to it.
    pub(super) fn new(
        scenario: &Scenario,
        options: &Options,
        config: SimNetworkConfig,
        change: impl Fn(Personality) -> Personality,
    ) -> Self {
        let personality = scenario
            .personality(options)
            .and_then(|name| name.parse().ok())
            .unwrap_or(Personality::IDEAL);
        let personality = change(personality);
        let config = SimNetworkConfig {
            personality,
            ..config
        };
        let network = SimNetwork::new(options.seed, config);
        network.faults(|faults| {
            faults.set_seed(options.seed);
            if let Some(only) = &options.only {
                faults.keep_only(only);
            }
        });
        if options.lines {
            network.keep_trace_lines(LINES_MAX);
        }
        Self {
            network,
            personality,
            random: Random::from_seed(!options.seed),
            notes: options.lines.then(Vec::new),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.network.now()
    }

    pub(super) fn after(&self, time: Duration) -> Time {
        self.network.now() + time
    }

    pub(super) fn start(&self, name: &str) -> SimProvider {
        self.network.provider(name)
    }

    pub(super) fn add(&mut self, rule: Rule) {
        let id = self.network.faults(|faults| faults.add(rule));
        self.note(|| format!("{id}: {rule}"));
    }

    /// True if this may be done now.
    pub(super) fn act(&mut self, act: Act) -> bool {
        let now = self.now();
        self.network.faults(|faults| faults.act(now, act))
    }

    pub(super) fn heal(&mut self) {
        self.network.faults(Faults::heal);
        self.note(|| "all faults are healed".to_owned());
    }

    /// A line of history, if anybody reads it.
    pub(super) fn note(&mut self, text: impl FnOnce() -> String) {
        let at = self.network.now();
        if let Some(notes) = &mut self.notes {
            let text = text();
            notes.push(Line { at, text });
        }
    }

    pub(super) fn outcome(
        self,
        counts: Vec<(&'static str, u64)>,
        violation: Option<Violation>,
    ) -> Outcome {
        let (rules, decisions) = self.network.faults(|faults| {
            let rules = faults
                .rules()
                .map(|(id, rule, count)| (format!("{id}: {rule}"), count))
                .collect();
            (rules, faults.decisions().to_vec())
        });
        let mut lines = self.notes.unwrap_or_default();
        if !lines.is_empty() {
            lines.extend(self.network.trace_lines().iter().map(|line| parse(line)));
            lines.extend(decisions.iter().map(|decision| Line {
                at: decision.at,
                text: format!("fault: {} {}", decision.id, decision.action),
            }));
            // Stable: what happened at one time stays in its order.
            lines.sort_by_key(|line| line.at);
        }
        Outcome {
            personality: Some(self.personality.name),
            trace_hash: self.network.trace_hash(),
            elapsed: self.network.now().since(Time::ZERO),
            counts,
            rules,
            decisions,
            lines,
            violation,
        }
    }
}

/// A line of the network's trace: the time in microseconds with three digits more, then the text.
fn parse(line: &str) -> Line {
    let parts = line.split_once("us ");
    let (at, text) = parts.unwrap_or(("", line));
    let nanos: u64 = at.replace('.', "").parse().unwrap_or_default();
    Line {
        at: Time::from_nanos(nanos),
        text: text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_trace_has_its_time() {
        let line = parse("12.345us left->right RC_SEND_ONLY psn 0x10");
        assert_eq!(line.at, Time::from_nanos(12_345));
        assert_eq!(line.text, "left->right RC_SEND_ONLY psn 0x10");
    }
}
