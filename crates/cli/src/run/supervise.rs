//! The loop of `legato run`: one thread that sleeps until a signal, an agent or a deadline.

use super::agents::{Agent, AgentReport, Notice};
use super::control::ControlListener;
use super::nodes::Nodes;
use super::processes;
use super::signals::{SignalEvent, Signals};
use super::summary::{NodeReport, RunReport};
use crate::failure::EXIT_SIGNAL_BASE;
use crate::machine;
use legato_base::Bytes;
use legato_base::wire::control::Welcome;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use std::time::{Duration, Instant};

/// A wait for background processes is worth a line after this long.
const WAITING_NOTICE: Duration = Duration::from_secs(1);
/// A background process that replaces itself (`execve`) has no agent for a moment: so long the
/// memory nodes are kept for it after the last agent has said goodbye.
const ATTACH_GRACE: Duration = Duration::from_millis(200);
/// How long the listener rests when there is no descriptor left for another agent.
const LISTENER_REST: Duration = Duration::from_millis(100);

/// The supervisor of one run.
#[derive(Debug)]
pub(crate) struct Supervisor {
    signals: Signals,
    listener: ControlListener,
    listener_rests_until: Option<Instant>,
    nodes: Nodes,
    agents: Vec<Agent>,
    reports: Vec<AgentReport>,
    any_attached: bool,
    /// The program's own agent could not start, so the program did not either.
    refused: bool,
    stage: Stage,
    main: Pid,
    cache: Bytes,
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
    exit_status: u8,
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
        nodes: Nodes,
        main: Pid,
        cache: Bytes,
    ) -> Self {
        Self {
            signals,
            listener,
            listener_rests_until: None,
            nodes,
            agents: Vec::new(),
            reports: Vec::new(),
            any_attached: false,
            refused: false,
            stage: Stage::Running,
            main,
            cache,
        }
    }

    /// Runs until the program and everything that uses its far memory have ended; returns the
    /// program's exit status.
    pub(crate) fn supervise(&mut self) -> u8 {
        // It may have ended before the first SIGCHLD could be taken.
        self.reap();
        loop {
            let now = Instant::now();
            if let Some(exit_status) = self.finished(now) {
                return exit_status;
            }
            self.sleep(now);
            self.handle_signals();
            let now = Instant::now();
            self.accept_agents(now);
            self.drive_agents(now);
        }
    }

    pub(crate) fn finish(self, exit_status: u8) -> (RunReport, Nodes) {
        if !self.any_attached && !self.refused {
            say("the program has ended without ever attaching to far memory");
        }
        let nodes = self.nodes.list.iter().map(|node| NodeReport {
            address: node.address.to_string(),
            pid: node
                .process
                .as_ref()
                .map(|process| process.pid.as_raw_pid()),
            lost: node.lost,
            pages_lost: node.pages_lost,
        });
        let report = RunReport {
            exit_status,
            refused: self.refused,
            cache: self.cache,
            processes: self.reports,
            nodes: nodes.collect(),
        };
        (report, self.nodes)
    }

    fn sleep(&self, now: Instant) {
        let mut descriptors = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.listener_rests_until.is_none() {
            descriptors.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        descriptors.extend(self.agents.iter().filter_map(Agent::descriptor));
        let timeout = self.deadline().map(|deadline| {
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

    fn deadline(&self) -> Option<Instant> {
        let agents = self.agents.iter().filter_map(Agent::deadline);
        let waiting = match self.stage {
            Stage::Running => None,
            Stage::Waiting(waiting) if self.agents.is_empty() => {
                Some(waiting.attached + ATTACH_GRACE)
            }
            Stage::Waiting(waiting) => {
                (!waiting.announced).then_some(waiting.since + WAITING_NOTICE)
            }
        };
        agents.chain(waiting).chain(self.listener_rests_until).min()
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
        let spared = match waiting.interrupted {
            false => self.agents.iter().filter_map(Agent::peer).collect(),
            true => Vec::new(),
        };
        self.kill_descendants(&spared);
        self.agents.iter().for_each(Agent::kill);
        self.stage = Stage::Waiting(Waiting {
            interrupted: true,
            ..waiting
        });
    }

    /// Kills what an agent may have served that has died: every process that has no agent of its
    /// own. Which of them it served, only the agent knew.
    fn kill_orphans(&self) {
        let programs = self.agents.iter().filter_map(Agent::program_pid);
        let agents = self.agents.iter().filter_map(Agent::peer);
        self.kill_descendants(&programs.chain(agents).collect::<Vec<_>>());
    }

    /// Kills what runs below this process but the memory nodes and the `spared`.
    fn kill_descendants(&self, spared: &[Pid]) {
        for pid in processes::descendants() {
            if !self.nodes.is_node(pid) && !spared.contains(&pid) {
                // ESRCH: it has ended, which was the purpose.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Takes the exit statuses of all children that have ended: the program, memory nodes, and
    /// processes that were left behind by their parents.
    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => self.handle_main_ended(status),
                Ok(Some((pid, _))) => self.nodes.handle_child_ended(pid),
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn handle_main_ended(&mut self, status: WaitStatus) {
        let now = Instant::now();
        self.stage = Stage::Waiting(Waiting {
            exit_status: exit_status(status),
            since: now,
            attached: now,
            announced: false,
            interrupted: false,
        });
    }

    /// The exit status, once nothing is left to wait for.
    fn finished(&mut self, now: Instant) -> Option<u8> {
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
                say(&format!("waiting for {text} far memory"));
            }
            return None;
        }
        let exit_status = waiting.exit_status;
        let over = now >= waiting.attached + ATTACH_GRACE;
        (over || !self.has_background_processes()).then_some(exit_status)
    }

    fn has_background_processes(&self) -> bool {
        let mut pids = processes::descendants().into_iter();
        pids.any(|pid| !self.nodes.is_node(pid))
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
                    say(&format!("cannot take another process: {error}"));
                    self.listener_rests_until = Some(now + LISTENER_REST);
                    return;
                }
            }
        }
    }

    fn drive_agents(&mut self, now: Instant) {
        let mut agents = std::mem::take(&mut self.agents);
        let mut orphans = false;
        for agent in &mut agents {
            let mut notices = agent.handle_input(|| self.welcome(), now);
            notices.extend(agent.handle_time(now));
            self.any_attached |= agent.has_attached();
            for notice in notices {
                orphans |= matches!(notice, Notice::AgentDied) && agent.orphans_children();
                self.handle_notice(agent, notice);
            }
            if agent.ended() {
                self.reports.extend(agent.report());
            }
        }
        self.agents = agents;
        if orphans {
            self.kill_orphans();
        }
        // Only now the userfaultfds of the ended ones close.
        self.agents.retain(|agent| !agent.ended());
    }

    fn welcome(&self) -> Welcome {
        let drawn = machine::random_bytes().map(u64::from_le_bytes);
        Welcome {
            cache_bytes: self.cache.0,
            client: drawn.expect("invariant: getrandom(2) does not fail once it has worked"),
            nodes: self.nodes.addresses(),
        }
    }

    fn handle_notice(&mut self, agent: &Agent, notice: Notice) {
        let program = format!("{} ({})", agent.command, agent.pid());
        match notice {
            Notice::Failed { text } if agent.pid() == self.main.as_raw_pid() => {
                self.refused = true;
                say(&text);
            }
            Notice::Failed { text }
            | Notice::Fatal { text }
            | Notice::FarMemoryFull { text }
            | Notice::Remark { text } => {
                say(&format!("{program}: {text}"));
            }
            Notice::Incompatible { text } => say(&format!("an agent was sent away: {text}")),
            Notice::NodeLost { node, pages } => {
                let Some(node) = self.nodes.list.get_mut(node as usize) else {
                    return;
                };
                node.lost = true;
                node.pages_lost += pages;
                say(&format!(
                    "memory node {} is lost: {pages} pages of {program} had their only copy there",
                    node.address
                ));
            }
            Notice::AgentDied => {
                say(&format!(
                    "the agent of {program} has died: the process was killed, because its far \
                     pages would read as zeros"
                ));
            }
        }
    }
}

fn exit_status(status: WaitStatus) -> u8 {
    let of_signal = || {
        let signal = status.terminating_signal()?;
        Some(EXIT_SIGNAL_BASE.saturating_add(u8::try_from(signal).ok()?))
    };
    let of_exit = status
        .exit_status()
        .and_then(|code| u8::try_from(code).ok());
    of_exit.or_else(of_signal).unwrap_or(u8::MAX)
}

fn say(text: &str) {
    eprintln!("legato: {text}");
}
