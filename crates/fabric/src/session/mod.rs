//! Calls to a peer that is reached over a succession of connections.
//!
//! A [`Session`] connects again when its connection ends, and sends its calls over the next one: a
//! call that was never sent in any case, one that was sent and may have been executed because a
//! [`SessionServer`] on the other side recognises it. Each call has exactly one outcome, in time.
//!
//! Like the fabric underneath, both sides are driven by their owner and have no clock: the owner
//! gives every event of the fabric to [`Session::handle_event`] or [`SessionServer::handle_event`],
//! which return what is not theirs, and then turns the session. What they tell their owner is a
//! queue: nothing here calls back, so whatever the owner does about an event starts at the bottom
//! of the stack.

mod backoff;
mod call;
mod client;
mod error;
mod identity;
mod link;
mod server;
mod window;

pub use call::{CallKind, SessionCallId};
pub use client::{Session, SessionConfig, SessionCounters, SessionEvent};
pub use error::{SessionCause, SessionError};
pub use server::{Delivery, ServerCounters, SessionServer, SessionServerConfig, Ticket};
