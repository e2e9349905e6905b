//! The invariant CRC of RoCEv2 (annex A17.3.3): the last four bytes of a datagram. It covers the
//! packet and what no router changes of the IP and UDP headers.
//!
//! A UDP socket shows all of these headers but one: the identification of an IPv4 header. The CRC
//! itself then says what it must have been, see [`solve`].

use super::inverse::remove_zeros;
use core::net::{Ipv4Addr, Ipv6Addr};
use crc32fast::Hasher;
use zerocopy::big_endian::U16;
use zerocopy::{Immutable, IntoBytes, Unaligned};

/// Bytes of the CRC.
pub const ICRC_LENGTH: usize = 4;

/// The headers in front of a packet, as far as the CRC covers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    pub network: Network,
    pub source_port: u16,
    pub destination_port: u16,
}

/// The IP header, as far as the CRC covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Ipv4 {
        source: Ipv4Addr,
        destination: Ipv4Addr,
        /// Linux sends 0 from a socket that is not connected and does not allow fragments.
        identification: u16,
        do_not_fragment: bool,
    },
    Ipv6 {
        source: Ipv6Addr,
        destination: Ipv6Addr,
    },
}

/// Why a CRC was not written, or a datagram is none that a peer sent so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IcrcError {
    #[error("{0} bytes cannot be a packet with its CRC")]
    TooShort(usize),
    #[error("{0} bytes do not fit an IP packet")]
    TooLong(usize),
    #[error("the buffer has no room for the CRC after {0} bytes")]
    NoRoom(usize),
    #[error("the invariant CRC is wrong: {found:#010x}, and not {computed:#010x}")]
    Mismatch { found: u32, computed: u32 },
}

/// Writes the CRC after the packet in the first `length` bytes of `buffer`. Returns the bytes of
/// the datagram: `length` + [`ICRC_LENGTH`].
///
/// # Errors
/// If the packet is no packet for its length, or `buffer` has no room.
pub fn append(envelope: &Envelope, buffer: &mut [u8], length: usize) -> Result<usize, IcrcError> {
    let (packet, rest) = buffer
        .split_at_mut_checked(length)
        .ok_or(IcrcError::NoRoom(length))?;
    let place = rest
        .first_chunk_mut::<ICRC_LENGTH>()
        .ok_or(IcrcError::NoRoom(length))?;
    *place = compute(envelope, packet)?.to_le_bytes();
    Ok(length + ICRC_LENGTH)
}

/// The packet of a datagram whose headers are all known.
///
/// # Errors
/// If the CRC is wrong, or the length is no packet's.
pub fn check<'a>(envelope: &Envelope, datagram: &'a [u8]) -> Result<&'a [u8], IcrcError> {
    let (packet, found) = split(datagram)?;
    let computed = compute(envelope, packet)?;
    if found == computed {
        Ok(packet)
    } else {
        Err(IcrcError::Mismatch { found, computed })
    }
}

/// The packet of a datagram, and the identification that its IPv4 header must have had; the one in
/// `envelope` is only the first guess. There is at most one for which the CRC is right, and for one
/// damaged packet of 2^16 there is one by chance. To find it takes the same time for all.
///
/// IPv6 has no identification, so nothing is guessed.
///
/// # Errors
/// If the CRC is wrong for every identification, or the length is no packet's.
pub fn solve<'a>(
    envelope: &Envelope,
    datagram: &'a [u8],
) -> Result<(&'a [u8], Option<u16>), IcrcError> {
    let (packet, found) = split(datagram)?;
    let computed = compute(envelope, packet)?;
    let identification = match envelope.network {
        Network::Ipv4 { identification, .. } => Some(identification),
        Network::Ipv6 { .. } => None,
    };
    if found == computed {
        return Ok((packet, identification));
    }
    let mismatch = IcrcError::Mismatch { found, computed };
    let guess = identification.ok_or(mismatch)?;
    // A CRC is linear, so the difference of two CRCs is that of a message of zeros with the
    // difference of the identifications in it. Without the zeros after it, and without its own two
    // bytes, the difference has come back to the beginning of the register: there are its bytes.
    let zeros = u16::try_from(IDENTIFICATION_TO_PACKET + packet.len()).map_err(|_| mismatch)?;
    let start = remove_zeros(found ^ computed, zeros);
    let difference = u16::try_from(start).map_err(|_| mismatch)?;
    Ok((packet, Some(guess ^ difference.swap_bytes())))
}

