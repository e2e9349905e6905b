//! The memory nodes: connecting to them, asking for extents, losing them.

use super::room::Room;
use super::spare::Spare;
use super::{Extents, FrameBuffer};
use crate::engine::PagerFabric;
use crate::entry::SlotRef;
use alloc::vec::Vec;
use legato_base::timeouts::{CONNECT, NODE_REQUEST};
use legato_base::wire::node::{NodeRefusal, NodeReply, NodeRequest, NodeWireError};
use legato_base::{Bytes, ClientId, ExtentId, Time};
use legato_fabric::{CallId, ConnectError, ConnectionId, FabricEvent, Refused, ResetCause};
use legato_verbs::{Address, Prepared, RemoteAddress, UnreachableReason};

/// A memory node, by its place in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeIndex(pub u32);

/// How far the pager is with a node.
#[derive(Debug)]
enum NodeState {
    Connecting {
        connection: ConnectionId,
        to: Address,
        deadline: Time,
    },
    Opening {
        connection: ConnectionId,
        call: CallId,
    },
    Up {
        connection: ConnectionId,
        growth: Growth,
        room: Room,
    },
    Lost,
}

impl NodeState {
    const fn is_starting(&self) -> bool {
        matches!(self, Self::Connecting { .. } | Self::Opening { .. })
    }
}

/// How far the pager is with one more extent of a node.
#[derive(Debug)]
enum Growth {
    None,
    /// If the answer is late the node counts as full; what it grants then is used all the same, because
    /// nobody else can give that back.
    Asking {
        call: CallId,
        slots: u32,
        late_from: Time,
    },
    /// It is granted, and not used before requests for it start at once (P-101): a page that is waited for
    /// would wait for that too.
    Preparing(Grant),
}

/// An extent that a node has granted.
#[derive(Clone, Copy, Debug)]
struct Grant {
    extent: ExtentId,
    place: RemoteAddress,
    slots: u32,
}

/// A memory node that a client is to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    pub address: Address,
    /// Others have lost it: it is tried, and not waited for.
    pub was_lost: bool,
}

/// What happened at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreEvent {
    /// The node may be used.
    Opened,
    /// There are more slots.
    Grown,
    /// The node is gone, and with it everything on it.
    Lost(NodeIndex, NodeEnd),
}

/// Why there are no slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FarShortage {
    #[error(
        "far memory is full: {held} are there, and it needs more; raise --far, or name more nodes"
    )]
    NoRoom { held: Bytes },
    /// A node had room that this process could not map.
    #[error(
        "its memory nodes have room that it cannot map: it has as many mappings as vm.max_map_count \
         allows, or as much address space as its limit (ulimit -v); raise that"
    )]
    NoMappings,
    #[error("all of its memory nodes are lost; see what was said of each")]
    NoNodes,
    /// The fabric starts nothing more (P-60).
    #[error(
        "its NIC has not let go of {held} since memory nodes were lost, and nothing more is started on it; \
         see what the kernel's log says of the device"
    )]
    NicHolds { held: Bytes },
}

/// Why a node is no node of this client any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeEnd {
    #[error("{0}")]
    Reset(ResetCause),
    #[error("{0}")]
    NotReached(ConnectError),
}

/// All nodes of this client.
#[derive(Debug)]
pub(crate) struct FarStore {
    client: ClientId,
    nodes: Vec<NodeState>,
    /// Those that nobody waits for.
    were_lost: Vec<bool>,
    /// Why a node could not be connected to.
    failures: Vec<Option<ConnectError>>,
    pub(crate) extents: Extents,
    /// To be given back when there is a credit for it.
    returning: Vec<(NodeIndex, ExtentId)>,
    spare: Spare,
    /// The last extent that was granted could not be prepared.
    lacks_mappings: bool,
}

impl FarStore {
    /// Starts connecting to every node. One that refuses at once counts as lost.
    pub(crate) fn connect(
        client: ClientId,
        places: &[NodePlace],
        net: &mut PagerFabric<'_>,
    ) -> Self {
        let mut store = Self {
            client,
            nodes: Vec::new(),
            were_lost: places.iter().map(|place| place.was_lost).collect(),
            failures: Vec::new(),
            extents: Extents::default(),
            returning: Vec::new(),
            spare: Spare::default(),
            lacks_mappings: false,
        };
        for NodePlace { address, .. } in places {
            store.nodes.push(NodeState::Lost);
            store.failures.push(None);
            let node = NodeIndex(store.nodes.len() as u32 - 1);
            let _lost_at_once = store.start(node, address.clone(), net.now + CONNECT, net);
        }
        store
    }

