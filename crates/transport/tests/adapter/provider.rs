//! The verbs of a machine: nothing but calls of its adapter.

use super::machine::{Machine, Setup};
use legato_base::Time;
use legato_transport::adapter::Target;
use legato_transport::cm::{Gid, ServiceId};
use legato_verbs::{
    AccessFlags, Address, AddressVector, Arm, Completion, CompletionQueue, ConnectionRequest,
    DeviceAttributes, Event, Listener, MemoryRegion, ProtectionDomain, Provider, QueuePair,
    QueuePairAttributes, QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest, RemoteKey,
    ResourceCounts, SendRequest, SharedReceiveQueue, SharedReceiveQueueCapabilities, VerbsError,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Who has listened at each address.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    names: BTreeMap<String, Target>,
    next: u64,
}

#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) machine: Machine,
    directory: Rc<RefCell<Directory>>,
}

impl Nic {
    pub(crate) fn new(
        number: u8,
        setup: &Setup,
        clock: Rc<Cell<Time>>,
        directory: Rc<RefCell<Directory>>,
    ) -> Self {
        Self {
            machine: Machine::new(number, setup, clock),
            directory,
        }
    }
}

fn name_of(address: &Address) -> Result<&str, VerbsError> {
    match address {
        Address::Sim(name) => Ok(name),
        _ => Err(VerbsError::UnsupportedAddress),
    }
}

/// Calls a method of the adapter with what is around it.
macro_rules! call {
    ($nic:ident.$method:ident($($argument:expr),*)) => {
        $nic.machine.adapter.$method(&mut $nic.machine.around, $($argument),*)
    };
}

impl Provider for Nic {
    fn attributes(&self) -> DeviceAttributes {
        self.machine.adapter.attributes()
    }

    fn resource_counts(&self) -> ResourceCounts {
        self.machine.adapter.resource_counts()
    }

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        self.machine.adapter.create_protection_domain()
    }

    fn destroy_protection_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        self.machine.adapter.destroy_protection_domain(domain)
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
        let Machine {
            adapter, around, ..
        } = &self.machine;
        let (number, range) = adapter.region_part(region, offset, into.len())?;
        into.copy_from_slice(&around.memory[&number][range]);
        Ok(())
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        let Machine {
            adapter, around, ..
        } = &mut self.machine;
        let (number, range) = adapter.region_part(region, offset, from.len())?;
        let memory = around.memory.get_mut(&number).unwrap();
        memory[range].copy_from_slice(from);
        Ok(())
    }

    fn allocate_window(&mut self, domain: ProtectionDomain) -> Result<RemoteKey, VerbsError> {
        self.machine.adapter.allocate_window(domain)
    }

    fn next_window_key(&self, window: RemoteKey) -> Result<RemoteKey, VerbsError> {
        self.machine.adapter.next_window_key(window)
    }

    fn deallocate_window(&mut self, window: RemoteKey) -> Result<(), VerbsError> {
        self.machine.adapter.deallocate_window(window)
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        self.machine.adapter.create_completion_queue(entries, true)
    }

    fn create_overcommitted_completion_queue(
        &mut self,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        self.machine.adapter.create_completion_queue(entries, false)
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        self.machine.adapter.destroy_completion_queue(queue)
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
        self.machine.adapter.arm_completion_queue(queue, arm)
    }

    fn create_shared_receive_queue(
        &mut self,
        domain: ProtectionDomain,
        capabilities: SharedReceiveQueueCapabilities,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        let adapter = &mut self.machine.adapter;
        adapter.create_shared_receive_queue(domain, capabilities)
    }

    fn destroy_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
    ) -> Result<(), VerbsError> {
        self.machine.adapter.destroy_shared_receive_queue(queue)
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
        self.machine.adapter.arm_shared_receive_queue(queue, limit)
    }

    fn query_shared_receive_queue(&self, queue: SharedReceiveQueue) -> Result<u32, VerbsError> {
        self.machine.adapter.query_shared_receive_queue(queue)
    }

    fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        self.machine.adapter.create_queue_pair(init)
    }

    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        self.machine.adapter.query_queue_pair(queue_pair)
    }

    fn query_attributes(&self, queue_pair: QueuePair) -> Result<QueuePairAttributes, VerbsError> {
        self.machine.adapter.query_attributes(queue_pair)
    }

    fn queue_pair_number(&self, queue_pair: QueuePair) -> Result<QueuePairNumber, VerbsError> {
        self.machine.adapter.queue_pair_number(queue_pair)
    }

    fn port_address(&self) -> AddressVector {
        self.machine.adapter.port_address()
    }

    fn modify_queue_pair(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        call!(self.modify_queue_pair(queue_pair, to, attributes))
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        call!(self.destroy_queue_pair(queue_pair))
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
        let name = name_of(address)?;
        let mut directory = self.directory.borrow_mut();
        let gid = Gid(self.port_address().destination);
        let known = directory.names.get(name).copied();
        let target = known.filter(|known| known.gid == gid).unwrap_or_else(|| {
            directory.next += 1;
            let service = ServiceId(0x02 << 56 | directory.next);
            Target {
                gid,
                service,
                path_mtu: None,
            }
        });
        let listener = self.machine.adapter.listen(target.service)?;
        directory.names.insert(name.to_owned(), target);
        Ok(listener)
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        call!(self.close_listener(listener))
    }

    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let name = name_of(address)?;
        let target = self.directory.borrow().names.get(name).copied();
        call!(self.connect(queue_pair, target, private_data))?;
        if target.is_none() {
            self.machine.around.asked_for_nobody.push(queue_pair);
        }
        Ok(())
    }

    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        call!(self.accept(request, queue_pair, private_data))
    }

    fn reject(
        &mut self,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        call!(self.reject(request, private_data))
    }

    fn disconnect(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        call!(self.disconnect(queue_pair))
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.machine.adapter.poll_event()
    }

    fn progress(&mut self, _now: Time) -> Time {
        self.machine.progress()
    }

    fn set_sleeping(&mut self, _sleeping: bool) -> bool {
        !self.machine.adapter.has_work()
    }
}
