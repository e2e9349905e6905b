//! Touching more memory than is local: under Legato, and under Linux swap with the same limit.
//!
//! Each round runs every contender once per workload, so that whatever else the machine does
//! meets all alike, and the ratios are taken within a round. Only one swap area is active at a
//! time, and none while Legato runs. Everything that is set up is undone on every way out.

mod child;
mod group;
mod report;
mod swap;
pub(super) mod touch;

use crate::args::BenchFaultArguments;
use crate::failure::{EXIT_SIGNAL_BASE, Failure};
use child::{ChildError, Interrupt};
use group::MemoryGroup;
use legato_base::Bytes;
use report::{Contender, Report, Row, Workload};
use signal_hook::consts::SIGINT;
use std::fmt::Display;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use swap::{PageCluster, SwapArea, SwapError};

/// Twice the largest workload fits, and the kernel keeps swap entries of pages it has read back.
const SWAP_SIZE_MIN: Bytes = Bytes::gib(1);
/// For what is far beside the toucher's own memory.
const NODE_MEMORY_SPARE: Bytes = Bytes::mib(256);
/// The program's copy, at worst on one of two nodes each.
const NODE_MEMORY_FACTOR: u64 = 4;

/// Fails if Legato has no figure; without swap it says so and gives the others.
pub(crate) fn run(arguments: &BenchFaultArguments) -> Result<u8, Failure> {
    let interrupt =
        Interrupt::take().map_err(|error| Failure::system("cannot take signals", error))?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::system("cannot find this program", error))?;
    let report = measure(arguments, &interrupt, &program)?;
    let text = if arguments.json {
        format!("{:#}\n", report.json())
    } else {
        report.text()
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::system("standard output", error))?;
    let mut missing = report.missing.iter();
    Ok(u8::from(missing.any(|(contender, _)| {
        matches!(contender, Contender::Legato | Contender::Plain)
    })))
}

/// One line of progress. Nobody may be reading, which is no reason to stop before all is undone.
fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "legato: {line}");
}

fn measure(
    arguments: &BenchFaultArguments,
    interrupt: &Interrupt,
    program: &Path,
) -> Result<Report, Failure> {
    let bench = Bench {
        interrupt,
        program: program.into(),
        cache: arguments.cache,
        baselines: Baselines::prepare(arguments),
    };
    let mut report = Report {
        cache: arguments.cache,
        rounds: arguments.rounds,
        page_cluster: arguments.page_cluster,
        areas: bench
            .baselines
            .as_ref()
            .map(Baselines::describe)
            .unwrap_or_default(),
        rows: std::array::from_fn(|_| Row::default()),
        missing: Vec::new(),
    };
    for round in 1..=arguments.rounds {
        for (index, workload) in Workload::ALL.into_iter().enumerate() {
            for contender in Contender::ALL {
                if report.missing.iter().any(|(gone, _)| *gone == contender) {
                    continue;
                }
                let name = contender.name();
                let progress = format!(
                    "round {round} of {}, {}, {name}",
                    arguments.rounds,
                    workload.name()
                );
                match bench.touch(contender, workload) {
                    Ok(touch_ns) => {
                        say(format_args!("{progress}: {:.2} us", touch_ns / 1_000.0));
                        report.rows[index].push(contender, touch_ns);
                    }
                    Err(RunError::Child(ChildError::Interrupted)) => {
                        return Err(Failure {
                            code: EXIT_SIGNAL_BASE + SIGINT as u8,
                            text: ChildError::Interrupted.to_string(),
                        });
                    }
                    Err(error) => {
                        say(format_args!("{progress}: {error}"));
                        report.missing.push((contender, error.to_string()));
                    }
                }
            }
        }
    }
    Ok(report)
}

/// Why one run gave no figure.
#[derive(Debug, thiserror::Error)]
enum RunError<'a> {
    #[error("the toucher {0}")]
    Child(#[from] ChildError),
    #[error("{0}")]
    Swap(#[from] SwapError),
    #[error("{0}")]
    NotPrepared(&'a SwapError),
}

#[derive(Debug)]
struct Bench<'a> {
    interrupt: &'a Interrupt,
    program: PathBuf,
    cache: Bytes,
    baselines: Result<Baselines, SwapError>,
}

impl Bench<'_> {
    /// Nanoseconds per touch.
    fn touch(&self, contender: Contender, workload: Workload) -> Result<f64, RunError<'_>> {
        match contender {
            Contender::Plain => self.finish(Command::new(&self.program), workload),
            Contender::Legato => self.finish(self.legato(workload), workload),
            Contender::Zram => self.swapped(|baselines| &baselines.zram, workload),
            Contender::File => self.swapped(|baselines| &baselines.file, workload),
        }
    }

    fn legato(&self, workload: Workload) -> Command {
        let memory = self.cache.0 * workload.times * NODE_MEMORY_FACTOR + NODE_MEMORY_SPARE.0;
        let mut command = Command::new(&self.program);
        command
            .args(["run", "--quiet"])
            .arg(format!("--cache={}", self.cache.0))
            .arg(format!("--memory={memory}"))
            .arg("--")
            .arg(&self.program);
        command
    }

    fn swapped(
        &self,
        area: fn(&Baselines) -> &Result<SwapArea, SwapError>,
        workload: Workload,
    ) -> Result<f64, RunError<'_>> {
        let baselines = self.baselines.as_ref().map_err(RunError::NotPrepared)?;
        let area = area(baselines).as_ref().map_err(RunError::NotPrepared)?;
        let group = MemoryGroup::create(self.cache).map_err(SwapError::from)?;
        let _active = area.activate()?;
        self.finish(group.command(&self.program), workload)
    }

    /// The command ends in this program; what it shall do comes last.
    fn finish(&self, mut command: Command, workload: Workload) -> Result<f64, RunError<'_>> {
        command
            .args(["bench", "touch"])
            .arg(format!("--bytes={}", self.cache.0 * workload.times))
            .arg(format!("--order={}", workload.order.name()));
        let rounds = self.interrupt.run(command)?;
        Ok(rounds.iter().sum::<f64>() / rounds.len() as f64)
    }
}

/// The swap areas, and what else of the machine is changed for them.
#[derive(Debug)]
struct Baselines {
    zram: Result<SwapArea, SwapError>,
    file: Result<SwapArea, SwapError>,
    /// Undone last.
    _page_cluster: PageCluster,
}

impl Baselines {
    fn prepare(arguments: &BenchFaultArguments) -> Result<Self, SwapError> {
        swap::check_machine()?;
        let page_cluster = PageCluster::set(arguments.page_cluster)?;
        let largest = Workload::ALL
            .map(|workload| workload.times)
            .into_iter()
            .max();
        let size = Bytes(arguments.cache.0 * 2 * largest.unwrap_or(1)).max(SWAP_SIZE_MIN);
        Ok(Self {
            zram: SwapArea::zram(size),
            file: SwapArea::file(size),
            _page_cluster: page_cluster,
        })
    }

    fn describe(&self) -> Vec<String> {
        let areas = [&self.zram, &self.file];
        areas
            .into_iter()
            .filter_map(|area| Some(area.as_ref().ok()?.describe()))
            .collect()
    }
}
