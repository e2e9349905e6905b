//! The trait that every provider implements.

use crate::{
    AccessFlags, Address, AddressVector, Arm, Completion, CompletionQueue, ConnectionRequest,
    Event, Listener, MemoryRegion, Prepared, ProtectionDomain, QueuePair, QueuePairAttributes,
    QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest, RemoteKey, SendRequest,
    SharedReceiveQueue, SharedReceiveQueueCapabilities, VerbsError,
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
    /// Bytes of a request with [`crate::SendFlags::INLINE`].
    pub inline_length_max: u32,
    /// 0 if there are none.
    pub shared_receive_queues_max: u32,
    /// 0 if there are none: then a peer's access ends with its region.
    pub memory_windows_max: u32,
}

/// Objects alive in a provider: the leak oracle of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ResourceCounts {
    pub protection_domains: usize,
    pub memory_regions: usize,
    /// Of all regions.
    pub registered_bytes: u64,
    pub memory_windows: usize,
    pub completion_queues: usize,
    /// That queue pairs have reserved in them.
    pub completion_entries: usize,
    pub shared_receive_queues: usize,
    /// Of queue pairs and shared queues, that no message has taken.
    pub posted_receives: usize,
    pub queue_pairs: usize,
    pub listeners: usize,
    /// Connections half open, peers waiting for accept, remote segments mapped, descriptors held
    /// beyond those of the objects above.
    pub connection_state: usize,
}

const NO_WINDOWS: VerbsError = VerbsError::Unsupported("memory windows");
const NO_SHARED_RECEIVES: VerbsError = VerbsError::Unsupported("shared receive queues");

