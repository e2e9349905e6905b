//! Bytes of calls, answers and messages: numbers are little-endian, texts and bytes have their length
//! in front. Whoever reads believes nothing: what is too short, too long or unknown is malformed.

use alloc::vec::Vec;
use legato_verbs::{
    AccessFlags, AddressVector, PacketSequenceNumber, PathMtu, QueuePairAttributes,
    QueuePairNumber, QueuePairState, RetryCount, RnrTimer,
};

/// The other half has said what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl From<crate::shm::ring::Malformed> for Malformed {
    fn from(_: crate::shm::ring::Malformed) -> Self {
        Self
    }
}

/// Longest text or piece of private data.
pub(super) const TEXT_MAX: usize = 255;

/// Writes values to the end of a buffer.
#[derive(Debug)]
pub(super) struct Encoder<'a>(pub(super) &'a mut Vec<u8>);

impl Encoder<'_> {
    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// At most [`TEXT_MAX`] bytes: what is longer is cut, which the callers exclude.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        let length = bytes.len().min(TEXT_MAX);
        self.0.push(length as u8);
        self.0.extend_from_slice(&bytes[..length]);
    }

    pub(super) fn state(&mut self, state: QueuePairState) {
        self.u8(code_of_state(state));
    }

    /// A bit for each attribute that is there, then their values.
    pub(super) fn attributes(&mut self, from: &QueuePairAttributes) {
        let place = self.0.len();
        self.u16(0);
        let mut present = 0u16;
        let mut number = |bit: u16, value: Option<u32>, this: &mut Self| {
            if let Some(value) = value {
                present |= 1 << bit;
                this.u32(value);
            }
        };
        let state = from.current_state.map(code_of_state).map(u32::from);
        number(0, state, self);
        number(1, from.partition_index.map(u32::from), self);
        number(2, from.port.map(u32::from), self);
        number(3, from.access_flags.map(|it| u32::from(it.bits())), self);
        number(4, from.path_mtu.map(|it| u32::from(it.code())), self);
        number(5, from.destination.map(QueuePairNumber::get), self);
        number(
            6,
            from.receive_sequence.map(PacketSequenceNumber::get),
            self,
        );
        number(7, from.responder_resources.map(u32::from), self);
        number(8, from.rnr_timer.map(|it| u32::from(it.code())), self);
        number(9, from.timeout.map(u32::from), self);
        number(10, from.retry_count.map(|it| u32::from(it.get())), self);
        number(11, from.rnr_retry.map(u32::from), self);
        number(12, from.send_sequence.map(PacketSequenceNumber::get), self);
        number(13, from.initiator_depth.map(u32::from), self);
        number(14, from.drained_event.map(u32::from), self);
        if let Some(vector) = from.address_vector {
            present |= 1 << 15;
            self.0.extend_from_slice(&vector.destination);
        }
        self.0[place..place + 2].copy_from_slice(&present.to_le_bytes());
    }
}

const STATES: [QueuePairState; 7] = [
    QueuePairState::Reset,
    QueuePairState::Init,
    QueuePairState::ReadyToReceive,
    QueuePairState::ReadyToSend,
    QueuePairState::SendQueueDrain,
    QueuePairState::SendQueueError,
    QueuePairState::Error,
];

const fn code_of_state(state: QueuePairState) -> u8 {
    match state {
        QueuePairState::Reset => 1,
        QueuePairState::Init => 2,
        QueuePairState::ReadyToReceive => 3,
        QueuePairState::ReadyToSend => 4,
        QueuePairState::SendQueueDrain => 5,
        QueuePairState::SendQueueError => 6,
        QueuePairState::Error => 7,
    }
}

