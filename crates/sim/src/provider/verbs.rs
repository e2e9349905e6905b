//! The verbs of one simulated machine.

use super::environment::{Environment, Local};
use super::hardware::Around;
use super::memory::RegionMemory;
use super::network::Inner;
use super::nic::{Counters, Nic};
use super::wire::gid_of;
use legato_base::Time;
use legato_transport::adapter::{ChannelAdapter, Target};
use legato_transport::cm::{self, ServiceId};
use legato_verbs::{
    AccessFlags, Address, CompletionQueue, Listener, LocalKey, MemoryRegion, Prepared, Provider,
    QueuePair, ReceiveRequest, RemoteAddress, RemoteKey, ScatterGatherEntry, SharedReceiveQueue,
    VerbsError, delegate,
};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// The error of a driver whose device does not answer.
const EIO: i32 = 5;

/// One machine's handle on its NIC. It moves no time: its network does.
#[derive(Debug)]
pub struct SimProvider {
    network: Rc<RefCell<Inner>>,
    machine: usize,
    prepared: Prepared,
    clings: bool,
}

impl SimProvider {
    pub(super) const fn new(network: Rc<RefCell<Inner>>, machine: usize) -> Self {
        Self {
            network,
            machine,
            prepared: Prepared::Yes,
            clings: false,
        }
    }

    /// From now on no queue pair can be destroyed, or they can again.
    pub const fn set_clinging(&mut self, clings: bool) {
        self.clings = clings;
    }

    /// Says this from now on of every key of peers' that is to be prepared: a machine whose processes can
    /// map no more refuses.
    pub const fn set_prepared(&mut self, prepared: Prepared) {
        self.prepared = prepared;
    }

    /// The bytes of a region, shared with the NIC: what a program does to registered memory
    /// without asking anybody. Do not hold a borrow while the network advances. `None` if the
    /// region is gone.
    pub fn region_memory(&self, region: &MemoryRegion) -> Option<Rc<RefCell<RegionMemory>>> {
        self.look(|nic| {
            let number = nic.adapter.region_number(region.local_key)?;
            nic.hardware.memory.shared(number)
        })
    }

    /// The bytes of all regions, as for [`Self::region_memory`].
    pub fn all_memory(&self) -> Vec<Rc<RefCell<RegionMemory>>> {
        self.look(|nic| nic.hardware.memory.all())
    }

    /// Copies what a READ of a peer's would find, without anybody's noticing. False if there is nothing.
    pub fn peek(&self, place: RemoteAddress, into: &mut [u8]) -> bool {
        let entry = ScatterGatherEntry {
            // A region's keys are the same here.
            local_key: LocalKey(place.key.0),
            address: place.address,
            length: into.len() as u32,
        };
        self.look(|nic| {
            let found = nic.adapter.local_place(&entry, AccessFlags::LOCAL_WRITE);
            found.is_some_and(|(region, offset)| nic.hardware.memory.read(region, offset, into))
        })
    }

    /// True if an event or a completion waits to be polled.
    pub fn has_work(&self) -> bool {
        self.look(|nic| nic.adapter.has_work())
    }

    /// Since when a queue pair's peer has answered nothing new though a request is under way: what
    /// a watchdog looks at.
    pub fn waiting_since(&self, queue_pair: QueuePair) -> Option<Time> {
        self.look(|nic| nic.adapter.engine(queue_pair)?.waiting_since())
    }

    pub fn counters(&self) -> Counters {
        self.look(Nic::counters)
    }

    /// What connection management holds, of ended connections too.
    pub fn manager_counts(&self) -> cm::ManagerCounts {
        self.look(|nic| nic.adapter.manager_counts())
    }

    /// Queue pair numbers that cannot be given out, of ended connections too.
    pub fn numbers_in_use(&self) -> usize {
        self.look(|nic| nic.adapter.numbers_in_use())
    }

    fn look<R>(&self, look: impl FnOnce(&Nic) -> R) -> R {
        look(&self.network.borrow().machines[self.machine])
    }

    fn nic<R>(&self, call: impl FnOnce(&mut Nic, &mut Environment) -> R) -> R {
        let mut network = self.network.borrow_mut();
        let Inner {
            environment,
            machines,
            ..
        } = &mut *network;
        call(&mut machines[self.machine], environment)
    }

