//! From nothing to a serving agent: the supervisor, the kernel's mechanism, the memory nodes.

use super::housekeeping::timespec;
use super::{Agent, AgentHeap, IdlePoll, ProviderGlue, SLEEP_MAX, ShareLog, Spin, now};
use crate::PageRange;
use crate::replacement::ScanResistant;
use crate::uffd::context::Userfaultfd;
use crate::uffd::dropper::StartTask;
use crate::uffd::features::{Features, Mask};
use crate::uffd::layout::Layout;
use crate::uffd::linux_kernel::{LinuxKernel, Mechanism};
use crate::uffd::opening::{OpenError, Opener};
use crate::uffd::proc::{self, beginning_of};
use crate::uffd::program::{Program, is_readable};
use crate::uffd::supervisor::{Dismissal, Supervisor};
use crate::uffd::task_state::run_where_supervisor_may;
use crate::uffd::users::Users;
use crate::{
    Budget, FrameBuffer, Incoming, Kernel, NodePlace, Pager, PagerConfig, PagerEvent, PagerFabric,
    Round, SpaceId,
};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use legato_base::secret::{Keyring, SECRET_LENGTH, SecureRandom};
use legato_base::wire::control::{AgentMessageBody, NodeSet, Welcome};
use legato_base::wire::stats::{STATS_NAME, STATS_SIZE};
use legato_base::{Bytes, ClientId, PAGE_SIZE, SystemError, Time};
use legato_fabric::{Fabric, FabricConfig};
use legato_verbs::{AccessFlags, Address, MemoryRegion, Provider, VerbsError};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Pid;
use rustix::rand::GetRandomFlags;

/// What the entry into the program hands over.
#[expect(
    missing_debug_implementations,
    reason = "holds a heap, which need not print"
)]
pub struct AgentStart<'a> {
    /// The program's process id.
    pub program: i32,
    /// Path of the supervisor's socket.
    pub supervisor: &'a [u8],
    /// Base of the agent's reservation.
    pub reservation: u64,
    /// Where the agent's code and data are: start and end.
    pub object: (u64, u64),
    /// The address of what the kernel clears when the program's first thread ends (CLONE_CHILD_CLEARTID
    /// of clone(2)).
    pub last_word: Option<u64>,
    /// Names of kernel features to do without: an aid for tests.
    pub masked_features: &'a [u8],
    /// Starts a thread of the agent.
    pub start_task: StartTask,
    pub heap: &'static dyn AgentHeap,
}

/// Why the agent could not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error("the supervisor is gone")]
    SupervisorGone,
    /// It does not know.
    #[error("the supervisor cannot be reached: {}", SystemError(.0.raw_os_error()))]
    NotConnected(Errno),
    /// It has been told why, or another agent is in the program already.
    #[error("the supervisor lets the program run without this agent")]
    RunsWithout,
    /// It has been told why.
    #[error("the supervisor does not let the program start")]
    Refused,
    #[error("the program is gone")]
    ProgramGone,
}

impl<G: ProviderGlue> Agent<G> {
    /// Connects to the supervisor and the memory nodes, and takes charge of the program's faults. The calling
    /// task has begun with [`crate::uffd::task_state::begin`].
    ///
    /// # Errors
    /// Whether the program may start without an agent.
    pub fn start(start: AgentStart<'_>) -> Result<Self, StartError> {
        let heap = start.heap;
        let pid = Pid::from_raw(start.program).ok_or(StartError::ProgramGone)?;
        let supervisor = Supervisor::connect(start.supervisor, start.program.unsigned_abs())
            .map_err(|error| match error {
                Errno::CONNREFUSED | Errno::NOENT => StartError::SupervisorGone,
                other => StartError::NotConnected(other),
            })?;
        run_where_supervisor_may(supervisor.fd());
        let entered = proc::enter();
        let (welcome, proxy) = supervisor.greet(command_of(start.program))?;
        let assembled = entered
            .map_err(|error| error.to_string())
            .and_then(|()| Self::assemble(pid, start, &supervisor, (&welcome, proxy)))
            .and_then(|parts| Ok((parts, open_stats()?)));
        match assembled {
            Ok((parts, stats)) => Self::announce(parts, (stats, heap), supervisor, welcome),
            // An agent that comes when its program is just ending has nothing to serve, and
            // whatever it did not find is no failure.
            Err(_) if !is_running(pid) => {
                // If this fails the supervisor is gone, and does not wait for it.
                let _ = supervisor.send(AgentMessageBody::Done, &[]);
                Err(StartError::ProgramGone)
            }
            Err(text) => Err(match supervisor.confess(text) {
                Dismissal::RunsWithout => StartError::RunsWithout,
                Dismissal::Ends => StartError::Refused,
            }),
        }
    }