/// A NIC, real or made of software.
///
/// No call blocks. Work that a provider must do by itself happens in [`Self::progress`].
/// Rules that all providers keep, checked by [`crate::conformance`]:
///
/// * Requests of one queue complete in the order in which they were posted.
/// * After the error state every posted request completes exactly once as flushed, and the bytes
///   of a completed request's buffers are never touched again by the provider.
/// * A refused call changes nothing and produces no completion.
/// * A handle, a key and a queue pair number are never given to a new owner while anything of the
///   old one can still come.
///
/// Real devices deviate from the second rule, each in its own way (`legato-sim` has them as
/// personalities): who uses a provider must not hang when a completion never comes.
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

    /// A memory window, not bound: its key allows nothing until
    /// [`crate::SendOperation::BindWindow`] has completed.
    ///
    /// # Errors
    /// [`VerbsError::LimitExceeded`], [`VerbsError::Unsupported`].
    fn allocate_window(&mut self, domain: ProtectionDomain) -> Result<RemoteKey, VerbsError> {
        let _ = domain;
        Err(NO_WINDOWS)
    }

    /// The key that a window can be bound under next. It differs from all that the window had.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`]; [`VerbsError::LimitExceeded`] when the window has had all
    /// its keys: then it is deallocated.
    fn next_window_key(&self, window: RemoteKey) -> Result<RemoteKey, VerbsError> {
        let _ = window;
        Err(NO_WINDOWS)
    }

    /// Ends a window, bound or not, by its key of now. The peer's later accesses fail.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    fn deallocate_window(&mut self, window: RemoteKey) -> Result<(), VerbsError> {
        let _ = window;
        Err(NO_WINDOWS)
    }

    /// A queue with room for at least `entries` completions. Its ledger reserves an entry for each
    /// request that its queue pairs can have, so that it cannot be overrun.
    ///
    /// # Errors
    /// [`VerbsError::LimitExceeded`].
    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError>;

    /// A queue of exactly `entries` completions without a ledger, as hardware has it: its user
    /// sees to it that no more are unpolled. One more raises
    /// [`crate::AsyncEvent::CompletionQueueError`], and the queue and its queue pairs are over.
    ///
    /// # Errors
    /// [`VerbsError::LimitExceeded`], [`VerbsError::Unsupported`].
    fn create_overcommitted_completion_queue(
        &mut self,
        entries: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        let _ = entries;
        Err(VerbsError::Unsupported(
            "completion queues without a ledger",
        ))
    }

    /// # Errors
    /// [`VerbsError::Busy`] while a queue pair uses it.
    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError>;

    /// Moves up to `max` completions to the end of `into` and returns how many.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`], [`VerbsError::CompletionQueueOverrun`].
    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError>;

    /// Asks for one [`Event::CompletionQueueReady`] when the next completion comes. Returns whether
    /// completions wait already, for which there is none: poll them before you sleep.
    ///
    /// Who waits for any completion goes on to do so when solicited ones are asked for.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`], [`VerbsError::CompletionQueueOverrun`].
    fn arm_completion_queue(
        &mut self,
        queue: CompletionQueue,
        arm: Arm,
    ) -> Result<bool, VerbsError>;

    /// Receives for several queue pairs, which take them in the order in which they were posted.
    ///
    /// # Errors
    /// [`VerbsError::LimitExceeded`], [`VerbsError::Unsupported`].
    fn create_shared_receive_queue(
        &mut self,
        domain: ProtectionDomain,
        capabilities: SharedReceiveQueueCapabilities,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        let _ = (domain, capabilities);
        Err(NO_SHARED_RECEIVES)
    }

    /// Ends a queue. Receives in it do not complete, and their buffers are the caller's again.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while a queue pair uses it.
    fn destroy_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
    ) -> Result<(), VerbsError> {
        let _ = queue;
        Err(NO_SHARED_RECEIVES)
    }

    /// # Errors
    /// As for [`Self::post_receive`].
    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueue,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        let _ = (queue, request);
        Err(NO_SHARED_RECEIVES)
    }

    /// [`crate::AsyncEvent::SharedReceiveQueueLimit`] is raised once when a message leaves fewer
    /// than `limit` receives posted. 0 disarms. What is posted now is not looked at.
    ///
    /// # Errors
    /// [`VerbsError::LimitExceeded`] if it is more than the queue has room for.
    fn arm_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
        limit: u32,
    ) -> Result<(), VerbsError> {
        let _ = (queue, limit);
        Err(NO_SHARED_RECEIVES)
    }

    /// The armed limit, 0 if there is none.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    fn query_shared_receive_queue(&self, queue: SharedReceiveQueue) -> Result<u32, VerbsError> {
        let _ = queue;
        Err(NO_SHARED_RECEIVES)
    }

    /// A queue pair in the Reset state. The ledgers of its completion queues reserve an entry for
    /// each request that the capabilities allow.
    ///
    /// # Errors
    /// [`VerbsError::CompletionQueueTooSmall`], [`VerbsError::LimitExceeded`].
    fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError>;

    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError>;

    /// The attributes that the queue pair was given since the Reset state, by
    /// [`Self::modify_queue_pair`] or by its connection.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    fn query_attributes(&self, queue_pair: QueuePair) -> Result<QueuePairAttributes, VerbsError>;

    /// The number by which a peer that knows [`Self::port_address`] connects its own queue pair to
    /// this one without connection management.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    fn queue_pair_number(&self, queue_pair: QueuePair) -> Result<QueuePairNumber, VerbsError>;

    /// Where a peer's queue pair finds this provider's.
    fn port_address(&self) -> AddressVector;

    /// Goes to a state and takes over attributes, as [`QueuePairAttributes::check`] allows
    /// (`ibv_modify_qp(3)`). A provider without packets takes all and looks at the timeouts and
    /// retry counts only; there, a queue pair that connection management has not connected
    /// reaches nobody.
    ///
    /// Into Reset all is forgotten without a completion; posted buffers are the caller's again when
    /// the call returns. A connected queue pair's peer sees a disconnect.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`], [`VerbsError::Attributes`].
    fn modify_queue_pair(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError>;

    /// To Init with all access rights, so that receives can be posted before the connection exists.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`] from any state but Reset and Init.
    fn modify_to_init(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let attributes = QueuePairAttributes::INIT;
        self.modify_queue_pair(queue_pair, QueuePairState::Init, &attributes)
    }

    /// Any state but Reset to Error. Posted requests complete as flushed; the peer learns of it.
    /// A no-op in the error state.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`] in Reset.
    fn modify_to_error(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let attributes = QueuePairAttributes::NONE;
        self.modify_queue_pair(queue_pair, QueuePairState::Error, &attributes)
    }

    /// Destroys a queue pair in any state. Nothing of it completes or happens afterwards, and a peer
    /// sees a disconnect. Its unpolled completions are removed; some devices leave them in the
    /// queue, where they have the handle of the destroyed one.
    ///
    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError>;

    /// Posts to the send queue: allowed in ReadyToSend, and in Error, where it is flushed.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`], [`VerbsError::QueueFull`], [`VerbsError::LimitExceeded`],
    /// [`VerbsError::LocalProtection`] where the provider checks local keys when posting (it may
    /// instead complete the request with `CompletionStatus::LocalProtection`),
    /// [`VerbsError::Unsupported`].
    fn post_send(&mut self, queue_pair: QueuePair, request: &SendRequest)
    -> Result<(), VerbsError>;

    /// Prepares requests that name a key of the peer's, so that none of them waits for what the first use of
    /// a key takes, nor fails by it. Ask again after every progress as long as it is [`Prepared::NotYet`].
    ///
    /// # Errors
    /// Where there is something to prepare: [`VerbsError::UnknownHandle`], and
    /// [`VerbsError::InvalidState`] without a connection.
    fn prepare_remote(
        &mut self,
        queue_pair: QueuePair,
        key: RemoteKey,
    ) -> Result<Prepared, VerbsError> {
        let _ = (queue_pair, key);
        Ok(Prepared::Yes)
    }

    /// Posts to the queue pair's own receive queue: allowed in every state but Reset.
    ///
    /// # Errors
    /// As for [`Self::post_send`]; [`VerbsError::Unsupported`] with a shared receive queue.
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

    /// The oldest event not yet delivered.
    fn poll_event(&mut self) -> Option<Event>;

    /// Does whatever the provider must do by itself, without blocking. Returns when it wants to
    /// be called again at the latest even if nothing happens; [`Time::NEVER`] if never.
    fn progress(&mut self, now: Time) -> Time;

    /// As [`Self::progress`], as far as requests and their completions need it: to hear of connections may
    /// cost a system call. For callers in a hurry, who call [`Self::progress`] later.
    fn progress_requests(&mut self, now: Time) -> Time {
        self.progress(now)
    }

    /// Tells peers that the caller is about to sleep (true) or polls again (false), so that they
    /// wake it only when it sleeps. Returns false if there is already something to do: then the
    /// caller must not sleep.
    fn set_sleeping(&mut self, sleeping: bool) -> bool;
}
