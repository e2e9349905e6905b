//! What a client and a memory node say to each other: the bodies of RPC requests and replies.
//!
//! All requests have one size, and so have all replies. Fields that a kind does not use, and those
//! that wait for copies and epochs, are zero, and anything else in them is refused: so a later
//! version can give them a meaning.

use crate::{ClientId, ExtentId};
use alloc::vec::Vec;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Goes up with every change of a layout in this module (P-2).
pub const NODE_VERSION: u16 = 1;
/// Bytes of a request.
pub const NODE_REQUEST_SIZE: usize = size_of::<RawRequest>();
/// Bytes of a reply.
pub const NODE_REPLY_SIZE: usize = size_of::<RawReply>();

const MAGIC_REQUEST: u32 = u32::from_le_bytes(*b"LGnq");
const MAGIC_REPLY: u32 = u32::from_le_bytes(*b"LGnr");

/// What a client asks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRequest {
    /// The first request on a connection: who is asking.
    Open {
        client: ClientId,
    },
    /// An extent with room for `slots` pages, which is never zero.
    AllocateExtent {
        slots: u32,
    },
    /// Gives an extent back. All of the client's operations on it are quiet.
    ReleaseExtent {
        extent: ExtentId,
    },
    Status,
    /// What went wrong at the node since it started.
    Health,
}

/// What a node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeReply {
    Opened {
        /// Differs each time that the node starts, with empty memory.
        incarnation: u64,
        capacity_bytes: u64,
        free_bytes: u64,
    },
    ExtentAllocated {
        extent: ExtentId,
        /// The remote key of the extent's region.
        remote_key: u32,
        /// Where the first slot is, in the region's address space.
        address: u64,
        slots: u32,
    },
    /// Headers included.
    NoRoom {
        asked_bytes: u64,
        free_bytes: u64,
    },
    Released,
    /// The extent belongs to another client.
    NotYours,
    Status(NodeStatus),
    Refused(NodeRefusal),
    Health(NodeHealth),
}

/// A node's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NodeStatus {
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    pub clients: u32,
    pub extents: u32,
}

/// What has gone wrong at a node since it started, or is wrong now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NodeHealth {
    /// Connections that ended otherwise than by an agreement.
    pub connections_reset: u64,
    /// Peers sent away, or that did not prove themselves.
    pub peers_refused: u64,
    /// Requests that waited for their reply longer than they should.
    pub handlers_overdue: u64,
    /// Regions that nobody uses any more and that are kept, because a NIC may still.
    pub regions_quarantined: u32,
    /// Peers that were silent for long; some were heard again. No more than 2^32 - 1.
    pub peers_suspected: u32,
}

/// Why a node did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeRefusal {
    #[error("the connection was not opened for a client")]
    NotOpen,
    #[error("the connection is already open for another client")]
    AlreadyOpen,
    #[error("the node has no such extent")]
    UnknownExtent,
    #[error("the node could not understand the request")]
    Malformed,
    #[error("the node speaks another version of the protocol")]
    VersionMismatch,
    #[error("too little memory is left on the node's machine")]
    OutOfMemory,
}

/// Why bytes are no request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeWireError {
    #[error("not a message of a memory node")]
    Malformed,
    #[error("the other side speaks node protocol version {0}, this one speaks {NODE_VERSION}")]
    Version(u16),
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRequest {
    magic: U32,
    version: U16,
    kind: U16,
    /// A client or an extent.
    id: U64,
    slots: U32,
    /// Which copy the extent is for: 0 until there are several.
    copy: U32,
    /// Epoch of the client, by which a dead one will be fenced; 0 until then.
    epoch: U64,
    reserved: [u8; 16],
}

const _: () = assert!(NODE_REQUEST_SIZE == 48);

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawReply {
    magic: U32,
    version: U16,
    kind: U16,
    /// Three numbers of 64 bits and two of 32: their meaning depends on the kind.
    wide: [U64; 3],
    narrow: [U32; 2],
    /// Epoch of the node, by which a fenced one will be told; 0 until then.
    epoch: U64,
    reserved: [u8; 16],
}

const _: () = assert!(NODE_REPLY_SIZE == 64);