    fn assemble(
        pid: Pid,
        start: AgentStart<'_>,
        supervisor: &Supervisor,
        (welcome, proxy): (&Welcome, Option<OwnedFd>),
    ) -> Result<Parts<G>, String> {
        let program = Program::open(pid).map_err(|e| system("pidfd_open", e))?;
        let mask = Mask::parse(start.masked_features).map_err(|e| e.to_string())?;
        let (features, own, trash) =
            open_contexts(&Opener::with(mask, supervisor)).map_err(|e| e.to_string())?;
        let budget = Budget::new(Bytes(welcome.cache_bytes));
        let layout = Layout::new(start.reservation, budget.frames());
        layout
            .activate(&own, &trash, features)
            .map_err(|e| e.to_string())?;
        let config = FabricConfig {
            connections_max: welcome.nodes.len() as u32,
            incarnation: welcome.client,
            liveness: legato_base::timeouts::LIVENESS,
            outage: legato_base::timeouts::OUTAGE,
            ..FabricConfig::default()
        };
        let addresses = welcome
            .nodes
            .iter()
            .map(|node| node.parse::<Address>().map_err(|error| error.to_string()))
            .collect::<Result<Vec<_>, _>>()?;
        let keys = welcome.key.clone().map(Keyring::One);
        let opened = G::open(&addresses, keys.as_ref(), proxy);
        let mut provider = opened.map_err(refused)?;
        let mut fabric = Fabric::new(&mut provider, config).map_err(|e| e.to_string())?;
        if let Some(keys) = keys {
            fabric.prove_with(keys, secure_random()?);
        }
        let (pages, headers) = register_frames::<G>(&mut provider, &fabric, &layout)?;
        let object = PageRange::of_bytes(start.object.0, start.object.1);
        let mechanism = Mechanism {
            layout,
            features,
            program: start.program,
            object,
            last_word: start.last_word,
            own,
            trash,
            start_task: start.start_task,
        };
        let kernel = LinuxKernel::new(mechanism, pages, headers).map_err(|e| e.to_string())?;
        let pager_config = PagerConfig {
            client: ClientId(welcome.client),
            cache: Bytes(welcome.cache_bytes),
            nodes: places(addresses, welcome.lost),
        };
        let mut net = PagerFabric {
            fabric: &mut fabric,
            provider: &mut provider,
            now: now(),
        };
        let policy = Box::new(ScanResistant::default());
        let mut pager = Pager::new(&pager_config, kernel, policy, &mut net);
        pager.set_limit(Bytes(welcome.share_bytes));
        let mut parts = Parts {
            program,
            provider,
            fabric,
            pager,
        };
        parts.wait_for_nodes(supervisor, welcome)?;
        Ok(parts)
    }

