//! The same work under Legato, under Linux swap with the same limit and on local memory, in turn.
//!
//! Each round runs every contender once per workload, so that whatever else the machine does
//! meets all alike, and the ratios are taken within a round. Only one swap area is active at a
//! time, and none while Legato runs. Everything that is set up is undone on every way out.

mod child;
mod group;
mod report;
mod swap;

use crate::args::{BenchAgainstArguments, SwapKind};
use crate::failure::{EXIT_SIGNAL_BASE, Failure};
use crate::machine;
use crate::output::{print, tell};
use group::MemoryGroup;
use legato_base::Bytes;
use report::{Conditions, Contender, Missing};
use signal_hook::consts::SIGINT;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use swap::{PageCluster, SwapArea, SwapError};

pub(crate) use child::{ChildError, Ended, Interrupt};
pub(crate) use report::{Report, Row, Unit};

/// Twice the largest workload fits, and the kernel keeps swap entries of pages it has read back.
const SWAP_SIZE_MIN: Bytes = Bytes::gib(1);
/// For what is far beside the work's own memory.
const NODE_MEMORY_SPARE: Bytes = Bytes::mib(256);
/// The program's copy, at worst on one of two nodes each.
const NODE_MEMORY_FACTOR: u64 = 4;

/// What runs programs: with the user's signals from now on, and this program.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) interrupt: Interrupt,
    pub(crate) legato: PathBuf,
}

impl Runner {
    pub(crate) fn start() -> Result<Self, Failure> {
        let interrupt =
            Interrupt::take().map_err(|error| Failure::system("cannot take signals", error))?;
        let legato = std::env::current_exe()
            .map_err(|error| Failure::system("cannot find this program", error))?;
        Ok(Self { interrupt, legato })
    }
}

/// Why one run gave no figure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("the program {0}")]
    Child(#[from] ChildError),
    #[error(transparent)]
    Swap(#[from] SwapError),
    /// Said by whoever prepared it.
    #[error("{0}")]
    NotPrepared(String),
    #[error("was not given")]
    NoOther,
    /// Only where the output is to be the same everywhere.
    #[error(
        "the program printed something else than on local memory, from byte {at} of its output on"
    )]
    OtherOutput { at: usize },
}

impl RunError {
    /// The next one may go well: the kernel kills programs for want of memory in groups that swap, sometimes.
    const fn is_of_one_run(&self) -> bool {
        matches!(self, Self::Child(ChildError::Failed(_)))
    }
}

/// What each contender runs.
#[derive(Debug)]
pub(crate) struct Work {
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Where far memory is, as arguments of `legato run`.
    pub(crate) far: Vec<OsString>,
}

impl Work {
    /// The memory of embedded nodes for a program with so much of its own. Where the machine has not that
    /// much twice, they have what they get by default.
    pub(crate) fn embedded(program: Bytes) -> Vec<OsString> {
        let memory = program.0 * NODE_MEMORY_FACTOR + NODE_MEMORY_SPARE.0;
        match machine::memory_available() {
            Ok(available) if memory <= available.0 / 2 => {
                vec![format!("--far={memory}").into()]
            }
            _ => Vec::new(),
        }
    }

    /// As it is.
    pub(crate) fn plain(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        command
    }

    /// Under this legato.
    pub(crate) fn under(&self, legato: &Path, cache: Bytes) -> Command {
        let mut command = Command::new(legato);
        command
            .args(["run", "--quiet"])
            .arg(format!("--cache={}", cache.0))
            .args(&self.far)
            .arg("--")
            .args(&self.command);
        command
    }
}

/// Who takes part, and what they need.
#[derive(Debug)]
pub(crate) struct Comparison<'a> {
    runner: Runner,
    /// Legato's cache, and the limit under swap.
    cache: Bytes,
    against: &'a BenchAgainstArguments,
    baselines: Result<Baselines, SwapError>,
}

impl<'a> Comparison<'a> {
    /// For work that takes so much memory at most.
    pub(crate) fn prepare(
        runner: Runner,
        against: &'a BenchAgainstArguments,
        cache: Bytes,
        memory: Bytes,
    ) -> Self {
        Self {
            runner,
            cache,
            against,
            baselines: Baselines::prepare(against, memory),
        }
    }

