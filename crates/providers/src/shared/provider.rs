//! The verbs of one user: calls of the NIC about the user's own objects.

use super::SharedProvider;
use super::ownership::Object;
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    AccessFlags, Address, AddressVector, Arm, Completion, CompletionQueue, ConnectionRequest,
    DeviceAttributes, Event, Listener, MemoryRegion, ProtectionDomain, Provider, QueuePair,
    QueuePairAttributes, QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest, Receives,
    ResourceCounts, SendOperation, SendRequest, VerbsError,
};

const NO_WINDOWS: VerbsError = VerbsError::Unsupported("memory windows");

impl<P: Provider> Provider for SharedProvider<P> {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            shared_receive_queues_max: 0,
            memory_windows_max: 0,
            ..self.shared.borrow().nic.attributes()
        }
    }

    /// Its own, except for the state of connections and posted receives, which are all users'.
    fn resource_counts(&self) -> ResourceCounts {
        let all = self.shared.borrow().nic.resource_counts();
        ResourceCounts {
            protection_domains: self.count(|it| matches!(it, Object::Domain(_))),
            memory_regions: self.count(|it| matches!(it, Object::Region(_))),
            registered_bytes: self.registered_bytes(),
            memory_windows: 0,
            completion_queues: self.count(|it| matches!(it, Object::CompletionQueue(_))),
            completion_entries: self.completion_entries(),
            shared_receive_queues: 0,
            posted_receives: all.posted_receives,
            queue_pairs: self.count(|it| matches!(it, Object::QueuePair(_))),
            listeners: self.count(|it| matches!(it, Object::Listener(_))),
            connection_state: all.connection_state,
        }
    }

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        let mut shared = self.shared.borrow_mut();
        let domain = shared.nic().create_protection_domain()?;
        shared.owners.insert(Object::Domain(domain), self.user);
        Ok(domain)
    }

    fn destroy_protection_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        let object = Object::Domain(domain);
        let mut shared = self.with(&[object])?;
        shared.nic().destroy_protection_domain(domain)?;
        shared.forget(object);
        Ok(())
    }

    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let mut shared = self.with(&[Object::Domain(domain)])?;
        let region = shared.nic().allocate_region(domain, length, access)?;
        shared.own_region(self.user, region);
        Ok(region)
    }

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        let object = Object::Region(region.remote_key);
        let mut shared = self.with(&[object])?;
        shared.nic().deregister_region(region)?;
        shared.forget(object);
        shared.regions.remove(&region.remote_key);
        Ok(())
    }

    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        let shared = self.with(&[Object::Region(region.remote_key)]);
        let shared = shared.map_err(|_| VerbsError::LocalProtection)?;
        shared.nic.read_region(region, offset, into)
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        let shared = self.with(&[Object::Region(region.remote_key)]);
        let mut shared = shared.map_err(|_| VerbsError::LocalProtection)?;
        shared.nic().write_region(region, offset, from)
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        let mut shared = self.shared.borrow_mut();
        let queue = shared.nic().create_completion_queue(entries)?;
        shared
            .owners
            .insert(Object::CompletionQueue(queue), self.user);
        Ok(queue)
    }

    fn create_overcommitted_completion_queue(
        &mut self,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        let mut shared = self.shared.borrow_mut();
        let queue = shared
            .nic()
            .create_overcommitted_completion_queue(entries)?;
        shared
            .owners
            .insert(Object::CompletionQueue(queue), self.user);
        Ok(queue)
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        let object = Object::CompletionQueue(queue);
        let mut shared = self.with(&[object])?;
        shared.nic().destroy_completion_queue(queue)?;
        shared.forget(object);
        Ok(())
    }

    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        let mut shared = self.with(&[Object::CompletionQueue(queue)])?;
        let count = shared.nic.poll_completion_queue(queue, max, into)?;
        if count > 0 {
            shared.progressed = None;
        }
        Ok(count)
    }

    fn arm_completion_queue(
        &mut self,
        queue: CompletionQueue,
        arm: Arm,
    ) -> Result<bool, VerbsError> {
        let mut shared = self.with(&[Object::CompletionQueue(queue)])?;
        shared.nic().arm_completion_queue(queue, arm)
    }

    fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        if init.receives != Receives::Own {
            return Err(VerbsError::Unsupported("shared receive queues"));
        }
        let mut shared = self.with(&[
            Object::Domain(init.domain),
            Object::CompletionQueue(init.send_completions),
            Object::CompletionQueue(init.receive_completions),
        ])?;
        let pair = shared.nic().create_queue_pair(init)?;
        shared.owners.insert(Object::QueuePair(pair), self.user);
        let capabilities = init.capabilities;
        let entries = capabilities.send_requests_max + capabilities.receive_requests_max;
        shared.entries.insert(pair, entries as usize);
        Ok(pair)
    }

    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        let shared = self.with(&[Object::QueuePair(queue_pair)])?;
        shared.nic.query_queue_pair(queue_pair)
    }

    fn query_attributes(&self, queue_pair: QueuePair) -> Result<QueuePairAttributes, VerbsError> {
        let shared = self.with(&[Object::QueuePair(queue_pair)])?;
        shared.nic.query_attributes(queue_pair)
    }

    fn queue_pair_number(&self, queue_pair: QueuePair) -> Result<QueuePairNumber, VerbsError> {
        let shared = self.with(&[Object::QueuePair(queue_pair)])?;
        shared.nic.queue_pair_number(queue_pair)
    }

    fn port_address(&self) -> AddressVector {
        self.shared.borrow().nic.port_address()
    }

    fn modify_queue_pair(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        let mut shared = self.with(&[Object::QueuePair(queue_pair)])?;
        shared.nic().modify_queue_pair(queue_pair, to, attributes)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let object = Object::QueuePair(queue_pair);
        let mut shared = self.with(&[object])?;
        shared.nic().destroy_queue_pair(queue_pair)?;
        shared.forget(object);
        Ok(())
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        if matches!(request.operation, SendOperation::BindWindow(_)) {
            return Err(NO_WINDOWS);
        }
        let mut shared = self.with(&[Object::QueuePair(queue_pair)])?;
        shared.nic().post_send(queue_pair, request)
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        let mut shared = self.with(&[Object::QueuePair(queue_pair)])?;
        shared.nic().post_receive(queue_pair, request)
    }

    fn listen(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        let mut shared = self.shared.borrow_mut();
        let listener = shared.nic().listen(address)?;
        shared.owners.insert(Object::Listener(listener), self.user);
        Ok(listener)
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        let object = Object::Listener(listener);
        let mut shared = self.with(&[object])?;
        shared.nic().close_listener(listener)?;
        shared.forget(object);
        Ok(())
    }

    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let mut shared = self.with(&[Object::QueuePair(queue_pair)])?;
        shared.nic().connect(queue_pair, address, private_data)
    }

    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let object = Object::Request(request);
        let mut shared = self.with(&[object, Object::QueuePair(queue_pair)])?;
        let accepted = shared.nic().accept(request, queue_pair, private_data);
        if matches!(accepted, Ok(()) | Err(VerbsError::UnknownHandle(_))) {
            shared.forget(object);
        }
        accepted
    }

    fn reject(
        &mut self,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let object = Object::Request(request);
        let mut shared = self.with(&[object])?;
        let rejected = shared.nic().reject(request, private_data);
        if matches!(rejected, Ok(()) | Err(VerbsError::UnknownHandle(_))) {
            shared.forget(object);
        }
        rejected
    }

    fn disconnect(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let mut shared = self.with(&[Object::QueuePair(queue_pair)])?;
        shared.nic().disconnect(queue_pair)
    }

    fn poll_event(&mut self) -> Option<Event> {
        let mut shared = self.shared.borrow_mut();
        shared.deal_events();
        shared.events.get_mut(&self.user)?.pop_front()
    }

    fn progress(&mut self, now: Time) -> Time {
        self.shared.borrow_mut().progress(now)
    }

    fn set_sleeping(&mut self, sleeping: bool) -> bool {
        let mut shared = self.shared.borrow_mut();
        let quiet = shared.nic().set_sleeping(sleeping);
        let has_events = shared
            .events
            .get(&self.user)
            .is_some_and(|it| !it.is_empty());
        quiet && !has_events
    }
}
