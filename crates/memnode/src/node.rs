//! The engine: who owns which extent, and how much room is left.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use legato_base::wire::node::{
    NodeHealth, NodeRefusal, NodeReply, NodeRequest, NodeStatus, NodeWireError,
};
use legato_base::wire::slot::SLOT_STRIDE;
use legato_base::{Bytes, ClientId, ExtentId};
use legato_fabric::{ConnectionId, FabricCounters};
use legato_verbs::{AccessFlags, MemoryRegion, ProtectionDomain, Provider};

/// What a node offers.
#[derive(Clone, Copy, Debug)]
pub struct NodeConfig {
    /// Drawn at random when the node starts, so that clients see that its memory is empty.
    pub incarnation: u64,
    /// Slot headers included.
    pub capacity: Bytes,
    /// What new work of this process can use of the machine's memory. It is asked before each extent.
    pub available: fn() -> Bytes,
}

/// No extent takes the last of it: a system without memory ends processes, and with this one all pages
/// that are here.
pub const LEFT_AVAILABLE: Bytes = Bytes::mib(32);

/// Counts since the node was made. When all clients have gone, what was allocated is what was
/// released, and `used_bytes` is the memory that the provider has not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NodeCounters {
    pub clients_opened: u64,
    pub clients_closed: u64,
    pub extents_allocated: u64,
    /// By their owner, or with its connection.
    pub extents_released: u64,
    /// Allocations refused because the node is full.
    pub refused_no_room: u64,
    /// Allocations refused because the machine has too little memory left, or gave none.
    pub refused_no_memory: u64,
    /// Releases of what belongs to another client.
    pub refused_not_yours: u64,
    pub requests_malformed: u64,
    /// Now: extents, and memory that could not be given back yet.
    pub used_bytes: u64,
    /// Now: regions that the provider would not take back. They are tried again, count as used,
    /// and are never given to anybody.
    pub regions_quarantined: u64,
}

/// One of a node's network interfaces: each has a provider and a fabric of its own. From 0.
pub type Interface = u8;

/// Whom a request is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Caller {
    pub interface: Interface,
    pub connection: ConnectionId,
}

/// A memory node, on any number of interfaces. A client is one of a connection, and its extents are
/// reached through that connection's interface.
#[derive(Debug)]
pub struct MemoryNode {
    config: NodeConfig,
    clients: BTreeMap<Caller, ClientId>,
    extents: BTreeMap<ExtentId, Extent>,
    next_extent: u64,
    /// Released and not yet given back.
    quarantine: Vec<Memory>,
    counters: NodeCounters,
    /// What the fabric of each interface has last said.
    fabrics: BTreeMap<Interface, NodeHealth>,
}

#[derive(Debug)]
struct Extent {
    owner: Caller,
    memory: Memory,
}

#[derive(Debug)]
struct Memory {
    interface: Interface,
    region: MemoryRegion,
    /// What was accounted for it.
    bytes: u64,
}

impl MemoryNode {
    pub const fn new(config: NodeConfig) -> Self {
        Self {
            config,
            clients: BTreeMap::new(),
            extents: BTreeMap::new(),
            next_extent: 1,
            quarantine: Vec::new(),
            fabrics: BTreeMap::new(),
            counters: NodeCounters {
                clients_opened: 0,
                clients_closed: 0,
                extents_allocated: 0,
                extents_released: 0,
                refused_no_room: 0,
                refused_no_memory: 0,
                refused_not_yours: 0,
                requests_malformed: 0,
                used_bytes: 0,
                regions_quarantined: 0,
            },
        }
    }

    pub const fn counters(&self) -> &NodeCounters {
        &self.counters
    }

