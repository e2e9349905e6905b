//! A provider that is chosen when the addresses are known.

#[cfg(feature = "ibverbs")]
use crate::IbverbsProvider;
use crate::{ForeignMemory, Pollable, ProxyProvider, RoceProvider, ShmProvider};
use alloc::boxed::Box;
use alloc::vec::Vec;
use legato_base::secret::Keyring;
use legato_verbs::{
    AccessFlags, Address, MemoryRegion, ProtectionDomain, Provider, VerbsError, delegate,
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
    delegate!(either:
        attributes resource_counts create_protection_domain destroy_protection_domain
        allocate_region deregister_region read_region write_region allocate_window next_window_key
        deallocate_window create_completion_queue create_overcommitted_completion_queue
        destroy_completion_queue poll_completion_queue arm_completion_queue
        create_shared_receive_queue destroy_shared_receive_queue post_shared_receive
        arm_shared_receive_queue query_shared_receive_queue create_queue_pair query_queue_pair
        query_attributes queue_pair_number port_address modify_queue_pair destroy_queue_pair
        prepare_remote post_send post_receive listen close_listener connect accept reject disconnect poll_event
        progress progress_requests set_sleeping
    );
}
