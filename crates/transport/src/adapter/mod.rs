//! A channel adapter (IB spec 3.3): the NIC of one machine with its objects, its queue pairs and
//! its connection manager, as the verbs see it.
//!
//! It has no clock, no memory and no network of its own: whoever runs one hands its
//! [`Surroundings`] to every call, tells it of packets ([`ChannelAdapter::receive`]), of alarms
//! that are due ([`ChannelAdapter::alarm`]) and of a link that has room again
//! ([`ChannelAdapter::link_free`]). The methods that are named as those of
//! [`legato_verbs::Provider`] do what is said there.

mod alarms;
mod completions;
mod connections;
mod endings;
mod host;
mod inspection;
mod manager;
mod objects;
mod paths;
mod policy;
mod posting;
mod queue_pair;
mod regions;
mod running;
mod surroundings;

pub use alarms::{Alarm, Alarms};
pub use completions::CompletionToCome;
pub use connections::Target;
pub use paths::PathState;
pub use policy::{
    Chance, Configuration, LastWorkRequestEvents, NumberOrder, OverrunEnds, OverrunEvents, Policy,
    VendorErrors,
};
pub use queue_pair::QUEUE_PAIR_NUMBERS;
pub use surroundings::{Flow, RegionNumber, Surroundings};

use crate::cm::{ConnectRequest, ConnectionId, ConnectionManager, Gid, ServiceId};
use crate::nic::{self, Handle, Keys, SharedReceiveQueues, Table};
use crate::{PacketSequenceNumber, QueuePairNumber};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use legato_base::{Random, Time};
use legato_verbs::{
    CompletionQueue, Event, Listener, LocalKey, ProtectionDomain, QueuePair, Subject, VerbsError,
};
use paths::Paths;
use queue_pair::{Numbers, QueuePairRecord};
use regions::RegionRecord;

/// The only port of an adapter.
pub const PORT: u8 = 1;

/// One machine's NIC.
#[derive(Debug)]
pub struct ChannelAdapter {
    configuration: Configuration,
    /// Why nothing but destroying works any more.
    gone: Option<VerbsError>,
    domains: Table<()>,
    queue_pairs: Table<QueuePairRecord>,
    numbers: Numbers,
    paths: Paths,
    by_number: BTreeMap<QueuePairNumber, QueuePair>,
    objects: Objects,
    manager: ConnectionManager,
    manager_timer: Time,
    connections: BTreeMap<ConnectionId, Owner>,
    listeners: Table<ServiceId>,
    requests: Table<Waiting>,
    /// Of the general service queue pair.
    datagrams: PacketSequenceNumber,
    /// Queue pairs that wait for the link, which is being watched for them.
    link_waiters: VecDeque<QueuePair>,
    link_watched: bool,
    sequences: Random,
    /// No packet, or nobody's, or from a stranger.
    packets_discarded: u64,
}

/// What a queue pair's host uses.
#[derive(Debug)]
struct Objects {
    policy: Policy,
    keys: Keys,
    regions: BTreeMap<LocalKey, RegionRecord>,
    /// Of the region that comes next.
    next_number: u64,
    next_address: u64,
    queues: Table<QueueRecord>,
    shared: SharedReceiveQueues,
    events: VecDeque<Event>,
    /// What is to be done when the engine has returned.
    deferred: Vec<Deferred>,
    /// By the upper bits of their keys, which they keep.
    windows: BTreeMap<u32, ProtectionDomain>,
}

#[derive(Debug)]
struct QueueRecord {
    queue: nic::CompletionQueue,
    ledger: bool,
    /// Queue pairs that complete here, once for each of their queues.
    attached: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deferred {
    /// A completion queue was lost.
    EndAttached(CompletionQueue),
    /// A receive completion was lost.
    EndReceiver(QueuePair),
    /// A packet came before the connection was established.
    DataArrived(QueuePair),
}

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    QueuePair(QueuePair),
    /// Its queue pair, which had this number, was destroyed.
    Nobody(QueuePairNumber),
}

