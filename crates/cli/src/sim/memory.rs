//! One run of the scenario `memory`, with the counters of its pager.

use super::EXIT_CHECK_FAILED;
use crate::failure::Failure;
use crate::output::print;
use legato_sim::world::{self, Report, WorldConfig};
use serde_json::{Map, Value, json};

pub(super) fn run(seed: u64, steps: u64, json: bool) -> Result<u8, Failure> {
    let config = WorldConfig {
        seed,
        steps,
        ..WorldConfig::default()
    };
    let report = world::run(config).map_err(|failure| Failure {
        code: Some(EXIT_CHECK_FAILED),
        text: failure.to_string(),
    })?;
    if json {
        print(format_args!("{:#}", to_json(&report)))?;
    } else {
        print(report)?;
    }
    Ok(0)
}

fn to_json(report: &Report) -> Value {
    let counters: Map<_, _> = report
        .counters
        .entries()
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect();
    json!({
        "seed": report.seed,
        "steps": report.steps,
        // In text: a number of 64 bits is more than many readers of JSON keep.
        "trace_hash": format!("{:016x}", report.trace_hash),
        "elapsed_ns": report.elapsed.as_nanos(),
        "accesses": report.accesses,
        "bus_errors": report.bus_errors,
        "forks": report.forks,
        "resident_pages_peak": report.resident_pages_peak,
        "counters": counters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_one_history() {
        let report = |seed| {
            let config = WorldConfig {
                seed,
                steps: 500,
                ..WorldConfig::default()
            };
            to_json(&world::run(config).unwrap())
        };
        let first = report(7);
        assert_eq!(first, report(7));
        assert_eq!(first["steps"], 500);
        assert_eq!(first["trace_hash"].as_str().unwrap().len(), 16);
        assert_ne!(first["trace_hash"], report(8)["trace_hash"]);
    }
}