    fn announce(
        parts: Parts<G>,
        (stats, heap): (OwnedFd, &'static dyn AgentHeap),
        supervisor: Supervisor,
        welcome: Welcome,
    ) -> Result<Self, StartError> {
        let failed = |_| StartError::SupervisorGone;
        mark(&stats);
        let mut agent = Self {
            users: Users::new(parts.program),
            supervisor,
            stats,
            heap,
            provider: parts.provider,
            fabric: parts.fabric,
            pager: parts.pager,
            nodes: welcome.nodes,
            rejected: 0,
            share: ShareLog::default(),
            idle_poll: IdlePoll::new(),
            spin: Spin::default(),
            housekeeping_at: Time::ZERO,
            wake_all_at: Time::ZERO,
            supervisor_gone: false,
            is_unused: false,
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
        agent.tell_unreached(welcome.lost);
        if !agent.pager.kernel().moves_memory(SpaceId::OWN) {
            let text =
                "this kernel cannot tell which pages a device holds: memory that O_DIRECT or a device \
                 reads into while it is evicted may lose what was read; use Linux 6.8 or newer"
                    .to_string();
            agent
                .supervisor
                .send(AgentMessageBody::Notice { text }, &[])
                .map_err(failed)?;
        }
        Ok(agent)
    }
}

/// An agent that is not announced yet.
struct Parts<G: ProviderGlue> {
    program: Program,
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
            // Nothing of the program's is read: it may still go on without this agent.
            let Round { deadline, .. } = self.pager.round(Incoming::default(), &mut net, now);
            while let Some(event) = self.pager.poll_event() {
                if event == PagerEvent::Ready {
                    return self.check_nodes(welcome);
                }
            }
            // It does not speak before Ready: readable means gone (P-32).
            if is_readable(supervisor.fd()) {
                return Err("its legato run is gone; start it anew".to_string());
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
            self.pager.hear_of_connections();
        }
    }

    /// One of them is enough.
    fn check_nodes(&self, welcome: &Welcome) -> Result<(), String> {
        let lost = self.pager.lost_nodes();
        let Some(first) = lost.first().filter(|_| lost.len() == welcome.nodes.len()) else {
            return Ok(());
        };
        let address = welcome
            .nodes
            .get(first.0 as usize)
            .map_or("?", String::as_str);
        Err(match self.pager.node_failure(*first) {
            Some(error) => {
                format!(
                    "memory node {address} cannot be reached: {error}; see its log, and that it runs"
                )
            }
            None => {
                format!("memory node {address} refuses this client; its log says why; see there")
            }
        })
    }
}

fn places(addresses: Vec<Address>, lost: NodeSet) -> Vec<NodePlace> {
    let place = |(index, address)| NodePlace {
        address,
        was_lost: lost.contains(index),
    };
    addresses.into_iter().enumerate().map(place).collect()
}

fn system(call: &str, error: Errno) -> String {
    let error = SystemError(error.raw_os_error());
    format!("the system refused {call}: {}", error.advised())
}

fn refused(error: VerbsError) -> String {
    match error {
        VerbsError::System { call, errno } => system(call, Errno::from_raw_os_error(errno)),
        other => other.to_string(),
    }
}

fn secure_random() -> Result<SecureRandom, String> {
    let mut seed = [0; SECRET_LENGTH];
    // Less than 256 bytes are never cut short (getrandom(2)).
    rustix::rand::getrandom(&mut seed, GetRandomFlags::empty())
        .map_err(|error| system("getrandom", error))?;
    Ok(SecureRandom::from_seed(seed))
}

/// What the counters are published in.
fn open_stats() -> Result<OwnedFd, String> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let stats = rustix::fs::memfd_create(STATS_NAME, flags);
    let stats = stats.map_err(|e| system("memfd_create", e))?;
    let sized = rustix::fs::ftruncate(&stats, STATS_SIZE as u64);
    sized.map_err(|e| system("ftruncate", e))?;
    Ok(stats)
}

/// Maps a page that nobody may touch of what the counters are published in. Forked children inherit it, and
/// `legato run` knows by it which agent serves them. Without it they have no hand.
fn mark(stats: &OwnedFd) {
    let anywhere = core::ptr::null_mut();
    let (length, access) = (PAGE_SIZE, ProtFlags::empty());
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let _ = unsafe { rustix::mm::mmap(anywhere, length, access, MapFlags::SHARED, stats, 0) };
}

fn open_contexts(opener: &Opener<'_>) -> Result<(Features, Userfaultfd, Userfaultfd), OpenError> {
    let features = opener.probe()?;
    let own = opener.open_with_events(features)?;
    Ok((features, own, opener.open_plain(features)?))
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

fn is_running(program: Pid) -> bool {
    Program::open(program).is_ok_and(|program| !is_readable(program.fd()))
}

/// The program's command name (proc_pid_comm(5)).
fn command_of(pid: i32) -> String {
    let name = beginning_of(&format!("{pid}/comm")).unwrap_or_default();
    name.trim_end().to_string()
}
