//! A memory node on a simulated machine.

use super::failure::FailureKind;
use crate::provider::{SimNetwork, SimProvider};
use legato_base::wire::slot::{SLOT_STRIDE, is_written};
use legato_base::{Bytes, Duration, Time};
use legato_fabric::FabricConfig;
use legato_memnode::{NodeConfig, NodeServer};
use legato_verbs::Address;

/// How long a node takes to look at what came.
const REACTION: Duration = Duration::from_micros(1);

/// A node and its machine.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) alive: bool,
    frozen: bool,
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
        let mut provider = network.provider(&name);
        let config = NodeConfig {
            incarnation: u64::from(index) + 1,
            capacity,
            available: || Bytes(u64::MAX),
        };
        let fabric = FabricConfig {
            incarnation: config.incarnation,
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

    pub(super) fn freeze(&mut self, network: &SimNetwork) {
        network.freeze(&self.name);
        self.frozen = true;
    }

    pub(super) fn kill(&mut self, network: &SimNetwork) {
        network.kill(&self.name);
        self.alive = false;
    }
}
