//! RoCEv2 in software: the channel adapter of `legato-transport` on sockets. It needs no NIC, no module
//! and no right, and its peers may be its like, the Linux kernel's `rdma_rxe`, or hardware.
//!
//! An address `roce://HOST:PORT` is a UDP port; a listener there offers the service that `rdma_cm`
//! calls TCP port PORT. Real RoCEv2 NICs have port 4791 alone, and services of other numbers there:
//! `roce://HOST/SERVICE`. They answer to port 4791 too, wherever they are asked from, so whoever is to
//! hear them has that port. `roce+tcp://HOST:PORT` is the same in TCP streams (`carrier`).
//!
//! # Limits
//!
//! Of datagrams nothing is secret or signed: whoever can send packets from a peer's address can end its
//! connections, and whoever can read them can use its keys. Numbers, keys and sequences are drawn so
//! that nobody guesses them. Streams between those who have a key are sealed.

/// Calls a method of the adapter with what is around it, and sends at once what that says to peers: whoever
/// ends a connection may never call again.
macro_rules! say {
    ($nic:ident.$method:ident($($argument:expr),*)) => {{
        let result = $nic.adapter.$method(&mut $nic.around, $($argument),*);
        $nic.around.ports.flush();
        result
    }};
}

mod addresses;
mod around;
pub mod carrier;
mod memory;
pub mod out_of_band;
mod paths;
mod peers;
mod ports;
mod provider;
mod running;
mod services;

use crate::foreign::ForeignMemory;
use crate::poll::Pollable;
use addresses::Addresses;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use around::Around;
use carrier::{Counters, Inbox, Options, Sealing, gid_of};
use core::net::SocketAddr;
use legato_base::Random;
use legato_base::secret::{Keyring, SECRET_LENGTH, SecureRandom};
use legato_base::timeouts::{ROCE_ACK_CODE, ROCE_CONNECT_REPEAT, ROCE_RETRIES};
use legato_transport::adapter::{Chance, ChannelAdapter, Configuration, PathState, Policy};
use legato_transport::cm::{CaGuid, LocalPort, Parameters};
use legato_transport::congestion;
use legato_transport::rc::{self, Backoff, Recovery};
use legato_verbs::{
    AccessFlags, Address, Listener, MemoryRegion, PathMtu, ProtectionDomain, ROCE_PORT, RetryCount,
    RnrTimer, VerbsError,
};
use memory::Memory;
use peers::{Peers, PortIndex};
pub(crate) use ports::source_towards;
use ports::{Kind, Ports};
use rustix::fd::BorrowedFd;
use rustix::rand::{GetRandomFlags, getrandom};

/// Not for ever (7): a peer without a receive for 4 ms breaks the promise of its credits.
const RNR_RETRY: u8 = 6;
/// 0.64 ms.
const RNR_TIMER: u8 = 12;
/// ECT(0): routers may mark packets where they would drop them otherwise (RFC 3168, 5).
const ECN_CAPABLE: u8 = 0x02;
/// As `rdma_rxe` has it (`RXE_MAX_QP_RD_ATOM`): 32 pages in pieces, which are brought ahead at a time.
const READS_MAX: u8 = 128;
/// Packets of a page where links take 1500 bytes.
const READ_PIECES: u32 = 4;
const MESSAGE_LENGTH_MAX: u32 = 1 << 30;
/// Pieces of 64 KiB that are received at once.
const PIECES: usize = 8;

/// A software RoCEv2 NIC.
#[derive(Debug)]
pub struct RoceProvider {
    adapter: ChannelAdapter,
    around: Around,
    inbox: Inbox,
    addresses: Addresses,
    /// The ports that each listens at.
    listeners: BTreeMap<Listener, Vec<PortIndex>>,
}

impl RoceProvider {
    /// A NIC whose first port is at `local`, where port 0 stands for any that is free. More ports are
    /// opened when they are listened at or connected from.
    ///
    /// # Errors
    /// [`VerbsError::UnsupportedAddress`] for an address of another provider, a wildcard or multicast
    /// address, or a port from 0xC000 on; [`VerbsError::AddressInUse`], [`VerbsError::PermissionDenied`],
    /// [`VerbsError::System`].
    pub fn open(local: &Address) -> Result<Self, VerbsError> {
        Self::open_with(local, None)
    }

