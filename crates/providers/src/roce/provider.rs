//! The verbs: calls of the adapter, with what is around it.

use super::{RoceProvider, service_of};
use legato_base::Time;
use legato_transport::adapter::Surroundings as _;
use legato_verbs::{
    Address, CompletionQueue, Listener, MemoryRegion, Provider, QueuePair, VerbsError, delegate,
};

/// Calls a method of the adapter.
macro_rules! adapter {
    ($nic:ident.$method:ident($($argument:expr),*)) => {
        $nic.adapter.$method($($argument),*)
    };
}

/// Calls a method of the adapter with what is around it.
macro_rules! call {
    ($nic:ident.$method:ident($($argument:expr),*)) => {
        $nic.adapter.$method(&mut $nic.around, $($argument),*)
    };
}

impl Provider for RoceProvider {
    delegate!(adapter:
        attributes resource_counts create_protection_domain destroy_protection_domain
        allocate_window next_window_key deallocate_window destroy_completion_queue
        arm_completion_queue create_shared_receive_queue destroy_shared_receive_queue
        arm_shared_receive_queue query_shared_receive_queue create_queue_pair query_queue_pair
        query_attributes queue_pair_number port_address poll_event
    );
    delegate!(call:
        allocate_region deregister_region poll_completion_queue post_shared_receive post_send
        post_receive
    );
    delegate!(say: modify_queue_pair destroy_queue_pair accept reject disconnect);

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

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        self.adapter.create_completion_queue(entries, true)
    }

    fn create_overcommitted_completion_queue(
        &mut self,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        self.adapter.create_completion_queue(entries, false)
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

    fn progress(&mut self, now: Time) -> Time {
        self.run(now)
    }

    fn set_sleeping(&mut self, sleeping: bool) -> bool {
        !sleeping || self.may_sleep()
    }
}