fn split(datagram: &[u8]) -> Result<(&[u8], u32), IcrcError> {
    datagram
        .split_last_chunk::<ICRC_LENGTH>()
        .map(|(packet, crc)| (packet, u32::from_le_bytes(*crc)))
        .ok_or(IcrcError::TooShort(datagram.len()))
}

fn compute(envelope: &Envelope, packet: &[u8]) -> Result<u32, IcrcError> {
    let length = packet.len().saturating_add(ICRC_LENGTH);
    let (base, rest) = packet
        .split_first_chunk::<BASE_LENGTH>()
        .ok_or(IcrcError::TooShort(length))?;
    let too_long = |_| IcrcError::TooLong(length);
    let udp_length = u16::try_from(length.saturating_add(UDP_LENGTH)).map_err(too_long)?;
    let udp = UdpBytes {
        source_port: envelope.source_port.into(),
        destination_port: envelope.destination_port.into(),
        length: udp_length.into(),
        checksum: [0xFF; 2],
        base: masked(*base),
    };
    let mut hasher = Hasher::new();
    match envelope.network {
        Network::Ipv4 {
            source,
            destination,
            identification,
            do_not_fragment,
        } => {
            let total = udp_length
                .checked_add(IPV4_LENGTH)
                .ok_or(IcrcError::TooLong(length))?;
            let ip = Ipv4Bytes {
                local_route: [0xFF; 8],
                version: 0x45,
                type_of_service: 0xFF,
                total: total.into(),
                identification: identification.into(),
                fragment: (u16::from(do_not_fragment) << 14).into(),
                time_to_live: 0xFF,
                protocol: UDP,
                checksum: [0xFF; 2],
                source: source.octets(),
                destination: destination.octets(),
            };
            hasher.update(Headers { ip, udp }.as_bytes());
        }
        Network::Ipv6 {
            source,
            destination,
        } => {
            let ip = Ipv6Bytes {
                local_route: [0xFF; 8],
                version_class_flow: [0x6F, 0xFF, 0xFF, 0xFF],
                payload_length: udp_length.into(),
                next_header: UDP,
                hop_limit: 0xFF,
                source: source.octets(),
                destination: destination.octets(),
            };
            hasher.update(Headers { ip, udp }.as_bytes());
        }
    }
    hasher.update(rest);
    Ok(hasher.finalize())
}

/// Routers and switches may change the byte of FECN, BECN and six reserved bits.
const fn masked(mut base: [u8; BASE_LENGTH]) -> [u8; BASE_LENGTH] {
    base[4] = 0xFF;
    base
}

/// What the CRC sees before the payload: fields that change on the way are all ones.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Headers<Ip: Unaligned> {
    ip: Ip,
    udp: UdpBytes,
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Ipv4Bytes {
    /// The local route header of InfiniBand, which RoCE does not have.
    local_route: [u8; 8],
    version: u8,
    type_of_service: u8,
    total: U16,
    identification: U16,
    fragment: U16,
    time_to_live: u8,
    protocol: u8,
    checksum: [u8; 2],
    source: [u8; 4],
    destination: [u8; 4],
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Ipv6Bytes {
    local_route: [u8; 8],
    version_class_flow: [u8; 4],
    payload_length: U16,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

/// The UDP header, and the first header of the packet.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct UdpBytes {
    source_port: U16,
    destination_port: U16,
    length: U16,
    checksum: [u8; 2],
    base: [u8; BASE_LENGTH],
}

/// The number of UDP in an IP header.
const UDP: u8 = 17;
const BASE_LENGTH: usize = 12;
const UDP_LENGTH: usize = 8;
const IPV4_LENGTH: u16 = 20;
/// From the identification on, itself included, to the end of the UDP header.
const IDENTIFICATION_TO_PACKET: usize = 16 + UDP_LENGTH;

const _: () = assert!(size_of::<Headers<Ipv4Bytes>>() == 8 + 20 + UDP_LENGTH + BASE_LENGTH);
const _: () = assert!(size_of::<Headers<Ipv6Bytes>>() == 8 + 40 + UDP_LENGTH + BASE_LENGTH);
