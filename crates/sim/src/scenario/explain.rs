//! The report of a failure: the shortest history that breaks the same invariant.

use super::{Line, Options, Outcome, Scenario, Violation};
use crate::fault::{Decision, DecisionId, RuleId};
use std::collections::BTreeSet;
use std::fmt;

/// Why a scenario failed, as short as it could be made.
#[derive(Clone, Debug)]
pub struct Report {
    pub scenario: &'static str,
    pub seed: u64,
    pub personality: Option<&'static str>,
    pub violation: Violation,
    /// The run as it was found.
    pub full: Size,
    /// The shortest one.
    pub shrunk: Size,
    /// The faults without which it does not fail.
    pub decisions: Vec<Decision>,
    /// The last lines about the machines that are involved.
    pub lines: Vec<Line>,
    /// The one command that leads here again.
    pub replay: String,
    /// Runs that shrinking took.
    pub runs: u32,
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub steps: u64,
    pub decisions: usize,
    pub lines: usize,
}

/// Lines in a report.
const LINES_MAX: usize = 60;
/// Bytes of a command: Linux takes 128 KiB in one argument (MAX_ARG_STRLEN).
const COMMAND_MAX: usize = 64 * 1024;

/// Shrinks a failed run: fewer steps and fewer faults (delta debugging), until neither is possible or
/// a budget of `runs` is used up. None if the run does not fail.
pub fn explain(scenario: &Scenario, options: &Options, runs: u32) -> Option<Report> {
    let mut shrinker = Shrinker {
        scenario,
        invariant: "",
        left: runs,
        runs: 0,
    };
    let with_lines = Options {
        lines: true,
        ..options.clone()
    };
    let found = scenario.run(&with_lines);
    let first = found.violation.as_ref()?;
    shrinker.invariant = first.invariant;
    let full = Size::of(options.steps, &found);
    let mut best = Options {
        // The rest of the search must not depend on what is drawn when nothing is said.
        personality: found.personality,
        ..options.clone()
    };
    shrinker.fewer_steps(&mut best, first.step);
    let whole = best.clone();
    // With fewer faults it may fail earlier, and then there are fewer faults.
    loop {
        let before = best.clone();
        shrinker.fewer_faults(&mut best);
        shrinker.fewer_steps(&mut best, before.steps);
        if best == before {
            break;
        }
    }
    best.lines = true;
    let mut last = scenario.run(&best);
    let violation = last.violation.take()?;
    if best.only.is_some() {
        // Those that do nothing are not named.
        best.only = Some(ids(&last));
    }
    let mut replay = scenario.command(&best);
    if replay.len() > COMMAND_MAX {
        // With all faults of the seed.
        replay = scenario.command(&whole);
    }
    let shrunk = Size::of(best.steps, &last);
    Some(Report {
        scenario: scenario.name,
        seed: options.seed,
        personality: found.personality,
        full,
        shrunk,
        decisions: last.decisions,
        lines: involved(last.lines, &violation.machines),
        violation,
        replay,
        runs: shrinker.runs,
    })
}

/// The last lines that name one of the machines.
fn involved(mut lines: Vec<Line>, machines: &[String]) -> Vec<Line> {
    if !machines.is_empty() {
        lines.retain(|line| machines.iter().any(|name| names(&line.text, name)));
    }
    let excess = lines.len().saturating_sub(LINES_MAX);
    lines.drain(..excess);
    lines
}

/// True if the text has the name as a word.
fn names(text: &str, name: &str) -> bool {
    text.split(|letter: char| !letter.is_ascii_alphanumeric())
        .any(|word| word == name)
}

impl Size {
    fn of(steps: u64, outcome: &Outcome) -> Self {
        Self {
            steps,
            decisions: outcome.decisions.len(),
            lines: outcome.lines.len(),
        }
    }
}

struct Shrinker<'a> {
    scenario: &'a Scenario,
    invariant: &'static str,
    left: u32,
    runs: u32,
}

