//! The agents of the program and its children, as the supervisor sees them.

use super::budget::AccountId;
use super::control::{Connection, Received};
use super::held::Held;
use super::keeper::Keeper;
use super::processes;
use super::tree::Server;
use crate::users::Helper;
use legato_base::timeouts;
use legato_base::wire::control::{AgentMessageBody, SupervisorMessage, Usage, Welcome};
use legato_base::wire::stats::{AgentCounters, STATS_SIZE, StatsPage};
use legato_pager::uffd::{self, HeldMemory, Privileged as _, Sharer, is_userfaultfd};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// So long a process whose agent is gone has to end by itself before it is called a survivor. Its
/// evicted pages stay unreadable meanwhile, because the userfaultfd is still open here.
const ORPHAN: Duration = timeouts::ORPHAN.to_std();

/// One process that has, or had, an agent.
#[derive(Debug)]
pub(crate) struct Agent {
    phase: Phase,
    /// Its part of the local memory, from when it has asked to be taken on.
    account: Option<AccountId>,
    /// As the agent gave it; `?` until then.
    pub(crate) command: String,
    program: Option<Program>,
    /// Keep evicted pages from reading as zeros if the agent dies before its program: that of the
    /// program, then those of the forked children that the agent serves. They are held further
    /// when the agent has ended, until nothing can read such a page any more (P-30).
    userfaultfds: Held<Holding>,
    stats_file: Option<OwnedFd>,
    stats: Option<StatsPage>,
    pub(crate) injected: bool,
    /// By which the supervisor knows forked children of the program.
    pub(crate) marks: Vec<u64>,
    said_goodbye: bool,
    failed: bool,
    /// It has said that its program cannot go on.
    doomed: bool,
    /// It has introduced itself, and nobody has heard of it yet.
    greeting: bool,
    forked: bool,
    killed: bool,
}

/// What an agent is given that is taken on.
#[derive(Debug)]
pub(crate) struct TakenOn {
    pub(crate) account: AccountId,
    pub(crate) welcome: Welcome,
    /// Its end of a connection to the NIC, where the supervisor has that.
    pub(crate) proxy: Option<OwnedFd>,
}

#[derive(Debug)]
enum Phase {
    Connected(Connection),
    /// The connection ended without a goodbye. The program ends until then, or is killed.
    Orphaned(Instant),
    Ended,
}

/// What is known of a userfaultfd.
#[derive(Debug)]
struct Holding {
    whose: Whose,
    /// The keeper holds it too.
    kept: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Program,
    Child,
}

#[derive(Debug)]
struct Program {
    pid: Pid,
    handle: OwnedFd,
    /// The agent's own task, where it is another process than the program. None if that has ended.
    agent: Option<OwnedFd>,
}

/// What one agent did, at its end.
#[derive(Clone, Debug)]
pub(crate) struct AgentReport {
    pub(crate) pid: i32,
    pub(crate) command: String,
    /// It did not come with the program's start.
    pub(crate) injected: bool,
    pub(crate) stats: StatsPage,
}

/// What the supervisor hears of an agent.
#[derive(Debug)]
pub(crate) enum Notice {
    /// It takes orders from now on.
    Ready,
    Usage(Usage),
    Holds {
        bytes: u64,
    },
    /// It was none: a hand in the child `pid` of `program`, whose agent is to have the connection.
    Hand {
        pid: u32,
        program: u32,
        address: u64,
        connection: Connection,
    },
    Failed {
        text: String,
    },
    NodeLost {
        node: u32,
        pages: u64,
        /// Why.
        text: String,
    },
    FarMemoryFull {
        text: String,
    },
    Fatal {
        text: String,
    },
    Remark {
        text: String,
    },
    AgentDied,
    Incompatible {
        text: String,
    },
}

