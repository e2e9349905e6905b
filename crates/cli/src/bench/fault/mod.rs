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

use crate::args::{BenchFaultArguments, SwapKind};
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
        other: arguments.other.as_deref(),
        cache: arguments.cache,
        passes: arguments.passes,
        baselines: Baselines::prepare(arguments),
    };
    let contenders = Contender::ALL.into_iter().filter(|one| match one {
        Contender::Legato | Contender::Plain => true,
        Contender::Other => arguments.other.is_some(),
        Contender::Zram => arguments.swap.contains(&SwapKind::Zram),
        Contender::File => arguments.swap.contains(&SwapKind::File),
    });
    let mut report = Report {
        cache: arguments.cache,
        rounds: arguments.rounds,
        passes: arguments.passes,
        page_cluster: arguments.page_cluster,
        areas: bench
            .baselines
            .as_ref()
            .map(Baselines::describe)
            .unwrap_or_default(),
        contenders: contenders.collect(),
        rows: Workload::all(arguments).into_iter().map(Row::new).collect(),
        missing: Vec::new(),
    };
    for round in 1..=arguments.rounds {
        for row in &mut report.rows {
            for &contender in &report.contenders {
                if report.missing.iter().any(|(gone, _)| *gone == contender) {
                    continue;
                }
                let progress = format!(
                    "round {round} of {}, {}, {}",
                    arguments.rounds,
                    row.workload.name(),
                    contender.name()
                );
                match bench.touch(contender, row.workload) {
                    Ok(touch_ns) => {
                        say(format_args!("{progress}: {:.2} us", touch_ns / 1_000.0));
                        row.push(contender, touch_ns);
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
    #[error("was not given")]
    NoOther,
}

#[derive(Debug)]
struct Bench<'a> {
    interrupt: &'a Interrupt,
    program: PathBuf,
    other: Option<&'a Path>,
    cache: Bytes,
    passes: u32,
    baselines: Result<Baselines, SwapError>,
}

impl Bench<'_> {
    /// Nanoseconds per touch.
    fn touch(&self, contender: Contender, workload: Workload) -> Result<f64, RunError<'_>> {
        match contender {
            Contender::Plain => self.finish(Command::new(&self.program), workload),
            Contender::Legato => self.finish(self.under(&self.program, workload), workload),
            Contender::Other => {
                let other = self.other.ok_or(RunError::NoOther)?;
                self.finish(self.under(other, workload), workload)
            }
            Contender::Zram => self.swapped(|baselines| &baselines.zram, workload),
            Contender::File => self.swapped(|baselines| &baselines.file, workload),
        }
    }

    /// The beginning of a run under this legato.
    fn under(&self, legato: &Path, workload: Workload) -> Command {
        let memory = self.cache.0 * workload.times * NODE_MEMORY_FACTOR + NODE_MEMORY_SPARE.0;
        let mut command = Command::new(legato);
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
            .arg(format!("--order={}", workload.order.name()))
            .arg(format!("--access={}", workload.access.name()))
            .arg(format!("--threads={}", workload.threads))
            .arg(format!("--passes={}", self.passes));
        let passes = self.interrupt.run(command)?;
        Ok(passes.iter().sum::<f64>() / passes.len() as f64)
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
        let wants = |kind| match arguments.swap.contains(&kind) {
            true => Ok(()),
            false => Err(SwapError::LeftOut),
        };
        wants(SwapKind::Zram).or_else(|_| wants(SwapKind::File))?;
        swap::check_machine()?;
        let page_cluster = PageCluster::set(arguments.page_cluster)?;
        let largest = arguments.times.iter().max().unwrap_or(&1);
        let size = Bytes(arguments.cache.0 * 2 * largest).max(SWAP_SIZE_MIN);
        Ok(Self {
            zram: wants(SwapKind::Zram).and_then(|()| SwapArea::zram(size)),
            file: wants(SwapKind::File).and_then(|()| SwapArea::file(size)),
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
