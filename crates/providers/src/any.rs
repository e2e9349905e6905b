//! A provider that is chosen when the addresses are known.

#[cfg(feature = "ibverbs")]
use crate::IbverbsProvider;
use crate::{ForeignMemory, Pollable, ProxyProvider, RoceProvider, ShmProvider};
use alloc::boxed::Box;
use alloc::vec::Vec;
use legato_base::Time;
use legato_base::secret::Keyring;
use legato_verbs::{
    AccessFlags, Address, AddressVector, Arm, Completion, CompletionQueue, ConnectionRequest,
    DeviceAttributes, Event, Listener, MemoryRegion, ProtectionDomain, Provider, QueuePair,
    QueuePairAttributes, QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest, RemoteKey,
    ResourceCounts, SendRequest, SharedReceiveQueue, SharedReceiveQueueCapabilities, VerbsError,
};
use rustix::fd::{BorrowedFd, OwnedFd};

/// One of the providers of this crate.
#[derive(Debug)]
pub enum AnyProvider {
    Shm(Box<ShmProvider>),
    Roce(Box<RoceProvider>),
    #[cfg(feature = "ibverbs")]
    Ibverbs(Box<IbverbsProvider>),
    /// Whatever another process has opened.
    Proxy(Box<ProxyProvider>),
}

impl AnyProvider {
    /// The provider that can listen at an address; with keys its streams are sealed.
    ///
    /// # Errors
    /// [`VerbsError::UnsupportedAddress`] for an address of the simulator, or of an RDMA device
    /// where the feature `ibverbs` is off; the provider's own.
    pub fn listening_at(address: &Address, keys: Option<&Keyring>) -> Result<Self, VerbsError> {
        match address {
            Address::Shm(_) => Self::shared_memory(),
            #[cfg(feature = "ibverbs")]
            Address::Verbs(_) | Address::VerbsPort(_) => {
                Ok(Self::Ibverbs(Box::new(IbverbsProvider::open(address)?)))
            }
            _ => Ok(Self::Roce(Box::new(RoceProvider::open_with(
                address, keys,
            )?))),
        }
    }

    /// The provider that can connect to these addresses; with keys its streams are sealed.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if they are not all of one kind; the provider's own.
    pub fn reaching(addresses: &[Address], keys: Option<&Keyring>) -> Result<Self, VerbsError> {
        let is_shm = |address: &Address| matches!(address, Address::Shm(_));
        let Some(first) = addresses.iter().find(|address| !is_shm(address)) else {
            return Self::shared_memory();
        };
        if addresses.iter().any(is_shm) {
            return Err(VerbsError::Unsupported(
                "addresses on this machine (shm) together with others",
            ));
        }
        let is_device =
            |address: &Address| matches!(address, Address::Verbs(_) | Address::VerbsPort(_));
        if addresses.iter().any(is_device) && !addresses.iter().all(is_device) {
            return Err(VerbsError::Unsupported(
                "addresses of RDMA devices together with others",
            ));
        }
        #[cfg(feature = "ibverbs")]
        if is_device(first) {
            let provider = IbverbsProvider::open_towards(first)?;
            return Ok(Self::Ibverbs(Box::new(provider)));
        }
        // Who does not need them is not given them: this is memory that a program can read.
        let are_sealed = |address: &Address| matches!(address, Address::RoceTcp(_));
        let keys = keys.filter(|_| addresses.iter().any(are_sealed));
        // From where devices can be heard, others can be too.
        let is_service = |address: &&Address| matches!(address, Address::RoceService(_));
        let first = addresses.iter().find(is_service).unwrap_or(first);
        Ok(Self::Roce(Box::new(RoceProvider::open_towards(
            first, keys,
        )?)))
    }

    /// The provider that another process has opened, at the other end of `socket`.
    ///
    /// # Errors
    /// As [`ProxyProvider::open`].
    pub fn proxied(socket: OwnedFd) -> Result<Self, VerbsError> {
        Ok(Self::Proxy(Box::new(ProxyProvider::open(socket)?)))
    }

    fn shared_memory() -> Result<Self, VerbsError> {
        Ok(Self::Shm(Box::new(ShmProvider::new()?)))
    }
}

/// Calls the same method of whichever it is.
macro_rules! either {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self {
            AnyProvider::Shm(it) => it.$method($($argument),*),
            AnyProvider::Roce(it) => it.$method($($argument),*),
            #[cfg(feature = "ibverbs")]
            AnyProvider::Ibverbs(it) => it.$method($($argument),*),
            AnyProvider::Proxy(it) => it.$method($($argument),*),
        }
    };
}

