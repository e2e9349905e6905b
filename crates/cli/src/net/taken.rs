//! Which UDP ports are in use, looked up: to bind one would keep it from a node that starts at this moment.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A line for each socket of this network namespace, the kernel's own too (proc(5)).
const TABLES: [&str; 2] = ["/proc/net/udp", "/proc/net/udp6"];

/// The places of all UDP sockets.
#[derive(Debug)]
pub(super) struct Taken(Vec<SocketAddr>);

impl Taken {
    /// None where there is no table to read.
    pub(super) fn now() -> Self {
        let tables = TABLES.map(|table| std::fs::read_to_string(table).unwrap_or_default());
        Self::parse(&tables.concat())
    }

    fn parse(tables: &str) -> Self {
        let local = |line: &str| place_of(line.split_ascii_whitespace().nth(1)?);
        Self(tables.lines().filter_map(local).collect())
    }

    /// Whether a socket cannot have this place. One at the IPv6 wildcard has those of IPv4 too, as a rule.
    fn contains(&self, ip: IpAddr, port: u16) -> bool {
        let is_there = |other: IpAddr| {
            let wildcard = other.is_unspecified() && (other.is_ipv6() || ip.is_ipv4());
            wildcard || other == ip
        };
        let mut places = self.0.iter();
        places.any(|place| place.port() == port && is_there(place.ip()))
    }

    /// The first from `port` on that is free.
    pub(super) fn free_from(&self, ip: IpAddr, port: u16) -> Option<u16> {
        (port..).find(|&port| !self.contains(ip, port))
    }
}

/// `0100007F:12B7`: words of 32 bits as they lie in memory, in the order of the network.
fn place_of(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        u32::from_str_radix(ip.get(at..at + 8)?, 16)
            .ok()
            .map(u32::from_be)
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bits = words
                .iter()
                .fold(0, |bits, &word| bits << 32 | u128::from(word));
            IpAddr::V6(Ipv6Addr::from(bits))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the kernel writes them on a little-endian machine; `rdma_rxe` has the wildcards.
    const IPV4: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n\
         1289: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4411 2 0 0\n\
         1290: 0100000A:12B8 0200000A:C000 01 00000000:00000000 00:00000000 00000000     0        0 4412 2 0 0\n";
    const IPV6: &str = "  sl  local_address                         remote_address                        st\n\
         77: B80D0120000000000000000001000000:12B7 00000000000000000000000000000000:0000 07\n";
    const WILDCARD: &str = " 1: 00000000:12B7 00000000:0000 07\n";
    const IPV6_WILDCARD: &str =
        " 1: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07\n";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_socket_has_its_own_address_and_port_only() {
        let taken = Taken::parse(&[IPV4, IPV6].concat());
        assert_eq!(taken.0.len(), 3);
        assert!(taken.contains(ip("127.0.0.1"), 4791));
        assert!(!taken.contains(ip("127.0.0.1"), 4792));
        assert!(!taken.contains(ip("127.0.0.2"), 4791));
        assert!(taken.contains(ip("10.0.0.1"), 4792));
        assert!(taken.contains(ip("2001:db8::1"), 4791));
        assert!(!taken.contains(ip("2001:db8::2"), 4791));
    }

    #[test]
    fn a_wildcard_has_all_addresses_of_its_family() {
        for (table, ipv6) in [(WILDCARD, false), (IPV6_WILDCARD, true)] {
            let taken = Taken::parse(table);
            assert!(taken.contains(ip("192.0.2.1"), 4791));
            assert_eq!(taken.contains(ip("2001:db8::1"), 4791), ipv6);
            assert_eq!(taken.free_from(ip("192.0.2.1"), 4791), Some(4792));
        }
    }

    #[test]
    fn what_is_no_socket_is_no_place() {
        for line in [
            "",
            "sl",
            "1: x",
            "1: 0100007F",
            "1: 0100007F:12B70",
            "1: 01:12B7",
            "1: 010000\u{e9}:1",
        ] {
            assert!(Taken::parse(line).0.is_empty(), "{line}");
        }
    }

    #[test]
    fn a_socket_of_this_process_is_found() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let place = socket.local_addr().unwrap();
        assert!(Taken::now().contains(place.ip(), place.port()));
    }
}
