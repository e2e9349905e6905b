//! Whole packets.

use super::body::{Body, Extra};
use super::header::{AtomicBytes, BaseBytes, BaseHeader, DatagramBytes, RemoteBytes, RemoteHeader};
use super::opcode::Opcode;
use super::syndrome::Acknowledgement;
use legato_verbs::RemoteKey;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the longest headers: base, and that of an atomic request (12 + 28).
pub const HEADERS_MAX: usize = 40;

/// A packet that has been checked: its headers fit its opcode, and its payload is there. Whether a
/// queue pair takes it is another question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    pub base: BaseHeader,
    pub body: Body,
    /// Without padding.
    pub payload: &'a [u8],
}

/// Why bytes are no packet. Such bytes are dropped without an answer (IB spec 9.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    #[error("{0} bytes are too few for its headers")]
    TooShort(usize),
    #[error("opcode {0:#04x} is not spoken here")]
    UnknownOpcode(u8),
    #[error("version {0} of the transport header")]
    UnknownVersion(u8),
    #[error("partition {0:#06x}")]
    OtherPartition(u16),
    #[error("syndrome {0:#04x} is not defined")]
    UnknownSyndrome(u8),
    #[error("{payload} bytes of payload cannot have {pad} bytes of padding")]
    Padding { payload: usize, pad: u8 },
    #[error("an opcode without payload came with {0} bytes")]
    UnexpectedPayload(usize),
}

impl<'a> Packet<'a> {
    /// Reads the bytes between the UDP header and the invariant CRC, whose check is the caller's.
    ///
    /// # Errors
    /// If a header is missing or wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let mut rest = Rest {
            whole: bytes.len(),
            bytes,
        };
        let (base, opcode, pad) = rest.take::<BaseBytes>()?.check()?;
        let body = rest.body(opcode)?;
        let padded = rest.bytes;
        let payload = padded
            .len()
            .checked_sub(usize::from(pad))
            .filter(|_| padded.len().is_multiple_of(4))
            .and_then(|length| padded.get(..length))
            .ok_or(PacketError::Padding {
                payload: padded.len(),
                pad,
            })?;
        if !opcode.has_payload() && !padded.is_empty() {
            return Err(PacketError::UnexpectedPayload(padded.len()));
        }
        Ok(Self {
            base,
            body,
            payload,
        })
    }
}

/// Bytes that pad a payload to words (IB spec 9.2.4).
const fn pad_of(length: usize) -> usize {
    length.wrapping_neg() & 3
}

/// Writes a packet's headers, lets `payload` write `length` bytes, and pads them. Returns the
/// bytes of the whole; the invariant CRC comes after them.
///
/// `into` has room for [`HEADERS_MAX`] + `length` + 3 bytes.
///
/// # Errors
/// Those of `payload`.
///
/// # Panics
/// If `into` has less room.
pub fn encode<E>(
    base: &BaseHeader,
    body: &Body,
    into: &mut [u8],
    length: usize,
    payload: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<usize, E> {
    let pad = pad_of(length);
    let mut writer = Writer { into, at: 0 };
    writer.put(&BaseBytes::new(base, body.opcode(), pad as u8));
    writer.put_body(body);
    let start = writer.at;
    payload(&mut writer.into[start..start + length])?;
    let end = start + length + pad;
    writer.into[start + length..end].fill(0);
    Ok(end)
}

struct Rest<'a> {
    bytes: &'a [u8],
    whole: usize,
}

