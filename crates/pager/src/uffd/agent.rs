//! The agent: one task in the program's address space that serves its faults and moves its pages.
//!
//! It shares the program's memory and nothing else: its descriptors, signals and process id are
//! its own, so that closing all descriptors, blocking signals or `exit_group` in the program do
//! not touch it.

use super::context::{OpenError, Userfaultfd};
use super::dropper::StartTask;
use super::features::{self, Features};
use super::layout::Layout;
use super::linux_kernel::{self, LinuxKernel, Mechanism};
use super::program::{Program, close_all_but, is_readable};
use super::supervisor::Supervisor;
pub use super::supervisor::last_words;
use crate::replacement::ScanResistant;
use crate::{
    Budget, Fault, FrameBuffer, Kernel, Pager, PagerConfig, PagerEvent, PagerFabric, SpaceId,
};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration as StdDuration;
use legato_base::wire::control::{AgentMessageBody, Welcome};
use legato_base::wire::stats::STATS_SIZE;
use legato_base::{Bytes, ClientId, Duration, Time};
use legato_fabric::{Fabric, FabricConfig};
use legato_verbs::{AccessFlags, Address, MemoryRegion, ProtectionDomain, Provider, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;

/// How long the agent looks again and again before it sleeps. A wake-up costs 10 to 20 us, and
/// the next fault of a busy program comes within about that time.
const SPIN: Duration = Duration::from_micros(30);
/// How often counters are published and the program is looked at, while the agent is awake.
const HOUSEKEEPING: Duration = Duration::from_millis(20);
/// How often every waiting thread is let try again while the pager knows of none: a bound on what
/// a wake-up that got lost can cost.
const WAKE_ALL: Duration = Duration::from_millis(100);
/// The agent sleeps no longer than this: an `exec` whose pipe a forked child still holds open is
/// seen only by looking.
const SLEEP_MAX: Duration = Duration::from_millis(250);

/// What the agent needs of a provider beyond the trait: it registers the agent's private memory,
/// and it can be slept on. The shell around the agent knows the providers and implements this.
pub trait ProviderGlue {
    type Provider: Provider;

    /// # Errors
    /// The provider's.
    fn open() -> Result<Self::Provider, VerbsError>;

    /// Registers the agent's own memory as local memory.
    ///
    /// # Safety
    /// The range must stay mapped as long as the provider lives.
    ///
    /// # Errors
    /// The provider's.
    unsafe fn register_own(
        provider: &mut Self::Provider,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError>;

    /// The descriptors that become readable when there is something to do.
    fn wait_on<'a>(provider: &'a Self::Provider, into: &mut Vec<BorrowedFd<'a>>);
}

/// What the entry into the program hands over.
#[derive(Debug)]
pub struct AgentStart<'a> {
    /// The program's process id.
    pub program: i32,
    /// Name of the supervisor's socket in the abstract namespace.
    pub supervisor: &'a [u8],
    /// Base of the agent's reservation.
    pub reservation: u64,
    /// Where the agent's code and data are: start and end.
    pub object: (u64, u64),
    /// The program closes its end of this pipe by `exec`, by ending, or by closing everything.
    pub lifeline: Option<OwnedFd>,
    /// Names of kernel features to do without: an aid for tests.
    pub masked_features: &'a [u8],
    /// Starts a thread of the agent.
    pub start_task: StartTask,
}

/// Why the agent could not start. The supervisor has been told, if it is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error("the supervisor is gone")]
    SupervisorGone,
    #[error("{0}")]
    Refused(String),
}

/// A running agent.
#[expect(
    missing_debug_implementations,
    reason = "holds a provider, which need not print"
)]
pub struct Agent<G: ProviderGlue> {
    program: Program,
    supervisor: Supervisor,
    lifeline: Option<OwnedFd>,
    stats: OwnedFd,
    provider: G::Provider,
    fabric: Fabric<FrameBuffer>,
    pager: Pager<LinuxKernel>,
    nodes: Vec<String>,
    housekeeping_at: Time,
    wake_all_at: Time,
    supervisor_gone: bool,
    program_gone: bool,
}

