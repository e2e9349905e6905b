//! Numbers of 24 bits, the path MTU, and the receiver-not-ready timer.

use core::fmt;
use legato_base::Duration;

const MASK: u32 = 0x00FF_FFFF;
/// What lies behind by less than this is a duplicate; ahead, new (IB spec 9.7.2).
const HALF: u32 = 1 << 23;

/// Names a queue pair of a NIC: 24 bits. 0 and 1 are the management queue pairs (IB spec 3.9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePairNumber(u32);

impl QueuePairNumber {
    /// The general service interface, which connection management goes through.
    pub const GENERAL_SERVICE: Self = Self(1);

    /// The low 24 bits.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A packet sequence number: 24 bits, compared on a circle.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketSequenceNumber(u32);

impl PacketSequenceNumber {
    /// The low 24 bits.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK)
    }

    /// How far `self` is ahead of `other`: from -2^23 to 2^23 - 1, negative if it lies behind.
    pub const fn minus(self, other: Self) -> i32 {
        let distance = self.0.wrapping_sub(other.0) & MASK;
        if distance < HALF {
            distance.cast_signed()
        } else {
            distance.cast_signed() - (1 << 24)
        }
    }

    /// Does it come before `other`?
    pub const fn is_before(self, other: Self) -> bool {
        self.minus(other) < 0
    }
}

impl fmt::Debug for PacketSequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// Payload bytes of a full packet (IB spec 9.5): those of `enum ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum PathMtu {
    Bytes256 = 256,
    Bytes512 = 512,
    Bytes1024 = 1024,
    Bytes2048 = 2048,
    Bytes4096 = 4096,
}

impl PathMtu {
    pub const fn bytes(self) -> u32 {
        self as u32
    }

    /// Packets of a message of `length` bytes. An empty one has a packet too.
    pub const fn packets(self, length: u32) -> u32 {
        if length == 0 {
            1
        } else {
            length.div_ceil(self.bytes())
        }
    }

    /// The number in connection management's messages and in `enum ibv_mtu`: 1 for 256 bytes.
    pub const fn code(self) -> u8 {
        match self {
            Self::Bytes256 => 1,
            Self::Bytes512 => 2,
            Self::Bytes1024 => 3,
            Self::Bytes2048 => 4,
            Self::Bytes4096 => 5,
        }
    }

    /// The reverse of [`Self::code`].
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Bytes256,
            2 => Self::Bytes512,
            3 => Self::Bytes1024,
            4 => Self::Bytes2048,
            5 => Self::Bytes4096,
            _ => return None,
        })
    }
}

/// How long a peer without a receive wants the requester to wait: a code of five bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

/// In units of 10 us, by code (IB spec table 47).
const RNR_TIMERS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

impl RnrTimer {
    /// The low five bits.
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }

    pub const fn code(self) -> u8 {
        self.0
    }

    pub const fn duration(self) -> Duration {
        Duration::from_micros(RNR_TIMERS[self.0 as usize] as u64 * 10)
    }
}

/// How often packets are sent again to a peer that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryCount(u8);

impl RetryCount {
    /// The most that three bits hold. Some devices take it for "without end" (Linux' `rdma_rxe`), and
    /// never find out that a peer is dead; so who wants it has to say so.
    pub const SEVEN: Self = Self(7);

    /// Up to six, of which each device makes an end; none for more.
    pub const fn new(count: u8) -> Option<Self> {
        if count < 7 { Some(Self(count)) } else { None }
    }

    /// The low three bits, as they are on the wire: what somebody has said before.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 7)
    }

    /// This one, or six where it is seven.
    pub const fn with_an_end(self) -> Self {
        if self.0 < 7 { self } else { Self(6) }
    }

    pub const fn get(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_lie_on_a_circle() {
        let last = PacketSequenceNumber::new(0xFF_FFFF);
        assert_eq!(last.plus(1), PacketSequenceNumber::new(0));
        assert_eq!(last.plus(1).minus(last), 1);
        assert_eq!(last.minus(last.plus(1)), -1);
        assert!(last.is_before(last.plus(1)));
        assert!(!last.plus(1).is_before(last));
        // The farthest behind, and the farthest ahead.
        assert_eq!(last.minus(last.plus(1 << 23)), -(1 << 23));
        assert_eq!(last.plus((1 << 23) - 1).minus(last), (1 << 23) - 1);
        assert_eq!(PacketSequenceNumber::new(0x0123_4567).get(), 0x23_4567);
    }

    #[test]
    fn messages_have_at_least_a_packet() {
        let mtu = PathMtu::Bytes1024;
        let counts = [(0, 1), (1, 1), (1024, 1), (1025, 2), (u32::MAX, 1 << 22)];
        for (length, packets) in counts {
            assert_eq!(mtu.packets(length), packets, "{length}");
        }
        for code in 1..=5 {
            assert_eq!(PathMtu::from_code(code).map(PathMtu::code), Some(code));
        }
        assert_eq!(PathMtu::from_code(0).or(PathMtu::from_code(6)), None);
    }

    #[test]
    fn v_05_seven_retries_have_to_be_asked_for_by_name() {
        let six = RetryCount::new(6).unwrap();
        assert_eq!([RetryCount::new(7), RetryCount::new(8)], [None; 2]);
        assert_eq!(RetryCount::SEVEN.get(), 7);
        assert_eq!(RetryCount::SEVEN.with_an_end(), six);
        assert_eq!(six.with_an_end(), six);
        assert_eq!(RetryCount::from_bits(0xF7), RetryCount::SEVEN);
    }

    #[test]
    fn timers_are_those_of_the_specification() {
        let millis = |code| RnrTimer::new(code).duration().as_nanos() as f64 / 1e6;
        for (code, expected) in [
            (0, 655.36),
            (1, 0.01),
            (12, 0.64),
            (25, 61.44),
            (31, 491.52),
        ] {
            assert!((millis(code) - expected).abs() < 1e-9, "{code}");
        }
    }
}
