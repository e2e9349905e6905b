//! The headers, as values, and their bytes.

use super::opcode::Opcode;
use super::packet::PacketError;
use crate::{PacketSequenceNumber, QueuePairNumber};
use legato_verbs::RemoteKey;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The partition that everybody is in, as a full member (IB spec 10.9.1.1); RoCE has no other.
pub(super) const DEFAULT_PARTITION: u16 = 0xFFFF;

/// The base transport header, 12 bytes (IB spec 9.2), without what the body and the payload say:
/// opcode and pad count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseHeader {
    pub destination: QueuePairNumber,
    pub sequence: PacketSequenceNumber,
    /// The sender wants an acknowledgement of this packet.
    pub acknowledge: bool,
    /// The message raises an event at a receiver who armed for solicited ones.
    pub solicited: bool,
    /// The packet met congestion (RoCEv2 takes it from the IP header, InfiniBand from switches).
    pub forward_congestion: bool,
    /// The peer's packets met congestion.
    pub backward_congestion: bool,
}

/// Where a RDMA request goes: the RDMA extended transport header, 16 bytes (IB spec 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteHeader {
    pub address: u64,
    pub key: RemoteKey,
    /// Bytes of the whole message.
    pub length: u32,
}

/// The atomic extended transport header, 28 bytes (IB spec 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicHeader {
    pub address: u64,
    pub key: RemoteKey,
    /// What is stored if the comparison holds, or what is added.
    pub swap_or_add: u64,
    /// Zero when fetching and adding.
    pub compare: u64,
}

/// The datagram extended transport header, 8 bytes (IB spec 9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    pub queue_key: u32,
    pub source: QueuePairNumber,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BaseBytes {
    opcode: u8,
    /// Solicited event, migrated, two bits of pad count, four of header version.
    flags: u8,
    partition: zerocopy::big_endian::U16,
    /// FECN, BECN, six reserved bits, 24 bits of destination.
    destination: U32,
    /// Acknowledge, seven reserved bits, 24 bits of sequence number.
    sequence: U32,
}

const SOLICITED: u8 = 0x80;
/// Says that the primary path is in use, always so here (IB spec 17.2.8).
const MIGRATED: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const PAD_MASK: u8 = 3;
const VERSION_MASK: u8 = 0x0F;
const FORWARD: u32 = 1 << 31;
const BACKWARD: u32 = 1 << 30;
const ACKNOWLEDGE: u32 = 1 << 31;

impl BaseBytes {
    pub(super) fn new(base: &BaseHeader, opcode: Opcode, pad: u8) -> Self {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        Self {
            opcode: opcode as u8,
            flags: bit(base.solicited, u32::from(SOLICITED)) as u8 | MIGRATED | (pad << PAD_SHIFT),
            partition: DEFAULT_PARTITION.into(),
            destination: (base.destination.get()
                | bit(base.forward_congestion, FORWARD)
                | bit(base.backward_congestion, BACKWARD))
            .into(),
            sequence: (base.sequence.get() | bit(base.acknowledge, ACKNOWLEDGE)).into(),
        }
    }

    /// The header, what the packet is for, and how many bytes pad its payload.
    pub(super) fn check(self) -> Result<(BaseHeader, Opcode, u8), PacketError> {
        let opcode =
            Opcode::from_number(self.opcode).ok_or(PacketError::UnknownOpcode(self.opcode))?;
        if self.flags & VERSION_MASK != 0 {
            return Err(PacketError::UnknownVersion(self.flags & VERSION_MASK));
        }
        // The upper bit is the kind of membership: two limited members may not talk, a full one
        // may with both (IB spec 10.9.3).
        if self.partition.get() & 0x7FFF != DEFAULT_PARTITION & 0x7FFF {
            return Err(PacketError::OtherPartition(self.partition.get()));
        }
        let (destination, sequence) = (self.destination.get(), self.sequence.get());
        let base = BaseHeader {
            destination: QueuePairNumber::new(destination),
            sequence: PacketSequenceNumber::new(sequence),
            acknowledge: sequence & ACKNOWLEDGE != 0,
            solicited: self.flags & SOLICITED != 0,
            forward_congestion: destination & FORWARD != 0,
            backward_congestion: destination & BACKWARD != 0,
        };
        Ok((base, opcode, self.flags >> PAD_SHIFT & PAD_MASK))
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RemoteBytes {
    address: U64,
    key: U32,
    length: U32,
}

impl From<RemoteHeader> for RemoteBytes {
    fn from(header: RemoteHeader) -> Self {
        Self {
            address: header.address.into(),
            key: header.key.0.into(),
            length: header.length.into(),
        }
    }
}

impl From<RemoteBytes> for RemoteHeader {
    fn from(bytes: RemoteBytes) -> Self {
        Self {
            address: bytes.address.get(),
            key: RemoteKey(bytes.key.get()),
            length: bytes.length.get(),
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct AtomicBytes {
    address: U64,
    key: U32,
    swap_or_add: U64,
    compare: U64,
}

impl From<AtomicHeader> for AtomicBytes {
    fn from(header: AtomicHeader) -> Self {
        Self {
            address: header.address.into(),
            key: header.key.0.into(),
            swap_or_add: header.swap_or_add.into(),
            compare: header.compare.into(),
        }
    }
}

impl From<AtomicBytes> for AtomicHeader {
    fn from(bytes: AtomicBytes) -> Self {
        Self {
            address: bytes.address.get(),
            key: RemoteKey(bytes.key.get()),
            swap_or_add: bytes.swap_or_add.get(),
            compare: bytes.compare.get(),
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct DatagramBytes {
    queue_key: U32,
    /// Eight reserved bits and 24 of the sender's number.
    source: U32,
}

impl From<DatagramHeader> for DatagramBytes {
    fn from(header: DatagramHeader) -> Self {
        Self {
            queue_key: header.queue_key.into(),
            source: header.source.get().into(),
        }
    }
}

impl From<DatagramBytes> for DatagramHeader {
    fn from(bytes: DatagramBytes) -> Self {
        Self {
            queue_key: bytes.queue_key.get(),
            source: QueuePairNumber::new(bytes.source.get()),
        }
    }
}

const _: () = assert!(size_of::<BaseBytes>() == 12 && size_of::<RemoteBytes>() == 16);
const _: () = assert!(size_of::<AtomicBytes>() == 28 && size_of::<DatagramBytes>() == 8);