    /// True while a node that is waited for has neither opened nor failed: while none has opened, any.
    pub(crate) fn starting(&self) -> bool {
        let is_up = |node: &NodeState| matches!(node, NodeState::Up { .. });
        let none_is_up = !self.nodes.iter().any(is_up);
        let mut nodes = self.nodes.iter().zip(&self.were_lost);
        nodes.any(|(node, was_lost)| node.is_starting() && (none_is_up || !was_lost))
    }

    /// True while some node has neither opened nor failed.
    pub(crate) fn connecting(&self) -> bool {
        self.nodes.iter().any(NodeState::is_starting)
    }

    pub(crate) fn lost_nodes(&self) -> impl Iterator<Item = NodeIndex> {
        self.nodes
            .iter()
            .enumerate()
            .filter(|(_, node)| matches!(node, NodeState::Lost))
            .map(|(index, _)| NodeIndex(index as u32))
    }

    /// Why a node could not be connected to; None if it was, and was lost or refused later.
    pub(crate) fn failure(&self, node: NodeIndex) -> Option<&ConnectError> {
        self.failures.get(node.0 as usize)?.as_ref()
    }

    /// No slot is free and no node has room for more.
    pub(crate) fn is_full(&self) -> bool {
        self.extents.free() == 0
            && self.nodes.iter().all(|node| match node {
                // It is asked again now and then, and full until it says otherwise.
                NodeState::Up { room, .. } => room.is_full(),
                NodeState::Lost => true,
                NodeState::Connecting { .. } | NodeState::Opening { .. } => false,
            })
    }

    /// Why no slot is free.
    pub(crate) fn shortage(&self) -> FarShortage {
        let is_lost = |node: &NodeState| matches!(node, NodeState::Lost);
        if self.nodes.iter().all(is_lost) {
            FarShortage::NoNodes
        } else if self.lacks_mappings {
            FarShortage::NoMappings
        } else {
            FarShortage::NoRoom {
                held: Bytes::pages(self.extents.free() + self.extents.used()),
            }
        }
    }

    /// When to balance the room again, if nothing else happens.
    pub(crate) fn balance_at(&self) -> Time {
        self.ask_at().min(self.late_at()).min(self.spare.at())
    }

    /// When the next answer will be late.
    fn late_at(&self) -> Time {
        let at = self.nodes.iter().filter_map(|node| match node {
            NodeState::Up {
                growth: Growth::Asking { late_from, .. },
                room,
                ..
            } if !room.is_full() => Some(*late_from),
            _ => None,
        });
        at.min().unwrap_or(Time::NEVER)
    }

    /// When a node is to be asked for room again, while there is none.
    fn ask_at(&self) -> Time {
        if !self.is_full() {
            return Time::NEVER;
        }
        let at = self.nodes.iter().filter_map(|node| match node {
            NodeState::Up {
                growth: Growth::None,
                room,
                ..
            } => Some(room.ask_at()),
            _ => None,
        });
        at.min().unwrap_or(Time::NEVER)
    }

    /// The connection and place of a slot; None if its node is lost.
    pub(crate) fn locate(&self, slot: SlotRef) -> Option<(ConnectionId, RemoteAddress)> {
        let (node, place) = self.extents.locate(slot)?;
        match self.nodes.get(node.0 as usize)? {
            NodeState::Up { connection, .. } => Some((*connection, place)),
            _ => None,
        }
    }

    /// Handles what is not about a page.
    pub(crate) fn handle_event(
        &mut self,
        event: FabricEvent<FrameBuffer>,
        net: &mut PagerFabric<'_>,
    ) -> Option<StoreEvent> {
        match event {
            FabricEvent::Connected { connection, .. } => self.open(connection, net),
            FabricEvent::ConnectFailed { connection, error } => {
                self.handle_unreached(connection, error, net)
            }
            FabricEvent::Disconnected { connection } => {
                let cause = net.fabric.reset_cause(connection);
                self.lose(connection, NodeEnd::Reset(cause.unwrap_or(ResetCause::Unexpected)))
            }
            FabricEvent::Replied { call, outcome } => {
                let answer = outcome.ok().map(|body| NodeReply::parse(&body));
                self.handle_answer(call, answer, net)
            }
            // Nobody connects to an agent or calls it.
            FabricEvent::Accepted { connection, .. } | FabricEvent::Request { connection, .. } => {
                net.fabric.close(net.provider, connection);
                None
            }
            FabricEvent::Outcome { .. }
            | FabricEvent::Quiesced { .. }
            | FabricEvent::HandlerOverdue { .. }
            | FabricEvent::Quarantined { .. }
            // A connection's end decides.
            | FabricEvent::Suspected { .. }
            | FabricEvent::Heard { .. } => None,
        }
    }

