//! Packets that a malicious peer could send.

use super::BASE;
use legato_base::Random;
use legato_transport::wire::{
    Acknowledgement, AtomicHeader, BaseHeader, Body, DatagramHeader, Extra, NakCode, Packet,
    RemoteHeader, Syndrome,
};
use legato_transport::{PacketSequenceNumber, QueuePairNumber};
use legato_verbs::{RemoteKey, RnrTimer};

pub(crate) const FIRST: u32 = 0xFF_FFFA;

/// Mostly what could be right.
pub(crate) struct Hostile {
    pub(crate) random: Random,
    payload: Vec<u8>,
}

impl Hostile {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::from_seed(seed),
            payload: vec![7; 5000],
        }
    }

    fn one_of<const N: usize>(&mut self, values: [u64; N]) -> u64 {
        values[self.random.below(N as u64) as usize]
    }

    fn number(&mut self) -> u32 {
        let any = self.random.next_u64();
        self.one_of([0, 1, 8, 256, 257, 4096, u64::from(u32::MAX), any]) as u32
    }

    fn key(&mut self) -> RemoteKey {
        RemoteKey(self.one_of([1, 1, 1, 2, 99]) as u32)
    }

    fn address(&mut self) -> u64 {
        let any = self.random.next_u64();
        self.one_of([BASE, BASE, BASE + 8, BASE + 4095, u64::MAX, 0, any])
    }

    fn remote(&mut self) -> RemoteHeader {
        RemoteHeader {
            address: self.address(),
            key: self.key(),
            length: self.number(),
        }
    }

    fn atomic(&mut self) -> AtomicHeader {
        AtomicHeader {
            address: self.address(),
            key: self.key(),
            swap_or_add: self.random.next_u64(),
            compare: self.random.next_u64(),
        }
    }

    fn acknowledgement(&mut self) -> Acknowledgement {
        let syndrome = match self.random.below(12) {
            0 => Syndrome::ReceiverNotReady(RnrTimer::new(self.random.next_u64() as u8)),
            1..=3 => Syndrome::Refused(NakCode::SequenceError),
            4 => Syndrome::Refused(NakCode::RemoteAccess),
            _ => Syndrome::Acknowledged { credits: 31 },
        };
        Acknowledgement {
            syndrome,
            messages: self.number(),
        }
    }

    fn extra(&mut self) -> Extra {
        match self.random.below(3) {
            0 => Extra::Nothing,
            1 => Extra::Immediate(self.number()),
            _ => Extra::Invalidate(self.key()),
        }
    }

    fn immediate(&mut self) -> Option<u32> {
        self.random.ratio(1, 2).then(|| self.number())
    }

    fn body(&mut self) -> Body {
        match self.random.below(19) {
            0 => Body::SendFirst,
            1 => Body::SendMiddle,
            2 => Body::SendLast(self.extra()),
            3 => Body::SendOnly(self.extra()),
            4 => Body::WriteFirst(self.remote()),
            5 => Body::WriteMiddle,
            6 => Body::WriteLast(self.immediate()),
            7 => Body::WriteOnly(self.remote(), self.immediate()),
            8 => Body::ReadRequest(self.remote()),
            9 => Body::ReadResponseFirst(self.acknowledgement()),
            10 => Body::ReadResponseMiddle,
            11 => Body::ReadResponseLast(self.acknowledgement()),
            12 => Body::ReadResponseOnly(self.acknowledgement()),
            13 => Body::Acknowledge(self.acknowledgement()),
            14 => Body::AtomicAcknowledge(self.acknowledgement(), self.random.next_u64()),
            15 => Body::CompareSwap(self.atomic()),
            16 => Body::FetchAdd(self.atomic()),
            17 => Body::CongestionNotification,
            _ => Body::Datagram(
                DatagramHeader {
                    queue_key: self.number(),
                    source: QueuePairNumber::new(self.number()),
                },
                self.immediate(),
            ),
        }
    }

    fn sequence(&mut self) -> PacketSequenceNumber {
        let near = FIRST
            .wrapping_add(self.random.below(10) as u32)
            .wrapping_sub(2);
        let far = near.wrapping_add(1 << 23);
        let any = self.random.next_u64() as u32;
        let near = u64::from(near);
        PacketSequenceNumber::new(self.one_of([
            near,
            near,
            near,
            near,
            near,
            u64::from(far),
            u64::from(any),
        ]) as u32)
    }

    /// A packet with little or no payload.
    #[allow(dead_code, reason = "for the parsers, in another program")]
    pub(crate) fn short_packet(&mut self) -> Packet<'_> {
        let length = self.random.below(24) as usize;
        let mut packet = self.packet();
        packet.payload = &packet.payload[..length.min(packet.payload.len())];
        packet
    }

    pub(crate) fn packet(&mut self) -> Packet<'_> {
        let body = self.body();
        let base = BaseHeader {
            destination: QueuePairNumber::new(1),
            sequence: self.sequence(),
            acknowledge: self.random.ratio(1, 2),
            solicited: self.random.ratio(1, 2),
            forward_congestion: false,
            backward_congestion: false,
        };
        let any = self.random.below(5000);
        let length = self.one_of([0, 1, 8, 255, 256, 256, 256, 257, any]) as usize;
        let length = if body.opcode().has_payload() {
            length
        } else {
            0
        };
        Packet {
            base,
            body,
            payload: &self.payload[..length],
        }
    }
}
