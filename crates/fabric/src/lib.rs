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
#[cfg(test)]
extern crate std;

mod config;
mod connection;
mod counters;
mod credits;
mod error;
mod event;
mod fabric;
mod id;
mod one_sided;
mod rpc;
mod shared;
mod table;
mod turn;

pub use config::FabricConfig;
pub use counters::FabricCounters;
pub use error::{
    Blame, Cause, ConnectError, Effect, OperationError, PRIVATE_DATA_USER_MAX, Refused, ReplyError,
    ResetCause,
};
pub use event::{Buffer, FabricEvent, NoBuffer, Proof};
pub use fabric::Fabric;
pub use id::{CallId, ConnectionId, OperationId, RequestId};
pub use turn::Turn;
