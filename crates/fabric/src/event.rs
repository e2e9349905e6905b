//! What a fabric tells its owner.

use crate::{CallId, ConnectError, ConnectionId, OperationError, OperationId, Proof, RequestId};
use alloc::vec::Vec;
use legato_base::{Duration, Time};
use legato_verbs::{MemoryRegion, ScatterGatherEntry};

/// Local memory that moves into an operation and comes back from it. It is not `Clone`, and
/// nothing else touches the memory while the operation has it.
pub trait Buffer {
    /// The memory, for the work request.
    fn entries(&self) -> Vec<ScatterGatherEntry>;

    /// The region of this memory, if nothing else is in it. The fabric deregisters it where that is the
    /// first proof that nothing can touch the memory any more ([`Proof::LocalInvalidation`]).
    fn own_region(&self) -> Option<MemoryRegion> {
        None
    }
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
    /// The last event of a connection: every operation on it has its outcome, and each that was not
    /// quarantined or held back for late writes is quiesced. [`crate::Fabric::reset_cause`] says why.
    Disconnected { connection: ConnectionId },
    /// The peer has been silent for three intervals at which a silent one is asked for a sign of life.
    Suspected { connection: ConnectionId },
    /// A suspected peer has said something.
    Heard { connection: ConnectionId },
    /// A peer asks something. Reply exactly once: until then it lacks one credit.
    Request {
        connection: ConnectionId,
        request: RequestId,
        /// When its caller gives it up, by this side's clock, if it came without delay. What is
        /// called on its behalf gets no more than this.
        deadline: Time,
        body: Vec<u8>,
    },
    /// A request waits for its reply longer than it should: its deadline has passed, or
    /// [`crate::FabricConfig::handler_max`]. It is said once of each, and the request still waits.
    HandlerOverdue {
        connection: ConnectionId,
        request: RequestId,
        waited: Duration,
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
    /// There is no proof that nothing touches the operation's memory any more. [`Self::Quiesced`] follows
    /// if there is one some day.
    Quarantined { operation: OperationId },
    /// Nothing can touch the operation's memory any more. At most one, never before the outcome.
    Quiesced {
        operation: OperationId,
        buffer: B,
        proof: Proof,
    },
}
