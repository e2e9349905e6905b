//! Who is who: the adapter knows peers by GID, the sockets by IP address and UDP port.
//!
//! In RoCEv2 a NIC has an IP address and listens at port 4791; its GID is the address, and the source
//! port of its packets says nothing but which flow they are of (0xC000 and above, annex A17.9.2).
//! Several software NICs may share an address, each with a port of its own below that range, which its
//! packets come from too. Their GIDs have the port in them, in bytes that no address has.

use super::carrier::{FIRST_FLOW_PORT, gid_of, ip_of};
use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use legato_transport::cm::Gid;
use legato_verbs::ROCE_PORT;
use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U64};

/// Which of a provider's own ports a peer is talked to through.
pub(super) type PortIndex = u8;
/// Begins a GID that is no address: unique local addresses (RFC 4193) with this prefix were never
/// assigned, because the bit after FC is reserved.
const MARK: [u8; 2] = [0xFC, 0x4C];
/// Peers over IPv6 with a port of their own that are remembered at a time.
const NUMBERED_MAX: usize = 1 << 14;

/// Peers as the adapter and as the sockets know them.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// An IPv6 address fills a GID, so peers with a port of their own, or on one link of several, get a
    /// number.
    numbers: BTreeMap<(PortIndex, SocketAddr), u64>,
    numbered: BTreeMap<u64, (PortIndex, SocketAddr)>,
    last: u64,
}

/// Where the sender of a packet is to be answered.
pub(super) fn answer_to(mut source: SocketAddr) -> SocketAddr {
    if source.port() >= FIRST_FLOW_PORT {
        source.set_port(ROCE_PORT);
    }
    source
}

/// A link-local address is one machine's on each link, which a GID does not tell.
fn has_scope(address: SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.scope_id() != 0)
}

impl Peers {
    /// The GID of a peer; None if there are too many.
    pub(super) fn gid(&mut self, port: PortIndex, peer: SocketAddr) -> Option<Gid> {
        if port == 0 && peer.port() == ROCE_PORT && !has_scope(peer) {
            return Some(gid_of(peer));
        }
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&MARK);
        bytes[4] = port;
        if let IpAddr::V4(ip) = peer.ip() {
            bytes[2..4].copy_from_slice(U16::new(peer.port()).as_bytes());
            bytes[12..].copy_from_slice(&ip.octets());
        } else {
            // Not a port: those are not zero.
            bytes[8..].copy_from_slice(U64::new(self.number(port, peer)?).as_bytes());
        }
        Some(Gid(bytes))
    }

    fn number(&mut self, port: PortIndex, peer: SocketAddr) -> Option<u64> {
        if let Some(&number) = self.numbers.get(&(port, peer)) {
            return Some(number);
        }
        if self.numbers.len() >= NUMBERED_MAX {
            return None;
        }
        self.last += 1;
        self.numbers.insert((port, peer), self.last);
        self.numbered.insert(self.last, (port, peer));
        Some(self.last)
    }

    /// Forgets those who are nobody's any more, when there are many.
    pub(super) fn forget_all_but(&mut self, used: impl Fn(Gid) -> bool) {
        if self.numbers.len() < NUMBERED_MAX / 2 {
            return;
        }
        let all: alloc::vec::Vec<_> = self.numbers.iter().map(|(key, &n)| (*key, n)).collect();
        for ((port, peer), number) in all {
            if self.gid(port, peer).is_some_and(|gid| !used(gid)) {
                self.numbers.remove(&(port, peer));
                self.numbered.remove(&number);
            }
        }
    }

    /// Where a peer is, and through which port it is reached. None if it is no address of one machine.
    pub(super) fn address(&self, gid: Gid) -> Option<(PortIndex, SocketAddr)> {
        let bytes = gid.0;
        if bytes[..2] != MARK {
            let ip = ip_of(gid);
            let is_one = !ip.is_unspecified() && !ip.is_multicast();
            return is_one.then(|| (0, SocketAddr::new(ip, ROCE_PORT)));
        }
        let port = u16::from(bytes[2]) << 8 | u16::from(bytes[3]);
        if port == 0 {
            let number = bytes[8..]
                .iter()
                .fold(0, |n, &byte| n << 8 | u64::from(byte));
            return self.numbered.get(&number).copied();
        }
        let ip = Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]);
        Some((bytes[4], SocketAddr::new(ip.into(), port)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_peer_is_found_by_its_gid() {
        let mut peers = Peers::default();
        for (port, text) in [
            (0, "192.0.2.1:4791"),
            (0, "192.0.2.1:4792"),
            (1, "192.0.2.1:4791"),
            (0, "[2001:db8::1]:4791"),
            (0, "[2001:db8::1]:7"),
            (3, "[2001:db8::1]:4791"),
        ] {
            let peer: SocketAddr = text.parse().unwrap();
            let gid = peers.gid(port, peer).unwrap();
            assert_eq!(peers.address(gid), Some((port, peer)), "{text}");
            assert_eq!(peers.gid(port, peer), Some(gid));
        }
        assert_eq!(peers.gid(0, "192.0.2.1:4791".parse().unwrap()).unwrap(), {
            Gid::from_ipv4(Ipv4Addr::new(192, 0, 2, 1))
        });
        assert_eq!(peers.address(Gid([0; 16])), None);
        assert_eq!(peers.address(Gid([0xFF; 16])), None);
    }

    #[test]
    fn a_flow_is_answered_at_the_port_of_roce() {
        for (source, expected) in [
            ("192.0.2.1:49152", "192.0.2.1:4791"),
            ("192.0.2.1:65535", "192.0.2.1:4791"),
            ("192.0.2.1:4791", "192.0.2.1:4791"),
            ("192.0.2.1:49151", "192.0.2.1:49151"),
        ] {
            let answer = answer_to(source.parse().unwrap());
            assert_eq!(answer.to_string(), expected);
        }
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let mut peers = Peers::default();
        let stranger = |n: u16| SocketAddr::new("2001:db8::1".parse().unwrap(), n);
        let kept = peers.gid(1, stranger(0)).unwrap();
        for n in 1..=u16::MAX {
            peers.gid(1, stranger(n));
        }
        assert_eq!(peers.numbers.len(), NUMBERED_MAX);
        assert_eq!(peers.gid(1, stranger(u16::MAX)), None);
        peers.forget_all_but(|gid| gid == kept);
        assert_eq!(peers.address(kept), Some((1, stranger(0))));
        assert_eq!((peers.numbers.len(), peers.numbered.len()), (1, 1));
    }
}