    /// As [`Self::open`]. With keys every stream is sealed, and nobody is talked to by one who does not
    /// have them; datagrams go as they are.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(local: &Address, keys: Option<&Keyring>) -> Result<Self, VerbsError> {
        let (kind, local) = place_of(local)?;
        // P-82: all keys and numbers of the NIC are drawn from this.
        let mut secure = SecureRandom::from_seed(random_seed()?);
        let sealing = keys.map(|keys| Sealing::new(keys.clone(), secure.fork()));
        let mut random = Random::from_secure(secure);
        let options = Options {
            instance: random.next_u64(),
            traffic_class: ECN_CAPABLE,
            ..Options::default()
        };
        let addresses = Addresses::watch();
        let mut ports = Ports::new(options, sealing)?;
        if let Some(descriptor) = addresses.descriptor() {
            ports.watch(descriptor)?;
        }
        let port = match local.port() {
            0 => ports.open_any(kind, local, &mut random),
            _ => ports.at(kind, local),
        }?;
        let own = ports.local_address(port).unwrap_or(local);
        let mut peers = Peers::default();
        // Devices are told the address that they see, whatever its scope.
        let gid = match own.port() {
            ROCE_PORT => gid_of(own),
            _ => peers.gid(port, own).unwrap_or_else(|| gid_of(own)),
        };
        let configuration = Configuration {
            name: "roce",
            port: LocalPort {
                ca_guid: CaGuid(random.next_u64()),
                gid,
            },
            policy: Policy {
                transport: rc::Policy {
                    backoff: Backoff::Doubling,
                    // In a stream TCP finds what is lost, and decides how much is under way.
                    recovery: match kind {
                        Kind::Datagram => Recovery::Measured,
                        Kind::Stream => Recovery::AsAttributes,
                    },
                    read_pieces: match kind {
                        Kind::Datagram => READ_PIECES,
                        Kind::Stream => 0,
                    },
                    ..rc::Policy::IDEAL
                },
                ..Policy::IDEAL
            },
            message_length_max: MESSAGE_LENGTH_MAX,
            timeout: ROCE_ACK_CODE,
            retry_count: RetryCount::from_bits(ROCE_RETRIES),
            rnr_retry: RNR_RETRY,
            rnr_timer: RnrTimer::new(RNR_TIMER),
            path_mtu: PathMtu::Bytes4096,
            reads_max: READS_MAX,
            connection_management: Parameters {
                response_timeout: ROCE_CONNECT_REPEAT,
                // A peer knows only the port that it talks to.
                checks_gids: false,
                ..Parameters::default()
            },
        };
        Ok(Self {
            adapter: ChannelAdapter::new(configuration, Chance::from_random(random.fork())),
            around: Around::new(ports, peers, random),
            inbox: Inbox::new(PIECES),
            addresses,
            listeners: BTreeMap::new(),
        })
    }

    /// A NIC with a port from which the system reaches `peer`; keys as for [`Self::open_with`].
    ///
    /// # Errors
    /// As for [`Self::open`]; [`VerbsError::System`] if there is no route. To reach devices it needs
    /// port 4791 of the own address: [`VerbsError::AddressInUse`].
    pub fn open_towards(peer: &Address, keys: Option<&Keyring>) -> Result<Self, VerbsError> {
        let (_, address) = place_of(peer)?;
        let mut own = source_towards(address)?;
        let local = match peer {
            Address::RoceTcp(_) => Address::RoceTcp(own),
            // Devices answer to this port, whatever port they are asked from.
            Address::RoceService(_) => {
                own.set_port(ROCE_PORT);
                Address::Roce(own)
            }
            _ => Address::Roce(own),
        };
        Self::open_with(&local, keys)
    }

    /// What the carriers have counted, of the ports that are open now.
    pub fn counters(&self) -> Counters {
        self.around.ports.counters().plus(self.inbox.counters())
    }

    /// What happened on the paths to peers: packets sent again, timers, marks.
    pub fn congestion_counters(&self) -> congestion::Counters {
        self.adapter.congestion_counters()
    }

    /// The paths to peers: round trips and windows.
    pub fn paths(&self) -> impl Iterator<Item = PathState> {
        self.adapter.paths()
    }

    /// Packets with a right CRC that were none, or nobody's, or a stranger's.
    pub const fn packets_discarded(&self) -> u64 {
        self.adapter.packets_discarded()
    }

    /// Where peers reach the port that was opened first.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.around.ports.local_address(0)
    }
}

/// Where packets for an address go to.
fn place_of(address: &Address) -> Result<(Kind, SocketAddr), VerbsError> {
    match address {
        Address::Roce(place) | Address::Any(place) => Ok((Kind::Datagram, *place)),
        Address::RoceService(service) => {
            let mut place = *service;
            place.set_port(ROCE_PORT);
            Ok((Kind::Datagram, place))
        }
        Address::RoceTcp(place) => Ok((Kind::Stream, *place)),
        Address::Shm(_) | Address::Sim(_) | Address::Verbs(_) | Address::VerbsPort(_) => {
            Err(VerbsError::UnsupportedAddress)
        }
    }
}

/// The service at an address: the port of `rdma_cm(7)`.
fn service_of(address: &Address) -> Result<u16, VerbsError> {
    match address {
        Address::RoceService(service) => Ok(service.port()),
        _ => place_of(address).map(|(_, place)| place.port()),
    }
}

fn random_seed() -> Result<[u8; SECRET_LENGTH], VerbsError> {
    let mut bytes = [0; SECRET_LENGTH];
    let read = getrandom(&mut bytes, GetRandomFlags::empty());
    let error = |errno| VerbsError::System {
        call: "getrandom",
        errno,
    };
    match read {
        // Less than 256 bytes are never cut short (getrandom(2)).
        Ok(_) => Ok(bytes),
        Err(errno) => Err(error(errno.raw_os_error())),
    }
}

impl Pollable for RoceProvider {
    fn descriptors<'a>(&'a self, into: &mut Vec<BorrowedFd<'a>>) {
        into.push(self.around.ports.descriptor());
    }
}

impl ForeignMemory for RoceProvider {
    unsafe fn register_foreign(
        &mut self,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let start = address as u64;
        if length == 0 || start.checked_add(length).is_none() {
            return Err(VerbsError::LimitExceeded {
                what: "bytes of a region",
                asked: length,
                limit: u64::MAX - start,
            });
        }
        let (region, number) = self
            .adapter
            .register_memory(domain, start, length, access)?;
        self.around
            .memory
            .insert(number, Memory::Foreign { address, length });
        Ok(region)
    }
}
