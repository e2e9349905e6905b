//! What a queue pair needs of the NIC around it.

use crate::congestion::Path;
use legato_verbs::{
    AccessFlags, AsyncEvent, CompletionKind, CompletionStatus, QueuePair, ReceiveRequest,
    RemoteAddress, RemoteKey, ScatterGatherEntry, WindowBinding, WorkRequestId,
};

/// Memory, keys, receives, completions and events, as seen from one queue pair: an implementation
/// knows the queue pair's protection domain, its completion queues and its access flags.
///
/// All calls come from inside a call of the engine, and nothing in here waits.
pub trait Host {
    /// May these entries be used so? Asked once before a request's first packet; the answer holds
    /// while the request is under way, unless the entries' region ends, which the calls below say.
    ///
    /// # Errors
    /// [`AccessRefused`] if a key does not cover its entry or does not allow the access.
    fn check_entries(
        &self,
        entries: &[ScatterGatherEntry],
        access: AccessFlags,
    ) -> Result<(), AccessRefused>;

    /// Copies `into.len()` bytes from `offset` bytes after the beginning of the entries.
    ///
    /// # Errors
    /// [`AccessRefused`]; then `into` may have changed.
    fn gather(
        &self,
        entries: &[ScatterGatherEntry],
        offset: u32,
        into: &mut [u8],
    ) -> Result<(), AccessRefused>;

    /// Copies bytes to `offset` bytes after the beginning of the entries.
    ///
    /// # Errors
    /// [`AccessRefused`]; then nothing was copied.
    fn scatter(
        &mut self,
        entries: &[ScatterGatherEntry],
        offset: u32,
        from: &[u8],
    ) -> Result<(), AccessRefused>;

    /// May the peer use `length` bytes from `target` on so? Not asked for `length` 0.
    ///
    /// # Errors
    /// [`AccessRefused`].
    fn check_remote(
        &self,
        target: RemoteAddress,
        length: u32,
        access: AccessFlags,
    ) -> Result<(), AccessRefused>;

    /// # Errors
    /// [`AccessRefused`], the access being [`AccessFlags::REMOTE_READ`].
    fn read_remote(&self, target: RemoteAddress, into: &mut [u8]) -> Result<(), AccessRefused>;

    /// # Errors
    /// [`AccessRefused`], the access being [`AccessFlags::REMOTE_WRITE`]; then nothing was written.
    fn write_remote(&mut self, target: RemoteAddress, from: &[u8]) -> Result<(), AccessRefused>;

    /// Replaces the 8 bytes at a target, in the host's byte order, by what `change` makes of them,
    /// and returns what was there.
    ///
    /// # Errors
    /// [`AccessRefused`], the access being [`AccessFlags::REMOTE_ATOMIC`].
    fn update_remote(
        &mut self,
        target: RemoteAddress,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, AccessRefused>;

    /// Ends a key of this host.
    ///
    /// # Errors
    /// [`AccessRefused`] if there is no such key, or it cannot be ended by a request.
    fn invalidate(&mut self, key: RemoteKey) -> Result<(), AccessRefused>;

    /// Gives a window of this host to the queue pair that asks, under its next key.
    ///
    /// # Errors
    /// [`AccessRefused`] if the window, its next key or its memory is not the queue pair's to use
    /// so.
    fn bind_window(&mut self, binding: &WindowBinding) -> Result<(), AccessRefused>;

    /// What is known of the path to the peer, where congestion is controlled.
    fn path(&mut self) -> Option<&mut Path> {
        None
    }

    /// The oldest posted receive, of the queue pair's own queue or of its shared one. It is the
    /// queue pair's until it completes.
    fn take_receive(&mut self) -> Option<ReceiveRequest>;

    /// One that was taken has completed.
    fn give_receive(&mut self, receive: ReceiveRequest) {
        drop(receive);
    }

    fn complete(&mut self, completion: QueueCompletion);

    fn raise(&mut self, event: QueuePairEvent);
}

/// A key does not cover the bytes, or does not allow this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key does not cover the bytes, or does not allow this access")]
pub struct AccessRefused;

/// A completion, before it is put into a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCompletion {
    pub queue: WorkQueue,
    pub wr_id: WorkRequestId,
    pub result: Result<CompletionKind, CompletionStatus>,
    /// Wakes those too who wait for solicited completions only: a receive whose sender asked for
    /// it, and every error (IB spec 11.4.2.2).
    pub solicited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkQueue {
    Send,
    Receive,
}

/// What happens to a queue pair without a request for it: of `enum ibv_event_type` those that the
/// transport raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairEvent {
    /// It cannot go on, and is in the error state.
    Fatal,
    /// As responder it refused a request, and is in the error state.
    RequestError,
    /// As responder it refused an access, and is in the error state.
    AccessError,
    /// The first packet came before the connection was established.
    CommunicationEstablished,
    /// What had started before the send queue was stopped is over.
    SendQueueDrained,
    /// In the error state it takes no more receives of the shared queue.
    LastWorkRequestReached,
    /// The peer has had no receive for a while, and may be asked without end.
    ReceiverNotReady,
}

impl QueuePairEvent {
    /// The event of a queue pair, for its owner.
    pub const fn of(self, queue_pair: QueuePair) -> AsyncEvent {
        match self {
            Self::Fatal => AsyncEvent::QueuePairFatal(queue_pair),
            Self::RequestError => AsyncEvent::QueuePairRequestError(queue_pair),
            Self::AccessError => AsyncEvent::QueuePairAccessError(queue_pair),
            Self::CommunicationEstablished => AsyncEvent::CommunicationEstablished(queue_pair),
            Self::SendQueueDrained => AsyncEvent::SendQueueDrained(queue_pair),
            Self::LastWorkRequestReached => AsyncEvent::LastWorkRequestReached(queue_pair),
            Self::ReceiverNotReady => AsyncEvent::ReceiverNotReady(queue_pair),
        }
    }
}
