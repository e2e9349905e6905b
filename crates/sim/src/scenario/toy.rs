//! A scenario that is broken on purpose, to see that failures are found and shrunk. It is in no
//! list.

use super::{Known, Line, Options, Outcome, Scenario, Violation};
use crate::fault::{Faults, Link, PacketEffect, Rule, Span};
use legato_base::{Duration, Time};

/// A sender that never sends again, on a link that loses, doubles and delays.
pub const TOY: Scenario = Scenario {
    name: "toy",
    what: "a sender that never sends again: broken on purpose",
    steps: 500,
    personalities: &[],
    known: &[Known {
        personality: None,
        why: "it is broken on purpose",
    }],
    run,
};

const LINK: Link = Link { from: 0, to: 1 };
const BACK: Link = Link { from: 1, to: 0 };

fn faults(options: &Options) -> Faults {
    let mut faults = Faults::default();
    faults.set_seed(options.seed);
    let late = Span {
        least: Duration::from_micros(1),
        most: Duration::from_micros(50),
    };
    faults.add(Rule::packets(20, PacketEffect::Delay(late)));
    faults.add(Rule::packets(20, PacketEffect::Duplicate(late)));
    faults.add(Rule::packets(5, PacketEffect::Drop));
    if let Some(only) = &options.only {
        faults.keep_only(only);
    }
    faults
}

/// One request and one answer each step, to the end. Three answers must not be missing.
fn run(options: &Options) -> Outcome {
    let mut faults = faults(options);
    let mut lines = Vec::new();
    let mut hash = options.seed;
    let mut missing = Vec::new();
    let mut violation = None;
    let mut now = Time::ZERO;
    for step in 0..options.steps {
        now = Time::from_nanos(step * 1000);
        let mut copies = Vec::new();
        faults.packet(now, LINK, 64, &mut copies);
        let mut answers = Vec::new();
        if !copies.is_empty() {
            faults.packet(now, BACK, 64, &mut answers);
        }
        for copy in copies.iter().chain(&answers) {
            hash = hash.rotate_left(7) ^ copy.later.as_nanos();
        }
        let answered = !answers.is_empty();
        if options.lines {
            let text = format!("left asks {step}, right answers: {answered}");
            lines.push(Line { at: now, text });
        }
        if !answered {
            missing.push(step);
        }
        if missing.len() == 3 && violation.is_none() {
            violation = Some(Violation {
                invariant: "every question is answered",
                detail: format!("no answers to {missing:?}"),
                at: now,
                step: step + 1,
                machines: vec!["left".to_owned(), "right".to_owned()],
            });
        }
    }
    Outcome {
        personality: None,
        trace_hash: hash,
        elapsed: now.since(Time::ZERO),
        counts: vec![("answers missing", missing.len() as u64)],
        rules: faults
            .rules()
            .map(|(_, rule, count)| (rule.to_string(), count))
            .collect(),
        decisions: faults.decisions().to_vec(),
        lines,
        violation,
    }
}
