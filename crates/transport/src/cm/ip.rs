//! The header that `rdma_cm` puts before the private data of a request (annex A11.3): who asks,
//! in the words of IP.

use super::message::PrivateData;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes that it takes.
pub const IP_HEADER_LENGTH: usize = 36;
/// What it leaves of a request's private data.
pub type IpPrivateData = PrivateData<56>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    pub source_port: u16,
    pub addresses: IpAddresses,
}

/// Both of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpAddresses {
    V4 {
        source: Ipv4Addr,
        destination: Ipv4Addr,
    },
    V6 {
        source: Ipv6Addr,
        destination: Ipv6Addr,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpHeaderError {
    #[error("version {0} of the IP header")]
    UnknownVersion(u8),
    #[error("IP version {0}")]
    UnknownIpVersion(u8),
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct IpLayout {
    version: u8,
    /// 4 bits.
    ip_version: u8,
    source_port: U16,
    /// An IPv4 address is at the end.
    source: [u8; 16],
    destination: [u8; 16],
    rest: [u8; 56],
}

const _: () = assert!(size_of::<IpLayout>() == 92 && IP_HEADER_LENGTH == 92 - 56);

impl IpHeader {
    /// Takes a request's private data apart.
    ///
    /// # Errors
    /// If it does not begin with such a header.
    pub fn parse(data: &PrivateData<92>) -> Result<(Self, IpPrivateData), IpHeaderError> {
        let layout: IpLayout = zerocopy::transmute!(*data.as_bytes());
        if layout.version != 0 {
            return Err(IpHeaderError::UnknownVersion(layout.version));
        }
        let addresses = match layout.ip_version >> 4 {
            4 => IpAddresses::V4 {
                source: ipv4(layout.source),
                destination: ipv4(layout.destination),
            },
            6 => IpAddresses::V6 {
                source: layout.source.into(),
                destination: layout.destination.into(),
            },
            other => return Err(IpHeaderError::UnknownIpVersion(other)),
        };
        let header = Self {
            source_port: layout.source_port.get(),
            addresses,
        };
        Ok((header, PrivateData::new(layout.rest)))
    }

    /// A request's private data.
    pub fn before(&self, rest: &IpPrivateData) -> PrivateData<92> {
        let (version, source, destination) = match self.addresses {
            IpAddresses::V4 {
                source,
                destination,
            } => (4, padded(source), padded(destination)),
            IpAddresses::V6 {
                source,
                destination,
            } => (6, source.octets(), destination.octets()),
        };
        PrivateData::new(zerocopy::transmute!(IpLayout {
            version: 0,
            ip_version: version << 4,
            source_port: self.source_port.into(),
            source,
            destination,
            rest: *rest.as_bytes(),
        }))
    }

    pub const fn source(&self) -> IpAddr {
        match self.addresses {
            IpAddresses::V4 { source, .. } => IpAddr::V4(source),
            IpAddresses::V6 { source, .. } => IpAddr::V6(source),
        }
    }

    pub const fn destination(&self) -> IpAddr {
        match self.addresses {
            IpAddresses::V4 { destination, .. } => IpAddr::V4(destination),
            IpAddresses::V6 { destination, .. } => IpAddr::V6(destination),
        }
    }
}

fn ipv4(bytes: [u8; 16]) -> Ipv4Addr {
    let [.., a, b, c, d] = bytes;
    Ipv4Addr::new(a, b, c, d)
}

fn padded(address: Ipv4Addr) -> [u8; 16] {
    let [a, b, c, d] = address.octets();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
}
