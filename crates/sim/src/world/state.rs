//! The world: a program, its pager, memory nodes and the network between them, in virtual time.

use super::config::WorldConfig;
use super::defect::Defect;
use super::failure::{Failure, FailureKind};
use super::frames::{Registered, SimFrames};
use super::kernel::SimKernel;
use super::node::Node;
use super::program::{Model, Operation, Outcome, State};
use super::report::{History, Report};
use super::trouble::Trouble;
use crate::provider::{SimNetwork, SimProvider};
use legato_base::histogram::Histogram;
use legato_base::wire::slot::{SLOT_HEADER_SIZE, SLOT_STRIDE};
use legato_base::{Bytes, ClientId, Duration, PAGE_SIZE, Random, Time};
use legato_fabric::{Fabric, FabricConfig};
use legato_memnode::NodeCounters;
use legato_pager::replacement::ScanResistant;
use legato_pager::{Budget, FrameBuffer, NodePlace, Pager, PagerConfig, PagerFabric, SpaceId};
use legato_verbs::{AccessFlags, Address, MemoryRegion, Prepared, Provider};
use std::collections::BTreeMap;

/// Between two operations of a thread, at most; a quarter of it at least. Memory that the pager is
/// not in charge of then grows by less than a headroom between two of its measurements.
pub(super) const THREAD_PACE: u64 = 10_000;

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) space: SpaceId,
    pub(super) state: State,
    pub(super) at: Time,
    /// Between the announcement of a change and what is left of it, it gets no processor before.
    pub(super) starved_until: Time,
    pub(super) outcome: Option<Outcome>,
}

impl Thread {
    const fn new(space: SpaceId, at: Time) -> Self {
        Self {
            space,
            state: State::Idle,
            at,
            starved_until: Time::ZERO,
            outcome: None,
        }
    }
}

/// Everything.
#[expect(missing_debug_implementations, reason = "a history is in its report")]
pub struct World {
    pub(super) config: WorldConfig,
    pub(super) network: SimNetwork,
    pub(super) nodes: Vec<Node>,
    pub(super) provider: SimProvider,
    pub(super) fabric: Fabric<FrameBuffer>,
    pub(super) pager: Pager<SimKernel>,
    pub(super) regions: [MemoryRegion; 2],
    pub(super) model: Model,
    pub(super) threads: Vec<Thread>,
    pub(super) random: Random,
    pub(super) history: History,
    pub(super) agent_at: Time,
    /// When the pager or the fabric has something to do next by itself.
    pub(super) pager_deadline: Time,
    pub(super) agent_turns: u64,
    /// Pages brought before they were asked for, in one turn, at the most.
    pub(super) most_ahead: u64,
    /// The agent's CPU is busy until then.
    pub(super) agent_free_at: Time,
    pub(super) progress_at: Time,
    pub(super) limit: u64,
    pub(super) starved: bool,
    pub(super) ready: bool,
    pub(super) pages_may_be_lost: bool,
    /// So far.
    pub(super) pages_lost: u64,
    /// When the next trouble is over.
    pub(super) trouble_at: Time,
    /// How often each trouble has come.
    pub(super) troubles: BTreeMap<Trouble, u64>,
    pub(super) accesses: u64,
    pub(super) bus_errors: u64,
    pub(super) forks: u64,
    pub(super) resident_peak: u64,
    pub(super) reachable_at: Time,
    /// What was local when it began to fall to its limit.
    pub(super) falls_from: u64,
    pub(super) fault_ns: Histogram,
    pub(super) checked: u64,
}

impl World {
    /// A program of `config.threads` idle threads whose pager has connected to its nodes.
    ///
    /// # Errors
    /// If the nodes cannot be reached.
    pub fn new(config: WorldConfig) -> Result<Self, Failure> {
        let failure = |kind| config.failure(Time::ZERO, kind);
        let mut world = Self::assemble(config).map_err(failure)?;
        world.run_until(|world| world.ready)?;
        Ok(world)
    }

