//! Queue pair states and sizes.

/// The states of a queue pair that connection management goes through (IB spec volume 1,
/// section 10.3.1). `SQD` and `SQE` come with the packet-level transport.
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
    /// Every posted request completes as flushed; new ones too.
    Error,
}

/// Sizes of a queue pair, fixed when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairCapabilities {
    /// Send requests that can be outstanding, signaled or not.
    pub send_requests_max: u32,
    /// Receives that can be posted at a time.
    pub receive_requests_max: u32,
    /// Scatter/gather entries of one request.
    pub entries_max: u32,
}
