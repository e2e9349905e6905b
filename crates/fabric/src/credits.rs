//! How many requests and receives there are, so that nothing overflows.
//!
//! A credit is one request of a peer that this side can hold unanswered. Each side tells the
//! other its number of credits when they connect; a call takes one and its reply, however late,
//! gives it back. So with `c` the credits of this side's configuration:
//!
//! * The peer has at most `c` requests of its own unanswered, and this side allows itself at most
//!   `c` calls of its own. Each message that can arrive is one of the two, so `2 c` receives are never
//!   overrun: each is posted again before its message is answered, or its reply is handed on and lets
//!   another call go.
//! * A reply needs no credit, because its receive was posted before the call: two sides that
//!   call each other cannot wait for each other.
//! * Sends are copied into `c` buffers for requests and `c` for replies; a buffer is free again
//!   when its send has completed. A reply that finds none waits inside the engine, and at most
//!   `c` wait, because each still holds its caller's credit.
//! * One ping and one pong of each side can be under way beside them: two more receives, and two more
//!   sends with a buffer each.
//! * The queues have room for all buffers and one-sided operations at once, and for the marker that
//!   drains them; the completion queue for all queues at once.
//!
//! Where connections share their receives ([`FabricConfig::shared_receives`]) each has as many credits
//! as there are receives for: see `receive_pool.rs`.

use crate::{FabricConfig, id::INDEX_MAX};
use legato_base::wire::message::MESSAGE_HEADER_SIZE;
use legato_base::wire::proof::CONFIRMATION_SIZE;
use legato_verbs::{QueuePairCapabilities, VerbsError};

/// A ping and a pong.
pub(crate) const PROBES: u32 = 2;
/// In each queue of a queue pair.
const MARKERS: u32 = 1;

/// Messages that can be on their way to a connection with so many credits (P-5).
const fn messages(credits: u32) -> u32 {
    2 * credits + PROBES
}

/// Of shared receives, those of a connection: one for each message, and one that its queue pair may
/// keep when it ends (P-91).
pub(crate) const fn share_of(credits: u32) -> u32 {
    messages(credits) + 1
}

/// Of a connection with one credit.
pub(crate) const SHARE_MIN: u32 = share_of(1);

/// Where the message buffers of a connection are, counted in buffers from the start of its region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Receives of its own, which are first.
    pub(crate) receives: u32,
    /// Its credits: so many buffers for requests, then so many for replies, and one for each probe.
    pub(crate) credits: u32,
}

impl Layout {
    pub(crate) const fn new(credits: u32, shares_receives: bool) -> Self {
        let receives = if shares_receives {
            0
        } else {
            messages(credits)
        };
        Self { receives, credits }
    }

    pub(crate) const fn first_request(self) -> u32 {
        self.receives
    }

    pub(crate) const fn first_reply(self) -> u32 {
        self.receives + self.credits
    }

    pub(crate) const fn first_probe(self) -> u32 {
        self.receives + 2 * self.credits
    }

    pub(crate) const fn buffers(self) -> u32 {
        self.first_probe() + PROBES
    }
}

/// Sizes that follow from a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Requests of a connection for its reads, writes and grants: a grant has two.
    one_sided: u32,
    /// Scatter/gather entries of one request.
    entries: u32,
    pub(crate) completion_queue_entries: u32,
    /// Bytes of one message buffer.
    pub(crate) stride: u64,
}

impl Sizes {
    /// # Errors
    /// [`VerbsError::LimitExceeded`] for a number that is zero or does not fit its field.
    pub(crate) fn of(config: &FabricConfig) -> Result<Self, VerbsError> {
        limit("connections", config.connections_max, INDEX_MAX)?;
        limit("credits", config.credits, INDEX_MAX / 2 - 2)?;
        limit("one-sided operations", config.one_sided_max, INDEX_MAX)?;
        if config.grants_max > 0 {
            limit("grants", config.grants_max, config.one_sided_max)?;
        }
        limit("message bytes", config.message_length_max, 1 << 30)?;
        if let Some(shared) = config.shared_receives {
            limit("receives that connections share", shared, INDEX_MAX)?;
            // One for what a connection may keep that was there before.
            let most = shared / (SHARE_MIN + 1);
            limit(
                "connections that share receives",
                config.connections_max,
                most,
            )?;
        }
        let stride = (MESSAGE_HEADER_SIZE as u64 + u64::from(config.message_length_max))
            .max(CONFIRMATION_SIZE as u64)
            .next_multiple_of(64);
        let mut sizes = Self {
            one_sided: config.one_sided_max + config.grants_max,
            entries: config.entries_max.max(1),
            completion_queue_entries: 0,
            stride,
        };
        let one = sizes.capabilities(config.credits);
        let each = u64::from(one.send_requests_max) + u64::from(one.receive_requests_max);
        let completions = u64::from(config.connections_max) * each;
        sizes.completion_queue_entries =
            u32::try_from(completions).map_err(|_| VerbsError::LimitExceeded {
                what: "the completion queue",
                asked: completions,
                limit: u64::from(u32::MAX),
            })?;
        Ok(sizes)
    }

    /// What the queue pair of a connection with so many credits needs.
    pub(crate) const fn capabilities(&self, credits: u32) -> QueuePairCapabilities {
        QueuePairCapabilities {
            send_requests_max: messages(credits) + self.one_sided + MARKERS,
            receive_requests_max: messages(credits) + MARKERS,
            entries_max: self.entries,
        }
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
