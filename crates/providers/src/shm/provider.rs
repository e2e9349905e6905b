//! The verbs.

use super::completion::{COMPLETION_QUEUE_ENTRIES_MAX, Queue, unknown};
use super::connect::{Connecting, private_data};
use super::create::{
    ENTRIES_MAX, QUEUE_PAIR_REQUESTS_MAX, QUEUE_PAIRS_MAX, SHARED_RECEIVE_QUEUES_MAX,
};
use super::ending::Failure;
use super::hub::Hub;
use super::listen::Inbound;
use super::modify::PORT;
use super::posting::INLINE_LENGTH_MAX;
use super::queue_pair::{Pair, Phase};
use super::segment::MESSAGE_LENGTH_MAX;
use super::shared_receive::SharedQueue;
use super::wire;
use super::{DomainUsers, ShmProvider};
use crate::memory;
use alloc::boxed::Box;
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    AccessFlags, Address, AddressVector, Arm, Completion, CompletionQueue, ConnectionRequest,
    DeviceAttributes, Event, Listener, MemoryRegion, Prepared, ProtectionDomain, Provider,
    QueuePair, QueuePairAttributes, QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest,
    RemoteKey, ResourceCounts, SendRequest, SharedReceiveQueue, SharedReceiveQueueCapabilities,
    VerbsError,
};

impl ShmProvider {
    /// A queue pair, and what all share.
    fn pair(&mut self, queue_pair: QueuePair) -> Result<(&mut Pair, &mut Hub), VerbsError> {
        let pair = self.queue_pairs.get_mut(queue_pair);
        let pair = pair.ok_or_else(|| unknown(queue_pair))?;
        Ok((pair, &mut self.hub))
    }

    /// When the first of those that do not answer is late.
    fn deadline(&self) -> Time {
        let pairs = self.queue_pairs.iter().map(Pair::deadline);
        let strangers = self.inbound.iter().map(Inbound::deadline);
        pairs.chain(strangers).min().unwrap_or(Time::NEVER)
    }
}

