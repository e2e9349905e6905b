//! What a fabric tells its owner.

use crate::{CallId, ConnectError, ConnectionId, OperationError, OperationId, RequestId};
use alloc::vec::Vec;
use legato_verbs::ScatterGatherEntry;

/// Local memory that moves into an operation and comes back from it. It is not `Clone`, and
/// nothing else touches the memory while the operation has it.
pub trait Buffer {
    /// The memory, for the work request.
    fn entries(&self) -> Vec<ScatterGatherEntry>;
}

/// For a fabric that never starts a one-sided operation.
#[derive(Debug)]
pub enum NoBuffer {}

impl Buffer for NoBuffer {
    fn entries(&self) -> Vec<ScatterGatherEntry> {
        match *self {}
    }
}

/// What [`crate::Fabric::poll_event`] returns.
#[derive(Debug)]
pub enum FabricEvent<B> {
    /// A connect succeeded. The data is the acceptor's.
    Connected {
        connection: ConnectionId,
        private_data: Vec<u8>,
    },
    /// A connect failed, and the connection does not exist any more.
    ConnectFailed {
        connection: ConnectionId,
        error: ConnectError,
    },
    /// A peer has connected.
    Accepted {
        connection: ConnectionId,
        private_data: Vec<u8>,
    },
    /// The last event of a connection: nothing of it is outstanding, its queue pair and its
    /// message buffers are gone. [`crate::Fabric::reset_cause`] says why.
    Disconnected { connection: ConnectionId },
    /// A peer asks something. Reply exactly once: until then it lacks one credit.
    Request {
        connection: ConnectionId,
        request: RequestId,
        body: Vec<u8>,
    },
    /// The end of a call.
    Replied {
        call: CallId,
        outcome: Result<Vec<u8>, OperationError>,
    },
    /// What may be concluded about a one-sided operation: exactly one, in time. A write that
    /// succeeded is in the peer's memory, a read's bytes are in the buffer.
    Outcome {
        operation: OperationId,
        outcome: Result<(), OperationError>,
    },
    /// Nothing can touch the operation's memory any more. Exactly one, never before the outcome.
    Quiesced {
        operation: OperationId,
        buffer: B,
        proof: Proof,
    },
}

/// The rung of the fence ladder on which memory came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The operation completed by itself.
    Completion,
    /// The queue pair went to the error state and gave the operation back as flushed.
    QueuePairDrained,
    /// The queue pair did not give it back in time, and was destroyed.
    QueuePairDestroyed,
}
