//! What `legato sim` prints.

use super::sweep::Sweep;
use crate::failure::Failure;
use crate::output::print;
use legato_base::Time;
use legato_sim::scenario::{ALL, Outcome, Report, Scenario, Size};
use serde_json::{Map, Value, json};

/// One seed.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) seed: u64,
    pub(super) outcome: Outcome,
    /// If it failed, and was shrunk.
    pub(super) report: Option<Report>,
    pub(super) replay: String,
}

pub(super) fn list(json: bool) -> Result<(), Failure> {
    if json {
        let list: Vec<_> = ALL.iter().map(listed).collect();
        return print(format_args!("{:#}", Value::from(list)));
    }
    let mut text = String::new();
    for scenario in &ALL {
        text += &format!("{:<12} {}\n", scenario.name, scenario.what);
        for known in scenario.known {
            let under = known.personality.unwrap_or("any personality");
            text += &format!("{:<12} known to fail under {under}: {}\n", "", known.why);
        }
    }
    print(text)
}

fn listed(scenario: &Scenario) -> Value {
    let known = |known: &legato_sim::scenario::Known| json!({ "personality": known.personality, "why": known.why });
    json!({
        "name": scenario.name,
        "what": scenario.what,
        "steps": scenario.steps,
        "personalities": scenario.personalities,
        "known_to_fail": scenario.known.iter().map(known).collect::<Vec<_>>(),
    })
}

pub(super) fn progress(sweep: &Sweep<'_>) -> String {
    format!(
        "{} of {} seeds, {} failed",
        sweep.ran.len(),
        sweep.asked,
        sweep.failed()
    )
}

/// A run, as text: all of it if it is the only one, otherwise only if it failed.
pub(super) fn one(sweep: &Sweep<'_>, ran: &Ran) -> Result<(), Failure> {
    match (&ran.report, &ran.outcome.violation) {
        (Some(report), _) => print(report),
        (None, Some(violation)) => print(format_args!(
            "seed {}: {violation}\nreplay with: {}",
            ran.seed, ran.replay
        )),
        (None, None) if sweep.asked == 1 => print(held(sweep.scenario, ran)),
        (None, None) => Ok(()),
    }
}

fn held(scenario: &Scenario, ran: &Ran) -> String {
    let outcome = &ran.outcome;
    let under = outcome
        .personality
        .map_or_else(String::new, |name| format!(", {name}"));
    let mut text = format!(
        "scenario {}, seed {}{under}: held, history {:016x}, {} of virtual time",
        scenario.name, ran.seed, outcome.trace_hash, outcome.elapsed
    );
    for (name, count) in &outcome.counts {
        text.push_str(&format!("\n{name}: {count}"));
    }
    for (rule, count) in &outcome.rules {
        text.push_str(&format!("\n{count} times {rule}"));
    }
    text
}

/// The end of a sweep.
pub(super) fn all(sweep: &Sweep<'_>, json: bool) -> Result<(), Failure> {
    if json {
        print(format_args!("{:#}", to_json(sweep)))
    } else if sweep.asked > 1 {
        let failed = sweep.failed();
        let held = sweep.ran.len() - failed;
        let stopped = if sweep.interrupted {
            ", interrupted"
        } else {
            ""
        };
        print(format_args!(
            "scenario {}: {held} of {} seeds held, {failed} failed{stopped}, histories {}",
            sweep.scenario.name,
            sweep.asked,
            histories(sweep)
        ))
    } else {
        Ok(())
    }
}

/// The sum of the hashes of all histories: whether another machine, or another build, has had the same. The
/// parts of a sweep can be added.
fn histories(sweep: &Sweep<'_>) -> String {
    let hashes = sweep.ran.iter().map(|ran| ran.outcome.trace_hash);
    format!("{:016x}", hashes.fold(0, u64::wrapping_add))
}

fn to_json(sweep: &Sweep<'_>) -> Value {
    let failures = sweep.ran.iter().filter_map(failure);
    json!({
        "scenario": sweep.scenario.name,
        "personality": sweep.personality,
        "steps": sweep.steps,
        "seeds_asked": sweep.asked,
        "seeds_run": sweep.ran.len(),
        "interrupted": sweep.interrupted,
        "histories": histories(sweep),
        "known_to_fail": sweep.scenario.known_to_fail(sweep.personality),
        "runs": sweep.ran.iter().map(run).collect::<Vec<_>>(),
        "failures": failures.collect::<Vec<_>>(),
    })
}

fn run(ran: &Ran) -> Value {
    let outcome = &ran.outcome;
    let named = |pairs: &mut dyn Iterator<Item = (String, u64)>| -> Map<String, Value> {
        pairs.map(|(name, count)| (name, count.into())).collect()
    };
    let counts = outcome.counts.iter();
    json!({
        "seed": ran.seed,
        "personality": outcome.personality,
        "held": outcome.violation.is_none(),
        // In text: a number of 64 bits is more than many readers of JSON keep.
        "trace_hash": format!("{:016x}", outcome.trace_hash),
        "elapsed_ns": outcome.elapsed.as_nanos(),
        "counts": named(&mut counts.map(|&(name, count)| (name.replace(' ', "_"), count))),
        "faults": named(&mut outcome.rules.iter().cloned()),
    })
}

fn failure(ran: &Ran) -> Option<Value> {
    let found = ran.outcome.violation.as_ref()?;
    let report = ran.report.as_ref();
    let violation = report.map_or(found, |report| &report.violation);
    let size = |size: &Size| json!({ "steps": size.steps, "decisions": size.decisions, "lines": size.lines });
    let decisions = |report: &Report| -> Vec<String> {
        report.decisions.iter().map(ToString::to_string).collect()
    };
    let history = |report: &Report| -> Vec<Value> {
        let line = |line: &legato_sim::scenario::Line| json!({ "at_ns": line.at.as_nanos(), "text": line.text });
        report.lines.iter().map(line).collect()
    };
    Some(json!({
        "seed": ran.seed,
        "personality": ran.outcome.personality,
        "invariant": violation.invariant,
        "detail": violation.detail,
        "at_ns": violation.at.since(Time::ZERO).as_nanos(),
        "step": violation.step,
        "machines": violation.machines,
        "replay": report.map_or(&ran.replay, |report| &report.replay),
        "full": report.map(|report| size(&report.full)),
        "shrunk": report.map(|report| size(&report.shrunk)),
        "decisions": report.map(decisions),
        "history": report.map(history),
    }))
}
