//! Management datagrams as packets: sends between the general service queue pairs.

use super::message::{MAD_LENGTH, Mad};
use crate::wire::{BaseHeader, Body, DatagramHeader, HEADERS_MAX, Packet, encode};
use crate::{PacketSequenceNumber, QueuePairNumber};
use core::convert::Infallible;

/// The queue key of the general service queue pair (IB spec 10.2.5).
pub const GENERAL_SERVICE_QUEUE_KEY: u32 = 0x8001_0000;
/// Room that [`encode_datagram`] needs.
pub const DATAGRAM_BUFFER: usize = HEADERS_MAX + MAD_LENGTH + 3;

/// Why a packet is no management datagram for the general service queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    #[error("not for the general service queue pair")]
    OtherQueuePair,
    #[error("not a datagram")]
    NotADatagram,
    #[error("queue key {0:#010x}")]
    WrongQueueKey(u32),
    #[error("a management datagram has 256 bytes, not {0}")]
    WrongLength(usize),
}

/// Writes the packet from its base transport header to before the invariant CRC, and returns its
/// bytes. The queue pair counts its packets in `sequence`.
pub fn encode_datagram(
    sequence: PacketSequenceNumber,
    mad: &Mad,
    into: &mut [u8; DATAGRAM_BUFFER],
) -> usize {
    let base = BaseHeader {
        destination: QueuePairNumber::GENERAL_SERVICE,
        sequence,
        acknowledge: false,
        solicited: false,
        forward_congestion: false,
        backward_congestion: false,
    };
    let header = DatagramHeader {
        queue_key: GENERAL_SERVICE_QUEUE_KEY,
        source: QueuePairNumber::GENERAL_SERVICE,
    };
    let Ok(length) = encode::<Infallible>(
        &base,
        &Body::Datagram(header, None),
        into,
        MAD_LENGTH,
        |payload| {
            payload.copy_from_slice(mad);
            Ok(())
        },
    );
    length
}

/// The management datagram in a packet. The sender's queue pair may be any, as management in user
/// space has its own.
///
/// # Errors
/// If it is none, or may not be taken.
pub fn open_datagram<'a>(packet: &Packet<'a>) -> Result<&'a Mad, DatagramError> {
    if packet.base.destination != QueuePairNumber::GENERAL_SERVICE {
        return Err(DatagramError::OtherQueuePair);
    }
    let Body::Datagram(header, None) = packet.body else {
        return Err(DatagramError::NotADatagram);
    };
    if header.queue_key != GENERAL_SERVICE_QUEUE_KEY {
        return Err(DatagramError::WrongQueueKey(header.queue_key));
    }
    packet
        .payload
        .try_into()
        .map_err(|_| DatagramError::WrongLength(packet.payload.len()))
}