impl Provider for ShmProvider {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            name: "shm",
            queue_pairs_max: QUEUE_PAIRS_MAX,
            completion_queue_entries_max: COMPLETION_QUEUE_ENTRIES_MAX,
            queue_pair_requests_max: QUEUE_PAIR_REQUESTS_MAX,
            entries_max: ENTRIES_MAX,
            message_length_max: MESSAGE_LENGTH_MAX,
            inline_length_max: INLINE_LENGTH_MAX,
            shared_receive_queues_max: SHARED_RECEIVE_QUEUES_MAX,
            memory_windows_max: 0,
        }
    }

    fn resource_counts(&self) -> ResourceCounts {
        let connections: usize = self.queue_pairs.iter().map(Pair::count).sum();
        let own = self
            .queue_pairs
            .iter()
            .map(|pair| pair.receives.own().count());
        let shared = self.hub.shared.iter().map(SharedQueue::posted);
        let entries = self
            .hub
            .queues
            .iter()
            .map(|queue| queue.reserved() as usize);
        ResourceCounts {
            protection_domains: self.domains.len(),
            memory_regions: self.hub.regions.len(),
            registered_bytes: self.hub.regions.bytes(),
            memory_windows: 0,
            shared_receive_queues: self.hub.shared.len(),
            posted_receives: own.sum::<usize>() + shared.sum::<usize>(),
            completion_queues: self.hub.queues.len(),
            completion_entries: entries.sum(),
            queue_pairs: self.queue_pairs.len(),
            listeners: self.listeners.len(),
            connection_state: self.inbound.len() + connections,
        }
    }

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        Ok(self.domains.insert(DomainUsers::default()))
    }

    fn destroy_protection_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        let users = self.domains.get(domain).ok_or_else(|| unknown(domain))?;
        if users.regions > 0 || users.queue_pairs > 0 || users.shared_receive_queues > 0 {
            return Err(VerbsError::Busy("protection domain"));
        }
        self.domains.remove(domain);
        Ok(())
    }

    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let users = self.domains.get_mut(domain);
        let users = users.ok_or_else(|| unknown(domain))?;
        let region = self
            .hub
            .regions
            .allocate(domain, &mut users.arena, length, access)?;
        users.regions += 1;
        Ok(region)
    }

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        let domain = self.hub.regions.remove(region.local_key)?;
        if let Some(users) = self.domains.get_mut(domain) {
            users.regions -= 1;
        }
        for pair in self.queue_pairs.iter_mut() {
            pair.revoke(&mut self.hub, region.remote_key.0);
        }
        Ok(())
    }

    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        let length = into.len();
        let from = self
            .hub
            .regions
            .locate_owned(region, offset, length as u64)?;
        // SAFETY: `from` has `length` bytes in a registered region, to which nobody holds a
        // reference; so the slice is elsewhere.
        unsafe { memory::copy(from, into.as_mut_ptr(), length) };
        Ok(())
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        let length = from.len();
        let to = self
            .hub
            .regions
            .locate_owned(region, offset, length as u64)?;
        // SAFETY: `to` has `length` bytes in a registered region, to which nobody holds a
        // reference; so the slice is elsewhere. The owner may always write what it allocated.
        unsafe { memory::copy(from.as_ptr(), to, length) };
        Ok(())
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        Ok(self.hub.queues.insert(Queue::new(entries)?))
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        let found = self.hub.queues.get(queue).ok_or_else(|| unknown(queue))?;
        if found.users > 0 {
            return Err(VerbsError::Busy("completion queue"));
        }
        self.hub.queues.remove(queue);
        Ok(())
    }

    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        let found = self.hub.queues.get_mut(queue);
        let found = found.ok_or_else(|| unknown(queue))?;
        let count = max.min(found.entries.len());
        for entry in found.entries.drain(..count) {
            if let Some(pair) = self.queue_pairs.get_mut(entry.completion.queue_pair) {
                pair.release_slots(entry.work_queue, entry.slots);
            }
            into.push(entry.completion);
        }
        Ok(count)
    }

    fn arm_completion_queue(
        &mut self,
        queue: CompletionQueue,
        arm: Arm,
    ) -> Result<bool, VerbsError> {
        let found = self.hub.queues.get_mut(queue);
        Ok(found.ok_or_else(|| unknown(queue))?.arm(arm))
    }

    fn create_shared_receive_queue(
        &mut self,
        domain: ProtectionDomain,
        capabilities: SharedReceiveQueueCapabilities,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        self.add_shared_queue(domain, capabilities)
    }

    fn destroy_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
    ) -> Result<(), VerbsError> {
        self.remove_shared_queue(queue)
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueue,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        let found = self.hub.shared.get_mut(queue);
        let found = found.ok_or_else(|| unknown(queue))?;
        found.post(&mut self.hub.regions, request)
    }

    fn arm_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
        limit: u32,
    ) -> Result<(), VerbsError> {
        self.hub.shared_queue(queue)?.arm(limit)
    }

    fn query_shared_receive_queue(&self, queue: SharedReceiveQueue) -> Result<u32, VerbsError> {
        let found = self.hub.shared.get(queue);
        Ok(found.ok_or_else(|| unknown(queue))?.limit())
    }

    fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        self.add_queue_pair(init)
    }

    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        let pair = self.queue_pairs.get(queue_pair);
        Ok(pair.ok_or_else(|| unknown(queue_pair))?.state)
    }

    fn query_attributes(&self, queue_pair: QueuePair) -> Result<QueuePairAttributes, VerbsError> {
        let pair = self.queue_pairs.get(queue_pair);
        Ok(pair.ok_or_else(|| unknown(queue_pair))?.attributes)
    }

    fn queue_pair_number(&self, queue_pair: QueuePair) -> Result<QueuePairNumber, VerbsError> {
        let pair = self.queue_pairs.get(queue_pair);
        let handle = pair.ok_or_else(|| unknown(queue_pair))?.handle;
        Ok(wire::number(handle.index, handle.generation))
    }

    fn port_address(&self) -> AddressVector {
        PORT
    }

    fn modify_queue_pair(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        let (pair, hub) = self.pair(queue_pair)?;
        pair.modify(hub, to, attributes)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let pair = self.queue_pairs.remove(queue_pair);
        let pair = pair.ok_or_else(|| unknown(queue_pair))?;
        if let Some(users) = self.domains.get_mut(pair.init.domain) {
            users.queue_pairs -= 1;
        }
        pair.destroy(&mut self.hub);
        Ok(())
    }

    fn prepare_remote(
        &mut self,
        queue_pair: QueuePair,
        key: RemoteKey,
    ) -> Result<Prepared, VerbsError> {
        let (pair, hub) = self.pair(queue_pair)?;
        pair.prepare(hub, key.0)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        let (pair, hub) = self.pair(queue_pair)?;
        pair.post_send(hub, request)
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        let (pair, hub) = self.pair(queue_pair)?;
        pair.post_receive(hub, request)
    }

    fn listen(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        self.start_listening(address)
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        self.stop_listening(listener)
    }

    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data_bytes: &[u8],
    ) -> Result<(), VerbsError> {
        let Address::Shm(name) = address else {
            return Err(VerbsError::UnsupportedAddress);
        };
        let private = private_data(private_data_bytes)?;
        let (pair, hub) = self.pair(queue_pair)?;
        if pair.state != QueuePairState::Init || !matches!(pair.phase, Phase::Unconnected) {
            return Err(VerbsError::InvalidState(pair.state));
        }
        let said = (private, pair.parameters());
        let connecting = Connecting::new(queue_pair, name, said)?;
        pair.phase = Phase::Connecting(Box::new(connecting));
        pair.ending_owed = true;
        pair.progress_connecting(hub);
        Ok(())
    }

    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        self.accept_peer(request, queue_pair, private_data)
    }

    fn reject(
        &mut self,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        self.reject_peer(request, private_data)
    }

    fn disconnect(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let (pair, hub) = self.pair(queue_pair)?;
        if !matches!(pair.phase, Phase::Established(_)) {
            return Err(VerbsError::InvalidState(pair.state));
        }
        pair.enter_error(hub, Failure::NONE);
        Ok(())
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.hub.events.pop_front()
    }

    fn progress(&mut self, now: Time) -> Time {
        self.hub.now = now;
        self.progress_unconnected();
        self.progress_rings();
        self.progress_sockets();
        self.drop_late();
        self.deadline()
    }

    fn progress_requests(&mut self, now: Time) -> Time {
        self.hub.now = now;
        self.progress_rings();
        self.deadline()
    }

    fn set_sleeping(&mut self, sleeping: bool) -> bool {
        self.hub.sleeping = sleeping;
        let mut may_sleep = self.hub.events.is_empty()
            && self.hub.queues.iter().all(|queue| queue.entries.is_empty());
        for pair in self.queue_pairs.iter() {
            if let Phase::Established(connection) = &pair.phase {
                connection.link.set_sleeping(sleeping);
            }
            // P-40: it was said, so this is the last look.
            may_sleep &= !pair.has_work(&self.hub);
        }
        if sleeping && !may_sleep {
            self.set_sleeping(false);
            return false;
        }
        may_sleep
    }
}