impl<G: ProviderGlue> Agent<G> {
    /// Connects to the supervisor and the memory nodes, and takes charge of the program's faults.
    ///
    /// # Errors
    /// With a text for people. The program must not start then.
    pub fn start(start: AgentStart<'_>) -> Result<Self, StartError> {
        let pid = Pid::from_raw(start.program).ok_or(StartError::SupervisorGone)?;
        let supervisor = Supervisor::connect(start.supervisor, start.program.unsigned_abs())
            .map_err(|_| StartError::SupervisorGone)?;
        let keep: Vec<BorrowedFd<'_>> = core::iter::once(supervisor.fd())
            .chain(start.lifeline.as_ref().map(AsFd::as_fd))
            .collect();
        close_all_but(&keep);
        let welcome = supervisor
            .greet(command_of(start.program))
            .ok_or(StartError::SupervisorGone)?;
        match Self::assemble(pid, start, &supervisor, &welcome) {
            Ok(parts) => Self::announce(parts, supervisor, welcome),
            Err(text) => {
                // If this fails too the supervisor is gone, and nobody reads it.
                let _ = supervisor.send(AgentMessageBody::Failed { text: text.clone() }, &[]);
                Err(StartError::Refused(text))
            }
        }
    }

    fn assemble(
        pid: Pid,
        start: AgentStart<'_>,
        supervisor: &Supervisor,
        welcome: &Welcome,
    ) -> Result<Parts<G>, String> {
        let system =
            |call: &str, error: Errno| format!("{call} failed (errno {})", error.raw_os_error());
        let program = Program::open(pid).map_err(|e| system("pidfd_open", e))?;
        raise_priority();
        let masked = features::masked(start.masked_features);
        let (features, own, trash) = open_contexts(masked).map_err(|e| e.to_string())?;
        let budget = Budget::new(Bytes(welcome.cache_bytes));
        let layout = Layout::new(start.reservation, budget.frames());
        layout
            .activate(&own, &trash, features)
            .map_err(|e| e.to_string())?;
        let config = FabricConfig {
            connections_max: welcome.nodes.len() as u32,
            ..FabricConfig::default()
        };
        let mut provider = G::open().map_err(|error| error.to_string())?;
        let mut fabric = Fabric::new(&mut provider, config).map_err(|e| e.to_string())?;
        let (pages, headers) = register_frames::<G>(&mut provider, &fabric, &layout)?;
        let object = linux_kernel::pages(start.object.0, start.object.1);
        let mechanism = Mechanism {
            layout,
            features,
            program: start.program,
            object,
            own,
            trash,
            start_task: start.start_task,
        };
        let kernel = LinuxKernel::new(mechanism, pages, headers).map_err(|e| e.to_string())?;
        let addresses = welcome
            .nodes
            .iter()
            .map(|node| node.parse::<Address>().map_err(|error| error.to_string()))
            .collect::<Result<Vec<_>, _>>()?;
        let pager_config = PagerConfig {
            client: ClientId(welcome.client),
            cache: Bytes(welcome.cache_bytes),
            nodes: addresses,
        };
        let mut net = PagerFabric {
            fabric: &mut fabric,
            provider: &mut provider,
            now: now(),
        };
        let policy = Box::new(ScanResistant::default());
        let pager = Pager::new(&pager_config, kernel, policy, &mut net);
        let mut parts = Parts {
            program,
            lifeline: start.lifeline,
            provider,
            fabric,
            pager,
        };
        parts.wait_for_nodes(supervisor, welcome)?;
        Ok(parts)
    }