impl NodeRequest {
    /// What is asked, for the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::AllocateExtent { .. } => "allocate extent",
            Self::ReleaseExtent { .. } => "release extent",
            Self::Status => "status",
            Self::Health => "health",
        }
    }

    pub fn to_bytes(self) -> Vec<u8> {
        let (kind, id, slots) = match self {
            Self::Open { client } => (1, client.0, 0),
            Self::AllocateExtent { slots } => (2, 0, slots),
            Self::ReleaseExtent { extent } => (3, extent.0, 0),
            Self::Status => (4, 0, 0),
            Self::Health => (5, 0, 0),
        };
        let raw = RawRequest {
            magic: MAGIC_REQUEST.into(),
            version: NODE_VERSION.into(),
            kind: kind.into(),
            id: id.into(),
            slots: slots.into(),
            copy: 0.into(),
            epoch: 0.into(),
            reserved: [0; 16],
        };
        raw.as_bytes().to_vec()
    }

    /// # Errors
    /// When the bytes are no request of this version.
    pub fn parse(bytes: &[u8]) -> Result<Self, NodeWireError> {
        check_prefix(bytes, MAGIC_REQUEST)?;
        let raw = RawRequest::read_from_bytes(bytes).map_err(|_| NodeWireError::Malformed)?;
        let request = match (raw.kind.get(), raw.id.get(), raw.slots.get()) {
            (1, client, 0) => Self::Open {
                client: ClientId(client),
            },
            (2, 0, slots) if slots > 0 => Self::AllocateExtent { slots },
            (3, extent, 0) => Self::ReleaseExtent {
                extent: ExtentId(extent),
            },
            (4, 0, 0) => Self::Status,
            (5, 0, 0) => Self::Health,
            _ => return Err(NodeWireError::Malformed),
        };
        // Whatever is not this request's own is zero: the same bytes come out again (P-3).
        canonical(bytes, &request.to_bytes())?;
        Ok(request)
    }
}

impl NodeReply {
    pub fn to_bytes(self) -> Vec<u8> {
        let (kind, wide, narrow) = match self {
            Self::Opened {
                incarnation,
                capacity_bytes,
                free_bytes,
            } => (1, [incarnation, capacity_bytes, free_bytes], [0, 0]),
            Self::ExtentAllocated {
                extent,
                remote_key,
                address,
                slots,
            } => (2, [extent.0, address, 0], [remote_key, slots]),
            Self::NoRoom {
                asked_bytes,
                free_bytes,
            } => (3, [asked_bytes, free_bytes, 0], [0, 0]),
            Self::Released => (4, [0; 3], [0, 0]),
            Self::NotYours => (5, [0; 3], [0, 0]),
            Self::Status(status) => (
                6,
                [status.capacity_bytes, status.used_bytes, 0],
                [status.clients, status.extents],
            ),
            Self::Refused(refusal) => (7, [0; 3], [refusal.code(), 0]),
            Self::Health(health) => (
                8,
                [
                    health.connections_reset,
                    health.peers_refused,
                    health.handlers_overdue,
                ],
                [health.regions_quarantined, health.peers_suspected],
            ),
        };
        let raw = RawReply {
            magic: MAGIC_REPLY.into(),
            version: NODE_VERSION.into(),
            kind: kind.into(),
            wide: wide.map(U64::from),
            narrow: narrow.map(U32::from),
            epoch: 0.into(),
            reserved: [0; 16],
        };
        raw.as_bytes().to_vec()
    }

    /// # Errors
    /// When the bytes are no reply of this version.
    pub fn parse(bytes: &[u8]) -> Result<Self, NodeWireError> {
        check_prefix(bytes, MAGIC_REPLY)?;
        let raw = RawReply::read_from_bytes(bytes).map_err(|_| NodeWireError::Malformed)?;
        let [first, second, third] = raw.wide.map(U64::get);
        let [low, high] = raw.narrow.map(U32::get);
        let reply = match raw.kind.get() {
            1 => Self::Opened {
                incarnation: first,
                capacity_bytes: second,
                free_bytes: third,
            },
            2 => Self::ExtentAllocated {
                extent: ExtentId(first),
                remote_key: low,
                address: second,
                slots: high,
            },
            3 => Self::NoRoom {
                asked_bytes: first,
                free_bytes: second,
            },
            4 => Self::Released,
            5 => Self::NotYours,
            6 => Self::Status(NodeStatus {
                capacity_bytes: first,
                used_bytes: second,
                clients: low,
                extents: high,
            }),
            7 => Self::Refused(NodeRefusal::from_code(low).ok_or(NodeWireError::Malformed)?),
            8 => Self::Health(NodeHealth {
                connections_reset: first,
                peers_refused: second,
                handlers_overdue: third,
                regions_quarantined: low,
                peers_suspected: high,
            }),
            _ => return Err(NodeWireError::Malformed),
        };
        canonical(bytes, &reply.to_bytes())?;
        Ok(reply)
    }
}

impl NodeRefusal {
    const ALL: [Self; 6] = [
        Self::NotOpen,
        Self::AlreadyOpen,
        Self::UnknownExtent,
        Self::Malformed,
        Self::VersionMismatch,
        Self::OutOfMemory,
    ];

    const fn code(self) -> u32 {
        match self {
            Self::NotOpen => 1,
            Self::AlreadyOpen => 2,
            Self::UnknownExtent => 3,
            Self::Malformed => 4,
            Self::VersionMismatch => 5,
            Self::OutOfMemory => 6,
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| refusal.code() == code)
    }
}

