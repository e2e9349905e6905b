//! The loop of `legato run`: one thread that sleeps until a signal, an agent or a deadline.

mod families;
mod shares;

use super::agents::{Agent, AgentReport, Notice, TakenOn};
use super::budget::Ledger;
use super::control::{Connection, ControlListener};
use super::helpers::Helpers;
use super::injector::{Injected, Injector};
use super::intruder::{Intruder, Outcomes};
use super::local::LocalProcesses;
use super::nodes::Nodes;
use super::outcome::Outcome;
use super::processes;
use super::progress::{Load, Progress};
use super::signals::{SignalEvent, Signals};
use super::summary::{NodeReport, RunReport};
use super::tree::Tree;
use super::unserved::Unserved;
use crate::failure::advised;
use crate::machine;
use crate::output::tell;
use legato_base::Bytes;
use legato_base::wire::control::{SupervisorMessage, Welcome};
use legato_pager::uffd::injection::InjectionError;
use legato_pager::uffd::same_memory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait, waitpid};
use shares::Hand;
use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A wait for background processes is worth a line after this long.
const WAITING_NOTICE: Duration = Duration::from_secs(1);
/// How long the listener rests when there is no descriptor left for another agent.
const LISTENER_REST: Duration = Duration::from_millis(100);
/// `wait(2)` for children of this thread alone, not for what the injector's threads trace
/// (`__WNOTHREAD`).
const OWN_CHILDREN: WaitOptions = WaitOptions::from_bits_retain(0x2000_0000);

/// The supervisor of one run.
#[derive(Debug)]
pub(crate) struct Supervisor {
    signals: Signals,
    listener: ControlListener,
    listener_rests_until: Option<Instant>,
    helpers: Helpers,
    injector: Rc<RefCell<Injector>>,
    /// What the injector has done for the tree.
    outcomes: Outcomes,
    agents: Vec<Agent>,
    unserved: Unserved,
    ledger: Ledger,
    /// Hands that have connected, for the agents that they work for.
    hands: Vec<Hand>,
    /// None if nothing can be put into running processes: then only those have an agent that
    /// load it themselves.
    tree: Option<Tree>,
    reports: Vec<AgentReport>,
    any_attached: bool,
    /// The program's own agent could not start, so the program did not either; or the run ends early.
    refused: bool,
    /// Without far memory.
    local: LocalProcesses,
    /// A process without far memory ends the run.
    strict: bool,
    /// Whatever runs is killed, until nothing does.
    ends: bool,
    /// The program has had an agent. What it executes later has begun already.
    began: bool,
    stage: Stage,
    main: Pid,
    cache: Bytes,
    progress: Option<Progress>,
}

/// The local memory of a run, and the processes that keep to no limit.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) cache: Bytes,
    pub(crate) local: LocalProcesses,
    pub(crate) strict: bool,
}

/// How far the run is.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Running,
    /// The program has ended; other processes still use far memory.
    Waiting(Waiting),
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    outcome: Outcome,
    since: Instant,
    /// When the last agent was seen.
    attached: Instant,
    announced: bool,
    interrupted: bool,
}

impl Supervisor {
    pub(crate) fn new(
        signals: Signals,
        listener: ControlListener,
        helpers: Helpers,
        injector: Rc<RefCell<Injector>>,
        main: Pid,
        limits: Limits,
        progress: Option<Progress>,
    ) -> Self {
        let (intruder, outcomes) = Intruder::new(Rc::clone(&injector));
        Self {
            signals,
            listener,
            listener_rests_until: None,
            helpers,
            injector,
            outcomes,
            agents: Vec::new(),
            unserved: Unserved::default(),
            ledger: Ledger::new(limits.cache),
            hands: Vec::new(),
            tree: Some(Tree::new(Box::new(intruder), Instant::now())),
            reports: Vec::new(),
            any_attached: false,
            refused: false,
            local: limits.local,
            strict: limits.strict,
            ends: false,
            began: false,
            stage: Stage::Running,
            main,
            cache: limits.cache,
            progress,
        }
    }