    fn assemble(config: WorldConfig) -> Result<Self, FailureKind> {
        let mut random = Random::from_seed(config.seed);
        let mut network = config.network;
        if config.defect == Some(Defect::Impatience) {
            // Four times 0.26 ms.
            network.timeout = 6;
        }
        let network = SimNetwork::new(random.next_u64(), network);
        let nodes = (0..config.nodes)
            .map(|index| Node::start(&network, index, config.node_capacity))
            .collect::<Result<Vec<_>, _>>()?;
        let mut provider = network.provider("program");
        let mut fabric =
            Fabric::new(&mut provider, FabricConfig::default()).map_err(|_| FailureKind::Setup)?;
        let budget = Budget::new(Bytes::pages(config.cache_pages));
        let pages = register(&mut provider, &fabric, budget.frames(), PAGE_SIZE)?;
        let headers = register(&mut provider, &fabric, budget.frames(), SLOT_HEADER_SIZE)?;
        let regions = [pages.region, headers.region];
        let frames = SimFrames::new(budget.frames(), pages, headers);
        let kernel = SimKernel::new(frames, random.fork(), config.defect)
            .with_attaching(config.attaching)
            .with_registering(config.registering);
        let pager_config = PagerConfig {
            client: ClientId(random.next_u64()),
            cache: Bytes::pages(config.cache_pages),
            nodes: nodes
                .iter()
                .map(|node| NodePlace {
                    address: Address::Sim(node.name.clone()),
                    was_lost: false,
                })
                .collect(),
        };
        let mut net = PagerFabric {
            fabric: &mut fabric,
            provider: &mut provider,
            now: Time::ZERO,
        };
        let policy = Box::new(ScanResistant::default());
        let pager = Pager::new(&pager_config, kernel, policy, &mut net);
        let idle = || Thread::new(SpaceId::OWN, Time::ZERO);
        Ok(Self {
            threads: (0..config.threads).map(|_| idle()).collect(),
            config,
            network,
            nodes,
            provider,
            fabric,
            pager,
            regions,
            model: Model::default(),
            random,
            history: History::default(),
            agent_at: Time::ZERO,
            pager_deadline: Time::ZERO,
            agent_turns: 0,
            most_ahead: 0,
            agent_free_at: Time::ZERO,
            progress_at: Time::ZERO,
            limit: budget.limit + budget.headroom,
            starved: false,
            ready: false,
            pages_may_be_lost: false,
            pages_lost: 0,
            trouble_at: Time::NEVER,
            troubles: BTreeMap::new(),
            accesses: 0,
            bus_errors: 0,
            forks: 0,
            resident_peak: 0,
            reachable_at: Time::ZERO,
            falls_from: 0,
            fault_ns: Histogram::default(),
            checked: 0,
        })
    }

    pub fn now(&self) -> Time {
        self.network.now()
    }

    pub const fn pager(&self) -> &Pager<SimKernel> {
        &self.pager
    }

    /// The pager's counters so far.
    pub fn counters(&mut self) -> legato_base::wire::stats::AgentCounters {
        self.pager.stats().counters
    }

    /// The longest time that a fault has taken, as the pager says.
    pub fn slowest_fault(&mut self) -> Duration {
        Duration::from_nanos(self.pager.stats().fault_ns.max())
    }

    /// How often the agent has given new memory to a frame.
    pub const fn frames_given(&self) -> u64 {
        self.pager.kernel().frames_given
    }

    /// How often the agent has looked for memory to take charge of.
    pub const fn looks(&self) -> u64 {
        self.pager.kernel().looks
    }

    /// Children so far.
    pub const fn forks(&self) -> u64 {
        self.forks
    }

    /// Turns of the agent's loop.
    pub const fn agent_turns(&self) -> u64 {
        self.agent_turns
    }

