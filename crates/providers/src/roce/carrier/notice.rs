//! What a carrier has to tell besides packets.

use super::counters::Counters;
use alloc::collections::VecDeque;
use core::net::SocketAddr;
use legato_base::wire::proof;
use legato_verbs::PathMtu;
use rustix::io::Errno;

/// Something happened to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A packet for the peer was not taken, here or on the way. More may have been lost.
    Refused { peer: SocketAddr, refusal: Refusal },
    /// A stream to the peer is up. What is sent to it may have packets of `path_mtu`.
    Connected { peer: SocketAddr, path_mtu: PathMtu },
    /// The stream to the peer is gone, with all packets that were under way.
    Lost { peer: SocketAddr, refusal: Refusal },
}

/// Why a packet or a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody listens there.
    Port,
    Host,
    Network,
    /// The packet is longer than the path takes: so many bytes with all headers, if it is known.
    TooLong {
        mtu: Option<u32>,
    },
    /// A firewall says no.
    Forbidden,
    /// The peer has closed the connection, or does not speak this protocol.
    Closed,
    /// The peer does not take this side, because of the secret.
    Secret(proof::Refusal),
    /// Another error of the system.
    System {
        errno: i32,
    },
}

impl Refusal {
    pub(super) fn new(errno: Errno, mtu: Option<u32>) -> Self {
        match errno {
            Errno::CONNREFUSED => Self::Port,
            Errno::HOSTUNREACH | Errno::HOSTDOWN => Self::Host,
            Errno::NETUNREACH | Errno::NETDOWN => Self::Network,
            Errno::MSGSIZE => Self::TooLong { mtu },
            Errno::PERM | Errno::ACCESS => Self::Forbidden,
            Errno::CONNRESET | Errno::PIPE => Self::Closed,
            other => Self::System {
                errno: other.raw_os_error(),
            },
        }
    }
}

/// Notices kept until they are taken; the oldest are lost first.
#[derive(Debug)]
pub(super) struct Notices {
    queue: VecDeque<Notice>,
}

const NOTICES_MAX: usize = 64;

impl Notices {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::with_capacity(NOTICES_MAX),
        }
    }

    pub(super) fn push(&mut self, notice: Notice, counters: &mut Counters) {
        if self.queue.len() == NOTICES_MAX {
            self.queue.pop_front();
            counters.notices_lost += 1;
        }
        self.queue.push_back(notice);
    }

    pub(super) fn pop(&mut self) -> Option<Notice> {
        self.queue.pop_front()
    }
}
