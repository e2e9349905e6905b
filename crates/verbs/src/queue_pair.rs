//! What a queue pair is made with, and its states.

use crate::{CompletionQueue, ProtectionDomain, SharedReceiveQueue};

/// The states of a queue pair (IB spec volume 1, section 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// Created, or taken out of use. Nothing can be posted.
    Reset,
    /// Receives can be posted; nothing is processed.
    Init,
    /// Incoming messages are processed.
    ReadyToReceive,
    /// Requests are executed.
    ReadyToSend,
    /// Requests are accepted and do not start; what had started goes on to its end (SQD).
    SendQueueDrain,
    /// Only of unreliable queue pairs: a send has failed, receives go on (SQE).
    SendQueueError,
    /// Every posted request completes as flushed; new ones too.
    Error,
}

/// Sizes of a queue pair, fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapabilities {
    /// Send requests that can be outstanding, signaled or not.
    pub send_requests_max: u32,
    /// Receives that can be posted at a time. With a shared receive queue: messages received whose
    /// completions can be unpolled.
    pub receive_requests_max: u32,
    /// Scatter/gather entries of one request.
    pub entries_max: u32,
}

/// Whose the posted receives are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receives {
    /// The queue pair's: they are flushed with it.
    Own,
    /// A shared receive queue's, which outlives the queue pair.
    Shared(SharedReceiveQueue),
}

/// What a queue pair is made with (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairInit {
    pub domain: ProtectionDomain,
    /// Where its sends complete.
    pub send_completions: CompletionQueue,
    /// Where its receives complete.
    pub receive_completions: CompletionQueue,
    pub receives: Receives,
    pub capabilities: QueuePairCapabilities,
}

impl QueuePairInit {
    /// With receives of its own, and one completion queue for both queues.
    pub const fn new(
        domain: ProtectionDomain,
        completions: CompletionQueue,
        capabilities: QueuePairCapabilities,
    ) -> Self {
        Self {
            domain,
            send_completions: completions,
            receive_completions: completions,
            receives: Receives::Own,
            capabilities,
        }
    }
}

/// Sizes of a shared receive queue, fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveQueueCapabilities {
    /// Receives that can be posted at a time.
    pub requests_max: u32,
    /// Scatter/gather entries of one receive.
    pub entries_max: u32,
}