    fn announce(
        parts: Parts<G>,
        supervisor: Supervisor,
        welcome: Welcome,
    ) -> Result<Self, StartError> {
        let failed = |_| StartError::SupervisorGone;
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let stats = rustix::fs::memfd_create("legato-stats", flags).map_err(failed)?;
        rustix::fs::ftruncate(&stats, STATS_SIZE as u64).map_err(failed)?;
        let mut agent = Self {
            program: parts.program,
            supervisor,
            lifeline: parts.lifeline,
            stats,
            provider: parts.provider,
            fabric: parts.fabric,
            pager: parts.pager,
            nodes: welcome.nodes,
            housekeeping_at: Time::ZERO,
            wake_all_at: Time::ZERO,
            supervisor_gone: false,
            program_gone: false,
        };
        agent.publish();
        let own = agent.pager.kernel().descriptor(SpaceId::OWN);
        let descriptors: Vec<BorrowedFd<'_>> = own
            .into_iter()
            .chain(core::iter::once(agent.stats.as_fd()))
            .collect();
        agent
            .supervisor
            .send(AgentMessageBody::Ready, &descriptors)
            .map_err(failed)?;
        if !agent.pager.kernel().moves_memory() {
            let text =
                "this kernel cannot tell which pages a device holds (Linux 6.8 can): memory \
                        that O_DIRECT or a device reads into while it is evicted may lose what \
                        was read"
                    .to_string();
            agent
                .supervisor
                .send(AgentMessageBody::Notice { text }, &[])
                .map_err(failed)?;
        }
        Ok(agent)
    }

    /// Serves until the program no longer uses this memory and no forked child does.
    pub fn run(mut self) {
        let mut active_at = now();
        while !(self.program_gone && self.pager.children() == 0) {
            let (worked, deadline) = self.turn();
            let time = now();
            if worked {
                active_at = time;
            }
            if time >= self.housekeeping_at {
                self.keep_house(time);
            }
            if time.since(active_at) > SPIN {
                self.sleep(deadline.min(time + SLEEP_MAX));
            }
        }
        self.publish();
        // If this fails the supervisor is gone, and nobody waits for it.
        let _ = self.supervisor.send(AgentMessageBody::Done, &[]);
    }

    /// Reads what the kernel says, serves it, and lets the pager work.
    fn turn(&mut self) -> (bool, Time) {
        let incoming = self.pager.kernel_mut().read();
        let worked = !incoming.faults.is_empty() || !incoming.events.is_empty();
        for &space in &incoming.children {
            self.hand_over(space);
        }
        let at = now();
        let mut net = PagerFabric {
            fabric: &mut self.fabric,
            provider: &mut self.provider,
            now: at,
        };
        for event in incoming.events {
            self.pager.handle_space_event(event, &net);
        }
        for (space, page) in incoming.faults {
            self.pager.handle_fault(Fault { space, page, at }, &mut net);
            let served = now();
            self.pager.account_served(served);
            net.now = served;
        }
        let deadline = self.pager.turn(&mut net);
        if worked {
            self.pager.account_served(now());
        }
        self.report();
        (
            worked || self.pager.is_busy() || self.pager.kernel().has_backlog(),
            deadline,
        )
    }

    /// The supervisor holds every userfaultfd too: should the agent die, pages stay missing
    /// instead of reading zero.
    fn hand_over(&self, space: SpaceId) {
        if let Some(fd) = self.pager.kernel().descriptor(space) {
            // If this fails the supervisor is gone, which is noticed elsewhere.
            let _ = self.supervisor.send(AgentMessageBody::Forked, &[fd]);
        }
    }

