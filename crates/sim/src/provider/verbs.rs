//! The verbs of one simulated machine.

use super::machine::{Machine, Queue, Reclaims, Region, remote_key_of};
use super::posting::limit;
use super::queue_pair::{Phase, QueuePairRecord};
use super::wire::{Inner, Place};
use legato_base::Time;
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionQueue, ConnectionRequest, DeviceAttributes, Event,
    Listener, LocalKey, MemoryRegion, PRIVATE_DATA_MAX, ProtectionDomain, Provider, QueuePair,
    QueuePairCapabilities, QueuePairState, ReceiveRequest, RejectReason, ResourceCounts,
    SendRequest, VerbsError,
};
use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;

/// One machine's handle on its NIC. It moves no time: its network does.
#[derive(Debug)]
pub struct SimProvider {
    network: Rc<RefCell<Inner>>,
    machine: usize,
}

const QUEUE_PAIRS_MAX: u32 = 1 << 16;
const QUEUE_ENTRIES_MAX: u32 = 1 << 20;
const QUEUE_PAIR_REQUESTS_MAX: u32 = 1 << 14;
const ENTRIES_MAX: u32 = 64;
/// Bytes that a machine can register.
const REGION_LENGTH_MAX: u64 = 1 << 36;
/// Regions start at multiples of this, with at least as much unused between them, so that running
/// off a region never reaches another.
const REGION_ALIGNMENT: u64 = 1 << 16;

impl SimProvider {
    pub(super) const fn new(network: Rc<RefCell<Inner>>, machine: usize) -> Self {
        Self { network, machine }
    }

    /// The bytes of a region, shared with the NIC: what a program does to registered memory
    /// without asking anybody. Do not hold a borrow while the network advances. `None` if the
    /// region is gone.
    pub fn region_memory(&self, region: &MemoryRegion) -> Option<Rc<RefCell<Vec<u8>>>> {
        let network = self.network.borrow();
        let found = network.machines[self.machine]
            .regions
            .get(&region.local_key.0)?;
        Some(Rc::clone(&found.memory))
    }

    /// True if an event or a completion waits to be polled.
    pub fn has_work(&self) -> bool {
        let network = self.network.borrow();
        let machine = &network.machines[self.machine];
        !machine.events.is_empty() || machine.queues.iter().any(|queue| !queue.entries.is_empty())
    }

    fn here(&self) -> RefMut<'_, Machine> {
        RefMut::map(self.network.borrow_mut(), |network| {
            &mut network.machines[self.machine]
        })
    }

    const fn place(&self, queue_pair: QueuePair) -> Place {
        Place {
            machine: self.machine,
            queue_pair,
        }
    }

    fn phase(&self, queue_pair: QueuePair) -> Result<Phase, VerbsError> {
        let network = self.network.borrow();
        let record = network.machines[self.machine].queue_pair(queue_pair);
        record.map(|record| record.phase).ok_or(NO_QUEUE_PAIR)
    }

    /// A queue pair in Init that is not connecting, and private data that fits.
    fn may_connect(&self, queue_pair: QueuePair, private_data: &[u8]) -> Result<(), VerbsError> {
        let network = self.network.borrow();
        let record = network.machines[self.machine].queue_pair(queue_pair);
        let record = record.ok_or(NO_QUEUE_PAIR)?;
        if record.phase != Phase::Init {
            return Err(VerbsError::InvalidState(record.state()));
        }
        private_data_fits(private_data)
    }
}

pub(super) const NO_QUEUE_PAIR: VerbsError = VerbsError::UnknownHandle("queue pair");
/// Calls on the NIC of a killed machine fail as they would after a surprise removal (ENODEV).
const KILLED: VerbsError = VerbsError::System {
    call: "a killed machine's NIC",
    errno: 19,
};

fn private_data_fits(private_data: &[u8]) -> Result<(), VerbsError> {
    let (asked, allowed) = (private_data.len() as u64, PRIVATE_DATA_MAX as u64);
    limit("private data", asked, allowed)
}