impl Pollable for AnyProvider {
    fn descriptors<'a>(&'a self, into: &mut Vec<BorrowedFd<'a>>) {
        either!(self.descriptors(into));
    }
}

impl ForeignMemory for AnyProvider {
    unsafe fn register_foreign(
        &mut self,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { either!(self.register_foreign(domain, address, length, access)) }
    }
}

impl Provider for AnyProvider {
    fn attributes(&self) -> DeviceAttributes {
        either!(self.attributes())
    }

    fn resource_counts(&self) -> ResourceCounts {
        either!(self.resource_counts())
    }

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        either!(self.create_protection_domain())
    }

    fn destroy_protection_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        either!(self.destroy_protection_domain(domain))
    }

    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        either!(self.allocate_region(domain, length, access))
    }

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        either!(self.deregister_region(region))
    }

    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        either!(self.read_region(region, offset, into))
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        either!(self.write_region(region, offset, from))
    }

    fn allocate_window(&mut self, domain: ProtectionDomain) -> Result<RemoteKey, VerbsError> {
        either!(self.allocate_window(domain))
    }

    fn next_window_key(&self, window: RemoteKey) -> Result<RemoteKey, VerbsError> {
        either!(self.next_window_key(window))
    }

    fn deallocate_window(&mut self, window: RemoteKey) -> Result<(), VerbsError> {
        either!(self.deallocate_window(window))
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        either!(self.create_completion_queue(entries))
    }

    fn create_overcommitted_completion_queue(
        &mut self,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        either!(self.create_overcommitted_completion_queue(entries))
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        either!(self.destroy_completion_queue(queue))
    }

    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        either!(self.poll_completion_queue(queue, max, into))
    }

    fn arm_completion_queue(
        &mut self,
        queue: CompletionQueue,
        arm: Arm,
    ) -> Result<bool, VerbsError> {
        either!(self.arm_completion_queue(queue, arm))
    }

    fn create_shared_receive_queue(
        &mut self,
        domain: ProtectionDomain,
        capabilities: SharedReceiveQueueCapabilities,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        either!(self.create_shared_receive_queue(domain, capabilities))
    }

    fn destroy_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
    ) -> Result<(), VerbsError> {
        either!(self.destroy_shared_receive_queue(queue))
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueue,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        either!(self.post_shared_receive(queue, request))
    }

    fn arm_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
        limit: u32,
    ) -> Result<(), VerbsError> {
        either!(self.arm_shared_receive_queue(queue, limit))
    }

    fn query_shared_receive_queue(&self, queue: SharedReceiveQueue) -> Result<u32, VerbsError> {
        either!(self.query_shared_receive_queue(queue))
    }

    fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        either!(self.create_queue_pair(init))
    }

    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        either!(self.query_queue_pair(queue_pair))
    }

    fn query_attributes(&self, queue_pair: QueuePair) -> Result<QueuePairAttributes, VerbsError> {
        either!(self.query_attributes(queue_pair))
    }

    fn queue_pair_number(&self, queue_pair: QueuePair) -> Result<QueuePairNumber, VerbsError> {
        either!(self.queue_pair_number(queue_pair))
    }

    fn port_address(&self) -> AddressVector {
        either!(self.port_address())
    }

    fn modify_queue_pair(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        either!(self.modify_queue_pair(queue_pair, to, attributes))
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        either!(self.destroy_queue_pair(queue_pair))
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        either!(self.post_send(queue_pair, request))
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        either!(self.post_receive(queue_pair, request))
    }

    fn listen(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        either!(self.listen(address))
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        either!(self.close_listener(listener))
    }

    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        either!(self.connect(queue_pair, address, private_data))
    }

    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        either!(self.accept(request, queue_pair, private_data))
    }

    fn reject(
        &mut self,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        either!(self.reject(request, private_data))
    }

    fn disconnect(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        either!(self.disconnect(queue_pair))
    }

    fn poll_event(&mut self) -> Option<Event> {
        either!(self.poll_event())
    }

    fn progress(&mut self, now: Time) -> Time {
        either!(self.progress(now))
    }

    fn set_sleeping(&mut self, sleeping: bool) -> bool {
        either!(self.set_sleeping(sleeping))
    }
}
