//! The agent: one task in the program's address space that serves its faults and moves its pages.
//!
//! It shares the program's memory and nothing else: its descriptors, signals and process id are
//! its own, so that closing all descriptors, blocking signals or `exit_group` in the program do
//! not touch it.

mod hands;
mod housekeeping;
mod idle_poll;
mod news;
mod share;
mod spin;
mod start;

use super::linux_kernel::LinuxKernel;
use super::supervisor::Supervisor;
pub use super::supervisor::{Dismissal, excuse, last_words};
use super::users::Users;
use crate::{FrameBuffer, Kernel, Pager, PagerFabric, Round};
use alloc::string::String;
use alloc::vec::Vec;
use idle_poll::IdlePoll;
use legato_base::secret::Keyring;
use legato_base::wire::control::AgentMessageBody;
use legato_base::{Bytes, Duration, Time};
use legato_fabric::Fabric;
use legato_verbs::{AccessFlags, Address, MemoryRegion, ProtectionDomain, Provider, VerbsError};
use rustix::fd::{BorrowedFd, OwnedFd};
use share::ShareLog;
use spin::Spin;
pub use start::{AgentStart, StartError};

/// The agent sleeps no longer than this: an `exec` without a new agent that connects to the
/// supervisor is seen only by looking.
const SLEEP_MAX: Duration = Duration::from_millis(250);

/// No longer than this while what was read waits until no event is missing: for threads that need a
/// processor, which the kernel does not tell of.
const EVENT_SLEEP_MAX: Duration = Duration::from_micros(50);
/// And no longer than this while the pager has work that waits for others: what the kernel or a child
/// has become ready for comes without a word.
const BUSY_SLEEP_MAX: Duration = Duration::from_millis(1);

/// What the agent needs of a provider beyond the trait: it registers the agent's private memory,
/// and it can be slept on. The shell around the agent knows the providers and implements this.
pub trait ProviderGlue {
    type Provider: Provider;

    /// A provider that reaches these nodes, with the key to them if there is one; through `proxy`,
    /// a connection to whoever has opened the NIC, if there is one.
    ///
    /// # Errors
    /// The provider's.
    fn open(
        nodes: &[Address],
        keys: Option<&Keyring>,
        proxy: Option<OwnedFd>,
    ) -> Result<Self::Provider, VerbsError>;

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

/// The heap that the agent runs on.
pub trait AgentHeap: Sync {
    /// What it takes: now, and at most so far.
    fn bytes(&self) -> [Bytes; 2];
}

/// A running agent.
#[expect(
    missing_debug_implementations,
    reason = "holds a provider, which need not print"
)]
pub struct Agent<G: ProviderGlue> {
    users: Users,
    supervisor: Supervisor,
    stats: OwnedFd,
    heap: &'static dyn AgentHeap,
    provider: G::Provider,
    fabric: Fabric<FrameBuffer>,
    pager: Pager<LinuxKernel>,
    nodes: Vec<String>,
    /// Pages that came back as something else.
    rejected: u64,
    share: ShareLog,
    idle_poll: IdlePoll,
    spin: Spin,
    housekeeping_at: Time,
    wake_all_at: Time,
    supervisor_gone: bool,
    /// Nobody uses this memory but the agent.
    is_unused: bool,
}

impl<G: ProviderGlue> Agent<G> {
    /// Serves until nobody uses this memory any more, and no forked child its own.
    pub fn run(mut self) {
        while !self.is_done() {
            let Round { worked, deadline } = self.turn();
            let time = now();
            let worked = self.keep_share(time) || worked;
            if time >= self.housekeeping_at {
                self.keep_house(time);
            }
            if time >= self.idle_poll.due() {
                self.idle_poll.tick(time, self.pager.faults());
            }
            if self.spin.sleeps(worked, time) {
                let sleep_max = if self.pager.kernel().has_waiting() {
                    EVENT_SLEEP_MAX
                } else if self.pager.is_busy() {
                    BUSY_SLEEP_MAX
                } else if self.users.seem_gone() && !self.is_unused {
                    self.housekeeping_at.since(time)
                } else {
                    SLEEP_MAX
                };
                let wake_at = deadline.min(self.idle_poll.wake_at());
                self.sleep(wake_at.min(time + sleep_max));
            }
        }
        self.publish();
        // So that nodes give the memory back now, not when they miss this client. Nobody can be told if
        // it fails.
        let _ = self.fabric.disconnect_all(&mut self.provider);
        // If this fails the supervisor is gone, and nobody waits for it.
        let _ = self.supervisor.send(AgentMessageBody::Done, &[]);
    }

    /// True once nobody uses any memory that is served here. A child may be among what was read and waits.
    fn is_done(&self) -> bool {
        self.is_unused && self.pager.children() == 0 && !self.pager.kernel().is_unsettled()
    }

    /// Reads what the kernel says, serves it, and lets the pager work.
    fn turn(&mut self) -> Round {
        let incoming = self.pager.kernel_mut().read();
        self.hand_over_newborns();
        for &space in &incoming.children {
            self.hand_over(space);
        }
        self.attach_hands();
        let mut net = PagerFabric {
            fabric: &mut self.fabric,
            provider: &mut self.provider,
            now: now(),
        };
        let round = self.pager.round(incoming, &mut net, now);
        self.report();
        round
    }
}

/// The monotonic clock.
pub fn now() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Time::ZERO + Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}
