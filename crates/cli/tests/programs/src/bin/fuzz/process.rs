//! One process: rounds of its threads at work, and between them, at rest, what concerns all of them.

use crate::family::{Birth, Child, Forked, die, execute, fork};
use crate::heap::Heap;
use crate::operation::Operation;
use crate::shared::SharedAreas;
use crate::worker::{Failure, Settings, Worker, mix};
use legato_base::random::Random;

/// Pages of the file that private mappings are of.
pub(crate) const FILE_PAGES: usize = 512;

/// Where the memory is: far below where the kernel puts what it finds a place for, so that nothing
/// else comes into the holes.
const SHARED_BASE: usize = 0x0F00_0000_0000;
const ARENAS_BASE: usize = 0x1000_0000_0000;
const ARENAS_APART: usize = 1 << 36;

/// Threads end, and new ones begin, so many times in a process.
const ROUNDS: u32 = 3;

#[derive(Debug)]
pub(crate) struct Process<'a> {
    settings: &'a Settings,
    path: String,
    workers: Vec<Worker<'a>>,
    shared: SharedAreas,
    heap: Heap,
    /// Processes that this one and its children may start.
    budget: u64,
    steps: u32,
    children: Vec<Child>,
    reports: String,
    forks: u32,
}

/// What a thread does in the middle of a round, while the others go on.
#[derive(Clone, Debug, Default)]
struct Interlude {
    fork: Option<String>,
    execute: bool,
}

impl<'a> Process<'a> {
    pub(crate) fn first(settings: &'a Settings, processes: u64) -> Result<Self, Failure> {
        let path = "0";
        let (read, locked) = (settings.pages / 8, (settings.pages / 16).min(512));
        let shared = SharedAreas::new(SHARED_BASE, read.max(1), locked.max(1))?;
        let mut workers = (0..settings.threads)
            .map(|number| Worker::new(settings, path, number, ARENAS_BASE + number * ARENAS_APART))
            .collect::<Result<Vec<_>, _>>()?;
        for worker in &mut workers {
            worker.taken = vec![0; shared.lock_count()];
            worker.fill()?;
        }
        Ok(Self {
            settings,
            path: path.to_owned(),
            workers,
            shared,
            heap: Heap::default(),
            budget: processes.saturating_sub(1),
            steps: settings.steps,
            children: Vec::new(),
            reports: String::new(),
            forks: 0,
        })
    }

    /// All of its life; what it has to report.
    pub(crate) fn live(mut self) -> Result<String, Failure> {
        for round in 0..ROUNDS {
            let mut random = self.workers[0].random(u64::from(round) << 48 | 1 << 47);
            let one_in = if round == 0 && self.path == "0" { 1 } else { 4 };
            let process = self.workers[0].process;
            self.shared.rewrite(process, &mut random, one_in);
            if !self.skips(Operation::Heap) {
                let stamp = self.workers[0].next_stamp();
                self.heap.use_some(&mut random, stamp)?;
            }
            let children = self.work(round, &mut random);
            self.reports.extend(children);
            self.shared.check_all(self.settings, &mut self.workers)?;
            self.fork_at_rest(&mut random)?;
            if random.ratio(1, 2) {
                self.collect()?;
            }
        }
        self.collect()?;
        self.heap.check()?;
        self.shared.check_all(self.settings, &mut self.workers)?;
        let line = report(&self.path, &mut self.workers, self.forks)?;
        Ok(line + &self.reports)
    }

    fn skips(&self, operation: Operation) -> bool {
        self.settings.skipped.contains(&operation)
    }