impl Provider for SimProvider {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            name: "sim",
            queue_pairs_max: QUEUE_PAIRS_MAX,
            completion_queue_entries_max: QUEUE_ENTRIES_MAX,
            queue_pair_requests_max: QUEUE_PAIR_REQUESTS_MAX,
            entries_max: ENTRIES_MAX,
            message_length_max: self.network.borrow().config.message_length_max,
        }
    }

    fn resource_counts(&self) -> ResourceCounts {
        let machine = self.here();
        let connecting =
            |record: &&QueuePairRecord| matches!(record.phase, Phase::Connecting { .. });
        ResourceCounts {
            protection_domains: machine.domains.len(),
            memory_regions: machine.regions.len(),
            completion_queues: machine.queues.len(),
            queue_pairs: machine.queue_pairs.len(),
            listeners: machine.listeners.len(),
            connection_state: machine.requests.len()
                + machine.queue_pairs.iter().filter(connecting).count(),
        }
    }

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        let mut machine = self.here();
        if !machine.alive {
            return Err(KILLED);
        }
        let (index, generation) = machine.domains.insert(|_, _| ());
        Ok(ProtectionDomain { index, generation })
    }

    fn destroy_protection_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        let mut machine = self.here();
        let used = machine
            .regions
            .values()
            .any(|region| region.domain == domain)
            || machine
                .queue_pairs
                .iter()
                .any(|record| record.domain == domain);
        if used {
            return Err(VerbsError::Busy("protection domain"));
        }
        let removed = machine.domains.remove(domain.index, domain.generation);
        removed.ok_or(VerbsError::UnknownHandle("protection domain"))
    }

    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        limit("length of a region", length, REGION_LENGTH_MAX)?;
        let mut machine = self.here();
        if machine
            .domains
            .get(domain.index, domain.generation)
            .is_none()
        {
            return Err(VerbsError::UnknownHandle("protection domain"));
        }
        let limit_reached = VerbsError::LimitExceeded {
            what: "keys ever issued",
            asked: u64::from(u32::MAX) + 1,
            limit: u64::from(u32::MAX),
        };
        let local_key = LocalKey(machine.issue_key().ok_or(limit_reached)?);
        let handle = MemoryRegion {
            local_key,
            remote_key: remote_key_of(local_key),
            address: machine.next_address,
            length,
        };
        machine.next_address += length.next_multiple_of(REGION_ALIGNMENT) + REGION_ALIGNMENT;
        let region = Region {
            handle,
            domain,
            access,
            memory: Rc::new(RefCell::new(vec![0; length as usize])),
        };
        machine.regions.insert(local_key.0, region);
        Ok(handle)
    }

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        let mut machine = self.here();
        if !machine.regions.contains_key(&region.local_key.0) {
            return Err(VerbsError::UnknownHandle("region"));
        }
        if machine.is_posted(region.local_key.0) {
            return Err(VerbsError::Busy("region"));
        }
        machine.regions.remove(&region.local_key.0);
        Ok(())
    }

    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        let memory = self.region_memory(region);
        let memory = memory.ok_or(VerbsError::UnknownHandle("region"))?;
        let range = range_of(region, offset, into.len())?;
        into.copy_from_slice(&memory.borrow()[range]);
        Ok(())
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        let memory = self.region_memory(region);
        let memory = memory.ok_or(VerbsError::UnknownHandle("region"))?;
        let range = range_of(region, offset, from.len())?;
        memory.borrow_mut()[range].copy_from_slice(from);
        Ok(())
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        let (asked, allowed) = (u64::from(entries), u64::from(QUEUE_ENTRIES_MAX));
        limit("entries of a completion queue", asked, allowed)?;
        let mut machine = self.here();
        if !machine.alive {
            return Err(KILLED);
        }
        let queue = Queue {
            capacity: entries,
            reserved: 0,
            entries: VecDeque::new(),
        };
        let (index, generation) = machine.queues.insert(|_, _| queue);
        Ok(CompletionQueue { index, generation })
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        let mut machine = self.here();
        if machine
            .queue_pairs
            .iter()
            .any(|record| record.queue == queue)
        {
            return Err(VerbsError::Busy("completion queue"));
        }
        let removed = machine.queues.remove(queue.index, queue.generation);
        let removed = removed.ok_or(VerbsError::UnknownHandle("completion queue"))?;
        debug_assert!(
            removed.entries.is_empty(),
            "destroyed queue pairs left completions"
        );
        Ok(())
    }

    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        let mut machine = self.here();
        let machine = &mut *machine;
        let found = machine.queues.get_mut(queue.index, queue.generation);
        let found = found.ok_or(VerbsError::UnknownHandle("completion queue"))?;
        let count = found.entries.len().min(max);
        for entry in found.entries.drain(..count) {
            into.push(entry.completion);
            let queue_pair = entry.completion.queue_pair;
            let owner = machine
                .queue_pairs
                .get_mut(queue_pair.index, queue_pair.generation);
            match (owner, entry.reclaims) {
                (Some(record), Reclaims::SendsUpTo(sent)) => record.sends_reclaimed = sent,
                (Some(record), Reclaims::OneReceive) => record.receives_reclaimed += 1,
                (None, _) => {}
            }
        }
        Ok(count)
    }

    fn create_queue_pair(
        &mut self,
        domain: ProtectionDomain,
        queue: CompletionQueue,
        capabilities: QueuePairCapabilities,
    ) -> Result<QueuePair, VerbsError> {
        let requests_max = u64::from(QUEUE_PAIR_REQUESTS_MAX);
        limit(
            "send requests",
            u64::from(capabilities.send_requests_max),
            requests_max,
        )?;
        limit(
            "receive requests",
            u64::from(capabilities.receive_requests_max),
            requests_max,
        )?;
        limit(
            "entries",
            u64::from(capabilities.entries_max),
            u64::from(ENTRIES_MAX),
        )?;
        let mut machine = self.here();
        let queue_pairs = machine.queue_pairs.len() as u64 + 1;
        limit("queue pairs", queue_pairs, u64::from(QUEUE_PAIRS_MAX))?;
        if machine
            .domains
            .get(domain.index, domain.generation)
            .is_none()
        {
            return Err(VerbsError::UnknownHandle("protection domain"));
        }
        let ledger = machine.queues.get_mut(queue.index, queue.generation);
        let ledger = ledger.ok_or(VerbsError::UnknownHandle("completion queue"))?;
        let record = QueuePairRecord::new(domain, queue, capabilities);
        let needed = record.completions_max();
        let free = ledger.capacity - ledger.reserved;
        if needed > free {
            return Err(VerbsError::CompletionQueueTooSmall { needed, free });
        }
        ledger.reserved += needed;
        let (index, generation) = machine.queue_pairs.insert(|_, _| record);
        Ok(QueuePair { index, generation })
    }

    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        let network = self.network.borrow();
        let record = network.machines[self.machine].queue_pair(queue_pair);
        record.map(QueuePairRecord::state).ok_or(NO_QUEUE_PAIR)
    }

    fn modify_to_init(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let mut machine = self.here();
        let record = machine.queue_pair_mut(queue_pair).ok_or(NO_QUEUE_PAIR)?;
        if record.phase != Phase::Reset {
            return Err(VerbsError::InvalidState(record.state()));
        }
        record.phase = Phase::Init;
        Ok(())
    }

    fn modify_to_error(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        match self.phase(queue_pair)? {
            Phase::Reset => return Err(VerbsError::InvalidState(QueuePairState::Reset)),
            Phase::Error { .. } => {}
            _ => {
                let place = self.place(queue_pair);
                self.network.borrow_mut().end_connection(place);
            }
        }
        Ok(())
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        self.phase(queue_pair)?;
        let place = self.place(queue_pair);
        self.network.borrow_mut().end_connection(place);
        let mut machine = self.here();
        let removed = machine
            .queue_pairs
            .remove(queue_pair.index, queue_pair.generation);
        let record = removed.ok_or(NO_QUEUE_PAIR)?;
        let queue = machine
            .queues
            .get_mut(record.queue.index, record.queue.generation);
        if let Some(queue) = queue {
            queue.reserved -= record.completions_max();
            queue
                .entries
                .retain(|entry| entry.completion.queue_pair != queue_pair);
        }
        Ok(())
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        let place = self.place(queue_pair);
        self.network.borrow_mut().post_send(place, request)
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        let place = self.place(queue_pair);
        self.network.borrow_mut().post_receive(place, request)
    }

    fn listen(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        let Address::Sim(name) = address else {
            return Err(VerbsError::UnsupportedAddress);
        };
        let mut network = self.network.borrow_mut();
        if !network.machines[self.machine].alive {
            return Err(KILLED);
        }
        let used = network.machine_at(name).is_some_and(|owner| {
            network.machines[owner]
                .listeners
                .iter()
                .any(|listened| listened == name)
        });
        if used {
            return Err(VerbsError::AddressInUse);
        }
        let machine_name = network.machines[self.machine].name.clone();
        network.addresses.insert(name.clone(), machine_name);
        let listeners = &mut network.machines[self.machine].listeners;
        let (index, generation) = listeners.insert(|_, _| name.clone());
        Ok(Listener { index, generation })
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        let mut network = self.network.borrow_mut();
        let machine = &mut network.machines[self.machine];
        let removed = machine
            .listeners
            .remove(listener.index, listener.generation);
        removed.ok_or(VerbsError::UnknownHandle("listener"))?;
        let mut peers = Vec::new();
        for ((index, generation), waiting) in machine.requests.entries() {
            if waiting.listener == listener {
                peers.push((index, generation, waiting.peer));
            }
        }
        for (index, generation, peer) in peers {
            network.machines[self.machine]
                .requests
                .remove(index, generation);
            network.send_rejection(self.machine, peer, RejectReason::ConsumerReject, &[]);
        }
        Ok(())
    }

    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let Address::Sim(name) = address else {
            return Err(VerbsError::UnsupportedAddress);
        };
        self.may_connect(queue_pair, private_data)?;
        let place = self.place(queue_pair);
        let mut network = self.network.borrow_mut();
        network.start_connecting(place, name, private_data);
        Ok(())
    }

    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let waiting = self
            .here()
            .requests
            .get(request.index, request.generation)
            .is_some();
        if !waiting {
            return Err(VerbsError::UnknownHandle("connection request"));
        }
        self.may_connect(queue_pair, private_data)?;
        let removed = self
            .here()
            .requests
            .remove(request.index, request.generation);
        let waiting = removed.ok_or(VerbsError::UnknownHandle("connection request"))?;
        let place = self.place(queue_pair);
        let mut network = self.network.borrow_mut();
        network.start_accepting(place, waiting.peer, private_data);
        Ok(())
    }

    fn reject(
        &mut self,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        private_data_fits(private_data)?;
        let removed = self
            .here()
            .requests
            .remove(request.index, request.generation);
        let waiting = removed.ok_or(VerbsError::UnknownHandle("connection request"))?;
        let reason = RejectReason::ConsumerReject;
        let mut network = self.network.borrow_mut();
        network.send_rejection(self.machine, waiting.peer, reason, private_data);
        Ok(())
    }

    fn disconnect(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let phase = self.phase(queue_pair)?;
        if !matches!(
            phase,
            Phase::ReadyToReceive { .. } | Phase::ReadyToSend { .. }
        ) {
            let state = self.query_queue_pair(queue_pair)?;
            return Err(VerbsError::InvalidState(state));
        }
        let place = self.place(queue_pair);
        self.network.borrow_mut().end_connection(place);
        Ok(())
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.here().events.pop_front()
    }

    /// The wire is driven by [`super::SimNetwork::advance_to`], for all machines at once.
    fn progress(&mut self, _now: Time) -> Time {
        Time::NEVER
    }

    /// Waking costs nothing here: only whether there is something to do matters.
    fn set_sleeping(&mut self, _sleeping: bool) -> bool {
        !self.has_work()
    }
}

fn range_of(
    region: &MemoryRegion,
    offset: u64,
    length: usize,
) -> Result<core::ops::Range<usize>, VerbsError> {
    let end = offset.checked_add(length as u64);
    match end {
        Some(end) if end <= region.length => Ok(offset as usize..end as usize),
        _ => Err(VerbsError::LocalProtection),
    }
}
