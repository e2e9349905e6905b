//! The small things that messages are made of.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use legato_base::Duration;

/// A global identifier: the address of a port. RoCE forms it from the IP address (RoCEv2 annex
/// A17.4.1.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4-mapped address.
    pub const fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    pub const fn from_ipv6(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

/// Names a NIC for ever, whatever its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaGuid(pub u64);

/// Names a connection among all that one side has. Zero names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommunicationId(pub u32);

impl CommunicationId {
    /// What stands where the other side's is not known yet.
    pub const UNKNOWN: Self = Self(0);
}

/// Names an exchange of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionId(pub u64);

/// What a listener offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

/// Services of IP ports (annex A11.2.2): this prefix, a byte of IP protocol, two of port.
const IP_SERVICES: u64 = 0x0000_0000_0100_0000;
const IP_SERVICES_MASK: u64 = 0xFFFF_FFFF_FF00_0000;
const PROTOCOL_TCP: u64 = 6 << 16;

impl ServiceId {
    /// A port of `RDMA_PS_TCP`: reliable connections of `rdma_cm`.
    pub const fn tcp(port: u16) -> Self {
        Self(IP_SERVICES | PROTOCOL_TCP | port as u64)
    }

    /// Do requests for it begin their private data with an [`IpHeader`](crate::cm::IpHeader)?
    pub const fn is_ip(self) -> bool {
        self.0 & IP_SERVICES_MASK == IP_SERVICES
    }
}

/// A field of `WIDTH` bits, 32 at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bits<const WIDTH: u32>(u32);

impl<const WIDTH: u32> Bits<WIDTH> {
    const MASK: u32 = {
        assert!(0 < WIDTH && WIDTH <= 32);
        u32::MAX >> (32 - WIDTH)
    };

    /// The low bits.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    pub const fn get(self) -> u32 {
        self.0
    }

    /// Of `byte`, what is left when it is moved right by `shift`.
    pub(super) fn from_byte(byte: u8, shift: u32) -> Self {
        Self::new(u32::from(byte >> shift))
    }

    /// Its place in a byte; the field is narrower than one.
    pub(super) const fn in_byte(self, shift: u32) -> u8 {
        (self.0 << shift) as u8
    }
}

/// A time of 4.096 us * 2^code, the code having five bits (IB spec 12.7.19 and others).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeoutCode(Bits<5>);

impl TimeoutCode {
    /// The low five bits.
    pub const fn new(code: u8) -> Self {
        Self(Bits::new(code as u32))
    }

    pub const fn code(self) -> u8 {
        self.0.get() as u8
    }

    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4_096 << self.0.get())
    }

    /// Of the upper five bits of a byte.
    pub(super) const fn from_byte(byte: u8) -> Self {
        Self::new(byte >> 3)
    }

    pub(super) const fn in_byte(self) -> u8 {
        self.code() << 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn addresses_are_those_of_ip() {
        let gid = Gid::from_ipv4(Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(
            gid.0,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 77, 0, 1]
        );
        assert_eq!(format!("{gid:?}"), "::ffff:10.77.0.1");
    }

    #[test]
    fn services_of_ports() {
        assert_eq!(ServiceId::tcp(7174), ServiceId(0x0106_1C06));
        assert!(ServiceId::tcp(1).is_ip());
        assert!(!ServiceId(0x1234_0000_0106_0001).is_ip());
    }

    #[test]
    fn timeouts_are_powers_of_two() {
        assert_eq!(TimeoutCode::new(0).duration(), Duration::from_nanos(4_096));
        assert_eq!(TimeoutCode::new(20).duration().as_millis(), 4_294);
        assert_eq!(TimeoutCode::new(31).duration().as_millis(), 8_796_093);
    }
}