    /// One round of all threads; the reports of the children they have had.
    fn work(&mut self, round: u32, random: &mut Random) -> Vec<String> {
        let steps = self.steps / ROUNDS;
        let interludes: Vec<_> = (0..self.workers.len())
            .map(|number| self.interlude(round, number, random))
            .collect();
        let (shared, only) = (&self.shared, self.settings.only_thread);
        std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .workers
                .iter_mut()
                .zip(interludes)
                .filter(|(worker, _)| only.is_none_or(|only| only == worker.number))
                .map(|(worker, interlude)| {
                    scope.spawn(move || {
                        work(worker, steps, shared, &interlude)
                            .unwrap_or_else(|failure| die(&failure))
                    })
                })
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(Result::unwrap_or_default).collect()
        })
    }

    fn interlude(&mut self, round: u32, number: usize, random: &mut Random) -> Interlude {
        let may_fork = random.ratio(1, 2) && self.budget > 0 && !self.skips(Operation::Fork);
        let execute = random.ratio(1, 8) && !self.skips(Operation::Execute);
        if may_fork {
            self.budget -= 1;
            self.forks += 1;
        }
        let fork = may_fork.then(|| format!("{}.r{round}t{number}", self.path));
        Interlude { fork, execute }
    }

    /// A child that has all threads' memory, and threads of its own.
    fn fork_at_rest(&mut self, random: &mut Random) -> Result<(), Failure> {
        if self.budget == 0 || self.skips(Operation::Fork) {
            return Ok(());
        }
        let budget = random
            .below(self.budget.div_ceil(2) + 1)
            .min(self.budget - 1);
        self.budget -= budget + 1;
        self.forks += 1;
        let path = format!("{}.{}", self.path, self.forks);
        match fork(&path)? {
            Forked::Parent(child) => self.children.push(child),
            Forked::Child(birth) => match self.become_child(&path, budget, &birth) {
                Ok(report) => birth.end(&report),
                Err(failure) => die(&failure),
            },
        }
        Ok(())
    }

    fn become_child(&mut self, path: &str, budget: u64, birth: &Birth) -> Result<String, Failure> {
        for worker in &mut self.workers {
            worker.apply_fork();
            worker.leave_shared()?;
        }
        birth.tell_ready();
        for worker in &mut self.workers {
            worker.check_all()?;
            worker.become_child(path)?;
        }
        self.shared.check_all(self.settings, &mut self.workers)?;
        self.heap.check()?;
        let child = Self {
            settings: self.settings,
            path: path.to_owned(),
            workers: core::mem::take(&mut self.workers),
            shared: core::mem::take(&mut self.shared),
            heap: core::mem::take(&mut self.heap),
            budget,
            steps: self.steps / 2,
            children: Vec::new(),
            reports: String::new(),
            forks: 0,
        };
        child.live()
    }

    fn collect(&mut self) -> Result<(), Failure> {
        for child in self.children.drain(..) {
            self.reports += &child.collect()?;
        }
        Ok(())
    }
}

/// A thread's part of a round; the reports of its child, which has ended when it returns.
fn work(
    worker: &mut Worker<'_>,
    steps: u32,
    shared: &SharedAreas,
    interlude: &Interlude,
) -> Result<String, Failure> {
    worker.run(steps / 2, Some(shared))?;
    if interlude.execute {
        execute()?;
    }
    let child = match &interlude.fork {
        Some(path) => match fork(path)? {
            Forked::Parent(child) => Some(child),
            Forked::Child(birth) => match live_alone(worker, path, steps / 2, &birth) {
                Ok(report) => birth.end(&report),
                Err(failure) => die(&failure),
            },
        },
        None => None,
    };
    worker.run(steps - steps / 2, Some(shared))?;
    child.map_or(Ok(String::new()), Child::collect)
}

/// A child of a process that has more threads: only this thread's memory is whole, and another may
/// have held any lock.
fn live_alone(
    worker: &mut Worker<'_>,
    path: &str,
    steps: u32,
    birth: &Birth,
) -> Result<String, Failure> {
    worker.apply_fork();
    worker.leave_shared()?;
    birth.tell_ready();
    worker.check_all()?;
    worker.become_child(path)?;
    worker.run(steps, None)?;
    report(path, core::slice::from_mut(worker), 0)
}

/// One line: checksums of all contents and of all results.
fn report(path: &str, workers: &mut [Worker<'_>], forks: u32) -> Result<String, Failure> {
    let (mut contents, mut results, mut steps) = (0, 0, 0);
    for worker in workers {
        contents = mix(contents, worker.finish()?);
        results = mix(results, worker.results);
        steps += worker.steps_done;
    }
    Ok(format!(
        "process {path} contents {contents:016x} results {results:016x} steps {steps} forks {forks}\n"
    ))
}
