//! The processes below `legato run` that have neither an agent nor a hand, and what to do about
//! each: statically linked ones, those that lost `LD_PRELOAD`, forked children.
//!
//! There is no event for a new process, so the tree is looked at now and then. Most children run
//! another program or end at once: what is younger than one look is left alone.

mod facts;

use super::injector::Injected;
use super::local::LocalProcess;
use super::processes::{self, Process};
use legato_base::timeouts;
use legato_pager::uffd::injection::{InjectionError, Target};
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[cfg(test)]
use facts::Mappings;
pub(crate) use facts::{Facts, mappings, marks};

/// From one look to the next: at first, while something is being waited for, and at most.
const SCAN_MIN: Duration = Duration::from_millis(10);
const SCAN_MAX: Duration = Duration::from_millis(100);
/// A dynamic program that was started with `LD_PRELOAD` brings its agent itself.
const OWN_AGENT: Duration = timeouts::OWN_AGENT.to_std();

/// What is put into a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It serves the process.
    Agent,
    /// It helps the agent of `program`, which serves the process already.
    Hand { program: Pid },
}

/// Puts agents and hands into running processes.
pub(crate) trait Inject: fmt::Debug {
    /// Begins; [`Self::poll`] has the result.
    fn inject(&mut self, target: Target, entry: Entry);

    fn poll(&mut self) -> Option<Injected>;

    /// Readable when there is a result.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// What is to be done about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing, as long as it is what it is.
    Leave,
    /// Look again.
    Wait,
    /// Its mappings decide, which cost time to read.
    Inspect,
    Inject(Entry),
    /// It cannot be served.
    Mention(Why),
}

/// Why a process has no far memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Why {
    #[error(transparent)]
    Injection(InjectionError),
    #[error("Valgrind runs it, which knows of no memory that others map; run it without")]
    Valgrind,
}

/// The rule.
pub(crate) fn decide(facts: &Facts) -> Verdict {
    if facts.ended || facts.attended {
        return Verdict::Leave;
    }
    if facts.looks == 0 || facts.asked {
        return Verdict::Wait;
    }
    if facts.runs_without {
        return Verdict::Leave;
    }
    if let Some(error) = facts.refused {
        return Verdict::Mention(Why::Injection(error));
    }
    if let Some(error) = facts.barrier() {
        // Its own agent may yet come, slowed down by whoever traces it.
        return match facts.age < OWN_AGENT && error == InjectionError::TracedByAnother {
            true => Verdict::Wait,
            false => Verdict::Mention(Why::Injection(error)),
        };
    }
    if facts.under_valgrind {
        return Verdict::Mention(Why::Valgrind);
    }
    // A vfork child, its parent meanwhile, or an agent or hand that has not connected yet.
    if facts.shares_memory || facts.may_be_hand {
        return Verdict::Wait;
    }
    let Some(mappings) = &facts.mappings else {
        return Verdict::Inspect;
    };
    match (mappings.served, mappings.server) {
        (true, Some(program)) => Verdict::Inject(Entry::Hand { program }),
        // Whoever serves it is not known yet.
        (true, None) => Verdict::Wait,
        (false, _) if facts.may_bring_agent && facts.age < OWN_AGENT => Verdict::Wait,
        (false, _) => Verdict::Inject(Entry::Agent),
    }
}

/// A program with an agent, and the marks of agents in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) program: Pid,
    pub(crate) marks: Vec<u64>,
}

/// A process that was seen without agent or hand.
#[derive(Debug)]
struct Known {
    start: u64,
    /// Another program in the same process is another case.
    image: PathBuf,
    since: Instant,
    looks: u32,
    asked: bool,
    /// It was given a hand for the agent of this program.
    helps: Option<Pid>,
    refused: Option<InjectionError>,
    /// Its own agent could not start, which has been said.
    runs_without: bool,
    /// That it has no far memory has been said.
    named: bool,
    /// The hand in it: it has one as long as that lives.
    hand: Option<Process>,
    /// When it was last seen to share its memory.
    shared: Option<Instant>,
}

impl Known {
    const fn new(start: u64, image: PathBuf, since: Instant) -> Self {
        Self {
            start,
            image,
            since,
            looks: 0,
            asked: false,
            helps: None,
            refused: None,
            runs_without: false,
            named: false,
            hand: None,
            shared: None,
        }
    }
}

/// What the supervisor knows of the tree.
#[derive(Debug)]
pub(crate) struct Tree {
    injector: Box<dyn Inject>,
    /// By process id.
    known: BTreeMap<i32, Known>,
    /// All hands that live. One that its agent talks to still must not be stopped, whatever has become
    /// of its child.
    hands: Vec<Process>,
    pause: Duration,
    next: Instant,
    /// When it was last looked at, if every process then was attended or left alone for good.
    settled: Option<Instant>,
}

impl Tree {
    pub(crate) fn new(injector: Box<dyn Inject>, now: Instant) -> Self {
        Self {
            injector,
            known: BTreeMap::new(),
            hands: Vec::new(),
            pause: SCAN_MIN,
            next: now,
            settled: None,
        }
    }

    /// True if the last look was after `since`, and found nobody who may yet get an agent.
    pub(crate) fn is_settled(&self, since: Instant) -> bool {
        self.settled.is_some_and(|looked| looked > since)
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.next
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.injector.descriptor()
    }

    /// True while the result of an injection is awaited.
    pub(crate) fn asks_for(&self, pid: Pid) -> bool {
        self.known
            .get(&pid.as_raw_pid())
            .is_some_and(|known| known.asked)
    }

    /// Has an agent been brought into it? That serves before its injection is over.
    pub(crate) fn is_injected(&self, pid: Pid) -> bool {
        let known = self.known.get(&pid.as_raw_pid());
        known.is_some_and(|known| known.asked && known.helps.is_none())
    }

