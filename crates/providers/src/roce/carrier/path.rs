//! What a path takes.

use super::name::canonical;
use super::{CarrierError, IP4_UDP, IP6_UDP, step};
use core::net::SocketAddr;
use legato_transport::wire::HEADERS_MAX;
use legato_transport::wire::icrc::ICRC_LENGTH;
use legato_verbs::PathMtu;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

/// Interfaces of this MTU take packets of 4096 bytes over either version of IP.
pub const MTU_OF_ONE_PACKET: u32 = (IP6_UDP + HEADERS_MAX + 4096 + ICRC_LENGTH) as u32;

/// The largest path MTU whose packets fit `mtu` bytes with all headers.
pub fn largest_path_mtu(mtu: u32, ipv6: bool) -> Option<PathMtu> {
    let around = if ipv6 { IP6_UDP } else { IP4_UDP } + HEADERS_MAX + ICRC_LENGTH;
    (1..=5)
        .rev()
        .filter_map(PathMtu::from_code)
        .find(|path| path.bytes() as usize + around <= mtu as usize)
}

/// What the route from `local` to `peer` takes: the interface's MTU, or less if a router on the way
/// has said so (`IP_MTU`, ip(7)).
pub(super) fn probe(local: SocketAddr, peer: SocketAddr) -> Result<PathMtu, CarrierError> {
    let (local, peer) = (canonical(local), canonical(peer));
    let family = family_of(local);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        net::socket_with(family, SocketType::DGRAM, flags, None).map_err(step("socket"))?;
    let mut own = local;
    own.set_port(0);
    net::bind(&socket, &own).map_err(step("bind"))?;
    net::connect(&socket, &peer).map_err(step("connect"))?;
    let ipv6 = local.is_ipv6();
    let mtu = match ipv6 {
        true => sockopt::ipv6_mtu(&socket),
        false => sockopt::ip_mtu(&socket),
    };
    let mtu = mtu.map_err(step("getsockopt IP_MTU"))?;
    largest_path_mtu(mtu, ipv6).ok_or(CarrierError::PathTooNarrow { peer, mtu })
}

pub(in crate::roce) const fn family_of(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_links_take_what_is_known_of_them() {
        for (mtu, ipv6, expected) in [
            (1500, false, Some(1024)),
            (1500, true, Some(1024)),
            (9000, false, Some(4096)),
            (4200, true, Some(4096)),
            (4168, false, Some(4096)),
            (4167, false, Some(2048)),
            (4187, true, Some(2048)),
            (300, false, None),
        ] {
            let found = largest_path_mtu(mtu, ipv6).map(|path| path.bytes() as usize);
            assert_eq!(found, expected, "{mtu}");
        }
    }
}