impl Shrinker<'_> {
    /// The run, if it breaks the same invariant. None as well when the budget is used up.
    fn fails(&mut self, options: &Options) -> Option<Outcome> {
        self.left = self.left.checked_sub(1)?;
        self.runs += 1;
        let outcome = self.scenario.run(options);
        let violation = outcome.violation.as_ref();
        violation
            .is_some_and(|violation| violation.invariant == self.invariant)
            .then_some(outcome)
    }

    fn fewer_steps(&mut self, best: &mut Options, failed_at: u64) {
        // What came after the failure is not needed; what came before it perhaps is.
        let mut enough = best.steps;
        let mut too_few = 0;
        let mut next = failed_at.min(enough);
        while too_few < enough {
            let shorter = Options {
                steps: next,
                ..best.clone()
            };
            match self.fails(&shorter) {
                Some(outcome) => {
                    let needed = outcome.violation.map_or(next, |violation| violation.step);
                    enough = needed.min(next);
                }
                None if self.left == 0 => break,
                None => too_few = next + 1,
            }
            next = too_few + enough.saturating_sub(too_few) / 2;
            if next >= enough {
                break;
            }
        }
        best.steps = enough;
    }

    /// Delta debugging (Zeller and Hildebrandt, 2002), first rule by rule.
    fn fewer_faults(&mut self, best: &mut Options) {
        let Some(outcome) = self.fails(best) else {
            return;
        };
        let mut kept: Vec<DecisionId> = ids(&outcome);
        if kept.is_empty() {
            return;
        }
        for rule in rules(&kept) {
            let without: Vec<_> = kept.iter().copied().filter(|id| id.rule != rule).collect();
            self.try_only(best, &mut kept, without);
        }
        let mut chunks = 2;
        while kept.len() > 1 && self.left > 0 {
            let size = kept.len().div_ceil(chunks);
            let mut shorter = false;
            let mut start = 0;
            while start < kept.len() && self.left > 0 {
                let end = (start + size).min(kept.len());
                let without = [&kept[..start], &kept[end..]].concat();
                if self.try_only(best, &mut kept, without) {
                    shorter = true;
                } else {
                    start = end;
                }
            }
            if !shorter && size == 1 {
                break;
            }
            chunks = if shorter { 2 } else { chunks * 2 }.min(kept.len().max(2));
        }
        if kept.len() == 1 {
            self.try_only(best, &mut kept, Vec::new());
        }
    }

    /// Goes on with fewer decisions if the run still fails: with those of them that did anything.
    fn try_only(
        &mut self,
        best: &mut Options,
        kept: &mut Vec<DecisionId>,
        fewer: Vec<DecisionId>,
    ) -> bool {
        let options = Options {
            only: Some(fewer),
            ..best.clone()
        };
        let Some(outcome) = self.fails(&options) else {
            return false;
        };
        *kept = ids(&outcome);
        best.only = Some(kept.clone());
        true
    }
}

fn ids(outcome: &Outcome) -> Vec<DecisionId> {
    outcome
        .decisions
        .iter()
        .map(|decision| decision.id)
        .collect()
}

fn rules(ids: &[DecisionId]) -> BTreeSet<RuleId> {
    ids.iter().map(|id| id.rule).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scenario {}, seed {}", self.scenario, self.seed)?;
        if let Some(personality) = self.personality {
            write!(f, ", {personality}")?;
        }
        let Violation {
            invariant,
            detail,
            at,
            step,
            ..
        } = &self.violation;
        let at = at.since(legato_base::Time::ZERO);
        writeln!(f, "\nbroken: {invariant}\n  at {at}, step {step}: {detail}")?;
        writeln!(
            f,
            "shrunk in {} runs: steps {} -> {}, faults {} -> {}, lines {} -> {}",
            self.runs,
            self.full.steps,
            self.shrunk.steps,
            self.full.decisions,
            self.shrunk.decisions,
            self.full.lines,
            self.shrunk.lines
        )?;
        if !self.decisions.is_empty() {
            writeln!(f, "faults:")?;
        }
        for decision in self.decisions.iter().take(LINES_MAX) {
            writeln!(f, "  {decision}")?;
        }
        if self.decisions.len() > LINES_MAX {
            writeln!(f, "  and {} more", self.decisions.len() - LINES_MAX)?;
        }
        if !self.lines.is_empty() {
            writeln!(f, "history:")?;
        }
        for line in &self.lines {
            writeln!(
                f,
                "  {} {}",
                line.at.since(legato_base::Time::ZERO),
                line.text
            )?;
        }
        write!(f, "replay with: {}", self.replay)
    }
}
