//! Addresses: as the kernel writes them, as callers do, and as GIDs.

use core::fmt;
use core::mem::size_of;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use legato_transport::cm::Gid;
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SPACE: usize = size_of::<Ipv6Name>();

/// A socket address as bytes (`sockaddr_in`, `sockaddr_in6`; ip(7), ipv6(7)).
#[derive(Clone, Copy)]
pub(super) struct Name {
    bytes: [u8; SPACE],
    length: usize,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Ipv4Name {
    family: u16,
    port: U16,
    address: [u8; 4],
    zero: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Ipv6Name {
    family: u16,
    port: U16,
    flow: u32,
    address: [u8; 16],
    scope: u32,
}

impl Name {
    pub(super) const NONE: Self = Self {
        bytes: [0; SPACE],
        length: 0,
    };

    pub(super) fn new(address: SocketAddr) -> Self {
        let mut name = Self::NONE;
        match address {
            SocketAddr::V4(address) => name.put(&Ipv4Name {
                family: AF_INET,
                port: address.port().into(),
                address: address.ip().octets(),
                zero: [0; 8],
            }),
            SocketAddr::V6(address) => name.put(&Ipv6Name {
                family: AF_INET6,
                port: address.port().into(),
                flow: 0,
                address: address.ip().octets(),
                scope: address.scope_id(),
            }),
        }
        name
    }

    fn put(&mut self, value: &(impl IntoBytes + Immutable)) {
        let bytes = value.as_bytes();
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        self.length = bytes.len();
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Where the kernel may write a name, whose length [`Name::set_length`] then tells.
    pub(super) const fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(super) fn set_length(&mut self, length: usize) {
        self.length = length.min(SPACE);
    }

    pub(super) fn address(&self) -> Option<SocketAddr> {
        let family = u16::read_from_prefix(self.bytes()).ok()?.0;
        match family {
            AF_INET => {
                let name = Ipv4Name::read_from_prefix(self.bytes()).ok()?.0;
                let address = Ipv4Addr::from(name.address);
                Some(SocketAddrV4::new(address, name.port.get()).into())
            }
            AF_INET6 => {
                let name = Ipv6Name::read_from_prefix(self.bytes()).ok()?.0;
                let address = Ipv6Addr::from(name.address);
                Some(SocketAddrV6::new(address, name.port.get(), 0, name.scope).into())
            }
            _ => None,
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

/// The GID of whoever is at an address (annex A17.2: the IPv6 address, or the IPv4 address mapped
/// into one).
pub fn gid_of(address: SocketAddr) -> Gid {
    match address.ip() {
        IpAddr::V4(address) => Gid::from_ipv4(address),
        IpAddr::V6(address) => Gid::from_ipv6(address),
    }
}

/// The IP address that a GID is.
pub fn ip_of(gid: Gid) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid.0)).to_canonical()
}

/// An address in the one form under which peers are told apart: no mapped IPv4 address, no flow.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_none() => {
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into()
        }
        other => SocketAddr::new(other.ip().to_canonical(), other.port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_written() {
        for text in ["192.0.2.1:4791", "[2001:db8::1]:1", "[fe80::1%7]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Name::new(address).address(), Some(address));
        }
        assert_eq!(Name::NONE.address(), None);
    }

    #[test]
    fn a_gid_is_an_address() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(ip_of(gid_of(SocketAddr::new(ip, 1))), ip);
        }
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:5".parse().unwrap();
        assert_eq!(canonical(mapped), "192.0.2.1:5".parse().unwrap());
    }
}