impl Agent {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            phase: Phase::Connected(connection),
            account: None,
            injected: false,
            marks: Vec::new(),
            command: "?".into(),
            program: None,
            userfaultfds: Held::new(),
            stats_file: None,
            stats: None,
            said_goodbye: false,
            failed: false,
            doomed: false,
            greeting: false,
            forked: false,
            killed: false,
        }
    }

    /// What to poll: the connection, then the program's end.
    pub(crate) fn descriptor(&self) -> Option<PollFd<'_>> {
        match (&self.phase, &self.program) {
            (Phase::Connected(connection), _) => Some(PollFd::new(connection, PollFlags::IN)),
            (Phase::Orphaned(_), Some(program)) if !self.program_ended() => {
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

    pub(crate) const fn account(&self) -> Option<AccountId> {
        self.account
    }

    /// False if the agent cannot be told now.
    pub(crate) fn send(&self, message: &SupervisorMessage) -> bool {
        self.connection()
            .is_some_and(|connection| connection.send(message))
    }

    /// With a descriptor, of which the agent gets a copy.
    pub(crate) fn send_attached(
        &self,
        message: &SupervisorMessage,
        descriptor: BorrowedFd<'_>,
    ) -> bool {
        self.connection()
            .is_some_and(|connection| connection.send_attached(message, descriptor))
    }

    /// Passes a hand's connection on to the agent.
    pub(crate) fn hand_over(&self, message: &SupervisorMessage, hand: Connection) -> bool {
        self.connection()
            .is_some_and(|connection| connection.pass_on(message, hand))
    }

    const fn connection(&self) -> Option<&Connection> {
        match &self.phase {
            Phase::Connected(connection) => Some(connection),
            Phase::Orphaned(_) | Phase::Ended => None,
        }
    }

    /// The task of an agent that has been taken on and has not left.
    pub(crate) fn task(&self) -> Option<Pid> {
        let serves = self.account.is_some() && !self.said_goodbye && !self.failed;
        self.peer().filter(|_| serves)
    }

    /// Kills the process that the agent serves, and whoever shares its memory.
    fn kill_all(&self) {
        let program = self.program.as_ref().filter(|_| !self.program_ended());
        // While it lives: by it they are known.
        let sharers = program.map(|program| Sharer::all_of(program.pid));
        self.kill();
        sharers.iter().flatten().for_each(Sharer::kill);
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
        self.connection().map(|connection| connection.peer)
    }

    /// Whose forked children it serves.
    pub(crate) fn server(&self) -> Option<Server> {
        Some(Server {
            program: self.program_pid()?,
            marks: self.marks.clone(),
        })
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

    /// Its program has been killed, and whatever else it serves cannot go on either.
    pub(crate) const fn is_doomed(&self) -> bool {
        self.doomed
    }

    /// The program of an agent that has just introduced itself.
    pub(crate) fn take_greeting(&mut self) -> Option<Pid> {
        std::mem::take(&mut self.greeting)
            .then(|| self.program_pid())
            .flatten()
    }

    /// The report of an agent that got as far as sharing its counters.
    pub(crate) fn report(&self) -> Option<AgentReport> {
        Some(AgentReport {
            pid: self.pid(),
            command: self.command.clone(),
            injected: self.injected,
            stats: self.stats.clone()?,
        })
    }

    /// What it has counted until now.
    pub(crate) fn counters(&self) -> Option<AgentCounters> {
        let page = self.stats_file.as_ref().and_then(read_stats);
        page.map(|page| page.counters)
    }

    /// Takes what the agent has sent. `take_on` opens an account for the connected task, unless
    /// another agent is in its address space already.
    pub(crate) fn handle_input(
        &mut self,
        mut take_on: impl FnMut(&Connection) -> Option<TakenOn>,
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
                    let body = message.body;
                    let notice = self.handle_message(pid, body, descriptors, &mut take_on, now);
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
        take_on: &mut impl FnMut(&Connection) -> Option<TakenOn>,
        now: Instant,
    ) -> Option<Notice> {
        match body {
            AgentMessageBody::Hello { text } => {
                self.handle_hello(pid, text, take_on, now);
                None
            }
            AgentMessageBody::Ready => {
                let mut descriptors = descriptors.into_iter();
                self.hold(descriptors.next(), Whose::Program);
                self.stats_file = descriptors
                    .next()
                    .filter(|file| self.believes(file, is_in_memory));
                Some(Notice::Ready)
            }
            AgentMessageBody::Forked => {
                self.hold(descriptors, Whose::Child);
                self.forked = true;
                None
            }
            AgentMessageBody::NeedsDevice => {
                self.lend_device();
                None
            }
            AgentMessageBody::Handshake { features } => {
                self.shake_hands(descriptors.first(), features);
                None
            }
            AgentMessageBody::Failed { text } => {
                self.failed = true;
                if let (Phase::Connected(connection), None) = (&self.phase, &self.program) {
                    self.program = find_program(connection.peer, pid);
                    let command = self.program_pid().and_then(processes::command);
                    self.command = command.unwrap_or_else(|| "?".into());
                }
                Some(Notice::Failed { text })
            }
            AgentMessageBody::NodeLost { node, pages, text } => {
                Some(Notice::NodeLost { node, pages, text })
            }
            AgentMessageBody::FarMemoryFull { text } => {
                self.doomed = true;
                Some(Notice::FarMemoryFull { text })
            }
            AgentMessageBody::Fatal { text } => {
                self.doomed = true;
                Some(Notice::Fatal { text })
            }
            AgentMessageBody::Notice { text } => Some(Notice::Remark { text }),
            AgentMessageBody::Done => {
                self.said_goodbye = true;
                None
            }
            AgentMessageBody::Usage(usage) => Some(Notice::Usage(usage)),
            AgentMessageBody::Holds { bytes } => Some(Notice::Holds { bytes }),
            AgentMessageBody::Hand { program, address } => self.leave_to(program, pid, address),
        }
    }

    fn handle_hello(
        &mut self,
        pid: u32,
        text: String,
        take_on: &mut impl FnMut(&Connection) -> Option<TakenOn>,
        now: Instant,
    ) {
        let (Phase::Connected(connection), None) = (&self.phase, self.account) else {
            return;
        };
        self.command = text;
        self.program = find_program(connection.peer, pid);
        self.greeting = true;
        // Without a handle on the program it cannot be killed should its agent die: then it must
        // not have one.
        let welcomed = self.program.is_some()
            && match take_on(connection) {
                Some(taken_on) => {
                    self.account = Some(taken_on.account);
                    let welcome = SupervisorMessage::Welcome(taken_on.welcome);
                    match &taken_on.proxy {
                        Some(proxy) => connection.send_attached(&welcome, proxy.as_fd()),
                        None => connection.send(&welcome),
                    }
                }
                None => {
                    // It came while the process began to run this program, from inside and from
                    // outside.
                    self.failed = true;
                    self.greeting = false;
                    connection.send(&SupervisorMessage::Dismissed { runs: true })
                }
            };
        if self.program.is_none() {
            connection.send(&SupervisorMessage::Dismissed { runs: true });
        }
        if !welcomed {
            self.failed = true;
            self.handle_close(now);
        }
    }

    fn hold(&mut self, userfaultfds: impl IntoIterator<Item = OwnedFd>, whose: Whose) {
        for userfaultfd in userfaultfds {
            if !self.believes(&userfaultfd, |it| is_userfaultfd(it.as_fd())) {
                continue;
            }
            let kept = false;
            let memory = HeldMemory::new(userfaultfd);
            self.userfaultfds.push(memory, Holding { whose, kept });
        }
    }

    // P-102
    /// Is a file what it is said to be? One from a process of this user is, or that is the user's own fault.
    fn believes(&self, file: &OwnedFd, is_right: impl Fn(&OwnedFd) -> bool) -> bool {
        let is_foreign = match &self.phase {
            Phase::Connected(connection) => connection.is_foreign,
            Phase::Orphaned(_) | Phase::Ended => true,
        };
        !is_foreign || is_right(file)
    }

    /// Its program may not open the device that userfaultfds come from.
    fn lend_device(&self) {
        let Some(connection) = self.starting() else {
            return;
        };
        match uffd::device() {
            Ok(device) => connection.send_attached(&SupervisorMessage::Device, device.as_fd()),
            Err(_) => connection.send(&SupervisorMessage::Device),
        };
    }

    /// Its program may not have such a userfaultfd by itself.
    fn shake_hands(&self, userfaultfd: Option<&OwnedFd>, features: u64) {
        let Some(connection) = self.starting() else {
            return;
        };
        let result = match userfaultfd.map(OwnedFd::as_fd) {
            Some(userfaultfd) => match uffd::handshake_for(userfaultfd, features) {
                Err(Errno::PERM) => Helper.handshake(userfaultfd, features),
                result => result,
            },
            None => Err(Errno::BADF),
        };
        let errno = result.map_or_else(|errno| errno.raw_os_error().unsigned_abs(), |()| 0);
        connection.send(&SupervisorMessage::Handshake { errno });
    }

    /// The connection of an agent that was taken on and does not serve yet.
    fn starting(&self) -> Option<&Connection> {
        match &self.phase {
            Phase::Connected(connection) if self.account.is_some() && !self.has_attached() => {
                Some(connection)
            }
            _ => None,
        }
    }

    /// Returns the memory that is held, of an agent that has ended.
    pub(crate) fn into_held(self) -> impl Iterator<Item = HeldMemory> {
        self.userfaultfds.into_memory()
    }

    /// Has the keeper hold what it does not yet, or all of it if it is a new one.
    pub(crate) fn have_kept(&mut self, keeper: &Keeper, is_new: bool) {
        for (memory, holding) in self.userfaultfds.iter_mut() {
            if holding.kept && !is_new {
                continue;
            }
            let program = self.program.as_ref();
            let agent = program.and_then(|program| program.agent.as_ref());
            let program = program.filter(|_| holding.whose == Whose::Program);
            let program = program.map(|program| program.handle.as_fd());
            holding.kept = keeper.hold(memory.as_fd(), agent.map(OwnedFd::as_fd), program);
        }
    }

    /// This was the connection of a hand. An agent that says so is none.
    fn leave_to(&mut self, program: u32, pid: u32, address: u64) -> Option<Notice> {
        if self.account.is_some() {
            return None;
        }
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Connected(connection) => Some(Notice::Hand {
                pid,
                program,
                address,
                connection,
            }),
            Phase::Orphaned(_) | Phase::Ended => None,
        }
    }

    fn handle_close(&mut self, now: Instant) {
        // P-33: however the program has ended.
        self.stats = self.stats_file.take().and_then(|file| read_stats(&file));
        self.phase = if self.said_goodbye || self.failed {
            Phase::Ended
        } else {
            Phase::Orphaned(now + ORPHAN)
        };
    }

    /// Did the agent leave children behind whose pages it had?
    pub(crate) fn orphans_children(&self) -> bool {
        self.forked && !self.said_goodbye
    }

    /// For an agent that ended without a goodbye: has its program ended too, or is it time to
    /// end it (P-31)?
    pub(crate) fn handle_time(&mut self, now: Instant) -> Option<Notice> {
        let Phase::Orphaned(deadline) = self.phase else {
            return None;
        };
        if self.program_ended() {
            // With the first process of a pid namespace all others end as well.
            let orphans = self.orphans_children() && self.serves_anybody();
            if orphans && now < deadline {
                return None;
            }
            self.phase = Phase::Ended;
            return (orphans && !self.doomed).then_some(Notice::AgentDied);
        }
        if now < deadline || self.killed {
            return None;
        }
        self.kill_all();
        self.killed = true;
        (!self.doomed).then_some(Notice::AgentDied)
    }

    /// Is there anybody who uses memory of which it had pages?
    fn serves_anybody(&self) -> bool {
        self.userfaultfds.iter().any(|(memory, _)| memory.is_used())
    }

    fn program_ended(&self) -> bool {
        let program = self.program.as_ref();
        program.is_none_or(|program| processes::has_ended(&program.handle))
    }

    /// Did its program start with it?
    pub(crate) fn has_attached(&self) -> bool {
        self.stats.is_some() || self.stats_file.is_some()
    }
}

/// The program of a connected process that calls it `own`.
fn find_program(peer: Pid, own: u32) -> Option<Program> {
    let pid = processes::of_agent(peer, own)?;
    let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let agent = pidfd_open(peer, PidfdFlags::empty()).ok();
    Some(Program { pid, handle, agent })
}

/// Reading it waits for nobody.
fn is_in_memory(file: &OwnedFd) -> bool {
    /// `TMPFS_MAGIC` of statfs(2), which memory files have too.
    const TMPFS: i64 = 0x0102_1994;
    rustix::fs::fstatfs(file).is_ok_and(|system| system.f_type == TMPFS)
        && rustix::fs::fstat(file)
            .is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::RegularFile)
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
