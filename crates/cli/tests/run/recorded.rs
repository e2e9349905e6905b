//! Somebody listens to what a client says to a node that has a secret, and says it again.

use crate::harness::{Node, PATIENCE, legato, poll_until, status_of};
use crate::secret::{new_secret, with_secret};
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::num::NonZeroU32;
use std::process::Command;

const PORT: u16 = 4791;

/// A UDP datagram over loopback.
struct Datagram {
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: Vec<u8>,
}

impl Datagram {
    /// None if an IP packet is none.
    fn parse(packet: &[u8]) -> Option<Self> {
        let bytes = |at: usize| packet.get(at..)?.first_chunk::<4>();
        let address = |at| bytes(at).copied().map(Ipv4Addr::from);
        let port = |at| bytes(at).map(|b| u16::from(b[0]) << 8 | u16::from(b[1]));
        // Version 4 and no options; UDP (RFC 791).
        (packet.first() == Some(&0x45) && packet.get(9) == Some(&17)).then_some(())?;
        Some(Self {
            from: SocketAddrV4::new(address(12)?, port(20)?),
            to: SocketAddrV4::new(address(16)?, port(22)?),
            payload: packet.get(28..)?.to_vec(),
        })
    }

    /// A connection request: a SEND of an unreliable datagram with a management datagram whose attribute is that
    /// (IB spec 9.2, 13.4.3, 12.6.1), behind the headers BTH and DETH.
    fn is_request(&self) -> bool {
        self.payload.first() == Some(&0x64) && self.payload.get(36..38) == Some(&[0x00, 0x10])
    }
}

/// Everything that goes over IP in this namespace, from now on (packet(7)).
struct Listener(rustix::fd::OwnedFd);

impl Listener {
    fn new() -> Self {
        // ETH_P_IP, in the order of the network.
        let ip = Protocol::from_raw(NonZeroU32::new(0x0008).unwrap());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Self(net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, Some(ip)).unwrap())
    }

    /// The requests to connect that somebody has got at this place.
    fn requests(&self, to: SocketAddrV4) -> Vec<Datagram> {
        let mut heard = Vec::new();
        let mut packet = vec![0; 65_536];
        while let Ok((length, _)) = net::recv(&self.0, &mut packet[..], RecvFlags::empty()) {
            let datagram = Datagram::parse(&packet[..length]);
            heard.extend(datagram.filter(|datagram| datagram.to == to && datagram.is_request()));
        }
        heard
    }
}

#[test]
fn a_recorded_request_is_refused_and_logged_and_harms_nobody() {
    let secret = new_secret("recorded");
    let host = Node::unused_host();
    let address = format!("roce://{host}:{PORT}");
    let member = || with_secret(Command::new(legato()), &secret);
    let node = Node::start_by(member(), "64MiB", &address);
    let listener = Listener::new();
    assert_eq!(status_of(member(), &address)["clients"], 0);
    let heard = listener.requests(SocketAddrV4::new(host, PORT));
    let request = heard.first().expect("a client asks to be connected");
    let from = UdpSocket::bind(request.from).unwrap();
    // The CRC of a packet covers whether it may be fragmented, and its number if it may.
    set_ip_mtu_discover(&from, Ipv4PathMtuDiscovery::DO).unwrap();
    // Until nothing is known any more of the connection that it was for.
    poll_until("the node refuses it", PATIENCE, || {
        from.send_to(&request.payload, request.to).unwrap();
        status_of(member(), &address)["peers_refused"] != 0
    });
    node.wait_for_log("refused a peer that repeats");
    assert_eq!(status_of(member(), &address)["clients"], 0);
    assert!(node.terminate().success());
}
