//! The trait that every provider implements.

use crate::{
    AccessFlags, Address, Completion, CompletionQueue, ConnectionRequest, Event, Listener,
    MemoryRegion, ProtectionDomain, QueuePair, QueuePairCapabilities, QueuePairState,
    ReceiveRequest, SendRequest, VerbsError,
};
use alloc::vec::Vec;
use legato_base::Time;

/// Most private data that a connect, accept or reject carries, in bytes: what the InfiniBand CM
/// leaves in its smallest message for a user of `rdma_cm` (`rdma_connect(3)`).
pub const PRIVATE_DATA_MAX: usize = 56;

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    pub name: &'static str,
    pub queue_pairs_max: u32,
    pub completion_queue_entries_max: u32,
    pub queue_pair_requests_max: u32,
    pub entries_max: u32,
    /// Longest message or one-sided transfer, in bytes.
    pub message_length_max: u32,
}

/// Objects alive in a provider: the leak oracle of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ResourceCounts {
    pub protection_domains: usize,
    pub memory_regions: usize,
    pub completion_queues: usize,
    pub queue_pairs: usize,
    pub listeners: usize,
    /// Connections half open, peers waiting for accept, remote segments mapped, descriptors held
    /// beyond those of the objects above.
    pub connection_state: usize,
}

/// A NIC, real or made of software.
///
/// No call blocks. Work that a provider must do by itself happens in [`Self::progress`].
/// Rules that all providers keep, checked by [`crate::conformance`]:
///
/// * Requests of one queue complete in the order in which they were posted.
/// * After the error state every posted request completes exactly once as flushed, and the bytes
///   of a completed request's buffers are never touched again by the provider.
/// * A refused call changes nothing and produces no completion.
pub trait Provider {
    fn attributes(&self) -> DeviceAttributes;

    fn resource_counts(&self) -> ResourceCounts;

    /// # Errors
    /// [`VerbsError::LimitExceeded`].
    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError>;

    /// # Errors
    /// [`VerbsError::Busy`] while a region or queue pair belongs to it.
    fn destroy_protection_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError>;

    /// Allocates `length` zero bytes and registers them.
    ///
    /// # Errors
    /// [`VerbsError::System`] or [`VerbsError::LimitExceeded`] when there is no memory.
    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError>;

    /// Revokes the region's keys and frees its memory. Peers' later accesses fail; memory that a
    /// peer may still reach is given up, never used for anything else.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while a posted request names the region.
    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError>;

    /// Copies bytes out of a registered region. A peer may be writing them at the same time: then
    /// each byte is one that was there at some moment of the call.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] outside the region.
    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError>;

    /// Copies bytes into a registered region.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] outside the region.
    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError>;

    /// A queue with room for at least `entries` completions.
    ///
    /// # Errors
    /// [`VerbsError::LimitExceeded`].
    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError>;

    /// # Errors
    /// [`VerbsError::Busy`] while a queue pair uses it.
    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError>;

    /// Moves up to `max` completions to the end of `into` and returns how many.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError>;

    /// A queue pair in the Reset state. Both queues complete into `queue`, whose ledger reserves
    /// an entry for each request that the capabilities allow.
    ///
    /// # Errors
    /// [`VerbsError::CompletionQueueTooSmall`], [`VerbsError::LimitExceeded`].
    fn create_queue_pair(
        &mut self,
        domain: ProtectionDomain,
        queue: CompletionQueue,
        capabilities: QueuePairCapabilities,
    ) -> Result<QueuePair, VerbsError>;

    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError>;

    /// Reset to Init, so that receives can be posted before the connection exists.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`] from any state but Reset.
    fn modify_to_init(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError>;

    /// Any state but Reset to Error. Posted requests complete as flushed; the peer learns of it.
    /// A no-op in the error state.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`] in Reset.
    fn modify_to_error(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError>;

    /// Destroys a queue pair in any state. Nothing of it completes or happens afterwards, its
    /// unpolled completions are removed, and a peer sees a disconnect.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError>;

    /// Posts to the send queue: allowed in ReadyToSend, and in Error, where it is flushed.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`], [`VerbsError::QueueFull`], [`VerbsError::LimitExceeded`],
    /// [`VerbsError::LocalProtection`] where the provider checks local keys when posting (it may
    /// instead complete the request with `CompletionStatus::LocalProtection`).
    fn post_send(&mut self, queue_pair: QueuePair, request: &SendRequest)
    -> Result<(), VerbsError>;

    /// Posts to the receive queue: allowed in every state but Reset.
    ///
    /// # Errors
    /// As for [`Self::post_send`].
    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError>;

    /// # Errors
    /// [`VerbsError::AddressInUse`], [`VerbsError::UnsupportedAddress`],
    /// [`VerbsError::PermissionDenied`], [`VerbsError::System`].
    fn listen(&mut self, address: &Address) -> Result<Listener, VerbsError>;

    /// Ends listening. Requests that already waited are rejected.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError>;

    /// Starts connecting a queue pair in Init; an event says how it ended.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`], [`VerbsError::UnsupportedAddress`],
    /// [`VerbsError::LimitExceeded`] for too much private data.
    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data: &[u8],
    ) -> Result<(), VerbsError>;

    /// Connects a waiting peer to a queue pair in Init.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`] if the peer has gone away meanwhile, else as
    /// [`Self::connect`].
    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError>;

    /// Sends a waiting peer away.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`] if the peer has gone away meanwhile.
    fn reject(&mut self, request: ConnectionRequest, private_data: &[u8])
    -> Result<(), VerbsError>;

    /// Ends a connection: the queue pair goes to Error and its requests are flushed, and the peer
    /// gets `ConnectionEvent::Disconnected`.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`] if it is not connected.
    fn disconnect(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError>;

    /// The oldest event not yet delivered. It is the caller's at once: there is nothing to
    /// acknowledge, and destroying its subject never waits for it.
    fn poll_event(&mut self) -> Option<Event>;

    /// Does whatever the provider must do by itself, without blocking. Returns when it wants to
    /// be called again at the latest even if nothing happens; [`Time::NEVER`] if never.
    fn progress(&mut self, now: Time) -> Time;

    /// Tells peers that the caller is about to sleep (true) or polls again (false), so that they
    /// wake it only when it sleeps. Returns false if there is already something to do: then the
    /// caller must not sleep.
    fn set_sleeping(&mut self, sleeping: bool) -> bool;
}
