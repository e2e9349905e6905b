//! What each side of a stream says first.

use super::super::name::{gid_of, ip_of};
use core::mem::size_of;
use core::net::SocketAddr;
use legato_transport::cm::Gid;
use legato_verbs::PathMtu;
use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(super) const PREAMBLE_LENGTH: usize = size_of::<PreambleBytes>();

const MAGIC: [u8; 8] = *b"LegatoRS";
const VERSION: u16 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PreambleBytes {
    magic: [u8; 8],
    version: U16,
    /// In bytes.
    path_mtu: U16,
    /// Where the sender listens.
    port: U16,
    reserved: U16,
    instance: U64,
    gid: [u8; 16],
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preamble {
    /// Where it listens, without the scope of a link-local address, which is ours to know.
    pub(super) address: SocketAddr,
    pub(super) path_mtu: PathMtu,
    pub(super) instance: u64,
}

impl Preamble {
    pub(super) fn to_bytes(self) -> [u8; PREAMBLE_LENGTH] {
        let mut bytes = [0; PREAMBLE_LENGTH];
        let value = PreambleBytes {
            magic: MAGIC,
            version: VERSION.into(),
            path_mtu: (self.path_mtu.bytes() as u16).into(),
            port: self.address.port().into(),
            reserved: 0.into(),
            instance: self.instance.into(),
            gid: gid_of(self.address).0,
        };
        bytes.copy_from_slice(value.as_bytes());
        bytes
    }

    /// Reads what came. None if it is not of this protocol and version.
    pub(super) fn from_bytes(bytes: &[u8; PREAMBLE_LENGTH]) -> Option<Self> {
        let value = PreambleBytes::read_from_bytes(bytes).ok()?;
        let path_mtu = (1..=5)
            .filter_map(PathMtu::from_code)
            .find(|path| path.bytes() == u32::from(value.path_mtu.get()))?;
        let right = value.magic == MAGIC
            && value.version.get() == VERSION
            && value.reserved.get() == 0
            && value.port.get() != 0;
        right.then(|| Self {
            address: SocketAddr::new(ip_of(Gid(value.gid)), value.port.get()),
            path_mtu,
            instance: value.instance.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preamble() -> Preamble {
        Preamble {
            address: "192.0.2.1:4791".parse().unwrap(),
            path_mtu: PathMtu::Bytes2048,
            instance: 77,
        }
    }

    #[test]
    fn preambles_survive_a_round_trip() {
        for address in ["192.0.2.1:4791", "[2001:db8::1]:1"] {
            let address = address.parse().unwrap();
            let preamble = Preamble {
                address,
                ..preamble()
            };
            assert_eq!(Preamble::from_bytes(&preamble.to_bytes()), Some(preamble));
        }
    }

    #[test]
    fn another_protocol_is_refused_by_every_fixed_byte() {
        // Magic, version, path MTU and the reserved word.
        for at in (0..12).chain(14..16) {
            let mut bytes = preamble().to_bytes();
            bytes[at] ^= 0x40;
            assert_eq!(Preamble::from_bytes(&bytes), None, "byte {at}");
        }
    }
}
