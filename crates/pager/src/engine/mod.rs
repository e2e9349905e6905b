//! The pager itself: one owner of all state, driven by faults, events of the address spaces,
//! completions of the fabric, and time.
//!
//! The paths, each in its own file: `fault` (a page is missing), `fetch` (it comes from a node),
//! `ahead` (others come with it),
//! `fill` (it enters the program), `evict` (pages leave), `write_back` (they reach a node), `fabric` (what is heard of it),
//! `round` (the loop that all of it is driven by),
//! `memory` (how much may be here), `space` (the program changes its mappings), `children`
//! (forked processes), `copies` (what they share is written once), `loss` (a node is gone). `audit` checks
//! the books.

mod activity;
mod ahead;
mod audit;
mod candidates;
mod children;
mod copies;
mod evict;
mod fabric;
mod fault;
mod fetch;
mod fill;
mod kept;
mod limit;
mod loss;
mod memory;
mod operation;
mod round;
mod space;
mod strays;
mod stuck;
mod waiting;
mod write_back;

use crate::entry::PageEntry;
use crate::far::FarStore;
use crate::frames::FrameTable;
use crate::prefetch::Prefetcher;
use crate::replacement::Replacement;
use crate::table::PageTable;
use crate::{
    Budget, FarShortage, FrameBuffer, FrameIndex, Kernel, NodeEnd, NodeIndex, NodePlace, PageRange,
    SpaceId, SpacePage,
};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
pub use audit::Newest;
use candidates::Candidates;
use children::Children;
use fabric::FabricLooks;
use fault::SpuriousFaults;
use legato_base::wire::slot::SlotMismatch;
use legato_base::wire::stats::{AgentCounters, StatsPage};
use legato_base::{Bytes, ClientId, Duration, PageNumber, Time};
use legato_fabric::{ConnectError, Fabric, OperationId};
use legato_verbs::Provider;
pub use limit::PagerUsage;
use memory::LocalMemory;
use operation::Operation;
pub use round::{Incoming, Round};
use strays::StraySearch;
use stuck::Shortage;
use waiting::Waiting;

/// What one pager is told at its start.
#[derive(Clone, Debug)]
pub struct PagerConfig {
    pub client: ClientId,
    /// Limit of local memory.
    pub cache: Bytes,
    pub nodes: Vec<NodePlace>,
}

/// The fabric, the provider under it, and the time: what a turn works with.
#[expect(
    missing_debug_implementations,
    reason = "borrows a provider, which need not print"
)]
pub struct PagerFabric<'a> {
    pub fabric: &'a mut Fabric<FrameBuffer>,
    pub provider: &'a mut dyn Provider,
    pub now: Time,
}

/// A thread waits for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub page: SpacePage,
    /// When the pager learned of it.
    pub at: Time,
}

/// What a program did to its address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceEvent {
    /// `madvise` told the kernel to drop the range's content, or the range was unmapped: whatever
    /// is mapped there reads zero until it is written.
    Removed { space: SpaceId, range: PageRange },
    /// `mremap` moved `from` to the pages from `to` on.
    Remapped {
        space: SpaceId,
        from: PageRange,
        to: PageNumber,
    },
    /// `fork` copied the space.
    Forked { parent: SpaceId, child: SpaceId },
}

/// What the agent must tell people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PagerEvent {
    /// Every node has opened or failed. Not before the turn after this one anything is taken out of
    /// the program.
    Ready,
    /// A node is gone, and with it the only copy of so many pages.
    NodeLost {
        node: NodeIndex,
        pages: u64,
        why: NodeEnd,
    },
    /// A fetched page was not what its record says, and there is no other copy.
    PageRejected {
        page: SpacePage,
        node: NodeIndex,
        mismatch: SlotMismatch,
    },
    /// Pages must leave and there is no room for them: the program cannot go on.
    FarMemoryFull(FarShortage),
    /// Nothing that is local can leave, and the limit is reached: the program cannot go on.
    NothingToEvict(Stuck),
    /// The kernel reports a resident page as missing again and again, and has announced nothing:
    /// serving it could only be done with wrong data.
    PageVanished { page: SpacePage },
    /// The same of the mapping that a page is to enter.
    MappingVanished { page: SpacePage },
    /// Memory was moved to where the page is, and nobody has said that the page's mapping has gone: what is
    /// where is not known any more.
    MovedOver { page: SpacePage },
    /// The frame that the page's only copy was in has lost its memory.
    FrameEmpty { page: SpacePage, frame: FrameIndex },
}