    /// Runs until the program and everything that uses its far memory have ended; returns how the
    /// program has ended.
    pub(crate) fn supervise(&mut self) -> Outcome {
        // It may have ended before the first SIGCHLD could be taken.
        self.reap();
        loop {
            let now = Instant::now();
            if let Some(outcome) = self.finished(now) {
                return outcome;
            }
            self.sleep(now);
            self.handle_signals();
            // An agent that refuses has said why before its injection ends.
            let injected = self.injector.borrow_mut().results();
            let now = Instant::now();
            self.accept_agents(now);
            self.drive_agents(now);
            self.handle_injected(injected);
            self.look_at_tree(now);
            self.settle_shares(now);
            self.helpers.have_kept(&mut self.agents);
            self.show_progress(now);
        }
    }

    fn show_progress(&mut self, now: Instant) {
        let Some(progress) = &mut self.progress else {
            return;
        };
        progress.turn(now, self.cache, || {
            let mut load = Load::default();
            let agents = self.agents.iter().filter_map(Agent::counters);
            agents.for_each(|counters| load.add(&counters));
            let ended = self.reports.iter();
            ended.for_each(|report| load.add_ended(&report.stats.counters));
            load
        });
    }

    pub(crate) fn finish(self, outcome: Outcome) -> (RunReport, Nodes) {
        if !self.any_attached && !self.refused && self.local.count() == 0 {
            tell(
                "the program has ended without ever attaching to far memory; it has not loaded its agent; \
                 let it read the directory of the run (LEGATO_CONTROL names a file in it), and leave LD_PRELOAD as it is",
            );
        }
        let nodes = self.helpers.nodes.list.iter().map(|node| NodeReport {
            address: node.address.to_string(),
            pid: node
                .process
                .as_ref()
                .map(|process| process.pid().as_raw_pid()),
            lost: node.lost,
            pages_lost: node.pages_lost,
        });
        let report = RunReport {
            outcome: if self.refused {
                Outcome::Refused
            } else {
                outcome
            },
            cache: self.cache,
            local_peak: self.ledger.resident_peak(),
            processes: self.reports,
            local_count: self.local.count(),
            local: self.local.into_list(),
            nodes: nodes.collect(),
        };
        (report, self.helpers.nodes)
    }