    fn report(&mut self) {
        if let Some(page) = self.pager.kernel_mut().take_damage() {
            self.fatal(format!(
                "the mapping at {:#x} was replaced while its pages were leaving; going on could \
                 show wrong memory",
                page.address()
            ));
        }
        while let Some(event) = self.pager.poll_event() {
            match event {
                PagerEvent::Ready => {}
                PagerEvent::NodeLost { node, pages } => {
                    let text = self.nodes.get(node.0 as usize).cloned().unwrap_or_default();
                    let _ = self.supervisor.send(
                        AgentMessageBody::NodeLost {
                            node: node.0,
                            pages,
                            text,
                        },
                        &[],
                    );
                }
                PagerEvent::PageRejected { page } => self.notice(format!(
                    "the page at {:#x} came back damaged and there is no other copy",
                    page.address()
                )),
                PagerEvent::FarMemoryFull { held } => {
                    let text = format!(
                        "far memory is full: {held} are there and the program needs more; raise \
                         --memory or name more nodes"
                    );
                    let _ = self
                        .supervisor
                        .send(AgentMessageBody::FarMemoryFull { text }, &[]);
                    self.program.kill();
                }
                PagerEvent::NothingToEvict => self.fatal(
                    "nothing that is in local memory can leave it (locked, pinned or too small \
                     mappings), and --cache is used up; raise --cache"
                        .to_string(),
                ),
                PagerEvent::Inconsistent { page } => self.fatal(format!(
                    "the kernel lost the mapping of the page at {:#x}; going on could show wrong \
                     memory",
                    page.address()
                )),
            }
        }
    }

    /// Tells people and goes on: whoever touches the page gets SIGBUS.
    fn notice(&self, text: String) {
        let _ = self.supervisor.send(AgentMessageBody::Notice { text }, &[]);
    }

    /// The program cannot go on.
    fn fatal(&self, text: String) {
        let _ = self.supervisor.send(AgentMessageBody::Fatal { text }, &[]);
        self.program.kill();
    }

    fn keep_house(&mut self, time: Time) {
        self.housekeeping_at = time + HOUSEKEEPING;
        self.publish();
        if time >= self.wake_all_at && !self.pager.is_busy() {
            // As far as the pager knows nobody waits. Whoever does would wait for ever; so it
            // tries again, and either finds its page or faults anew.
            self.wake_all_at = time + WAKE_ALL;
            self.pager.kernel().wake_all();
        }
        if !self.supervisor_gone && is_readable(self.supervisor.fd()) {
            // It never speaks after its answer: readable means gone, and the nodes go with it.
            self.supervisor_gone = true;
            self.program.kill();
        }
        if !self.program_gone && !self.program.uses_this_memory() {
            self.program_gone = true;
            self.lifeline = None;
        }
    }

    fn publish(&mut self) {
        let mut bytes = vec![0u8; STATS_SIZE];
        self.pager.stats().write_to(&mut bytes);
        // A memfd of that size takes it whole.
        let _ = rustix::io::pwrite(&self.stats, &bytes, 0);
    }

    fn sleep(&mut self, until: Time) {
        if !self.provider.set_sleeping(true) {
            self.provider.set_sleeping(false);
            return;
        }
        let housekeeping_late = {
            let mut waits: Vec<BorrowedFd<'_>> = self.pager.kernel().descriptors().collect();
            G::wait_on(&self.provider, &mut waits);
            let urgent = waits.len();
            if !self.supervisor_gone {
                waits.push(self.supervisor.fd());
            }
            if !self.program_gone {
                waits.push(self.program.fd());
                waits.extend(self.lifeline.as_ref().map(AsFd::as_fd));
            }
            let mut polled: Vec<PollFd<'_>> = waits
                .into_iter()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let timeout = timespec(until.since(now()));
            // Errors (EINTR) are like a wake-up: everything is looked at again.
            let _ = rustix::event::poll(&mut polled, Some(&timeout));
            let hung_up = self.lifeline.is_some()
                && polled.last().is_some_and(|last| !last.revents().is_empty());
            (
                polled[urgent..].iter().any(|fd| !fd.revents().is_empty()),
                hung_up,
            )
        };
        self.provider.set_sleeping(false);
        if housekeeping_late.0 {
            self.housekeeping_at = Time::ZERO;
        }
        if housekeeping_late.1 {
            // The pipe says no more than once that it has no writer; from here on the program is
            // looked at now and then.
            self.lifeline = None;
        }
    }
}

