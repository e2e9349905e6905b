//! Services that have not the number of the UDP port: those of `rdma_cm`, whose NICs all have port
//! 4791, and many services there.

use super::around::Around;
use super::carrier::Counters;
use super::peers::PortIndex;
use super::ports::Kind;
use super::{RoceProvider, place_of};
use alloc::vec::Vec;
use core::net::SocketAddr;
use legato_transport::adapter::Target;
use legato_transport::cm::ServiceId;
use legato_verbs::{Address, Listener, QueuePair, ROCE_PORT, VerbsError};

const TOO_MANY_PEERS: VerbsError = VerbsError::System {
    call: "remember one peer more",
    errno: ENOBUFS,
};
const ENOBUFS: i32 = 105;
const NOT_FOR_DEVICES: VerbsError = VerbsError::Unsupported(
    "way to devices: it was not opened at UDP port 4791 of the address that they are reached from",
);

impl RoceProvider {
    /// As [`legato_verbs::Provider::listen`], for the service that `rdma_cm` calls TCP port `service`. At
    /// an address of any kind it is listened for over UDP and over TCP.
    ///
    /// # Errors
    /// As there. A service has one listener, whatever its address.
    pub fn listen_service(
        &mut self,
        address: &Address,
        service: u16,
    ) -> Result<Listener, VerbsError> {
        let (kind, place) = place_of(address)?;
        if place.port() == 0 || service == 0 {
            return Err(VerbsError::UnsupportedAddress);
        }
        let kinds = match address {
            Address::Any(_) => &[Kind::Datagram, Kind::Stream][..],
            _ => &[kind],
        };
        let mut at = Vec::new();
        let listener = self.open_ports(kinds, place, &mut at);
        let listener = listener.and_then(|()| self.adapter.listen(ServiceId::tcp(service)));
        match listener {
            Ok(listener) => drop(self.listeners.insert(listener, at)),
            Err(_) => self.end_listener(at),
        }
        listener
    }

    fn open_ports(
        &mut self,
        kinds: &[Kind],
        place: SocketAddr,
        at: &mut Vec<PortIndex>,
    ) -> Result<(), VerbsError> {
        for &kind in kinds {
            at.push(self.around.ports.listen(kind, place)?);
        }
        Ok(())
    }

    pub(super) fn end_listener(&mut self, at: Vec<PortIndex>) {
        for port in at {
            self.around.ports.end_listener(port);
        }
    }

    /// As [`legato_verbs::Provider::connect`], to the service that `rdma_cm` calls TCP port `service`.
    ///
    /// # Errors
    /// As there.
    pub fn connect_service(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        service: u16,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let (kind, place) = place_of(address)?;
        let Around {
            ports,
            peers,
            paths,
            random,
            ..
        } = &mut self.around;
        let port = ports.towards(kind, place, random)?;
        let own = ports.local_address(port).map(|own| own.port());
        if matches!(address, Address::RoceService(_)) && (port, own) != (0, Some(ROCE_PORT)) {
            // A peer with another GID than its NIC's is no device.
            return Err(NOT_FOR_DEVICES);
        }
        let gid = peers.gid(port, place).ok_or(TOO_MANY_PEERS)?;
        let target = Target {
            gid,
            service: ServiceId::tcp(service),
            path_mtu: ports
                .path_mtu(port, place)
                .map(|ends| paths.path_mtu(gid, ends)),
        };
        self.settle(port);
        say!(self.connect(queue_pair, Some(target), private_data))
    }

    /// What has been received, and what was wrong with it.
    pub const fn received(&self) -> &Counters {
        self.inbox.counters()
    }
}
