//! Connections, credits, RPC and one-sided operations over any provider.
//!
//! The owner calls [`Fabric::turn`] again and again and takes the events; between turns it starts
//! calls, reads and writes, and replies to requests. Nothing here blocks or reads a clock.
//!
//! That an operation is over and that its memory is quiet are two facts: [`FabricEvent::Outcome`]
//! says the first, in time, [`FabricEvent::Quiesced`] the second, with the buffer.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

/// False only in a build that exists to be measured against: it checks no generation, fences nothing
/// and believes every peer to be alive.
pub const CONTRACT: bool = !cfg!(legato_without_contract);
#[cfg(test)]
extern crate std;

mod accepting;
mod config;
mod connection;
mod counters;
mod credits;
mod deadline;
mod dismantle;
mod doubts;
mod error;
mod event;
mod fabric;
mod fence;
mod grant;
mod id;
mod lifecycle;
mod liveness;
mod one_sided;
mod openings;
mod outage;
mod proof;
mod receive_pool;
mod receiving;
mod region;
mod replenish;
mod rpc;
pub mod session;
mod shared;
mod table;
mod timeouts;
mod turn;
mod waiting;

pub use config::FabricConfig;
pub use counters::FabricCounters;
pub use error::{
    Blame, Cause, ConnectError, Effect, OperationError, PRIVATE_DATA_USER_MAX, Refused, ReplyError,
    ResetCause,
};
pub use event::{Buffer, FabricEvent, NoBuffer};
pub use fabric::Fabric;
pub use fence::{FenceCounters, Proof, Quarantine};
pub use id::{CallId, ConnectionId, OperationId, RequestId};
pub use proof::ProofError;
pub use receive_pool::SharedReceives;
pub use region::{Region, RegionSlice};
pub use turn::Turn;
pub use waiting::WaitingRequest;