    fn start(
        &mut self,
        node: NodeIndex,
        to: Address,
        deadline: Time,
        net: &mut PagerFabric<'_>,
    ) -> Option<StoreEvent> {
        let index = node.0 as usize;
        match net.fabric.connect(net.provider, &to, &[], deadline) {
            Ok(connection) => {
                self.nodes[index] = NodeState::Connecting {
                    connection,
                    to,
                    deadline,
                };
                None
            }
            Err(error) => {
                self.nodes[index] = NodeState::Lost;
                self.failures[index] = Some(error);
                Some(StoreEvent::Lost(node, NodeEnd::NotReached(error)))
            }
        }
    }

    /// A provider gives up sooner than a node that does not run for a moment is to be given up.
    fn handle_unreached(
        &mut self,
        from: ConnectionId,
        error: ConnectError,
        net: &mut PagerFabric<'_>,
    ) -> Option<StoreEvent> {
        let mut nodes = self.nodes.iter().enumerate();
        let connecting = nodes.find_map(|(index, node)| match node {
            NodeState::Connecting {
                connection,
                to,
                deadline,
            } if *connection == from => Some((NodeIndex(index as u32), to.clone(), *deadline)),
            _ => None,
        });
        if error == ConnectError::Unreachable(UnreachableReason::TimedOut)
            && let Some((node, to, deadline)) = connecting
            && net.now < deadline
        {
            return self.start(node, to, deadline, net);
        }
        let lost = self.lose(from, NodeEnd::NotReached(error));
        if let Some(StoreEvent::Lost(node, _)) = lost {
            self.failures[node.0 as usize] = Some(error);
        }
        lost
    }

    fn open(&mut self, from: ConnectionId, net: &mut PagerFabric<'_>) -> Option<StoreEvent> {
        let node = self.nodes.iter_mut().find(
            |node| matches!(node, NodeState::Connecting { connection, .. } if *connection == from),
        )?;
        let request = NodeRequest::Open {
            client: self.client,
        }
        .to_bytes();
        let deadline = net.now + NODE_REQUEST;
        match net.fabric.call(net.provider, from, &request, deadline) {
            Ok(call) => {
                *node = NodeState::Opening {
                    connection: from,
                    call,
                }
            }
            Err(_) => net.fabric.close(net.provider, from),
        }
        None
    }

    /// None if there was no answer within [`NODE_REQUEST`], or will be none.
    fn handle_answer(
        &mut self,
        answered: CallId,
        answer: Option<Result<NodeReply, NodeWireError>>,
        net: &mut PagerFabric<'_>,
    ) -> Option<StoreEvent> {
        let index = self.nodes.iter().position(|node| match node {
            NodeState::Opening { call, .. } => *call == answered,
            NodeState::Up {
                growth: Growth::Asking { call, .. },
                ..
            } => *call == answered,
            _ => false,
        })?;
        let node = &mut self.nodes[index];
        match (&mut *node, answer) {
            (NodeState::Opening { connection, .. }, Some(Ok(NodeReply::Opened { .. }))) => {
                let connection = *connection;
                *node = NodeState::Up {
                    connection,
                    growth: Growth::None,
                    room: Room::UNKNOWN,
                };
                Some(StoreEvent::Opened)
            }
            (
                NodeState::Up { growth, room, .. },
                Some(Ok(NodeReply::ExtentAllocated {
                    extent,
                    remote_key,
                    address,
                    slots,
                })),
            ) => {
                *room = room.granted();
                let place = RemoteAddress {
                    key: legato_verbs::RemoteKey(remote_key),
                    address,
                };
                *growth = Growth::Preparing(Grant {
                    extent,
                    place,
                    slots,
                });
                self.prepare_on(NodeIndex(index as u32), net)
            }
            // What it holds it holds, whatever becomes of a request for more (P-10).
            (
                NodeState::Up { growth, room, .. },
                None
                | Some(Ok(NodeReply::NoRoom { .. } | NodeReply::Refused(NodeRefusal::OutOfMemory))),
            ) => {
                if let Growth::Asking { slots, .. } = *growth {
                    *room = room.refused(slots, net.now);
                }
                *growth = Growth::None;
                None
            }
            // An answer that makes no sense, or none to the first request: the node is of no use.
            (NodeState::Opening { connection, .. } | NodeState::Up { connection, .. }, _) => {
                let connection = *connection;
                net.fabric.close(net.provider, connection);
                None
            }
            (NodeState::Connecting { .. } | NodeState::Lost, _) => None,
        }
    }