    /// Pages that the agent has brought before they were asked for, in one turn, at the most since this was last
    /// asked.
    pub const fn take_most_ahead(&mut self) -> u64 {
        core::mem::replace(&mut self.most_ahead, 0)
    }

    /// True if threads waited and nothing that was local could leave.
    pub const fn has_starved(&self) -> bool {
        self.starved
    }

    /// How often locked memory was to leave.
    pub const fn locked_tries(&self) -> u64 {
        self.pager.kernel().locked_tries
    }

    /// Bytes that all living nodes hold for clients.
    pub fn node_bytes_used(&self) -> u64 {
        let alive = self.nodes.iter().filter(|node| node.alive);
        alive.map(|node| node.server.status().used_bytes).sum()
    }

    pub(super) fn failure(&self, kind: FailureKind) -> Failure {
        self.config.failure(self.now(), kind)
    }

    /// The next idle thread from `first` on.
    pub(super) fn idle_thread(&self, first: usize) -> Option<usize> {
        let idle = |thread: &Thread| thread.state == State::Idle;
        self.threads[first..]
            .iter()
            .position(idle)
            .map(|place| first + place)
    }

    /// The space and state of every thread.
    pub(super) fn thread_states(&self) -> Vec<(SpaceId, State)> {
        self.threads
            .iter()
            .map(|thread| (thread.space, thread.state))
            .collect()
    }

    /// Gives an idle thread something to do.
    ///
    /// # Panics
    /// If the thread is not idle.
    pub fn begin(&mut self, thread: usize, operation: Operation) {
        let since = self.now();
        let thread = &mut self.threads[thread];
        assert_eq!(
            thread.state,
            State::Idle,
            "a thread does one thing at a time"
        );
        thread.state = State::Running { operation, since };
        let pace = self.random.below(THREAD_PACE * 3 / 4) + THREAD_PACE / 4;
        thread.at = since + Duration::from_nanos(pace);
    }

    /// What the thread's operation came to, once.
    pub fn take_outcome(&mut self, thread: usize) -> Option<Outcome> {
        self.threads[thread].outcome.take()
    }

    /// The thread of a forked child.
    pub fn thread_of(&self, space: SpaceId) -> Option<usize> {
        self.threads.iter().position(|thread| thread.space == space)
    }

    pub(super) fn add_thread(&mut self, space: SpaceId) {
        let thread = Thread::new(space, self.now());
        match self
            .threads
            .iter()
            .position(|thread| thread.state == State::Ended)
        {
            Some(ended) => self.threads[ended] = thread,
            None => self.threads.push(thread),
        }
    }

    /// If a thread announces a change meanwhile, it gets no processor for the rest of it for so long.
    pub fn starve(&mut self, thread: usize, time: Duration) {
        self.threads[thread].starved_until = self.now() + time;
    }

    /// Pages can leave this forked child from now on.
    pub fn attach(&mut self, space: SpaceId) {
        self.pager.kernel_mut().attach(space);
    }

    /// A process ends, whatever it is doing, and all its threads with it.
    pub fn kill_process(&mut self, space: SpaceId) {
        for thread in &mut self.threads {
            if thread.space != space {
                continue;
            }
            if let State::Announced {
                event,
                outcome: Outcome::Child(child),
                ..
            } = thread.state
            {
                self.pager.kernel_mut().end_unborn(space, child, event);
                self.model.end(child);
            }
            thread.state = State::Ended;
        }
        self.pager.kernel_mut().end(space);
        self.model.end(space);
    }

    /// Kills a memory node, whose memory is gone.
    pub fn kill_node(&mut self, index: usize) {
        self.nodes[index].kill(&self.network);
    }

    /// Changes what a memory node has, behind everybody's back: every slot that a page was written
    /// to, its header first ([`legato_base::wire::slot`]). Pages may be lost from here on.
    pub fn change_far_memory(&mut self, node: usize, change: impl FnMut(&mut [u8; SLOT_STRIDE])) {
        self.pages_may_be_lost = true;
        self.nodes[node].for_each_slot(change);
    }