/// The magic number and the version: they stay where they are in every version (P-2).
fn check_prefix(bytes: &[u8], magic: u32) -> Result<(), NodeWireError> {
    let (found, rest) = U32::read_from_prefix(bytes).map_err(|_| NodeWireError::Malformed)?;
    let (version, _) = U16::read_from_prefix(rest).map_err(|_| NodeWireError::Malformed)?;
    if found.get() != magic {
        return Err(NodeWireError::Malformed);
    }
    if version.get() != NODE_VERSION {
        return Err(NodeWireError::Version(version.get()));
    }
    Ok(())
}

fn canonical(bytes: &[u8], again: &[u8]) -> Result<(), NodeWireError> {
    if bytes == again {
        Ok(())
    } else {
        Err(NodeWireError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    const REQUESTS: [NodeRequest; 5] = [
        NodeRequest::Open {
            client: ClientId(0x1122_3344_5566_7788),
        },
        NodeRequest::AllocateExtent { slots: 7 },
        NodeRequest::ReleaseExtent {
            extent: ExtentId(9),
        },
        NodeRequest::Status,
        NodeRequest::Health,
    ];

    const REPLIES: [NodeReply; 8] = [
        NodeReply::Opened {
            incarnation: 3,
            capacity_bytes: 1 << 40,
            free_bytes: 5,
        },
        NodeReply::ExtentAllocated {
            extent: ExtentId(4),
            remote_key: 0xDEAD_BEEF,
            address: 0x7000_0000_0000,
            slots: 512,
        },
        NodeReply::NoRoom {
            asked_bytes: 10,
            free_bytes: 2,
        },
        NodeReply::Released,
        NodeReply::NotYours,
        NodeReply::Status(NodeStatus {
            capacity_bytes: 8,
            used_bytes: 6,
            clients: 1,
            extents: 2,
        }),
        NodeReply::Refused(NodeRefusal::OutOfMemory),
        NodeReply::Health(NodeHealth {
            connections_reset: 1,
            peers_refused: 2,
            handlers_overdue: 3,
            regions_quarantined: 4,
            peers_suspected: 5,
        }),
    ];

    #[test]
    fn requests_and_replies_survive_a_round_trip() {
        for request in REQUESTS {
            assert_eq!(NodeRequest::parse(&request.to_bytes()), Ok(request));
        }
        for reply in REPLIES {
            assert_eq!(NodeReply::parse(&reply.to_bytes()), Ok(reply));
        }
        for refusal in NodeRefusal::ALL {
            let reply = NodeReply::Refused(refusal);
            assert_eq!(NodeReply::parse(&reply.to_bytes()), Ok(reply));
        }
    }

    // P-2
    #[test]
    fn the_bytes_of_version_one_never_change() {
        let mut golden = [0u8; NODE_REQUEST_SIZE];
        golden[..8].copy_from_slice(b"LGnq\x01\x00\x01\x00");
        golden[8..16].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(REQUESTS[0].to_bytes(), golden);
        let mut golden = [0u8; NODE_REPLY_SIZE];
        golden[..8].copy_from_slice(b"LGnr\x01\x00\x02\x00");
        golden[8] = 4;
        golden[21] = 0x70;
        golden[32..36].copy_from_slice(&[0xEF, 0xBE, 0xAD, 0xDE]);
        golden[37] = 2;
        assert_eq!(REPLIES[1].to_bytes(), golden);
    }

    #[test]
    fn another_version_is_told_from_garbage_whatever_its_size() {
        let mut bytes = REQUESTS[3].to_bytes();
        bytes[4] = 2;
        bytes.push(0);
        assert_eq!(NodeRequest::parse(&bytes), Err(NodeWireError::Version(2)));
        assert_eq!(
            NodeRequest::parse(&REPLIES[3].to_bytes()),
            Err(NodeWireError::Malformed)
        );
        let no_slots = NodeRequest::AllocateExtent { slots: 0 }.to_bytes();
        assert_eq!(NodeRequest::parse(&no_slots), Err(NodeWireError::Malformed));
    }

    // P-3
    #[test]
    fn no_bytes_make_the_parsers_panic_and_what_they_take_they_give_back() {
        let mut random = Random::from_seed(2);
        for _ in 0..20_000 {
            let reply = random.ratio(1, 2);
            let mut bytes = if reply {
                REPLIES[random.below(8) as usize].to_bytes()
            } else {
                REQUESTS[random.below(5) as usize].to_bytes()
            };
            for _ in 0..random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next_u64() as u8;
            }
            if random.ratio(1, 8) {
                bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
            }
            if let Ok(request) = NodeRequest::parse(&bytes) {
                assert_eq!(request.to_bytes(), bytes);
            }
            if let Ok(reply) = NodeReply::parse(&bytes) {
                assert_eq!(reply.to_bytes(), bytes);
            }
        }
    }
}
