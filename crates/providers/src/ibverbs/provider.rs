//! The verbs.

use super::IbverbsProvider;
use super::create::{INLINE_LENGTH_MAX, unknown};
use super::device::positive;
use super::memory::is_remote;
use super::region::Windows;
use crate::foreign::ForeignMemory;
use crate::memory;
use crate::table::Table;
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    AccessFlags, Address, AddressVector, Arm, Completion, CompletionQueue, ConnectionRequest,
    DeviceAttributes, Event, Listener, MemoryRegion, ProtectionDomain, Provider, QueuePair,
    QueuePairAttributes, QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest, RemoteKey,
    ResourceCounts, SendRequest, SharedReceiveQueue, SharedReceiveQueueCapabilities, VerbsError,
};

impl IbverbsProvider {
    /// What makes something on a device that is gone says so, and not with an `errno` of one's own.
    const fn living(&self) -> Result<(), VerbsError> {
        if self.is_fatal {
            return Err(VerbsError::DeviceRemoved);
        }
        Ok(())
    }
}

impl Provider for IbverbsProvider {
    fn attributes(&self) -> DeviceAttributes {
        let device = &self.device.attributes;
        DeviceAttributes {
            name: "ibverbs",
            queue_pairs_max: positive(device.max_qp).min(super::ledger::PLACES_MAX),
            completion_queue_entries_max: positive(device.max_cqe),
            queue_pair_requests_max: positive(device.max_qp_wr),
            entries_max: self.device.entries_max(),
            message_length_max: self.device.message_length_max,
            inline_length_max: INLINE_LENGTH_MAX,
            shared_receive_queues_max: positive(device.max_srq).min(super::ledger::PLACES_MAX),
            memory_windows_max: match self.device.has_windows() {
                true => positive(device.max_mw),
                false => 0,
            },
        }
    }

    fn resource_counts(&self) -> ResourceCounts {
        let connected = self
            .queue_pairs
            .iter()
            .filter(|pair| !matches!(pair.phase, super::queue_pair::Phase::Unconnected));
        let own = self.queue_pairs.iter().map(|pair| pair.receives.len());
        let shared = self.shared.iter().map(|queue| queue.receives.len());
        let entries = self.queues.iter().map(|queue| queue.reserved() as usize);
        ResourceCounts {
            protection_domains: self.domains.len(),
            memory_regions: self.regions.len(),
            registered_bytes: self.regions.bytes(),
            memory_windows: self.windows.len(),
            completion_queues: self.queues.len(),
            completion_entries: entries.sum(),
            shared_receive_queues: self.shared.len(),
            posted_receives: own.sum::<usize>() + shared.sum::<usize>(),
            queue_pairs: self.queue_pairs.len(),
            listeners: self.listeners.len(),
            // Queue pairs in time wait are not counted: nobody can do anything about them.
            connection_state: self.requests.len() + connected.count(),
        }
    }

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        self.living()?;
        self.add_domain()
    }

    fn destroy_protection_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        self.remove_domain(domain)
    }

    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        self.living()?;
        self.allocate(domain, length, access)
    }

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        self.deregister(region)
    }

    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        let length = into.len();
        let from = self.regions.of(region)?.at(offset, length as u64)?;
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
        let found = self.regions.of(region)?;
        let to = found.at(offset, length as u64)?;
        if found.memory.is_none() && !found.access.contains(AccessFlags::LOCAL_WRITE) {
            return Err(VerbsError::LocalProtection);
        }
        // SAFETY: as above; what was allocated here is writable, and other memory is if its region says so.
        unsafe { memory::copy(from.as_ptr(), to, length) };
        Ok(())
    }

    fn allocate_window(&mut self, domain: ProtectionDomain) -> Result<RemoteKey, VerbsError> {
        self.living()?;
        self.add_window(domain)
    }

    fn next_window_key(&self, window: RemoteKey) -> Result<RemoteKey, VerbsError> {
        self.next_key(window)
    }

    fn deallocate_window(&mut self, window: RemoteKey) -> Result<(), VerbsError> {
        self.remove_window(window)
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        self.living()?;
        self.add_completion_queue(entries, true)
    }

    fn create_overcommitted_completion_queue(
        &mut self,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        self.living()?;
        self.add_completion_queue(entries, false)
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        self.remove_completion_queue(queue)
    }

    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        self.poll(queue, max, into)
    }

    fn arm_completion_queue(
        &mut self,
        queue: CompletionQueue,
        arm: Arm,
    ) -> Result<bool, VerbsError> {
        self.arm(queue, arm)
    }

    fn create_shared_receive_queue(
        &mut self,
        domain: ProtectionDomain,
        capabilities: SharedReceiveQueueCapabilities,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        self.living()?;
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
        self.receive_shared(queue, request)
    }

    fn arm_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
        limit: u32,
    ) -> Result<(), VerbsError> {
        self.set_shared_limit(queue, limit)
    }

    fn query_shared_receive_queue(&self, queue: SharedReceiveQueue) -> Result<u32, VerbsError> {
        self.shared_limit(queue)
    }

    fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        self.living()?;
        self.add_queue_pair(init)
    }

    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        self.query(queue_pair)
    }

    fn query_attributes(&self, queue_pair: QueuePair) -> Result<QueuePairAttributes, VerbsError> {
        let pair = self.queue_pairs.get(queue_pair);
        Ok(pair.ok_or_else(|| unknown(queue_pair))?.attributes)
    }

    fn queue_pair_number(&self, queue_pair: QueuePair) -> Result<QueuePairNumber, VerbsError> {
        let pair = self.queue_pairs.get(queue_pair);
        let number = pair.ok_or_else(|| unknown(queue_pair))?.number;
        Ok(QueuePairNumber::new(number))
    }

    fn port_address(&self) -> AddressVector {
        AddressVector {
            destination: self.device.gid.raw,
        }
    }

    fn modify_queue_pair(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        self.modify(queue_pair, to, attributes)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        self.remove_queue_pair(queue_pair)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        self.send(queue_pair, request)
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        self.receive(queue_pair, request)
    }

    fn listen(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        self.living()?;
        self.start_listening(address)
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        self.stop_listening(listener)
    }

    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        self.living()?;
        self.start_connecting(queue_pair, address, private_data)
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
        self.hang_up(queue_pair)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn progress(&mut self, now: Time) -> Time {
        self.run(now)
    }

    fn set_sleeping(&mut self, sleeping: bool) -> bool {
        !sleeping || self.may_sleep()
    }
}

impl ForeignMemory for IbverbsProvider {
    unsafe fn register_foreign(
        &mut self,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        if is_remote(access) {
            return Err(VerbsError::PermissionDenied);
        }
        self.living()?;
        self.may_register(domain)?;
        self.check_length(length)?;
        let start = address.expose_provenance() as u64;
        if start.checked_add(length).is_none() {
            return Err(VerbsError::LimitExceeded {
                what: "bytes of a region",
                asked: length,
                limit: u64::MAX - start,
            });
        }
        self.register(domain, start, length, access, None)
    }
}

impl Drop for IbverbsProvider {
    /// Everything before what it stands on, without waiting: events are acknowledged when they are taken, so
    /// no destruction blocks. Memory that a device keeps is given up.
    fn drop(&mut self) {
        self.owners.clear();
        self.remains.clear();
        self.requests = Table::new();
        self.listeners = Table::new();
        // Before the queue pairs: rxe waits for what a queue pair has bound.
        self.windows = Windows::default();
        self.queue_pairs = Table::new();
        self.regions.end_all();
        self.shared = Table::new();
        self.queues = Table::new();
        self.domains = Table::new();
    }
}
