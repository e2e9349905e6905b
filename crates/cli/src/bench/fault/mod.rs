//! Touching more memory than is local: under Legato, and under Linux swap with the same limit.

pub(super) mod touch;
mod workload;

use super::comparison::{self, ChildError, Comparison, Ended, Report, Runner, Unit, Work};
use crate::args::BenchFaultArguments;
use crate::failure::Failure;
use legato_base::Bytes;
use serde_json::json;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use workload::Workload;

/// A toucher that takes longer than this hangs: the slowest disk serves it in a fifth.
const RUN_SECONDS_MAX: u32 = 300;

pub(crate) fn run(arguments: &BenchFaultArguments) -> Result<u8, Failure> {
    let largest = arguments.times.iter().max().unwrap_or(&1);
    let cache = arguments.cache;
    let runner = Runner::start()?;
    let legato = runner.legato.clone();
    let memory = Bytes(cache.0 * largest);
    let comparison = Comparison::prepare(runner, &arguments.against, cache, memory);
    let workloads = Workload::all(arguments);
    let mut report = Report {
        title: format!(
            "us per touch of a page, medians of {} interleaved rounds of {}",
            arguments.rounds,
            match arguments.settle {
                0 => format!("{} passes", arguments.passes),
                settle => format!("{} passes after {settle} untimed ones", arguments.passes),
            }
        ),
        unit: Unit::Microseconds,
        settings: json!({"passes": arguments.passes, "settle": arguments.settle}),
        conditions: comparison.conditions(arguments.rounds),
        plain_is_baseline: false,
        rows: workloads.iter().map(|workload| workload.row()).collect(),
        missing: Vec::new(),
    };
    comparison::measure(&mut report, &workloads, |contender, &workload| {
        let mut command = vec![legato.clone().into()];
        command
            .extend(workload.arguments(cache, arguments.settle.saturating_add(arguments.passes)));
        let work = Work {
            command,
            far: Work::embedded(workload.memory(cache)),
        };
        comparison.run(contender, &work, |interrupt, command| {
            let ended = interrupt.run(command.stdout(Stdio::piped()), RUN_SECONDS_MAX)?;
            Ok(touch_us(ended, arguments.settle)?)
        })
    })?;
    comparison::finish(&report, arguments.json)
}

/// The mean of the passes after the untimed ones.
fn touch_us(toucher: Ended, settle: u32) -> Result<f64, ChildError> {
    // One line and not all there is: a process that outlives the toucher would hold the pipe.
    let mut line = String::new();
    BufReader::new(toucher.stdout.ok_or(ChildError::NoFigure)?).read_line(&mut line)?;
    let passes = figures(&line, settle as usize).ok_or(ChildError::NoFigure)?;
    Ok(passes.iter().sum::<f64>() / passes.len() as f64 / 1_000.0)
}

fn figures(line: &str, left_out: usize) -> Option<Vec<f64>> {
    let figures: Option<Vec<f64>> = line
        .split_whitespace()
        .skip(left_out)
        .map(|word| word.parse().ok())
        .collect();
    figures.filter(|figures| !figures.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_a_line_of_numbers() {
        assert_eq!(figures("12.5 7.0\n", 0), Some(vec![12.5, 7.0]));
        assert_eq!(figures("12.5 7.0\n", 1), Some(vec![7.0]));
        assert_eq!(figures("12.5 7.0\n", 2), None);
        assert_eq!(figures("\n", 0), None);
        assert_eq!(figures("no numbers\n", 0), None);
    }
}