/// Reads values from the front of bytes.
#[derive(Debug)]
pub(super) struct Decoder<'a>(pub(super) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u8()?;
        self.take(usize::from(length))
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        core::str::from_utf8(self.bytes()?).map_err(|_| Malformed)
    }

    pub(super) fn access(&mut self) -> Result<AccessFlags, Malformed> {
        let bits = self.u8()?;
        let flags = AccessFlags::from_bits(bits);
        if flags.bits() != bits {
            return Err(Malformed);
        }
        Ok(flags)
    }

    pub(super) fn state(&mut self) -> Result<QueuePairState, Malformed> {
        let code = self.u8()?;
        state_of_code(code).ok_or(Malformed)
    }

    pub(super) fn attributes(&mut self) -> Result<QueuePairAttributes, Malformed> {
        let present = self.u16()?;
        let mut number = |bit: u16, most: u32| -> Result<Option<u32>, Malformed> {
            if present & 1 << bit == 0 {
                return Ok(None);
            }
            let value = self.u32()?;
            if value > most {
                return Err(Malformed);
            }
            Ok(Some(value))
        };
        const BYTE: u32 = u8::MAX as u32;
        const NUMBER: u32 = 0x00FF_FFFF;
        let byte = |value: u32| value as u8;
        let state = number(0, BYTE)?.map(byte);
        let partition_index = number(1, u32::from(u16::MAX))?.map(|it| it as u16);
        let port = number(2, BYTE)?.map(byte);
        let access = number(3, 31)?.map(byte);
        let path_mtu = number(4, 5)?.map(byte);
        let destination = number(5, NUMBER)?.map(QueuePairNumber::new);
        let receive_sequence = number(6, NUMBER)?.map(PacketSequenceNumber::new);
        let responder_resources = number(7, BYTE)?.map(byte);
        let rnr_timer = number(8, 31)?.map(byte).map(RnrTimer::new);
        let timeout = number(9, BYTE)?.map(byte);
        let retry_count = number(10, 7)?.map(byte).map(RetryCount::from_bits);
        let rnr_retry = number(11, BYTE)?.map(byte);
        let send_sequence = number(12, NUMBER)?.map(PacketSequenceNumber::new);
        let initiator_depth = number(13, BYTE)?.map(byte);
        let drained_event = number(14, 1)?.map(|it| it == 1);
        let address_vector = match present & 1 << 15 {
            0 => None,
            _ => Some(AddressVector {
                destination: self.array()?,
            }),
        };
        let known = |code: u8| state_of_code(code).ok_or(Malformed);
        let mtu = |code: u8| PathMtu::from_code(code).ok_or(Malformed);
        Ok(QueuePairAttributes {
            current_state: state.map(known).transpose()?,
            partition_index,
            port,
            access_flags: access.map(AccessFlags::from_bits),
            address_vector,
            path_mtu: path_mtu.map(mtu).transpose()?,
            destination,
            receive_sequence,
            responder_resources,
            rnr_timer,
            timeout,
            retry_count,
            rnr_retry,
            send_sequence,
            initiator_depth,
            drained_event,
        })
    }

    /// All has been read.
    pub(super) const fn finish(self) -> Result<(), Malformed> {
        match self.0 {
            [] => Ok(()),
            _ => Err(Malformed),
        }
    }
}

fn state_of_code(code: u8) -> Option<QueuePairState> {
    STATES
        .into_iter()
        .find(|&state| code_of_state(state) == code)
}

/// Handles of the same shape, index and generation.
macro_rules! handles {
    ($($type:ident: $method:ident,)*) => {
        impl Encoder<'_> {
            $(pub(super) fn $method(&mut self, handle: legato_verbs::$type) {
                self.u32(handle.index);
                self.u32(handle.generation);
            })*
        }

        impl Decoder<'_> {
            $(pub(super) fn $method(&mut self) -> Result<legato_verbs::$type, Malformed> {
                Ok(legato_verbs::$type {
                    index: self.u32()?,
                    generation: self.u32()?,
                })
            })*
        }
    };
}

handles! {
    ProtectionDomain: domain,
    CompletionQueue: queue,
    QueuePair: pair,
    SharedReceiveQueue: shared_queue,
    Listener: listener,
    ConnectionRequest: connection_request,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_survive_a_round_trip() {
        let all = QueuePairAttributes {
            current_state: Some(QueuePairState::SendQueueDrain),
            partition_index: Some(0xFFFF),
            port: Some(1),
            access_flags: Some(AccessFlags::REMOTE_ATOMIC),
            address_vector: Some(AddressVector {
                destination: [7; 16],
            }),
            path_mtu: Some(PathMtu::Bytes4096),
            destination: Some(QueuePairNumber::new(0xFF_FFFF)),
            receive_sequence: Some(PacketSequenceNumber::new(5)),
            responder_resources: Some(16),
            rnr_timer: Some(RnrTimer::new(31)),
            timeout: Some(200),
            retry_count: Some(RetryCount::SEVEN),
            rnr_retry: Some(6),
            send_sequence: Some(PacketSequenceNumber::new(0)),
            initiator_depth: Some(255),
            drained_event: Some(true),
        };
        for attributes in [QueuePairAttributes::NONE, QueuePairAttributes::INIT, all] {
            let mut bytes = Vec::new();
            Encoder(&mut bytes).attributes(&attributes);
            let mut decoder = Decoder(&bytes);
            assert_eq!(decoder.attributes(), Ok(attributes));
            assert_eq!(decoder.finish(), Ok(()));
            for length in 0..bytes.len() {
                assert!(Decoder(&bytes[..length]).attributes().is_err(), "{length}");
            }
        }
    }

    #[test]
    fn numbers_out_of_their_range_are_malformed() {
        // A path MTU of code 6, a sequence of 25 bits, a flag of 2, a state that is none.
        for (bit, value) in [(4, 6u32), (6, 1 << 24), (14, 2), (0, 9), (3, 32)] {
            let mut bytes = Vec::new();
            let mut encoder = Encoder(&mut bytes);
            encoder.u16(1 << bit);
            encoder.u32(value);
            assert_eq!(Decoder(&bytes).attributes(), Err(Malformed), "bit {bit}");
        }
    }

    #[test]
    fn every_state_has_a_code() {
        for state in STATES {
            let mut bytes = Vec::new();
            Encoder(&mut bytes).state(state);
            assert_eq!(Decoder(&bytes).state(), Ok(state));
        }
        assert_eq!(Decoder(&[0]).state(), Err(Malformed));
        assert_eq!(Decoder(&[8]).state(), Err(Malformed));
    }
}