    /// Uses the extents that were granted, as far as requests for them start at once.
    pub(crate) fn prepare_grants(&mut self, net: &mut PagerFabric<'_>) {
        for index in 0..self.nodes.len() {
            self.prepare_on(NodeIndex(index as u32), net);
        }
    }

    fn prepare_on(&mut self, node: NodeIndex, net: &mut PagerFabric<'_>) -> Option<StoreEvent> {
        let NodeState::Up {
            connection,
            growth,
            room,
        } = self.nodes.get_mut(node.0 as usize)?
        else {
            return None;
        };
        let &mut Growth::Preparing(grant) = growth else {
            return None;
        };
        // Where it is not connected any more its end is heard of.
        let prepared = net
            .fabric
            .prepare(net.provider, *connection, grant.place.key);
        match prepared.ok()? {
            Prepared::NotYet => None,
            Prepared::Yes => {
                *growth = Growth::None;
                self.lacks_mappings = false;
                self.extents
                    .add(node, grant.extent, grant.place, grant.slots);
                Some(StoreEvent::Grown)
            }
            Prepared::Refused => {
                *growth = Growth::None;
                self.lacks_mappings = true;
                *room = room.refused(grant.slots, net.now);
                self.give_back(node, grant.extent, net);
                None
            }
        }
    }

    fn lose(&mut self, from: ConnectionId, why: NodeEnd) -> Option<StoreEvent> {
        let index = self.nodes.iter().position(|node| match node {
            NodeState::Connecting { connection, .. }
            | NodeState::Opening { connection, .. }
            | NodeState::Up { connection, .. } => *connection == from,
            NodeState::Lost => false,
        })?;
        self.nodes[index] = NodeState::Lost;
        let node = NodeIndex(index as u32);
        self.extents.lose_node(node);
        Some(StoreEvent::Lost(node, why))
    }

    /// Asks for more extents while fewer than `keep_free` slots are free, and gives an empty one
    /// back when far more have been for a while.
    pub(crate) fn balance(&mut self, keep_free: u64, net: &mut PagerFabric<'_>) {
        for (node, extent) in core::mem::take(&mut self.returning) {
            self.give_back(node, extent, net);
        }
        self.note_late(net.now);
        if self.extents.free() < keep_free {
            self.ask(net);
        }
        let spare = self.extents.free().saturating_sub(keep_free * 2);
        if !self.spare.is_due(spare, net.now) {
            return;
        }
        match self.extents.take_spare(keep_free * 2) {
            Some(extent) => {
                self.give_back(extent.node, extent.id, net);
                if let Some(NodeState::Up { room, .. }) = self.nodes.get_mut(extent.node.0 as usize)
                {
                    *room = Room::UNKNOWN;
                }
                self.spare.gone(spare, net.now);
            }
            None => self.spare.kept(net.now),
        }
    }

    /// Asks the node with the fewest extents of this client that may have room, a full one last.
    fn ask(&mut self, net: &mut PagerFabric<'_>) {
        let nodes = self.nodes.iter_mut().enumerate();
        let candidates = nodes.filter_map(|(index, node)| match node {
            NodeState::Up {
                connection,
                growth: growth @ Growth::None,
                room,
            } => {
                let slots = room.to_ask(net.now)?;
                let here = self.extents.count_on(NodeIndex(index as u32));
                Some(((room.is_full(), here), *connection, growth, slots))
            }
            _ => None,
        });
        let Some((_, connection, growth, slots)) = candidates.min_by_key(|(rank, ..)| *rank) else {
            return;
        };
        let request = NodeRequest::AllocateExtent { slots }.to_bytes();
        let call = net
            .fabric
            .call(net.provider, connection, &request, Time::NEVER);
        if let Ok(call) = call {
            let late_from = net.now + NODE_REQUEST;
            *growth = Growth::Asking {
                call,
                slots,
                late_from,
            };
        }
    }

    /// A node that is alive and does not say whether it has room has none.
    fn note_late(&mut self, now: Time) {
        for node in &mut self.nodes {
            if let NodeState::Up {
                growth: Growth::Asking { late_from, .. },
                room,
                ..
            } = node
                && *late_from <= now
                && !room.is_full()
            {
                *room = Room::full_from(now);
            }
        }
    }

    fn give_back(&mut self, node: NodeIndex, extent: ExtentId, net: &mut PagerFabric<'_>) {
        let Some(NodeState::Up { connection, .. }) = self.nodes.get(node.0 as usize) else {
            return;
        };
        let request = NodeRequest::ReleaseExtent { extent }.to_bytes();
        let deadline = net.now + NODE_REQUEST;
        let called = net
            .fabric
            .call(net.provider, *connection, &request, deadline);
        if called == Err(Refused::WouldBlock) {
            self.returning.push((node, extent));
        }
    }
}
