//! The engine: who owns which extent, and how much room is left.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use legato_base::wire::node::{NodeRefusal, NodeReply, NodeRequest, NodeStatus, NodeWireError};
use legato_base::wire::slot::SLOT_STRIDE;
use legato_base::{Bytes, ClientId, ExtentId};
use legato_fabric::ConnectionId;
use legato_verbs::{AccessFlags, MemoryRegion, ProtectionDomain, Provider};

/// What a node offers.
#[derive(Clone, Copy, Debug)]
pub struct NodeConfig {
    /// Drawn at random when the node starts, so that clients see that its memory is empty.
    pub incarnation: u64,
    /// Slot headers included.
    pub capacity: Bytes,
}

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
    /// Allocations refused because the operating system gave no memory.
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

/// A memory node.
#[derive(Debug)]
pub struct MemoryNode {
    config: NodeConfig,
    clients: BTreeMap<ConnectionId, ClientId>,
    extents: BTreeMap<ExtentId, Extent>,
    next_extent: u64,
    /// Released and not yet given back.
    quarantine: Vec<Memory>,
    counters: NodeCounters,
}

#[derive(Debug)]
struct Extent {
    owner: ConnectionId,
    memory: Memory,
}

#[derive(Debug)]
struct Memory {
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

    pub fn status(&self) -> NodeStatus {
        NodeStatus {
            capacity_bytes: self.config.capacity.0,
            used_bytes: self.counters.used_bytes,
            clients: self.clients.len() as u32,
            extents: self.extents.len() as u32,
        }
    }

    /// Does what the request says and returns the reply. Extents are registered in `domain`,
    /// which must be the connection's.
    pub fn handle_request(
        &mut self,
        provider: &mut dyn Provider,
        domain: ProtectionDomain,
        connection: ConnectionId,
        body: &[u8],
    ) -> Vec<u8> {
        let reply = match NodeRequest::parse(body) {
            Ok(NodeRequest::Open { client }) => self.open(connection, client),
            Ok(NodeRequest::Status) => NodeReply::Status(self.status()),
            Ok(_) if !self.clients.contains_key(&connection) => {
                NodeReply::Refused(NodeRefusal::NotOpen)
            }
            Ok(NodeRequest::AllocateExtent { slots }) => {
                self.allocate_extent(provider, domain, connection, slots)
            }
            Ok(NodeRequest::ReleaseExtent { extent }) => {
                self.release_extent(provider, connection, extent)
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

    /// The connection is gone, and with it its queue pair: everything of its client is released.
    pub fn handle_disconnected(&mut self, provider: &mut dyn Provider, connection: ConnectionId) {
        if self.clients.remove(&connection).is_none() {
            return;
        }
        self.counters.clients_closed += 1;
        let owned: Vec<ExtentId> = self
            .extents
            .iter()
            .filter(|(_, extent)| extent.owner == connection)
            .map(|(&id, _)| id)
            .collect();
        for id in owned {
            self.release(provider, id);
        }
    }

    /// Gives all memory back, for a node that stops.
    pub fn clear(&mut self, provider: &mut dyn Provider) {
        while let Some((&connection, _)) = self.clients.first_key_value() {
            self.handle_disconnected(provider, connection);
        }
        self.retry_quarantine(provider);
    }

    fn open(&mut self, connection: ConnectionId, client: ClientId) -> NodeReply {
        match self.clients.get(&connection) {
            Some(&other) if other != client => NodeReply::Refused(NodeRefusal::AlreadyOpen),
            known => {
                if known.is_none() {
                    self.counters.clients_opened += 1;
                    self.clients.insert(connection, client);
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
        owner: ConnectionId,
        slots: u32,
    ) -> NodeReply {
        self.retry_quarantine(provider);
        let asked_bytes = u64::from(slots) * SLOT_STRIDE as u64;
        let free_bytes = self.free_bytes();
        if asked_bytes > free_bytes {
            self.counters.refused_no_room += 1;
            return NodeReply::NoRoom {
                asked_bytes,
                free_bytes,
            };
        }
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let Ok(region) = provider.allocate_region(domain, asked_bytes, access) else {
            self.counters.refused_no_memory += 1;
            return NodeReply::Refused(NodeRefusal::OutOfMemory);
        };
        let id = ExtentId(self.next_extent);
        self.next_extent += 1;
        self.counters.extents_allocated += 1;
        self.counters.used_bytes += asked_bytes;
        let memory = Memory {
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
        connection: ConnectionId,
        id: ExtentId,
    ) -> NodeReply {
        match self.extents.get(&id) {
            None => NodeReply::Refused(NodeRefusal::UnknownExtent),
            Some(extent) if extent.owner != connection => {
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
    /// other memory, so a late write of the old owner cannot reach it.
    fn release(&mut self, provider: &mut dyn Provider, id: ExtentId) {
        if let Some(extent) = self.extents.remove(&id) {
            self.counters.extents_released += 1;
            self.quarantine.push(extent.memory);
            self.retry_quarantine(provider);
        }
    }

    fn retry_quarantine(&mut self, provider: &mut dyn Provider) {
        let used = &mut self.counters.used_bytes;
        self.quarantine.retain(|memory| {
            let kept = provider.deregister_region(&memory.region).is_err();
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
