//! One scenario over many seeds.

use super::EXIT_CHECK_FAILED;
use super::output::{self, Ran};
use crate::args::SimArguments;
use crate::failure::{EXIT_SIGNAL_BASE, Failure};
use crate::output::tell;
use legato_sim::fault::DecisionId;
use legato_sim::scenario::{Options, Scenario, explain};
use signal_hook::consts::SIGINT;
use signal_hook::flag::{register, register_conditional_shutdown};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between two lines about how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Failures that are shrunk; the others are named.
const SHRUNK_MAX: usize = 3;
/// Runs that shrinking one may take.
const SHRINK_RUNS: u32 = 200;
/// The same where a run takes seconds.
const SHRINK_RUNS_LONG: u32 = 20;

/// What a sweep found.
#[derive(Debug)]
pub(super) struct Sweep<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) personality: Option<&'static str>,
    pub(super) steps: u64,
    only: Option<&'a [DecisionId]>,
    pub(super) asked: u64,
    pub(super) ran: Vec<Ran>,
    pub(super) interrupted: bool,
}

pub(super) fn run(
    scenario: &Scenario,
    first: u64,
    arguments: &SimArguments,
) -> Result<u8, Failure> {
    let interrupted = on_interrupt()?;
    let mut sweep = Sweep {
        scenario,
        personality: arguments.personality,
        steps: arguments.steps.unwrap_or(scenario.steps),
        only: arguments.only.as_ref().map(|list| &list.0[..]),
        asked: arguments.seeds,
        ran: Vec::new(),
        interrupted: false,
    };
    if let Some(why) = scenario.known_to_fail(arguments.personality) {
        tell(format_args!("{} is known to fail: {why}", scenario.name));
    }
    let mut told = Instant::now();
    for number in 0..arguments.seeds {
        if interrupted.load(Ordering::Relaxed) {
            sweep.interrupted = true;
            break;
        }
        let ran = sweep.one(first.wrapping_add(number));
        if !arguments.json {
            output::one(&sweep, &ran)?;
        }
        sweep.ran.push(ran);
        let is_last = number + 1 == arguments.seeds;
        if arguments.seeds > 1 && (is_last || told.elapsed() >= PROGRESS_INTERVAL) {
            told = Instant::now();
            tell(output::progress(&sweep));
        }
    }
    output::all(&sweep, arguments.json)?;
    Ok(if sweep.failed() > 0 {
        EXIT_CHECK_FAILED
    } else if sweep.interrupted {
        EXIT_SIGNAL_BASE + SIGINT as u8
    } else {
        0
    })
}

/// Set by the first SIGINT, so that what was done is still told; the second ends the command.
fn on_interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let code = i32::from(EXIT_SIGNAL_BASE) + SIGINT;
    // In this order: the first signal finds the flag not yet set.
    register_conditional_shutdown(SIGINT, code, Arc::clone(&interrupted))
        .and_then(|_| register(SIGINT, Arc::clone(&interrupted)))
        .map_err(|error| Failure::system("waiting for SIGINT", error))?;
    Ok(interrupted)
}

impl Sweep<'_> {
    fn one(&self, seed: u64) -> Ran {
        let options = Options {
            steps: self.steps,
            personality: self.personality,
            only: self.only.map(<[_]>::to_vec),
            ..self.scenario.options(seed)
        };
        let outcome = self.scenario.run(&options);
        let runs = if self.scenario.personalities.is_empty() {
            SHRINK_RUNS_LONG
        } else {
            SHRINK_RUNS
        };
        let report = outcome
            .violation
            .as_ref()
            .filter(|_| self.failed() < SHRUNK_MAX)
            .and_then(|_| explain(self.scenario, &options, runs));
        Ran {
            seed,
            outcome,
            report,
            replay: self.scenario.command(&options),
        }
    }

    pub(super) fn failed(&self) -> usize {
        let failed = |ran: &&Ran| ran.outcome.violation.is_some();
        self.ran.iter().filter(failed).count()
    }
}