    pub(crate) fn conditions(&self, rounds: u32) -> Conditions {
        let areas = self.baselines.as_ref().map(Baselines::describe);
        let contenders = Contender::ALL.into_iter();
        let takes_part = |one: &_| match one {
            Contender::Legato | Contender::Plain => true,
            Contender::Other => self.against.other.is_some(),
            Contender::Zram => self.against.swap.contains(&SwapKind::Zram),
            Contender::File => self.against.swap.contains(&SwapKind::File),
        };
        Conditions {
            rounds,
            cache: self.cache,
            page_cluster: self.against.page_cluster,
            areas: areas.unwrap_or_default(),
            contenders: contenders.filter(takes_part).collect(),
        }
    }

    /// Lets a contender do the work; `finish` runs the command.
    pub(crate) fn run<T>(
        &self,
        contender: Contender,
        work: &Work,
        finish: impl FnOnce(&Interrupt, &mut Command) -> Result<T, RunError>,
    ) -> Result<T, RunError> {
        let Runner { interrupt, legato } = &self.runner;
        let area: fn(&Baselines) -> &Result<SwapArea, SwapError> = match contender {
            Contender::Plain => return finish(interrupt, &mut work.plain()),
            Contender::Legato => return finish(interrupt, &mut work.under(legato, self.cache)),
            Contender::Other => {
                let other = self.against.other.as_ref().ok_or(RunError::NoOther)?;
                return finish(interrupt, &mut work.under(other, self.cache));
            }
            Contender::Zram => |baselines| &baselines.zram,
            Contender::File => |baselines| &baselines.file,
        };
        let not_prepared = |error: &SwapError| RunError::NotPrepared(error.to_string());
        let baselines = self.baselines.as_ref().map_err(not_prepared)?;
        let area = area(baselines).as_ref().map_err(not_prepared)?;
        // The group goes first: with its processes, the swap area is empty.
        let _active = area.activate()?;
        let group = MemoryGroup::create(self.cache).map_err(SwapError::from)?;
        finish(interrupt, &mut group.command(&work.command))
    }
}

/// Fills the report. `run` gives the figure of one contender and one workload, which are those of the
/// report's rows in the same order.
pub(crate) fn measure<W>(
    report: &mut Report,
    workloads: &[W],
    mut run: impl FnMut(Contender, &W) -> Result<f64, RunError>,
) -> Result<(), Failure> {
    let rounds = report.conditions.rounds;
    let mut left_out = Vec::new();
    for round in 1..=rounds {
        for (row, workload) in report.rows.iter_mut().zip(workloads) {
            for &contender in &report.conditions.contenders {
                if left_out.contains(&contender) {
                    continue;
                }
                let name = contender.name();
                let progress = format!("round {round} of {rounds}, {}, {name}", row.name);
                match run(contender, workload) {
                    Ok(figure) => {
                        let unit = report.unit.symbol();
                        tell(format_args!("{progress}: {figure:.2} {unit}"));
                        row.push(contender, Some(figure));
                    }
                    Err(error) => {
                        let error = unless_interrupted(error)?;
                        tell(format_args!("{progress}: {error}"));
                        row.push(contender, None);
                        let mut what = format!("in round {round}, {}", row.name);
                        if !error.is_of_one_run() {
                            what = format!("from round {round} on");
                            left_out.push(contender);
                        }
                        let reason = error.to_string();
                        report.missing.push(Missing {
                            contender,
                            what,
                            reason,
                        });
                    }
                }
            }
        }
    }
    Ok(())
}

/// What the user ended is not what failed.
pub(crate) fn unless_interrupted(error: RunError) -> Result<RunError, Failure> {
    match error {
        RunError::Child(ChildError::Interrupted) => Err(Failure {
            code: Some(EXIT_SIGNAL_BASE + SIGINT as u8),
            text: ChildError::Interrupted.to_string(),
        }),
        error => Ok(error),
    }
}

/// Prints the report. The exit status is 1 if a figure of Legato or of local memory is missing; without
/// swap the others are given.
pub(crate) fn finish(report: &Report, json: bool) -> Result<u8, Failure> {
    let text = if json {
        format!("{:#}\n", report.json())
    } else {
        report.text()
    };
    print(text)?;
    let mut missing = report.missing.iter();
    Ok(u8::from(missing.any(|missing| {
        matches!(missing.contender, Contender::Legato | Contender::Plain)
    })))
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
    fn prepare(against: &BenchAgainstArguments, memory: Bytes) -> Result<Self, SwapError> {
        let wants = |kind| match against.swap.contains(&kind) {
            true => Ok(()),
            false => Err(SwapError::LeftOut),
        };
        wants(SwapKind::Zram).or_else(|_| wants(SwapKind::File))?;
        swap::check_machine()?;
        let page_cluster = PageCluster::set(against.page_cluster)?;
        let size = Bytes(memory.0 * 2).max(SWAP_SIZE_MIN);
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
