//! What the pager hears of the fabric, and how often it asks.

use super::{Pager, PagerFabric};
use crate::far::StoreEvent;
use crate::{FrameBuffer, Kernel};
use legato_base::{Duration, Time};
use legato_fabric::{FabricEvent, Turn};

/// To hear of connections costs a system call, while threads wait for pages or are about to. That a node is
/// gone may be heard so much later.
const CONNECTIONS_EVERY: Duration = Duration::from_micros(100);

/// When the pager looks at the fabric.
#[derive(Debug, Default)]
pub(super) struct FabricLooks {
    /// At its connections too.
    connections_at: Time,
    /// When it wants to be looked at next, if nothing was posted since it said so in this round.
    due: Option<Time>,
}

impl FabricLooks {
    /// Something may be complete that was not.
    pub(super) const fn outdate(&mut self) {
        self.due = None;
    }
}

impl<K: Kernel> Pager<K> {
    /// The next turn looks at connections too. For whoever has slept: something there may be the reason why it
    /// is awake.
    pub const fn hear_of_connections(&mut self) {
        self.looks.connections_at = Time::ZERO;
    }

    /// First thing in a turn. Connections have their turn now and then. Returns when the fabric wants to be
    /// looked at next.
    pub(super) fn look_at_fabric(&mut self, net: &mut PagerFabric<'_>) -> Time {
        if net.now < self.looks.connections_at {
            return self.look_at_requests(net);
        }
        self.looks.connections_at = net.now + CONNECTIONS_EVERY;
        let turn = net.fabric.turn(net.provider, net.now);
        let quarantined = net.fabric.quarantine().bytes;
        self.counters.quarantined_bytes_current = quarantined;
        self.counters.quarantined_bytes_peak =
            quarantined.max(self.counters.quarantined_bytes_peak);
        self.follow_fabric(turn, net)
    }

    /// Hears what has completed, if something may have since the last look.
    pub(super) fn look_at_requests(&mut self, net: &mut PagerFabric<'_>) -> Time {
        if let Some(due) = self.looks.due {
            return due;
        }
        let turn = net.fabric.turn_requests(net.provider, net.now);
        self.follow_fabric(turn, net)
    }

    fn follow_fabric(&mut self, turn: Turn, net: &mut PagerFabric<'_>) -> Time {
        self.looks.due = Some(turn.deadline);
        self.progressed |= turn.progressed;
        while let Some(event) = net.fabric.poll_event() {
            self.handle_fabric_event(event, net);
        }
        turn.deadline
    }

    fn handle_fabric_event(&mut self, event: FabricEvent<FrameBuffer>, net: &mut PagerFabric<'_>) {
        match event {
            FabricEvent::Outcome { operation, outcome } => {
                self.handle_outcome(operation, outcome.is_ok());
            }
            FabricEvent::Quiesced {
                operation, buffer, ..
            } => {
                self.handle_quiesced(operation, buffer, net);
            }
            FabricEvent::Quarantined { operation } => self.handle_quarantined(operation, net),
            other => match self.store.handle_event(other, net) {
                Some(StoreEvent::Lost(node, why)) => self.handle_node_lost(node, why),
                Some(StoreEvent::Opened | StoreEvent::Grown) | None => {}
            },
        }
    }
}