    fn sleep(&self, now: Instant) {
        let injector = self.injector.borrow();
        let mut descriptors = vec![
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&*injector, PollFlags::IN),
        ];
        if self.listener_rests_until.is_none() {
            descriptors.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        descriptors.extend(self.agents.iter().filter_map(Agent::descriptor));
        let injector = self.tree.as_ref().and_then(Tree::descriptor);
        descriptors.extend(injector.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let timeout = self.deadline(now).map(|deadline| {
            let left = deadline.saturating_duration_since(now);
            Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        // Interrupted means a signal, which the next step handles; poll fails in no other way
        // for open descriptors.
        let _ = poll(&mut descriptors, timeout.as_ref());
    }

    fn deadline(&self, now: Instant) -> Option<Instant> {
        let agents = self.agents.iter().filter_map(Agent::deadline);
        let waiting = match self.stage {
            Stage::Running => None,
            // The next look at the tree decides.
            Stage::Waiting(_) if self.agents.is_empty() => None,
            Stage::Waiting(waiting) => {
                (!waiting.announced).then_some(waiting.since + WAITING_NOTICE)
            }
        };
        agents
            .chain(waiting)
            .chain(self.listener_rests_until)
            .chain(self.unserved.deadline(now))
            .chain(self.ledger.deadline(now))
            .chain(self.tree.as_ref().map(Tree::deadline))
            .chain(self.progress.as_ref().map(Progress::deadline))
            .min()
    }

    fn handle_signals(&mut self) {
        for event in self.signals.poll() {
            match (event, self.stage) {
                (SignalEvent::ChildEnded, _) => self.reap(),
                (SignalEvent::FromTerminal(_), Stage::Running) => {}
                (SignalEvent::FromProcess(signal, sender), Stage::Running) => {
                    // A program that signals its whole group has had its own signal already.
                    if sender != Some(self.main) {
                        // ESRCH: the program has ended, and that is the next event.
                        let _ = kill_process(self.main, signal);
                    }
                }
                (
                    SignalEvent::FromTerminal(signal) | SignalEvent::FromProcess(signal, _),
                    Stage::Waiting(waiting),
                ) => self.interrupt(signal, waiting),
            }
        }
    }

    /// Ends the wait for background processes.
    fn interrupt(&mut self, signal: Signal, waiting: Waiting) {
        if !matches!(
            signal,
            Signal::INT | Signal::TERM | Signal::QUIT | Signal::HUP
        ) {
            return;
        }
        // The second time, agents that do not notice the end of their program end as well.
        self.end_all(!waiting.interrupted);
        self.stage = Stage::Waiting(Waiting {
            interrupted: true,
            ..waiting
        });
    }

    /// Kills all that runs in the run; agents, if they are spared, go when their programs have ended.
    fn end_all(&self, spares_agents: bool) {
        let agents = self.agents.iter().filter_map(Agent::peer);
        let spared: Vec<Pid> = agents.filter(|_| spares_agents).collect();
        self.kill_descendants(&spared);
        self.agents.iter().for_each(Agent::kill);
    }

    /// Kills what an agent may have served that has died: every process that has no agent of its
    /// own. Which of them it served, only the agent knew.
    fn kill_orphans(&self) {
        let programs = self.agents.iter().filter_map(Agent::program_pid);
        let agents = self.agents.iter().filter_map(Agent::peer);
        self.kill_descendants(&programs.chain(agents).collect::<Vec<_>>());
    }

    /// Kills what runs below this process but its helpers and the `spared`.
    fn kill_descendants(&self, spared: &[Pid]) {
        for pid in processes::descendants() {
            if !self.helpers.has(pid) && !spared.contains(&pid) {
                // ESRCH: it has ended, which was the purpose.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Takes the exit statuses of all children that have ended: the program, memory nodes, and
    /// processes that were left behind by their parents.
    fn reap(&mut self) {
        while let Some((pid, status)) = self.next_ended() {
            if status.stopped() {
                // Traced a moment ago.
            } else if pid == self.main {
                self.handle_main_ended(status);
            } else {
                self.helpers.handle_child_ended(pid);
            }
        }
    }

    fn next_ended(&self) -> Option<(Pid, WaitStatus)> {
        if self.injector.borrow().is_idle() {
            return wait_now(wait);
        }
        // To the parent of a child that is traced by a thread of the parent's, `wait(2)` tells
        // stops as if it was the tracer, and takes them away from that.
        let children = processes::children().into_iter();
        let mut others = children.filter(|&pid| !self.injector.borrow().traces(pid));
        others.find_map(|pid| wait_now(|options| waitpid(Some(pid), options)))
    }

    fn handle_injected(&mut self, injected: Vec<Injected>) {
        if injected.is_empty() {
            return;
        }
        for injected in injected {
            let Injected { pid, result } = injected;
            // The tree knows what to do about a process that has run before.
            if pid != self.main || self.tree.as_ref().is_some_and(|tree| tree.asks_for(pid)) {
                self.outcomes.borrow_mut().push_back(injected);
                continue;
            }
            let Err(error) = result else {
                continue;
            };
            match error {
                // Its end is the next event.
                InjectionError::Gone => {}
                InjectionError::AgentRefused if self.refused => {}
                error => self.refuse_program(&error),
            }
        }
        // Those that were traced have not been waited for.
        self.reap();
    }

    /// The program ends before it has begun.
    fn refuse_program(&mut self, why: &dyn Display) {
        self.refused = true;
        tell(format_args!("the program cannot run on far memory: {why}"));
    }

    fn handle_main_ended(&mut self, status: WaitStatus) {
        let now = Instant::now();
        self.stage = Stage::Waiting(Waiting {
            outcome: Outcome::of(status),
            since: now,
            attached: now,
            announced: false,
            interrupted: false,
        });
    }

    /// How the program has ended, once nothing is left to wait for.
    fn finished(&mut self, now: Instant) -> Option<Outcome> {
        let Stage::Waiting(waiting) = &mut self.stage else {
            return None;
        };
        if !self.agents.is_empty() {
            waiting.attached = now;
            if !waiting.announced && now >= waiting.since + WAITING_NOTICE {
                waiting.announced = true;
                let text = match self.agents.len() {
                    1 => "1 process that still uses".to_owned(),
                    count => format!("{count} processes that still use"),
                };
                tell(format_args!(
                    "waiting for {text} far memory; the program has left them behind; interrupt to end them"
                ));
            }
            return None;
        }
        if !self.injector.borrow().is_idle() || !self.unserved.is_empty() {
            return None;
        }
        let outcome = waiting.outcome;
        let since = waiting.attached;
        // One that replaces itself (`execve`), or is still being loaded, has no agent for a moment.
        let settled = self
            .tree
            .as_ref()
            .is_some_and(|tree| tree.is_settled(since));
        (settled || !self.has_background_processes()).then_some(outcome)
    }

    fn has_background_processes(&self) -> bool {
        let mut pids = processes::descendants().into_iter();
        pids.any(|pid| !self.helpers.has(pid))
    }

    fn accept_agents(&mut self, now: Instant) {
        if self.listener_rests_until.is_some_and(|until| now < until) {
            return;
        }
        self.listener_rests_until = None;
        loop {
            match self.listener.accept() {
                Ok(Some(connection)) => self.agents.push(Agent::new(connection)),
                Ok(None) => return,
                Err(error) => {
                    tell(format_args!(
                        "cannot take another process: {}",
                        advised(&error.into())
                    ));
                    self.listener_rests_until = Some(now + LISTENER_REST);
                    return;
                }
            }
        }
    }

    fn drive_agents(&mut self, now: Instant) {
        let mut agents = std::mem::take(&mut self.agents);
        let mut orphans = false;
        let mut tasks: Vec<Pid> = agents.iter().filter_map(Agent::task).collect();
        for agent in &mut agents {
            let take_on = |connection: &Connection| {
                let task = connection.peer;
                let shares = |&other: &Pid| same_memory(task, other) == Ok(true);
                let first = !tasks.iter().any(shares);
                tasks.push(task);
                first.then(|| self.take_on(connection))
            };
            let mut notices = agent.handle_input(take_on, now);
            notices.extend(agent.handle_time(now));
            self.any_attached |= agent.has_attached();
            for notice in notices {
                orphans |= matches!(notice, Notice::AgentDied) && agent.orphans_children();
                self.handle_notice(agent, notice);
            }
            if agent.ended() {
                self.reports.extend(agent.report());
                if let Some(account) = agent.account() {
                    self.ledger.close(account);
                }
            }
        }
        tell_replaced(&mut agents);
        self.agents = agents;
        self.end_doomed_families();
        for hand in std::mem::take(&mut self.hands) {
            self.handle_hand(hand);
        }
        if orphans {
            self.kill_orphans();
        }
        self.forget_ended(now);
    }

    /// Forgets agents that have ended. The memory that they held is held further while anybody uses it.
    fn forget_ended(&mut self, now: Instant) {
        for agent in self.agents.extract_if(.., |agent| agent.ended()) {
            let program = format!("{} ({})", agent.command, agent.pid());
            self.unserved.add(&program, agent.into_held(), now);
        }
        for remark in self.unserved.turn(now) {
            tell(&remark);
        }
    }

    fn take_on(&mut self, connection: &Connection) -> TakenOn {
        let drawn = machine::random_bytes().map(u64::from_le_bytes);
        let (account, share_bytes) = self.ledger.open();
        let welcome = Welcome {
            cache_bytes: self.cache.0,
            share_bytes,
            client: drawn.expect("invariant: getrandom(2) does not fail once it has worked"),
            nodes: self.helpers.nodes.addresses(),
            lost: self.helpers.nodes.lost(),
            key: self.helpers.nodes.key.clone(),
        };
        TakenOn {
            account,
            welcome,
            proxy: self.helpers.proxy_for(connection),
        }
    }

    fn handle_notice(&mut self, agent: &mut Agent, notice: Notice) {
        match (notice, agent.account()) {
            (Notice::Ready, Some(account)) => {
                self.ledger.handle_ready(account);
                self.began |= agent.program_pid() == Some(self.main);
                self.note_start(agent);
                self.helpers.equip(agent);
            }
            (Notice::Usage(usage), Some(account)) => self.ledger.handle_usage(account, usage),
            (Notice::Holds { bytes }, Some(account)) => {
                self.ledger.handle_holds(account, bytes, Instant::now());
            }
            (
                Notice::Hand {
                    pid,
                    program,
                    address,
                    connection,
                },
                _,
            ) => self.hands.push(Hand {
                pid,
                program,
                address,
                connection,
            }),
            (notice, _) => self.tell(agent, notice),
        }
    }

    /// What people should know.
    fn tell(&mut self, agent: &Agent, notice: Notice) {
        let program = format!("{} ({})", agent.command, agent.pid());
        match notice {
            // Without an account an agent has no memory to speak of.
            Notice::Ready | Notice::Usage(_) | Notice::Holds { .. } | Notice::Hand { .. } => {}
            Notice::Failed { text } => self.dismiss(agent, &text),
            Notice::Fatal { text } | Notice::FarMemoryFull { text } => {
                tell(format_args!("{program} was killed: {text}"));
            }
            Notice::Remark { text } => tell(format_args!("{program}: {text}")),
            Notice::Incompatible { text } => tell(format_args!(
                "a process that is no agent of this legato was sent away: {text}; it may be of another version; \
                 end it"
            )),
            Notice::NodeLost { node, pages, text } => {
                let Some(node) = self.helpers.nodes.list.get_mut(node as usize) else {
                    return;
                };
                let was_lost = std::mem::replace(&mut node.lost, true);
                node.pages_lost += pages;
                let address = &node.address;
                if pages > 0 {
                    tell(format_args!(
                        "memory node {address} is lost: {text}; {pages} pages of {program} had their only copy \
                         there, and whoever touches them gets SIGBUS; see what became of the node, or of the way \
                         to it"
                    ));
                } else if !was_lost {
                    tell(format_args!(
                        "memory node {address} is lost: {text}; nothing of {program} was there, and the other \
                         nodes are used; see what became of the node, or of the way to it"
                    ));
                }
            }
            Notice::AgentDied => {
                tell(format_args!(
                    "the agent of {program} has died; the process was killed, because its far \
                     pages would read as zeros; see who killed the agent (the kernel's log names the \
                     out-of-memory killer)"
                ));
            }
        }
    }
}

/// Agents whose program has another one by now: it has replaced itself.
fn tell_replaced(agents: &mut [Agent]) {
    for index in 0..agents.len() {
        let (older, rest) = agents.split_at_mut(index);
        let Some(program) = rest.first_mut().and_then(Agent::take_greeting) else {
            continue;
        };
        for agent in older {
            // Before it serves it does not listen.
            if agent.has_attached() && agent.program_pid() == Some(program) {
                // Whoever cannot be told looks by itself before long.
                agent.send(&SupervisorMessage::Replaced);
            }
        }
    }
}

/// What has ended, without waiting for an end.
fn wait_now(
    wait: impl Fn(WaitOptions) -> rustix::io::Result<Option<(Pid, WaitStatus)>>,
) -> Option<(Pid, WaitStatus)> {
    loop {
        match wait(WaitOptions::NOHANG | OWN_CHILDREN) {
            Err(Errno::INTR) => {}
            result => return result.ok().flatten(),
        }
    }
}