/// For how long idle processors were asked to poll, and how that was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdlePollLog {
    pub held: Duration,
    pub trials: u64,
    /// Trials that showed a gain.
    pub trials_won: u64,
}

/// How the pager's owner has waited when there was nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpinLog {
    /// It looked on for a while before it would sleep.
    pub spins: u64,
    /// Something came meanwhile.
    pub won: u64,
    /// It slept without looking on.
    pub sleeps_at_once: u64,
}

/// What is local when nothing can leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub local: Bytes,
    pub limit: Bytes,
    /// Memory that the pager has moved out before, or keeps for pages that come in.
    pub frames: Bytes,
    /// The pager is in charge of it.
    pub charged: Bytes,
    /// Of that, it stayed when it was to leave: pinned, locked, or in mappings that cannot be left.
    pub stayed: Bytes,
}

/// The pager of one program.
#[derive(Debug)]
pub struct Pager<K: Kernel> {
    kernel: K,
    budget: Budget,
    client: ClientId,
    store: FarStore,
    table: PageTable<PageEntry>,
    children: Children,
    frames: FrameTable,
    candidates: Candidates,
    prefetcher: Prefetcher,
    operations: BTreeMap<OperationId, Operation>,
    waiting: Waiting,
    spurious: SpuriousFaults,
    strays: StraySearch,
    local: LocalMemory,
    /// Something has happened at the fabric in the last turn.
    progressed: bool,
    /// A write-back was posted while a fault was served: its thread has waited for it in vain.
    wrote_in_fault: bool,
    /// A part of a window was brought in this turn.
    brought_ahead: bool,
    shortage: Shortage,
    last_version: u64,
    looks: FabricLooks,
    eviction_clock: u32,
    ready_reported: bool,
    events: VecDeque<PagerEvent>,
    counters: AgentCounters,
    stats: StatsPage,
}

impl<K: Kernel> Pager<K> {
    /// Starts connecting to the nodes. The kernel must provide [`Budget::frames`] frames.
    pub fn new(
        config: &PagerConfig,
        kernel: K,
        replacement: Box<dyn Replacement>,
        net: &mut PagerFabric<'_>,
    ) -> Self {
        let budget = Budget::new(config.cache);
        Self {
            kernel,
            budget,
            client: config.client,
            store: FarStore::connect(config.client, &config.nodes, net),
            table: PageTable::default(),
            children: Children::default(),
            frames: FrameTable::new(budget.frames()),
            candidates: Candidates::new(replacement),
            prefetcher: Prefetcher::default(),
            operations: BTreeMap::new(),
            waiting: Waiting::default(),
            spurious: SpuriousFaults::default(),
            strays: StraySearch::default(),
            local: LocalMemory::default(),
            progressed: false,
            wrote_in_fault: false,
            brought_ahead: false,
            shortage: Shortage::default(),
            last_version: 0,
            looks: FabricLooks::default(),
            eviction_clock: 0,
            ready_reported: false,
            events: VecDeque::new(),
            counters: AgentCounters::default(),
            stats: StatsPage::default(),
        }
    }

    pub const fn kernel(&self) -> &K {
        &self.kernel
    }

    pub const fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// The oldest thing to tell people.
    pub fn poll_event(&mut self) -> Option<PagerEvent> {
        self.events.pop_front()
    }