    /// Offers so much from now on. What has been granted stays, also where that is more.
    pub const fn set_capacity(&mut self, capacity: Bytes) {
        self.config.capacity = capacity;
    }

    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            capacity_bytes: self.config.capacity.0,
            used_bytes: self.counters.used_bytes,
            clients: self.clients.len() as u32,
            extents: self.extents.len() as u32,
        }
    }

    /// Takes note of what the fabric of an interface has counted.
    pub fn note_fabric(&mut self, interface: Interface, fabric: &FabricCounters) {
        let health = NodeHealth {
            connections_reset: fabric.connections_reset,
            peers_refused: fabric.peers_rejected + fabric.proofs_missing + fabric.proofs_wrong,
            handlers_overdue: fabric.handlers_overdue,
            regions_quarantined: 0,
            peers_suspected: u32::try_from(fabric.peers_suspected).unwrap_or(u32::MAX),
        };
        self.fabrics.insert(interface, health);
    }

    /// Of all interfaces.
    fn health(&self) -> NodeHealth {
        let quarantined = NodeHealth {
            regions_quarantined: self.quarantine.len() as u32,
            ..NodeHealth::default()
        };
        let fabrics = self.fabrics.values();
        fabrics.fold(quarantined, |sum, one| NodeHealth {
            connections_reset: sum.connections_reset + one.connections_reset,
            peers_refused: sum.peers_refused + one.peers_refused,
            handlers_overdue: sum.handlers_overdue + one.handlers_overdue,
            peers_suspected: sum.peers_suspected.saturating_add(one.peers_suspected),
            ..sum
        })
    }

    /// Who has opened the connection.
    pub(crate) fn client_of(&self, caller: Caller) -> Option<ClientId> {
        self.clients.get(&caller).copied()
    }

    /// Does what the request says and returns the reply. Extents are registered in `domain`,
    /// which must be the connection's; the provider is that of its interface.
    pub fn handle_request(
        &mut self,
        provider: &mut dyn Provider,
        domain: ProtectionDomain,
        caller: Caller,
        body: &[u8],
    ) -> Vec<u8> {
        let reply = match NodeRequest::parse(body) {
            Ok(NodeRequest::Open { client }) => self.open(caller, client),
            Ok(NodeRequest::Status) => NodeReply::Status(self.status()),
            Ok(NodeRequest::Health) => NodeReply::Health(self.health()),
            Ok(_) if !self.clients.contains_key(&caller) => {
                // P-9: before Open there are Status and Health.
                NodeReply::Refused(NodeRefusal::NotOpen)
            }
            Ok(NodeRequest::AllocateExtent { slots }) => {
                self.allocate_extent(provider, domain, caller, slots)
            }
            Ok(NodeRequest::ReleaseExtent { extent }) => {
                self.release_extent(provider, caller, extent)
            }
            Err(error) => {
                self.counters.requests_malformed += 1;
                NodeReply::Refused(match error {
                    NodeWireError::Malformed => NodeRefusal::Malformed,
                    NodeWireError::Version(_) => NodeRefusal::VersionMismatch,
                })
            }
        };
        reply.to_bytes()
    }

    /// The connection is gone, and with it its queue pair: everything of its client is released (P-11).
    pub fn handle_disconnected(&mut self, provider: &mut dyn Provider, caller: Caller) {
        if self.clients.remove(&caller).is_none() {
            return;
        }
        self.counters.clients_closed += 1;
        let owned: Vec<ExtentId> = self
            .extents
            .iter()
            .filter(|(_, extent)| extent.owner == caller)
            .map(|(&id, _)| id)
            .collect();
        for id in owned {
            self.release(provider, id);
        }
    }

    /// Gives all memory of an interface back, when the node stops.
    pub fn clear(&mut self, provider: &mut dyn Provider, interface: Interface) {
        let callers = self.clients.keys().copied();
        let here: Vec<Caller> = callers.filter(|it| it.interface == interface).collect();
        for caller in here {
            self.handle_disconnected(provider, caller);
        }
        self.retry_quarantine(provider, interface);
    }

    fn open(&mut self, caller: Caller, client: ClientId) -> NodeReply {
        match self.clients.get(&caller) {
            Some(&other) if other != client => NodeReply::Refused(NodeRefusal::AlreadyOpen),
            known => {
                if known.is_none() {
                    self.counters.clients_opened += 1;
                    self.clients.insert(caller, client);
                }
                NodeReply::Opened {
                    incarnation: self.config.incarnation,
                    capacity_bytes: self.config.capacity.0,
                    free_bytes: self.free_bytes(),
                }
            }
        }
    }

    fn allocate_extent(
        &mut self,
        provider: &mut dyn Provider,
        domain: ProtectionDomain,
        owner: Caller,
        slots: u32,
    ) -> NodeReply {
        self.retry_quarantine(provider, owner.interface);
        let asked_bytes = u64::from(slots) * SLOT_STRIDE as u64;
        let free_bytes = self.free_bytes();
        // P-10: headers included.
        if asked_bytes > free_bytes {
            self.counters.refused_no_room += 1;
            return NodeReply::NoRoom {
                asked_bytes,
                free_bytes,
            };
        }
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let region = match (self.config.available)() {
            available if available.0 < asked_bytes + LEFT_AVAILABLE.0 => None,
            _ => provider.allocate_region(domain, asked_bytes, access).ok(),
        };
        let Some(region) = region else {
            self.counters.refused_no_memory += 1;
            return NodeReply::Refused(NodeRefusal::OutOfMemory);
        };
        let id = ExtentId(self.next_extent);
        self.next_extent += 1;
        self.counters.extents_allocated += 1;
        self.counters.used_bytes += asked_bytes;
        let memory = Memory {
            interface: owner.interface,
            region,
            bytes: asked_bytes,
        };
        self.extents.insert(id, Extent { owner, memory });
        NodeReply::ExtentAllocated {
            extent: id,
            remote_key: region.remote_key.0,
            address: region.address,
            slots,
        }
    }

    fn release_extent(
        &mut self,
        provider: &mut dyn Provider,
        caller: Caller,
        id: ExtentId,
    ) -> NodeReply {
        match self.extents.get(&id) {
            None => NodeReply::Refused(NodeRefusal::UnknownExtent),
            // P-11: nobody else releases it.
            Some(extent) if extent.owner != caller => {
                self.counters.refused_not_yours += 1;
                NodeReply::NotYours
            }
            Some(_) => {
                self.release(provider, id);
                NodeReply::Released
            }
        }
    }

    /// The memory goes back to the provider and its keys die with it; the next extent is made of
    /// other memory, so a late write of the old owner cannot reach it (P-12).
    fn release(&mut self, provider: &mut dyn Provider, id: ExtentId) {
        if let Some(extent) = self.extents.remove(&id) {
            self.counters.extents_released += 1;
            let interface = extent.memory.interface;
            self.quarantine.push(extent.memory);
            self.retry_quarantine(provider, interface);
        }
    }

    /// What the provider will not take back counts as used (P-12).
    fn retry_quarantine(&mut self, provider: &mut dyn Provider, interface: Interface) {
        let used = &mut self.counters.used_bytes;
        self.quarantine.retain(|memory| {
            let kept = memory.interface != interface
                || provider.deregister_region(&memory.region).is_err();
            if !kept {
                *used -= memory.bytes;
            }
            kept
        });
        self.counters.regions_quarantined = self.quarantine.len() as u64;
    }

    const fn free_bytes(&self) -> u64 {
        self.config
            .capacity
            .0
            .saturating_sub(self.counters.used_bytes)
    }
}
