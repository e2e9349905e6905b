//! A memory node on a simulated machine.

use super::failure::FailureKind;
use crate::provider::{SimNetwork, SimProvider};
use legato_base::wire::slot::{SLOT_STRIDE, is_written};
use legato_base::{Bytes, Duration, Time};
use legato_fabric::FabricConfig;
use legato_memnode::{NodeConfig, NodeServer};
use legato_verbs::{Address, RemoteAddress};

/// How long a node takes to look at what came.
const REACTION: Duration = Duration::from_micros(1);
/// A node that cannot be reached for so long may be given up: four timeouts of a NIC are 17 ms here, of which
/// any that runs already may count.
const GIVEN_UP: Duration = Duration::from_millis(10);

/// Incarnations of a node are so far apart.
const RESTARTED: u64 = 1000;

/// A node and its machine.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) alive: bool,
    frozen: bool,
    /// Nothing gets to it, or nothing from it.
    unreachable_since: Option<Time>,
    /// True if the program's pages there are gone, or the node has not been reachable for long.
    may_be_given_up: bool,
    /// When the program's pager has given it up.
    pub(super) given_up_at: Option<Time>,
    incarnation: u64,
    pub(super) capacity: Bytes,
    pub(super) server: NodeServer,
    provider: SimProvider,
    turn_at: Time,
}

impl Node {
    pub(super) fn start(
        network: &SimNetwork,
        index: u32,
        capacity: Bytes,
    ) -> Result<Self, FailureKind> {
        let name = format!("node-{index}");
        let provider = network.provider(&name);
        Self::begin(name, provider, u64::from(index) + 1, capacity)
    }

    fn begin(
        name: String,
        mut provider: SimProvider,
        incarnation: u64,
        capacity: Bytes,
    ) -> Result<Self, FailureKind> {
        let config = NodeConfig {
            incarnation,
            capacity,
            available: || Bytes(u64::MAX),
        };
        let fabric = FabricConfig {
            incarnation,
            ..FabricConfig::default()
        };
        let mut server =
            NodeServer::new(&mut provider, fabric, config).map_err(|_| FailureKind::Setup)?;
        server
            .listen(&mut provider, &Address::Sim(name.clone()))
            .map_err(|_| FailureKind::Setup)?;
        Ok(Self {
            name,
            alive: true,
            frozen: false,
            unreachable_since: None,
            may_be_given_up: false,
            given_up_at: None,
            incarnation,
            capacity,
            server,
            provider,
            turn_at: Time::ZERO,
        })
    }

    /// When the node does something next.
    pub(super) fn due(&self, now: Time) -> Time {
        if !self.alive || self.frozen {
            Time::NEVER
        } else if self.provider.has_work() {
            self.turn_at.min(now + REACTION)
        } else {
            self.turn_at
        }
    }

    pub(super) fn turn_if_due(&mut self, now: Time) {
        if !self.alive || self.frozen || (self.turn_at > now && !self.provider.has_work()) {
            return;
        }
        let turn = self.server.turn(&mut self.provider, now);
        self.turn_at = if turn.progressed {
            now + REACTION
        } else {
            turn.deadline
        };
    }

    /// Every slot that a page was written to.
    pub(super) fn for_each_slot(&self, mut change: impl FnMut(&mut [u8; SLOT_STRIDE])) {
        for memory in self.provider.all_memory() {
            let mut bytes = memory.borrow_mut();
            let (slots, _) = bytes.as_chunks_mut::<SLOT_STRIDE>();
            let written = slots.iter_mut().filter(|slot| is_written(slot));
            written.for_each(&mut change);
        }
    }

    /// The bytes of a slot, if the node has it.
    pub(super) fn peek(&self, place: RemoteAddress, into: &mut [u8; SLOT_STRIDE]) -> bool {
        self.provider.peek(place, into)
    }

    pub(super) fn may_be_given_up(&self, now: Time) -> bool {
        let since = self.unreachable_since;
        self.may_be_given_up || since.is_some_and(|since| now.since(since) >= GIVEN_UP)
    }

    /// True of a node that can be reached, and always could.
    pub(super) fn is_well(&self, now: Time) -> bool {
        self.alive && self.unreachable_since.is_none() && !self.may_be_given_up(now)
    }

    /// All that it has.
    pub(super) fn memory(&self) -> Vec<Vec<u8>> {
        let all = self.provider.all_memory();
        all.iter().map(|memory| memory.borrow().to_vec()).collect()
    }

    /// It has again what it had.
    pub(super) fn put_back(&mut self, before: &[Vec<u8>]) {
        for (memory, before) in self.provider.all_memory().iter().zip(before) {
            if memory.borrow().len() == before.len() {
                memory.borrow_mut().copy_from_slice(before);
            }
        }
    }

    /// From now on nothing gets to it, or from it.
    pub(super) fn leave(&mut self, now: Time) {
        self.unreachable_since.get_or_insert(now);
    }

    pub(super) fn come_back(&mut self, now: Time) {
        self.may_be_given_up = self.may_be_given_up(now);
        self.unreachable_since = None;
    }

    pub(super) fn freeze(&mut self, network: &SimNetwork) {
        network.freeze(&self.name);
        self.frozen = true;
        self.leave(network.now());
    }

    pub(super) fn thaw(&mut self, network: &SimNetwork) {
        network.unfreeze(&self.name);
        self.frozen = false;
        self.come_back(network.now());
    }

    pub(super) fn kill(&mut self, network: &SimNetwork) {
        network.kill(&self.name);
        self.alive = false;
        self.may_be_given_up = true;
    }

    /// It starts again with nothing, as another incarnation.
    pub(super) fn restart(&mut self, network: &SimNetwork) -> Result<(), FailureKind> {
        let incarnation = self.incarnation + RESTARTED;
        let provider = network.restart(&self.name);
        let given_up_at = self.given_up_at;
        *self = Self::begin(self.name.clone(), provider, incarnation, self.capacity)?;
        self.may_be_given_up = true;
        self.given_up_at = given_up_at;
        self.turn_at = network.now();
        Ok(())
    }
}
