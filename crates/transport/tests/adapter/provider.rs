//! The verbs of a machine: nothing but calls of its adapter.

use super::machine::{Machine, Setup};
use legato_base::Time;
use legato_transport::adapter::Target;
use legato_transport::cm::{Gid, ServiceId};
use legato_verbs::{
    Address, CompletionQueue, Listener, MemoryRegion, Provider, QueuePair, VerbsError, delegate,
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

/// Calls a method of the adapter.
macro_rules! adapter {
    ($nic:ident.$method:ident($($argument:expr),*)) => {
        $nic.machine.adapter.$method($($argument),*)
    };
}

/// Calls a method of the adapter with what is around it.
macro_rules! call {
    ($nic:ident.$method:ident($($argument:expr),*)) => {
        $nic.machine.adapter.$method(&mut $nic.machine.around, $($argument),*)
    };
}

impl Provider for Nic {
    delegate!(adapter:
        attributes resource_counts create_protection_domain destroy_protection_domain
        allocate_window next_window_key deallocate_window destroy_completion_queue
        arm_completion_queue create_shared_receive_queue destroy_shared_receive_queue
        arm_shared_receive_queue query_shared_receive_queue create_queue_pair query_queue_pair
        query_attributes queue_pair_number port_address poll_event
    );
    delegate!(call:
        allocate_region deregister_region poll_completion_queue post_shared_receive
        modify_queue_pair destroy_queue_pair post_send post_receive close_listener accept reject
        disconnect
    );

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

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        self.machine.adapter.create_completion_queue(entries, true)
    }

    fn create_overcommitted_completion_queue(
        &mut self,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        self.machine.adapter.create_completion_queue(entries, false)
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

    fn progress(&mut self, _now: Time) -> Time {
        self.machine.progress()
    }

    fn set_sleeping(&mut self, _sleeping: bool) -> bool {
        !self.machine.adapter.has_work()
    }
}
