//! The verbs: calls of the adapter, with what is around it.

use super::{RoceProvider, service_of};
use alloc::vec::Vec;
use legato_base::Time;
use legato_transport::adapter::Surroundings as _;
use legato_verbs::{
    AccessFlags, Address, AddressVector, Arm, Completion, CompletionQueue, ConnectionRequest,
    DeviceAttributes, Event, Listener, MemoryRegion, ProtectionDomain, Provider, QueuePair,
    QueuePairAttributes, QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest, RemoteKey,
    ResourceCounts, SendRequest, SharedReceiveQueue, SharedReceiveQueueCapabilities, VerbsError,
};

/// Calls a method of the adapter with what is around it.
macro_rules! call {
    ($nic:ident.$method:ident($($argument:expr),*)) => {
        $nic.adapter.$method(&mut $nic.around, $($argument),*)
    };
}

impl Provider for RoceProvider {
    fn attributes(&self) -> DeviceAttributes {
        self.adapter.attributes()
    }

    fn resource_counts(&self) -> ResourceCounts {
        self.adapter.resource_counts()
    }

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        self.adapter.create_protection_domain()
    }

    fn destroy_protection_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        self.adapter.destroy_protection_domain(domain)
    }

    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        call!(self.allocate_region(domain, length, access))
    }

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        call!(self.deregister_region(region))
    }

    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        let (number, _) = self.adapter.region_part(region, offset, into.len())?;
        match self.around.read_memory(number, offset, into) {
            true => Ok(()),
            false => Err(VerbsError::LocalProtection),
        }
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        let (number, _) = self.adapter.region_part(region, offset, from.len())?;
        match self.around.write_memory(number, offset, from) {
            true => Ok(()),
            false => Err(VerbsError::LocalProtection),
        }
    }

    fn allocate_window(&mut self, domain: ProtectionDomain) -> Result<RemoteKey, VerbsError> {
        self.adapter.allocate_window(domain)
    }

    fn next_window_key(&self, window: RemoteKey) -> Result<RemoteKey, VerbsError> {
        self.adapter.next_window_key(window)
    }

    fn deallocate_window(&mut self, window: RemoteKey) -> Result<(), VerbsError> {
        self.adapter.deallocate_window(window)
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        self.adapter.create_completion_queue(entries, true)
    }

    fn create_overcommitted_completion_queue(
        &mut self,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        self.adapter.create_completion_queue(entries, false)
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        self.adapter.destroy_completion_queue(queue)
    }

    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        call!(self.poll_completion_queue(queue, max, into))
    }

    fn arm_completion_queue(
        &mut self,
        queue: CompletionQueue,
        arm: Arm,
    ) -> Result<bool, VerbsError> {
        self.adapter.arm_completion_queue(queue, arm)
    }

    fn create_shared_receive_queue(
        &mut self,
        domain: ProtectionDomain,
        capabilities: SharedReceiveQueueCapabilities,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        let adapter = &mut self.adapter;
        adapter.create_shared_receive_queue(domain, capabilities)
    }

    fn destroy_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
    ) -> Result<(), VerbsError> {
        self.adapter.destroy_shared_receive_queue(queue)
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueue,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        call!(self.post_shared_receive(queue, request))
    }

    fn arm_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
        limit: u32,
    ) -> Result<(), VerbsError> {
        self.adapter.arm_shared_receive_queue(queue, limit)
    }

    fn query_shared_receive_queue(&self, queue: SharedReceiveQueue) -> Result<u32, VerbsError> {
        self.adapter.query_shared_receive_queue(queue)
    }

    fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        self.adapter.create_queue_pair(init)
    }

    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        self.adapter.query_queue_pair(queue_pair)
    }

    fn query_attributes(&self, queue_pair: QueuePair) -> Result<QueuePairAttributes, VerbsError> {
        self.adapter.query_attributes(queue_pair)
    }

    fn queue_pair_number(&self, queue_pair: QueuePair) -> Result<QueuePairNumber, VerbsError> {
        self.adapter.queue_pair_number(queue_pair)
    }

    fn port_address(&self) -> AddressVector {
        self.adapter.port_address()
    }

    fn modify_queue_pair(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        say!(self.modify_queue_pair(queue_pair, to, attributes))
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        say!(self.destroy_queue_pair(queue_pair))
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        call!(self.post_send(queue_pair, request))
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        call!(self.post_receive(queue_pair, request))
    }

    fn listen(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        self.listen_service(address, service_of(address)?)
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        say!(self.close_listener(listener))?;
        if let Some(at) = self.listeners.remove(&listener) {
            self.end_listener(at);
        }
        Ok(())
    }

    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        self.connect_service(queue_pair, address, service_of(address)?, private_data)
    }

    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        say!(self.accept(request, queue_pair, private_data))
    }

    fn reject(
        &mut self,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        say!(self.reject(request, private_data))
    }

    fn disconnect(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        say!(self.disconnect(queue_pair))
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.adapter.poll_event()
    }

    fn progress(&mut self, now: Time) -> Time {
        self.run(now)
    }

    fn set_sleeping(&mut self, sleeping: bool) -> bool {
        !sleeping || self.may_sleep()
    }
}