/// A peer that waits for accept or reject.
#[derive(Debug)]
struct Waiting {
    listener: Listener,
    connection: ConnectionId,
    peer: Gid,
    /// That of the peer's IP address, in the request.
    source_port: u16,
    request: Box<ConnectRequest>,
}

const REGIONS_MAX: u32 = 1 << 22;
const SHARED_MAX: u32 = 1 << 12;
const QUEUE_PAIRS_MAX: u32 = 1 << 16;

impl ChannelAdapter {
    pub fn new(configuration: Configuration, chance: Chance) -> Self {
        let policy = configuration.policy;
        let manager = ConnectionManager::new(
            configuration.port,
            configuration.connection_management,
            chance.connection_management,
        );
        let objects = Objects {
            policy,
            keys: Keys::new(chance.keys, REGIONS_MAX),
            regions: BTreeMap::new(),
            next_number: 0,
            // Far from zero, so that an offset passed as an address is refused.
            next_address: 1 << 40,
            queues: Table::new(u32::MAX),
            shared: SharedReceiveQueues::new(SHARED_MAX),
            events: VecDeque::new(),
            deferred: Vec::new(),
            windows: BTreeMap::new(),
        };
        Self {
            configuration,
            gone: None,
            domains: Table::new(u32::MAX),
            queue_pairs: Table::new(QUEUE_PAIRS_MAX),
            numbers: Numbers::new(chance.numbers, policy.reuses_numbers),
            by_number: BTreeMap::new(),
            paths: Paths::default(),
            objects,
            manager,
            manager_timer: Time::NEVER,
            connections: BTreeMap::new(),
            listeners: Table::new(u32::MAX),
            requests: Table::new(u32::MAX),
            datagrams: PacketSequenceNumber::new(0),
            link_waiters: VecDeque::new(),
            link_watched: false,
            sequences: chance.sequences,
            packets_discarded: 0,
        }
    }

    fn record(&self, name: QueuePair) -> Option<&QueuePairRecord> {
        self.queue_pairs.get(handle(name))
    }

    fn record_mut(&mut self, name: QueuePair) -> Option<&mut QueuePairRecord> {
        self.queue_pairs.get_mut(handle(name))
    }

    /// The oldest event that its owner has not taken.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.objects.events.pop_front()
    }

    /// An event for the owner from outside: of a subnet manager, say, or one that was held back.
    pub fn deliver_event(&mut self, event: Event) {
        self.objects.events.push_back(event);
    }

    /// The same for one that may still be lost or repeated.
    pub fn raise_event(&mut self, surroundings: &mut impl Surroundings, event: Event) {
        self.objects.raise(surroundings, event);
    }
}

impl Objects {
    /// An event for the owner.
    fn raise(&mut self, surroundings: &mut impl Surroundings, event: Event) {
        let times = surroundings.event_raised(&event);
        for _ in 1..times {
            self.events.push_back(event.clone());
        }
        if times > 0 {
            self.events.push_back(event);
        }
    }

    /// Drops the asynchronous events of an object that is destroyed. Those of its connection stay.
    fn forget(&mut self, subject: Subject) {
        self.events
            .retain(|event| !matches!(event, Event::Async(event) if event.subject() == subject));
    }

    /// Completions that found no room in a queue.
    fn lost(&self, queue: CompletionQueue) -> u64 {
        let found = self.queues.get(queue_handle(queue));
        found.map_or(0, |record| record.queue.lost())
    }

    fn has_ledger(&self, queue: CompletionQueue) -> bool {
        let found = self.queues.get(queue_handle(queue));
        found.is_some_and(|record| record.ledger)
    }
}

const fn handle(name: QueuePair) -> Handle {
    Handle {
        index: name.index,
        generation: name.generation,
    }
}

const fn queue_handle(name: CompletionQueue) -> Handle {
    Handle {
        index: name.index,
        generation: name.generation,
    }
}
