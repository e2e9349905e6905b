//! The reliable connection (IB spec chapter 9.7): one queue pair as a state machine.
//!
//! Packets, posts and the time come in through [`QueuePair::input`], [`QueuePair::post_send`],
//! [`QueuePair::modify`] and [`QueuePair::expire`]. After each of them the caller takes packets
//! from [`QueuePair::transmit`] until there is none, and then reads [`QueuePair::next_deadline`].
//! Completions and events go to the [`crate::Host`] at once.

mod ending;
mod packets;
mod phase;
mod policy;
mod queue_pair;
mod replies;
mod requester;
mod responder;
mod send_queue;
mod timer;

pub use packets::Transmit;
pub use policy::{
    AnswerCheck, Backoff, Drain, Flush, LastWorkRequest, LocalFailure, Policy, Recovery,
    SlotReclaim, WriteCheck,
};
pub use queue_pair::{Configuration, QueuePair, Receives};
pub use send_queue::MESSAGE_LENGTH_MAX;
