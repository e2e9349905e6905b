//! `legato sim`: scenarios of the simulator, by their seeds.

mod memory;
mod output;
mod sweep;

use crate::args::SimArguments;
use crate::failure::Failure;
use legato_sim::scenario::{ALL, Scenario};

/// An invariant was broken.
const EXIT_CHECK_FAILED: u8 = 1;

pub(crate) fn run(arguments: &SimArguments) -> Result<u8, Failure> {
    arguments.check().map_err(Failure::refused)?;
    if arguments.list {
        return output::list(arguments.json).map(|()| 0);
    }
    let seed = arguments.seed.unwrap_or_default();
    match arguments.scenario {
        None if arguments.seeds == 1 => {
            let steps = arguments.steps.unwrap_or(default().steps);
            memory::run(seed, steps, arguments.json)
        }
        scenario => sweep::run(scenario.unwrap_or(default()), seed, arguments),
    }
}

/// What is run if nothing is said.
const fn default() -> &'static Scenario {
    &ALL[0]
}