/// An agent that is not announced yet.
struct Parts<G: ProviderGlue> {
    program: Program,
    lifeline: Option<OwnedFd>,
    provider: G::Provider,
    fabric: Fabric<FrameBuffer>,
    pager: Pager<LinuxKernel>,
}

impl<G: ProviderGlue> Parts<G> {
    /// Drives the fabric until every node has opened or failed.
    fn wait_for_nodes(&mut self, supervisor: &Supervisor, welcome: &Welcome) -> Result<(), String> {
        loop {
            let mut net = PagerFabric {
                fabric: &mut self.fabric,
                provider: &mut self.provider,
                now: now(),
            };
            let deadline = self.pager.turn(&mut net);
            while let Some(event) = self.pager.poll_event() {
                if event == PagerEvent::Ready {
                    return self.check_nodes(welcome);
                }
            }
            if is_readable(supervisor.fd()) {
                return Err("the supervisor is gone".to_string());
            }
            if self.provider.set_sleeping(true) {
                let mut waits = Vec::new();
                G::wait_on(&self.provider, &mut waits);
                let mut polled: Vec<PollFd<'_>> = waits
                    .into_iter()
                    .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                    .collect();
                let timeout = timespec(deadline.min(now() + SLEEP_MAX).since(now()));
                let _ = rustix::event::poll(&mut polled, Some(&timeout));
            }
            self.provider.set_sleeping(false);
        }
    }

    fn check_nodes(&self, welcome: &Welcome) -> Result<(), String> {
        let lost = self.pager.lost_nodes();
        let Some(first) = lost.first() else {
            return Ok(());
        };
        let address = welcome
            .nodes
            .get(first.0 as usize)
            .map_or("?", String::as_str);
        Err(match self.pager.node_failure(*first) {
            Some(error) => format!("memory node {address} cannot be reached: {error}"),
            None => format!("memory node {address} refuses this client"),
        })
    }
}

fn open_contexts(masked: u64) -> Result<(Features, Userfaultfd, Userfaultfd), OpenError> {
    let features = Userfaultfd::probe(masked)?;
    let own = Userfaultfd::open_with_events(features)?;
    Ok((features, own, Userfaultfd::open_plain(features)?))
}

fn register_frames<G: ProviderGlue>(
    provider: &mut G::Provider,
    fabric: &Fabric<FrameBuffer>,
    layout: &Layout,
) -> Result<(MemoryRegion, MemoryRegion), String> {
    let mut register = |address: u64, length: u64| {
        // SAFETY: the layout lies in the agent's reservation, which is never unmapped; requests
        // name only frames that have memory, and nobody borrows a frame that a request names.
        unsafe {
            G::register_own(
                provider,
                fabric.domain(),
                address as *mut u8,
                length,
                AccessFlags::LOCAL_WRITE,
            )
        }
        .map_err(|error| error.to_string())
    };
    Ok((
        register(layout.frame(0), layout.frame_bytes())?,
        register(layout.header(0), layout.header_bytes())?,
    ))
}

/// Whoever waits for a page waits for the agent. Without the right to it the agent is a task like
/// any other.
fn raise_priority() {
    let _ = rustix::process::setpriority_process(None, -20);
}

/// The program's command name (proc_pid_comm(5)).
fn command_of(pid: i32) -> String {
    let path = format!("/proc/{pid}/comm");
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let mut name = [0u8; 32];
    let length = rustix::fs::open(path.as_str(), flags, rustix::fs::Mode::empty())
        .and_then(|file| rustix::io::read(&file, &mut name))
        .unwrap_or(0);
    String::from_utf8_lossy(&name[..length])
        .trim_end()
        .to_string()
}

/// The monotonic clock.
pub fn now() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Time::ZERO + Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

fn timespec(duration: Duration) -> Timespec {
    let duration = StdDuration::from_nanos(duration.as_nanos().min(SLEEP_MAX.as_nanos()));
    Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