    /// The program whose agent a hand in this process works for.
    pub(crate) fn helper_of(&self, pid: Pid) -> Option<Pid> {
        self.known.get(&pid.as_raw_pid())?.helps
    }

    /// The agent that the process has brought could not start: another one could not either.
    pub(crate) fn note_refusal(&mut self, pid: Pid) {
        if let Some(process) = Process::find(pid) {
            let image = facts::image(pid);
            let mut known = Known::new(process.start, image, Instant::now());
            known.runs_without = true;
            self.known.insert(pid.as_raw_pid(), known);
        }
    }

    /// The hand `task` has connected, in `child` if that is still there.
    pub(crate) fn note_hand(&mut self, child: Option<Pid>, task: Pid) {
        let hand = Process::find(task);
        self.hands.extend(hand);
        let known = child.and_then(|child| self.known.get_mut(&child.as_raw_pid()));
        if let Some(known) = known {
            known.hand = hand;
        }
    }

    /// Looks at the tree when it is time. `attended` are programs with agents, agents and memory
    /// nodes. Returns processes that are found to have no far memory, each once.
    pub(crate) fn turn(
        &mut self,
        attended: &[Pid],
        servers: &[Server],
        now: Instant,
    ) -> Vec<LocalProcess> {
        self.take_results();
        if now < self.next {
            return Vec::new();
        }
        let (local, news) = self.look(attended, servers, now);
        self.pause = match news {
            true => SCAN_MIN,
            false => (self.pause * 2).min(SCAN_MAX),
        };
        self.next = now + self.pause;
        local
    }

    fn take_results(&mut self) {
        while let Some(Injected { pid, result }) = self.injector.poll() {
            let Some(known) = self.known.get_mut(&pid.as_raw_pid()) else {
                continue;
            };
            match result {
                // It connects, and is attended from then on.
                Ok(()) => {}
                Err(InjectionError::Gone | InjectionError::Busy) => known.asked = false,
                Err(error) => {
                    known.asked = false;
                    known.refused = Some(error);
                }
            }
        }
    }

    /// One look; true if something is under way that another look will show soon.
    fn look(
        &mut self,
        attended: &[Pid],
        servers: &[Server],
        now: Instant,
    ) -> (Vec<LocalProcess>, bool) {
        let all = processes::below();
        let lives = |hand: &Process| {
            all.iter()
                .any(|seen| seen.is(hand.pid.as_raw_pid(), hand.start))
        };
        self.hands.retain(lives);
        self.known
            .retain(|pid, known| all.iter().any(|seen| seen.is(*pid, known.start)));
        let (mut local, mut news) = (Vec::new(), false);
        let mut settled = true;
        for process in &all {
            if attended.contains(&process.pid) || self.hands.contains(process) {
                continue;
            }
            let (facts, verdict, target) = self.judge(process, &all, servers, now);
            settled &= !facts.may_be_attended(verdict);
            match verdict {
                Verdict::Leave | Verdict::Inspect => {}
                Verdict::Wait => news |= facts.looks == 0 || facts.asked,
                Verdict::Inject(entry) => {
                    // Without one it has ended since, or there was no descriptor for it.
                    let Some(target) = target else { continue };
                    self.injector.inject(target, entry);
                    if let Some(known) = self.known.get_mut(&process.pid.as_raw_pid()) {
                        known.asked = true;
                        known.helps = match entry {
                            Entry::Agent => None,
                            Entry::Hand { program } => Some(program),
                        };
                    }
                    news = true;
                }
                Verdict::Mention(why) => local.extend(self.name(process.pid, why)),
            }
        }
        self.settled = settled.then_some(now);
        (local, news)
    }

    /// What is to be done about a process, and the process with the memory of which that is true.
    fn judge(
        &mut self,
        process: &Process,
        all: &[Process],
        servers: &[Server],
        now: Instant,
    ) -> (Facts, Verdict, Option<Target>) {
        let image = facts::image(process.pid);
        let known = self
            .known
            .entry(process.pid.as_raw_pid())
            .or_insert_with(|| Known::new(process.start, image.clone(), now));
        if known.image != image {
            *known = Known::new(process.start, image, now);
        }
        let mut facts = Facts {
            ended: process.ended,
            attended: known.hand.is_some_and(|hand| all.contains(&hand)),
            looks: known.looks,
            age: now.saturating_duration_since(known.since),
            asked: known.asked,
            refused: known.refused,
            runs_without: known.runs_without,
            ..Facts::default()
        };
        known.looks = known.looks.saturating_add(1);
        let mut target = None;
        if decide(&facts) == Verdict::Inspect {
            target = facts.gather_status(process.pid, all);
            if facts.shares_memory {
                known.shared = Some(now);
            }
            let since = known
                .shared
                .map(|shared| now.saturating_duration_since(shared));
            facts.may_be_hand = since.is_some_and(|since| since < OWN_AGENT);
        }
        let mut verdict = decide(&facts);
        if verdict == Verdict::Inspect {
            facts.gather_mappings(process.pid, servers);
            verdict = decide(&facts);
        }
        (facts, verdict, target)
    }

    /// None if it has been named, or has just ended.
    fn name(&mut self, pid: Pid, why: Why) -> Option<LocalProcess> {
        let command = processes::command(pid)?;
        let pid = pid.as_raw_pid();
        let known = self.known.get_mut(&pid)?;
        let named = std::mem::replace(&mut known.named, true);
        (!named).then(|| LocalProcess {
            pid,
            command,
            why: why.to_string(),
        })
    }
}

#[cfg(test)]
mod tests;
