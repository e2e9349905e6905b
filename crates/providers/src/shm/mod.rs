//! The shm provider: two processes on one machine.
//!
//! * A connection is a `SOCK_SEQPACKET` Unix socket for control and for learning of a peer's
//!   death, and one sealed memfd a side with a ring of messages (`ring`).
//! * A region that peers may reach is in a sealed memfd: one that they may only read has its own, those
//!   that they may change are parts of one for each protection domain (`arena`). A peer asks once for
//!   the segment behind a remote key and maps it; READ and WRITE are then plain copies by the initiator,
//!   and atomics the processor's own, complete when `post_send` returns, and cost the target's
//!   processor nothing.
//! * Every one-sided operation looks at the target's key table before and after its copy, so a
//!   deregistered key fails at once. Its memory is the system's again then, whoever maps it, and its place
//!   is never used again.
//!
//! What the model leaves open is answered so:
//!
//! * A refused WRITE places nothing. One with an immediate has placed its bytes before its number
//!   finds no receive; the length in that completion is the peer's word.
//! * A SEND completes when it is in the peer's ring and the peer has a receive for it, which nothing can
//!   take away again: the peer's provider places it there when it next runs, also if the connection ends
//!   before. Where the peer has none, or its receives are shared, a SEND completes when it is in a
//!   receive buffer, whole: no receive is ever half used. One-sided requests wait for the requests
//!   before them, so every request is fenced. A peer that stands still holds none of this up.
//! * Any way into the error state or out of it ends the connection. Each side hears of the end once,
//!   and of [`ConnectionEvent::TimeWaitExit`] right behind it: nothing is under way any more when
//!   the socket is closed and the rings are unmapped.
//! * How long a message waits for a receive is the sender's `rnr_retry` times the receiver's
//!   `rnr_timer`, on the receiver's clock ([`RECEIVER_NOT_READY_WAIT`] by default). A connected
//!   queue pair has no other timeout: the kernel tells of a peer's death, and a peer that stands
//!   still is waited for. One that was taken to Ready to Send by hand reaches nobody, and its
//!   timeout and retry count say how long it tries.
//! * Permissions are kept by whoever does the operation. What a peer that keeps no rules can reach
//!   are regions of the domain of its queue pair: one that it may read, or all that peers may change.
//! * So there are no memory windows: who has mapped a segment is not kept out by a table. The
//!   equivalent is a domain for each peer with a region of its own, revoked by deregistering it.
//!   Without windows there is nothing to invalidate either.
//! * There are no completion queues without a ledger, and no events of a device or a port: the
//!   memory of one machine does not go away.
//!
//! [`ConnectionEvent::TimeWaitExit`]: legato_verbs::ConnectionEvent::TimeWaitExit

mod arena;
mod completion;
mod connect;
mod connection;
mod control;
mod create;
mod data;
mod ending;
pub(crate) mod envelope;
mod hub;
mod keys;
mod listen;
#[cfg(test)]
mod loom_words;
mod modify;
mod one_sided;
mod peer;
mod plain;
mod posting;
mod provider;
mod queue_pair;
mod region;
pub(crate) mod ring;
pub(crate) mod segment;
mod shared_receive;
mod socket;
mod windows;
mod wire;
mod words;

pub use completion::COMPLETION_QUEUE_ENTRIES_MAX;
pub use create::{
    ENTRIES_MAX, QUEUE_PAIR_REQUESTS_MAX, QUEUE_PAIRS_MAX, SHARED_RECEIVE_QUEUES_MAX,
};
pub use hub::ShmCounters;
pub use keys::REGIONS_MAX;
pub use listen::WAITING_PEERS_MAX;
pub use modify::RECEIVER_NOT_READY_WAIT;
pub use plain::PlainCopy;
pub use posting::INLINE_LENGTH_MAX;
pub use region::REGION_LENGTH_MAX;
pub use segment::{MESSAGE_LENGTH_MAX, RING_BYTES};

use crate::table::Table;
use crate::{ForeignMemory, Pollable};
use alloc::vec::Vec;
use arena::Arena;
use hub::{Hub, Source};
use legato_verbs::{
    AccessFlags, ConnectionRequest, Listener, MemoryRegion, ProtectionDomain, QueuePair, VerbsError,
};
use listen::{Inbound, Listening};
use queue_pair::{Pair, Phase};
use rustix::fd::BorrowedFd;

/// Objects that belong to a protection domain.
#[derive(Debug, Default)]
struct DomainUsers {
    regions: u32,
    queue_pairs: u32,
    shared_receive_queues: u32,
    arena: Option<Arena>,
}

/// Verbs between processes of one user on one machine.
///
/// It starts no thread, keeps no thread-local state and never blocks; it belongs to one thread at
/// a time. Dropping it closes everything, and peers see that as a disconnect.
#[derive(Debug)]
pub struct ShmProvider {
    hub: Hub,
    domains: Table<ProtectionDomain, DomainUsers>,
    queue_pairs: Table<QueuePair, Pair>,
    listeners: Table<Listener, Listening>,
    inbound: Table<ConnectionRequest, Inbound>,
}

impl ShmProvider {
    /// # Errors
    /// [`VerbsError::System`] when the kernel gives no descriptor or memory.
    pub fn new() -> Result<Self, VerbsError> {
        Ok(Self {
            hub: Hub::new()?,
            domains: Table::new(),
            queue_pairs: Table::new(),
            listeners: Table::new(),
            inbound: Table::new(),
        })
    }

    pub fn counters(&self) -> ShmCounters {
        self.hub.counters
    }

    /// Looks at the rings of all connections, without a system call unless a peer must be woken.
    /// For callers that spin: sockets and timers still need `progress` now and then.
    pub fn progress_rings(&mut self) {
        for pair in self.queue_pairs.iter_mut() {
            pair.progress_rings(&mut self.hub);
        }
    }

    fn progress_sockets(&mut self) {
        for token in self.hub.poller.ready() {
            match self.hub.poller.source(token) {
                None => {}
                Some(Source::Listener(listener)) => self.accept_some(listener),
                Some(Source::Inbound(request)) => self.handle_inbound(request),
                Some(Source::QueuePair(handle)) => {
                    if let Some(pair) = self.queue_pairs.get_mut(handle) {
                        match pair.phase {
                            Phase::Unconnected => {}
                            Phase::Connecting(_) => pair.handle_answer(&mut self.hub),
                            Phase::Established(_) => pair.handle_socket(&mut self.hub),
                        }
                    }
                }
            }
        }
    }

    fn progress_unconnected(&mut self) {
        for pair in self.queue_pairs.iter_mut() {
            pair.start_deadline(self.hub.now);
            pair.progress_connecting(&mut self.hub);
            pair.progress_unreachable(&mut self.hub);
            pair.progress_control(&mut self.hub);
        }
    }
}

impl ForeignMemory for ShmProvider {
    unsafe fn register_foreign(
        &mut self,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let users = self.domains.get_mut(domain);
        let users = users.ok_or_else(|| completion::unknown(domain))?;
        let region = self
            .hub
            .regions
            .add_foreign(domain, address, length, access)?;
        users.regions += 1;
        Ok(region)
    }
}

impl Pollable for ShmProvider {
    fn descriptors<'a>(&'a self, into: &mut Vec<BorrowedFd<'a>>) {
        into.push(self.hub.poller.descriptor());
    }
}
