//! How many requests and receives there are, so that nothing overflows.
//!
//! A credit is one request of a peer that this side can hold unanswered. Each side tells the
//! other its number of credits when they connect; a call takes one and its reply, however late,
//! gives it back. So with `c` the credits of this side's configuration:
//!
//! * The peer has at most `c` requests of its own unanswered, and this side allows itself at most
//!   `c` calls of its own. Each message that can arrive is one of the two, so `2 c` receives,
//!   posted again before the message is looked at, are never overrun.
//! * A reply needs no credit, because its receive was posted before the call: two sides that
//!   call each other cannot wait for each other.
//! * Sends are copied into `c` buffers for requests and `c` for replies; a buffer is free again
//!   when its send has completed. A reply that finds none waits inside the engine, and at most
//!   `c` wait, because each still holds its caller's credit.
//! * The queues have room for all buffers and one-sided operations at once, the completion queue
//!   for all queues at once.

use crate::{FabricConfig, id::INDEX_MAX};
use legato_base::wire::message::MESSAGE_HEADER_SIZE;
use legato_verbs::{QueuePairCapabilities, VerbsError};

/// Sizes that follow from a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Receives posted on a connection.
    pub(crate) receives: u32,
    pub(crate) capabilities: QueuePairCapabilities,
    pub(crate) completion_queue_entries: u32,
    /// Bytes of one message buffer.
    pub(crate) stride: u64,
    /// Bytes of a connection's message region.
    pub(crate) region_length: u64,
}

impl Sizes {
    /// # Errors
    /// [`VerbsError::LimitExceeded`] for a number that is zero or does not fit its field.
    pub(crate) fn of(config: &FabricConfig) -> Result<Self, VerbsError> {
        limit("connections", config.connections_max, INDEX_MAX)?;
        limit("credits", config.credits, INDEX_MAX / 2)?;
        limit("one-sided operations", config.one_sided_max, INDEX_MAX)?;
        limit("message bytes", config.message_length_max, 1 << 30)?;
        let receives = 2 * config.credits;
        let sends = 2 * config.credits + config.one_sided_max;
        let completions = u64::from(config.connections_max) * u64::from(receives + sends);
        let completion_queue_entries =
            u32::try_from(completions).map_err(|_| VerbsError::LimitExceeded {
                what: "the completion queue",
                asked: completions,
                limit: u64::from(u32::MAX),
            })?;
        let stride = (MESSAGE_HEADER_SIZE as u64 + u64::from(config.message_length_max))
            .next_multiple_of(64);
        Ok(Self {
            receives,
            capabilities: QueuePairCapabilities {
                send_requests_max: sends,
                receive_requests_max: receives,
                entries_max: config.entries_max.max(1),
            },
            completion_queue_entries,
            stride,
            region_length: stride * u64::from(2 * receives),
        })
    }
}

fn limit(what: &'static str, asked: u32, limit: u32) -> Result<(), VerbsError> {
    if (1..=limit).contains(&asked) {
        return Ok(());
    }
    Err(VerbsError::LimitExceeded {
        what,
        asked: u64::from(asked),
        limit: u64::from(limit),
    })
}
