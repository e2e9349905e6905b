//! The agents of the program and its children, as the supervisor sees them.

use super::control::{Connection, Received};
use super::processes;
use legato_base::wire::control::{AgentMessageBody, Welcome};
use legato_base::wire::stats::{STATS_SIZE, StatsPage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A process that is being killed as a whole (`SIGKILL`, out of memory) can lose its agent a
/// moment before it is gone itself: so long its end is waited for before it is called a survivor.
/// Its evicted pages stay unreadable meanwhile, because the userfaultfd is still open here.
const AGENT_DEATH_GRACE: Duration = Duration::from_millis(100);

/// One process that has, or had, an agent.
#[derive(Debug)]
pub(crate) struct Agent {
    phase: Phase,
    /// As the agent gave it; `?` until then.
    pub(crate) command: String,
    program: Option<Program>,
    /// Keep evicted pages from reading as zeros if the agent dies before its program: that of the
    /// program, then those of the forked children that the agent serves. They close with this
    /// value, when whatever could read such a page has ended or been killed.
    userfaultfds: Vec<OwnedFd>,
    stats_file: Option<OwnedFd>,
    stats: Option<StatsPage>,
    said_goodbye: bool,
    failed: bool,
    forked: bool,
    killed: bool,
}

#[derive(Debug)]
enum Phase {
    Connected(Connection),
    /// The connection ended without a goodbye. The program ends until then, or is killed.
    Orphaned(Instant),
    Ended,
}

#[derive(Debug)]
struct Program {
    pid: Pid,
    handle: OwnedFd,
}

/// What one agent did, at its end.
#[derive(Clone, Debug)]
pub(crate) struct AgentReport {
    pub(crate) pid: i32,
    pub(crate) command: String,
    pub(crate) stats: StatsPage,
}

/// What the user is told about.
#[derive(Debug)]
pub(crate) enum Notice {
    Failed { text: String },
    NodeLost { node: u32, pages: u64 },
    FarMemoryFull { text: String },
    Fatal { text: String },
    Remark { text: String },
    AgentDied,
    Incompatible { text: String },
}

impl Agent {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            phase: Phase::Connected(connection),
            command: "?".into(),
            program: None,
            userfaultfds: Vec::new(),
            stats_file: None,
            stats: None,
            said_goodbye: false,
            failed: false,
            forked: false,
            killed: false,
        }
    }

    /// What to poll: the connection, then the program's end.
    pub(crate) fn descriptor(&self) -> Option<PollFd<'_>> {
        match (&self.phase, &self.program) {
            (Phase::Connected(connection), _) => Some(PollFd::new(connection, PollFlags::IN)),
            (Phase::Orphaned(_), Some(program)) => {
                Some(PollFd::new(&program.handle, PollFlags::IN))
            }
            _ => None,
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Orphaned(deadline) if !self.killed => Some(deadline),
            _ => None,
        }
    }

    pub(crate) fn ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// The process that the agent serves, while it may still be alive.
    pub(crate) fn kill(&self) {
        if let Some(program) = &self.program {
            // ESRCH means that it has ended, which was the purpose.
            let _ = pidfd_send_signal(&program.handle, Signal::KILL);
        }
    }

    /// The pid of the connected process: the agent's own where that is a process of its own.
    pub(crate) fn peer(&self) -> Option<Pid> {
        match &self.phase {
            Phase::Connected(connection) => Some(connection.peer),
            Phase::Orphaned(_) | Phase::Ended => None,
        }
    }

    /// The process that the agent serves.
    pub(crate) fn program_pid(&self) -> Option<Pid> {
        self.program.as_ref().map(|program| program.pid)
    }

    pub(crate) fn pid(&self) -> i32 {
        self.program
            .as_ref()
            .map_or(0, |program| program.pid.as_raw_pid())
    }

    /// The report of an agent that got as far as sharing its counters.
    pub(crate) fn report(&self) -> Option<AgentReport> {
        Some(AgentReport {
            pid: self.pid(),
            command: self.command.clone(),
            stats: self.stats.clone()?,
        })
    }

    /// Takes what the agent has sent.
    pub(crate) fn handle_input(
        &mut self,
        welcome: impl Fn() -> Welcome,
        now: Instant,
    ) -> Vec<Notice> {
        let mut notices = Vec::new();
        while let Phase::Connected(connection) = &self.phase {
            match connection.receive() {
                Received::Nothing => break,
                Received::End(error) => {
                    notices.extend(error.map(|error| Notice::Incompatible {
                        text: error.to_string(),
                    }));
                    self.handle_close(now);
                }
                Received::Message(message, descriptors) => {
                    let pid = message.pid;
                    let notice = self.handle_message(pid, message.body, descriptors, &welcome, now);
                    notices.extend(notice);
                }
            }
        }
        notices
    }

    fn handle_message(
        &mut self,
        pid: u32,
        body: AgentMessageBody,
        descriptors: Vec<OwnedFd>,
        welcome: &impl Fn() -> Welcome,
        now: Instant,
    ) -> Option<Notice> {
        match body {
            AgentMessageBody::Hello { text } => {
                self.handle_hello(pid, text, welcome, now);
                None
            }
            AgentMessageBody::Ready => {
                let mut descriptors = descriptors.into_iter();
                self.userfaultfds.extend(descriptors.next());
                self.stats_file = descriptors.next();
                None
            }
            AgentMessageBody::Forked => {
                self.userfaultfds.extend(descriptors);
                self.forked = true;
                None
            }
            AgentMessageBody::Failed { text } => {
                self.failed = true;
                Some(Notice::Failed { text })
            }
            AgentMessageBody::NodeLost { node, pages, .. } => {
                Some(Notice::NodeLost { node, pages })
            }
            AgentMessageBody::FarMemoryFull { text } => Some(Notice::FarMemoryFull { text }),
            AgentMessageBody::Fatal { text } => {
                self.failed = true;
                Some(Notice::Fatal { text })
            }
            AgentMessageBody::Notice { text } => Some(Notice::Remark { text }),
            AgentMessageBody::Done => {
                self.said_goodbye = true;
                None
            }
        }
    }

    fn handle_hello(
        &mut self,
        pid: u32,
        text: String,
        welcome: &impl Fn() -> Welcome,
        now: Instant,
    ) {
        let Phase::Connected(connection) = &self.phase else {
            return;
        };
        self.command = text;
        self.program = processes::of_agent(connection.peer, pid).and_then(|pid| {
            let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            Some(Program { pid, handle })
        });
        // Without a handle on the program it cannot be killed should its agent die: then it must
        // not start. It sees its connection end.
        if self.program.is_none() || !connection.welcome(&welcome()) {
            self.failed = true;
            self.handle_close(now);
        }
    }

    fn handle_close(&mut self, now: Instant) {
        self.stats = self.stats_file.take().and_then(|file| read_stats(&file));
        self.phase = if self.said_goodbye || self.failed {
            Phase::Ended
        } else {
            Phase::Orphaned(now + AGENT_DEATH_GRACE)
        };
    }

    /// Did the agent leave children behind whose pages it had?
    pub(crate) fn orphans_children(&self) -> bool {
        self.forked && !self.said_goodbye
    }

    /// For an agent that ended without a goodbye: has its program ended too, or is it time to
    /// end it?
    pub(crate) fn handle_time(&mut self, now: Instant) -> Option<Notice> {
        let Phase::Orphaned(deadline) = self.phase else {
            return None;
        };
        if self.program_ended() {
            self.phase = Phase::Ended;
            return self.orphans_children().then_some(Notice::AgentDied);
        }
        if now < deadline || self.killed {
            return None;
        }
        // The program is still dying: its end, not this moment, lets the userfaultfds go.
        self.kill();
        self.killed = true;
        Some(Notice::AgentDied)
    }

    fn program_ended(&self) -> bool {
        let Some(program) = &self.program else {
            return true;
        };
        let mut descriptors = [PollFd::new(&program.handle, PollFlags::IN)];
        poll(&mut descriptors, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Did its program start with it?
    pub(crate) fn has_attached(&self) -> bool {
        self.stats.is_some() || self.stats_file.is_some()
    }
}

fn read_stats(file: &OwnedFd) -> Option<StatsPage> {
    let mut bytes = vec![0; STATS_SIZE];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(file, &mut bytes[filled..], filled as u64) {
            Ok(0) | Err(_) => break,
            Ok(count) => filled += count,
        }
    }
    StatsPage::parse(&bytes)
}

#[cfg(test)]
mod tests;
