//! The sockets of a carrier, and how they are set up.

use super::super::name::canonical;
use super::super::path::family_of;
use super::super::system::{
    IP_RECVERR, IPV6_MTU_DISCOVER, IPV6_RECVERR, PMTUDISC_DO, SOL_IP, SOL_IPV6, SOL_UDP, UDP_GRO,
    UDP_NO_CHECK6_RX, set_option,
};
use super::super::{CarrierError, FIRST_FLOW_PORT, Options, step};
use alloc::vec::Vec;
use core::net::SocketAddr;
use legato_verbs::ROCE_PORT;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags, SocketType, sockopt};

/// The socket that receives and sends, and those that only send.
#[derive(Debug)]
pub(super) struct Sockets {
    main: Socket,
    others: Vec<Socket>,
    options: Options,
}

#[derive(Debug)]
struct Socket {
    descriptor: OwnedFd,
    address: SocketAddr,
}

/// Bytes for what nobody reads and for what the network answers, at a socket that only sends.
const ERRORS_BUFFER: usize = 16 << 10;
/// How many ports are of flows.
const FLOW_PORTS: u16 = u16::MAX - FIRST_FLOW_PORT + 1;
/// `IP_MTU_DISCOVER`, linux/in.h.
const IP_MTU_DISCOVER: u32 = 10;

impl Sockets {
    pub(super) fn open(local: SocketAddr, options: &Options) -> Result<Self, CarrierError> {
        let ip = local.ip();
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(CarrierError::NoUnicastAddress(local));
        }
        let main = Socket::open(local, options, options.socket_buffer)?;
        if options.joining {
            // Kernels before 5.0 do not join; then every datagram comes alone.
            let _ = set_option(&main.descriptor, SOL_UDP, UDP_GRO, 1);
        }
        Ok(Self {
            main,
            others: Vec::new(),
            options: *options,
        })
    }

    /// Opens those that only send. True if there are any now that there were not.
    pub(super) fn open_others(&mut self) -> bool {
        // Tried once: with fewer, or none, there are fewer paths.
        let wanted = core::mem::take(&mut self.options.source_ports);
        let first = self.options.instance % u64::from(FLOW_PORTS);
        let mut tries = (0..FLOW_PORTS).map(|n| (first as u16 + n) % FLOW_PORTS);
        while self.others.len() < wanted
            && let Some(port) = tries.next()
        {
            let mut place = self.main.address;
            place.set_port(FIRST_FLOW_PORT + port);
            match Socket::open(place, &self.options, ERRORS_BUFFER) {
                Ok(socket) => self.others.push(socket),
                Err(CarrierError::System {
                    errno: Errno::ADDRINUSE,
                    ..
                }) => {}
                Err(_) => break,
            }
        }
        !self.others.is_empty() && wanted > 0
    }

    pub(super) const fn local(&self) -> SocketAddr {
        self.main.address
    }

    /// Is the source port free to choose in what goes to this peer?
    pub(super) const fn has_flows_to(&self, peer: SocketAddr) -> bool {
        self.main.address.port() == ROCE_PORT && peer.port() == ROCE_PORT
    }

    /// The number of the socket that a flow is sent from, where the source port is free to choose.
    pub(super) fn of_flow(&self, flow: u32) -> usize {
        match self.others.len() {
            0 => 0,
            others => 1 + flow as usize % others,
        }
    }

    fn get(&self, index: usize) -> &Socket {
        index
            .checked_sub(1)
            .and_then(|other| self.others.get(other))
            .unwrap_or(&self.main)
    }

    pub(super) fn descriptor(&self, index: usize) -> BorrowedFd<'_> {
        self.get(index).descriptor.as_fd()
    }

    pub(super) fn address(&self, index: usize) -> SocketAddr {
        self.get(index).address
    }

    pub(super) fn count(&self) -> usize {
        1 + self.others.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        (0..self.count()).map(|index| self.descriptor(index))
    }
}

impl Socket {
    fn open(
        local: SocketAddr,
        options: &Options,
        receive_buffer: usize,
    ) -> Result<Self, CarrierError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(family_of(local), SocketType::DGRAM, flags, None)
            .map_err(step("socket"))?;
        sockopt::set_socket_recv_buffer_size(&socket, receive_buffer)
            .map_err(step("setsockopt SO_RCVBUF"))?;
        sockopt::set_socket_send_buffer_size(&socket, options.socket_buffer)
            .map_err(step("setsockopt SO_SNDBUF"))?;
        let set_up = match local {
            SocketAddr::V4(_) => set_up_ipv4(socket.as_fd(), options),
            SocketAddr::V6(_) => set_up_ipv6(socket.as_fd(), options),
        };
        set_up.map_err(step("setsockopt"))?;
        net::bind(&socket, &local).map_err(step("bind"))?;
        let address = net::getsockname(&socket)
            .and_then(SocketAddr::try_from)
            .map_err(step("getsockname"))?;
        Ok(Self {
            descriptor: socket,
            address: canonical(address),
        })
    }
}

/// No fragments: RoCEv2 forbids them (annex A17.3.1.1), and the identification is known only then.
/// And errors as they come from the network, which a socket that is not connected is else not told.
fn set_up_ipv4(socket: BorrowedFd<'_>, options: &Options) -> Result<(), Errno> {
    set_option(socket, SOL_IP, IP_MTU_DISCOVER, PMTUDISC_DO)?;
    set_option(socket, SOL_IP, IP_RECVERR, 1)?;
    sockopt::set_ip_tos(socket, options.traffic_class)?;
    sockopt::set_ip_recvtos(socket, true)
}

/// RoCEv2 NICs send no UDP checksum over IPv6 either, and the system drops such datagrams unless it is
/// told otherwise (RFC 6936; `udp6_csum_init`, net/ipv6/ip6_checksum.c). The packets have their own.
fn set_up_ipv6(socket: BorrowedFd<'_>, options: &Options) -> Result<(), Errno> {
    sockopt::set_ipv6_v6only(socket, true)?;
    set_option(socket, SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
    set_option(socket, SOL_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_DO)?;
    set_option(socket, SOL_IPV6, IPV6_RECVERR, 1)?;
    sockopt::set_ipv6_tclass(socket, u32::from(options.traffic_class))?;
    sockopt::set_ipv6_recvtclass(socket, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, RecvFlags, SendFlags};

    /// linux/udp.h.
    const UDP_NO_CHECK6_TX: u32 = 101;

    /// As `rdma_rxe` sends over IPv6.
    #[test]
    fn what_has_no_udp_checksum_is_received() {
        let place = "[::1]:0".parse().unwrap();
        let sockets = Sockets::open(place, &Options::default()).unwrap();
        let sender = net::socket(AddressFamily::INET6, SocketType::DGRAM, None).unwrap();
        set_option(&sender, SOL_UDP, UDP_NO_CHECK6_TX, 1).unwrap();
        let sent = net::sendto(&sender, &[7; 20], SendFlags::empty(), &sockets.local());
        assert_eq!(sent, Ok(20));
        let socket = sockets.descriptor(0);
        let long = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let mut waited = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        assert_eq!(poll(&mut waited, Some(&long)), Ok(1));
        let mut bytes = [0; 64];
        let (length, _) = net::recv(socket, &mut bytes, RecvFlags::empty()).unwrap();
        assert_eq!(bytes[..length], [7; 20]);
    }
}