impl Rest<'_> {
    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Result<T, PacketError> {
        let (value, rest) =
            T::read_from_prefix(self.bytes).map_err(|_| PacketError::TooShort(self.whole))?;
        self.bytes = rest;
        Ok(value)
    }

    fn word(&mut self) -> Result<u32, PacketError> {
        self.take::<U32>().map(U32::get)
    }

    fn remote(&mut self) -> Result<RemoteHeader, PacketError> {
        self.take::<RemoteBytes>().map(RemoteHeader::from)
    }

    fn acknowledgement(&mut self) -> Result<Acknowledgement, PacketError> {
        Acknowledgement::from_word(self.word()?)
    }

    fn body(&mut self, opcode: Opcode) -> Result<Body, PacketError> {
        Ok(match opcode {
            Opcode::SendFirst => Body::SendFirst,
            Opcode::SendMiddle => Body::SendMiddle,
            Opcode::SendLast => Body::SendLast(Extra::Nothing),
            Opcode::SendLastImmediate => Body::SendLast(Extra::Immediate(self.word()?)),
            Opcode::SendLastInvalidate => {
                Body::SendLast(Extra::Invalidate(RemoteKey(self.word()?)))
            }
            Opcode::SendOnly => Body::SendOnly(Extra::Nothing),
            Opcode::SendOnlyImmediate => Body::SendOnly(Extra::Immediate(self.word()?)),
            Opcode::SendOnlyInvalidate => {
                Body::SendOnly(Extra::Invalidate(RemoteKey(self.word()?)))
            }
            Opcode::WriteFirst => Body::WriteFirst(self.remote()?),
            Opcode::WriteMiddle => Body::WriteMiddle,
            Opcode::WriteLast => Body::WriteLast(None),
            Opcode::WriteLastImmediate => Body::WriteLast(Some(self.word()?)),
            Opcode::WriteOnly => Body::WriteOnly(self.remote()?, None),
            Opcode::WriteOnlyImmediate => Body::WriteOnly(self.remote()?, Some(self.word()?)),
            Opcode::ReadRequest => Body::ReadRequest(self.remote()?),
            Opcode::ReadResponseFirst => Body::ReadResponseFirst(self.acknowledgement()?),
            Opcode::ReadResponseMiddle => Body::ReadResponseMiddle,
            Opcode::ReadResponseLast => Body::ReadResponseLast(self.acknowledgement()?),
            Opcode::ReadResponseOnly => Body::ReadResponseOnly(self.acknowledgement()?),
            Opcode::Acknowledge => Body::Acknowledge(self.acknowledgement()?),
            Opcode::AtomicAcknowledge => {
                Body::AtomicAcknowledge(self.acknowledgement()?, self.take::<U64>()?.get())
            }
            Opcode::CompareSwap => Body::CompareSwap(self.take::<AtomicBytes>()?.into()),
            Opcode::FetchAdd => Body::FetchAdd(self.take::<AtomicBytes>()?.into()),
            Opcode::DatagramOnly => Body::Datagram(self.take::<DatagramBytes>()?.into(), None),
            Opcode::DatagramOnlyImmediate => {
                Body::Datagram(self.take::<DatagramBytes>()?.into(), Some(self.word()?))
            }
            // 16 reserved bytes, of which nothing is known (RoCEv2 annex A17.9.3).
            Opcode::CongestionNotification => {
                let _ = self.take::<[u8; 16]>()?;
                Body::CongestionNotification
            }
        })
    }
}

struct Writer<'a> {
    into: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put<T: IntoBytes + Immutable>(&mut self, value: &T) {
        let bytes = value.as_bytes();
        self.into[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn word(&mut self, word: u32) {
        self.put(&U32::from(word));
    }

    fn put_body(&mut self, body: &Body) {
        match *body {
            Body::SendFirst
            | Body::SendMiddle
            | Body::SendLast(Extra::Nothing)
            | Body::SendOnly(Extra::Nothing)
            | Body::WriteMiddle
            | Body::WriteLast(None)
            | Body::ReadResponseMiddle => {}
            Body::SendLast(Extra::Immediate(value))
            | Body::SendOnly(Extra::Immediate(value))
            | Body::SendLast(Extra::Invalidate(RemoteKey(value)))
            | Body::SendOnly(Extra::Invalidate(RemoteKey(value)))
            | Body::WriteLast(Some(value)) => self.word(value),
            Body::WriteFirst(remote) | Body::ReadRequest(remote) => {
                self.put(&RemoteBytes::from(remote));
            }
            Body::WriteOnly(remote, immediate) => {
                self.put(&RemoteBytes::from(remote));
                immediate.into_iter().for_each(|value| self.word(value));
            }
            Body::ReadResponseFirst(value)
            | Body::ReadResponseLast(value)
            | Body::ReadResponseOnly(value)
            | Body::Acknowledge(value) => self.word(value.to_word()),
            Body::AtomicAcknowledge(value, original) => {
                self.word(value.to_word());
                self.put(&U64::from(original));
            }
            Body::CompareSwap(atomic) | Body::FetchAdd(atomic) => {
                self.put(&AtomicBytes::from(atomic));
            }
            Body::Datagram(datagram, immediate) => {
                self.put(&DatagramBytes::from(datagram));
                immediate.into_iter().for_each(|value| self.word(value));
            }
            Body::CongestionNotification => self.put(&[0_u8; 16]),
        }
    }
}