    /// What a memory node has for this program, as when others take some of it, or give it back.
    pub fn resize_node(&mut self, index: usize, capacity: Bytes) {
        self.nodes[index].server.set_capacity(capacity);
    }

    /// The system of a node's machine gives it so much more, or as much as it asks for.
    pub fn limit_node_memory(&mut self, index: usize, more: Option<Bytes>) {
        let name = &self.nodes[index].name;
        self.network.limit_memory(name, more.map(|more| more.0));
    }

    /// Whether the program's machine can use what nodes grant: see [`SimProvider::set_prepared`].
    pub const fn set_prepared(&mut self, prepared: Prepared) {
        self.provider.set_prepared(prepared);
    }

    /// The program's NIC does not let go of what it was given: see [`SimProvider::set_clinging`].
    pub const fn set_clinging(&mut self, clings: bool) {
        self.provider.set_clinging(clings);
    }

    /// Counters of a memory node.
    pub fn node_counters(&self, index: usize) -> NodeCounters {
        self.nodes[index].server.counters()
    }

    /// Stops a memory node and its NIC; what was sent to it waits.
    pub fn freeze_node(&mut self, index: usize) {
        self.nodes[index].freeze(&self.network);
    }

    /// All processes are stopped for a while. What is on the wire arrives, and NICs answer.
    pub fn stand_still(&mut self, time: Duration) {
        self.network.advance_to(self.now() + time);
        self.progress_at = self.progress_at + time;
        self.reachable_at = self.reachable_at + time;
    }

    /// Disconnects from the nodes and gives everything back.
    pub(super) fn shut_down(&mut self) -> Result<(), Failure> {
        let at = self.now();
        let refused = |_| self.config.failure(at, FailureKind::Setup);
        self.fabric
            .disconnect_all(&mut self.provider)
            .map_err(refused)?;
        while self.fabric.poll_event().is_some() {}
        for region in self.regions {
            self.provider.deregister_region(&region).map_err(refused)?;
        }
        self.fabric.shutdown(&mut self.provider).map_err(refused)?;
        // The nodes hear of it a message later.
        let end = at + Duration::from_secs(2);
        while self.now() < end {
            let next = self.network.next_event_time().unwrap_or(Time::NEVER);
            let nodes = self.nodes.iter().map(|node| node.due(self.now()));
            let time = nodes.fold(next, Time::min).clamp(self.now(), end);
            self.network.advance_to(time);
            for node in &mut self.nodes {
                node.turn_if_due(time);
            }
        }
        Ok(())
    }

    pub fn fabric_counters(&self) -> legato_fabric::FabricCounters {
        *self.fabric.counters()
    }

    pub(super) fn report(&mut self) -> Report {
        let mut trace = History::default();
        trace.word(self.network.trace_hash());
        trace.word(self.history.value());
        Report {
            seed: self.config.seed,
            steps: self.config.steps,
            trace_hash: trace.value(),
            elapsed: self.now(),
            accesses: self.accesses,
            bus_errors: self.bus_errors,
            troubles: self.troubles.clone(),
            forks: self.forks,
            resident_pages_peak: self.resident_peak,
            counters: self.counters(),
            fault_ns: self.fault_ns.clone(),
        }
    }
}

fn register(
    provider: &mut SimProvider,
    fabric: &Fabric<FrameBuffer>,
    frames: u32,
    size: usize,
) -> Result<Registered, FailureKind> {
    let length = u64::from(frames) * size as u64;
    let region = provider
        .allocate_region(fabric.domain(), length, AccessFlags::LOCAL_WRITE)
        .map_err(|_| FailureKind::Setup)?;
    let bytes = provider.region_memory(&region).ok_or(FailureKind::Setup)?;
    Ok(Registered { region, bytes })
}