    /// Counters and fault times so far.
    pub fn stats(&mut self) -> &StatsPage {
        self.counters.cache_bytes_current = Bytes::pages(self.local.pages).0;
        self.counters.far_pages_current = self.store.extents.used();
        self.counters.kept_pages_current = self.children.kept.contents() as u64;
        self.stats.counters = self.counters;
        &self.stats
    }

    /// What its owner has seen of the memory that the pager and its surroundings take themselves, for the
    /// counters.
    pub fn note_own_memory(&mut self, now: Bytes, peak: Bytes) {
        self.counters.agent_bytes_current = now.0;
        self.counters.agent_bytes_peak = peak.0;
    }

    /// What its owner has asked of idle processors, for the counters.
    pub fn note_idle_poll(&mut self, log: IdlePollLog) {
        self.counters.idle_poll_ms = log.held.as_millis();
        self.counters.idle_poll_trials = log.trials;
        self.counters.idle_poll_trials_won = log.trials_won;
    }

    /// How its owner has waited, for the counters.
    pub fn note_spins(&mut self, log: SpinLog) {
        self.counters.spins = log.spins;
        self.counters.spins_won = log.won;
        self.counters.sleeps_at_once = log.sleeps_at_once;
    }

    /// Faults that were served so far.
    pub const fn faults(&self) -> u64 {
        self.counters.faults
    }

    /// Forked children whose memory this pager serves.
    pub fn children(&self) -> usize {
        self.children.alive.len()
    }

    /// Frames that hold or await a page.
    pub fn frames_used(&self) -> u32 {
        self.frames.used()
    }

    /// Does everything that can be done now: fabric, fills, faults that waited, eviction,
    /// write-back. Returns when to come back at the latest.
    ///
    /// Until [`PagerEvent::Ready`] has been reported the program's memory is not touched. Whoever
    /// starts the pager may still give up until then, and nobody serves the program's faults yet.
    fn turn(&mut self, has_come: bool, net: &mut PagerFabric<'_>) -> Time {
        self.progressed = false;
        let fabric_deadline = self.look_at_fabric(net);
        self.store.prepare_grants(net);
        if !self.ready_reported {
            self.report_ready();
            return if self.ready_reported {
                net.now
            } else {
                fabric_deadline
            };
        }
        self.fill_arrived();
        self.retry_stalled(net);
        self.go_ahead(net);
        self.balance_memory(net);
        self.post_write_backs(net);
        self.release_kept();
        if !has_come {
            // What was posted in this turn may be complete already, as on shared memory, where posting is
            // doing. When something has come the next turn is at once.
            self.looks.outdate();
        }
        let again = self.look_at_requests(net);
        self.fill_arrived();
        self.check_children(net.now);
        self.report_starvation(net.now);
        fabric_deadline
            .min(again)
            .min(self.local.measure_at)
            .min(self.children_deadline())
            .min(self.store.balance_at())
    }

    /// True while the pager would do more if it were called again at once.
    pub fn is_busy(&self) -> bool {
        !self.operations.is_empty()
            || self.frames.has_arrived()
            || !self.waiting.is_empty()
            || self.candidates.has_zero_mapped()
            || self.prefetcher.has_parts()
            || self.local.owes_eviction
    }

    fn report_ready(&mut self) {
        if !self.store.starting() {
            self.ready_reported = true;
            self.events.push_back(PagerEvent::Ready);
        }
    }

    /// True while some node has neither opened nor failed.
    pub fn is_connecting(&self) -> bool {
        self.store.connecting()
    }

    /// Nodes that are lost or never opened.
    pub fn lost_nodes(&self) -> Vec<NodeIndex> {
        self.store.lost_nodes().collect()
    }

    /// Why a node could not be connected to, if that is what happened to it.
    pub fn node_failure(&self, node: NodeIndex) -> Option<&ConnectError> {
        self.store.failure(node)
    }
}
