//! A NIC at second hand: who cannot open it has it through another process.
//!
//! The agent inside a program is freestanding and cannot load a NIC's library, and its pages must stay
//! private and unpinned for `UFFDIO_MOVE`. So the NIC is opened in the supervisor, by a
//! [`ProxyServer`], and the agent has a [`ProxyProvider`], which is a provider like any other.
//!
//! * Rare calls are a packet there and a packet back on a `SOCK_SEQPACKET` socket. The near half waits
//!   for the answer, no longer than [`PROXY_ANSWER`](legato_base::timeouts::PROXY_ANSWER).
//! * Requests go through a ring in shared memory, and completions and events come back through another:
//!   the rings of the shm provider, with its flags for sleeping and waking. Packets carry how many
//!   messages were in the ring before them, so that a call finds done what was posted before it, and its
//!   answer comes after what was told before.
//! * A request is checked by the near half, so that it is refused at once where a NIC would refuse
//!   it. What the far half's provider refuses all the same becomes a failed completion, in its place
//!   among the others, and ends the queue pair.
//! * The memory of a region is a sealed memfd that both halves map and the NIC has registered. Memory of
//!   the near half's own ([`ForeignMemory`](crate::ForeignMemory)) is never registered: a request that
//!   names it is carried by a slot of such a region (`agent/bounce.rs`), one copy for each.
//!
//! Shared receive queues, memory windows and completion queues without a ledger are not handed on: the
//! pager uses none, and each would be more that a program can reach.
//!
//! # Who believes whom
//!
//! The near half lives in a program's address space. The far half checks every index, length and number
//! that it says; what cannot be ends the proxy, with everything released: queue pairs first, then their
//! memory. The near half believes the far half, and when that is gone, or silent for longer than a call
//! may take, its NIC is gone: [`DeviceRemoved`](legato_verbs::VerbsError::DeviceRemoved).

mod agent;
mod call;
mod codec;
mod event;
#[cfg(test)]
mod hostile_tests;
mod message;
mod packet;
mod refusal;
mod rings;
mod server;

pub use agent::{ProxyCounters, ProxyProvider};
pub use server::{ProxyEnd, ProxyServer, Turn, refuse};

use legato_verbs::VerbsError;
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Bytes of regions that one near half can have. A fabric needs about 1 MiB for each node.
pub const MEMORY_BYTES_MAX: u64 = 256 << 20;

/// Longest message or transfer, in bytes: what is more cannot be in one near half's regions.
pub const MESSAGE_LENGTH_MAX: u32 = 16 << 20;

/// Regions, queue pairs, completion queues, domains and listeners that one near half can have, each.
pub const OBJECTS_MAX: usize = 1024;

/// The two ends of a connection between the halves.
///
/// # Errors
/// [`VerbsError::System`] when the kernel gives no descriptor.
pub fn connection() -> Result<(OwnedFd, OwnedFd), VerbsError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(crate::memory::system("socketpair"))
}

/// On the front of each packet: which call it is or answers, and how many messages the sender had put
/// into its ring before. Call 0 is none: a packet that only wakes.
const FRAME_BYTES: usize = 12;

fn frame(number: u32, messages: u64, into: &mut codec::Encoder<'_>) {
    into.u32(number);
    into.u64(messages);
}

fn unframe(bytes: &[u8]) -> Result<(u32, u64, codec::Decoder<'_>), codec::Malformed> {
    let mut decoder = codec::Decoder(bytes);
    Ok((decoder.u32()?, decoder.u64()?, decoder))
}

/// The packet that wakes.
const WAKE: [u8; FRAME_BYTES] = [0; FRAME_BYTES];