    fn with<R>(&self, call: impl FnOnce(&mut ChannelAdapter, &mut Around<'_>) -> R) -> R {
        self.nic(|nic, environment| nic.with(environment, call))
    }

    /// A region's memory, and the part of it that a program names.
    fn region_part(
        &self,
        region: &MemoryRegion,
        offset: u64,
        length: usize,
    ) -> Result<(Rc<RefCell<RegionMemory>>, Range<usize>), VerbsError> {
        self.look(|nic| {
            let (number, range) = nic.adapter.region_part(region, offset, length)?;
            let memory = nic.hardware.memory.shared(number);
            Ok((memory.ok_or(VerbsError::UnknownHandle("region"))?, range))
        })
    }
}

/// The service of a name. The first byte is that of services that hosts administer themselves (IB
/// spec annex A3.2.3.1); the rest is FNV-1a.
pub(super) fn service_of(name: &str) -> ServiceId {
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    ServiceId(0x02 << 56 | hash >> 8)
}

fn name_of(address: &Address) -> Result<&str, VerbsError> {
    match address {
        Address::Sim(name) => Ok(name),
        _ => Err(VerbsError::UnsupportedAddress),
    }
}

/// Asks the adapter.
macro_rules! look {
    ($nic:ident.$method:ident($($argument:expr),*)) => {
        $nic.look(|nic| nic.adapter.$method($($argument),*))
    };
}

/// Calls a method of the adapter.
macro_rules! adapter {
    ($nic:ident.$method:ident($($argument:expr),*)) => {
        $nic.with(|adapter, _| adapter.$method($($argument),*))
    };
}

/// Calls a method of the adapter with what is around it.
macro_rules! call {
    ($nic:ident.$method:ident($($argument:expr),*)) => {
        $nic.with(|adapter, around| adapter.$method(around, $($argument),*))
    };
}

impl Provider for SimProvider {
    delegate!(look:
        attributes resource_counts next_window_key query_shared_receive_queue query_queue_pair
        query_attributes queue_pair_number port_address
    );
    delegate!(adapter:
        create_protection_domain destroy_protection_domain allocate_window deallocate_window
        arm_completion_queue create_shared_receive_queue destroy_shared_receive_queue
        arm_shared_receive_queue create_queue_pair poll_event
    );
    delegate!(call:
        allocate_region deregister_region poll_completion_queue modify_queue_pair
        post_send close_listener accept reject disconnect
    );

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        if self.clings {
            return Err(VerbsError::System {
                call: "ibv_destroy_qp",
                errno: EIO,
            });
        }
        self.with(|adapter, around| adapter.destroy_queue_pair(around, queue_pair))
    }

    fn prepare_remote(&mut self, _: QueuePair, _: RemoteKey) -> Result<Prepared, VerbsError> {
        Ok(self.prepared)
    }

    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        let (memory, range) = self.region_part(region, offset, into.len())?;
        into.copy_from_slice(&memory.borrow()[range]);
        Ok(())
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        let (memory, range) = self.region_part(region, offset, from.len())?;
        memory.borrow_mut()[range].copy_from_slice(from);
        Ok(())
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        self.with(|adapter, _| adapter.create_completion_queue(entries, true))
    }

    fn create_overcommitted_completion_queue(
        &mut self,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        self.with(|adapter, _| adapter.create_completion_queue(entries, false))
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        self.with(|adapter, around| {
            adapter.destroy_completion_queue(queue)?;
            around.hardware.doubled.retain(|it| it.into != queue);
            Ok(())
        })
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueue,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        self.with(|adapter, around| adapter.post_shared_receive(around, queue, request))?;
        self.nic(|nic, environment| nic.wake_waiting_peers(environment));
        Ok(())
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        self.with(|adapter, around| adapter.post_receive(around, queue_pair, request))?;
        self.nic(|nic, environment| nic.wake_waiting_peers(environment));
        Ok(())
    }

    fn listen(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        let name = name_of(address)?;
        let used_elsewhere = self.network.borrow().is_listened_for(name, self.machine);
        self.with(|adapter, around| {
            adapter.check_present()?;
            if used_elsewhere {
                return Err(VerbsError::AddressInUse);
            }
            let listener = adapter.listen(service_of(name))?;
            let addresses = &mut around.environment.addresses;
            addresses.insert(name.to_owned(), around.hardware.place);
            Ok(listener)
        })
    }

    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let name = name_of(address)?;
        self.with(|adapter, around| {
            let place = around.environment.addresses.get(name);
            let target = place.map(|&place| Target {
                gid: gid_of(place),
                service: service_of(name),
                path_mtu: None,
            });
            adapter.connect(around, queue_pair, target, private_data)?;
            if target.is_none() {
                let at = around.environment.now + around.environment.config.latency;
                around.schedule(at, Local::NoSuchAddress { queue_pair });
            }
            Ok(())
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_services_of_their_own() {
        assert_ne!(service_of("a"), service_of("b"));
        assert!(!service_of("a").is_ip());
    }
}
