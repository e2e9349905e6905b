//! The network interfaces of a node: a provider and a fabric for each address that it listens at.

use super::drive::Nic;
use super::provider;
use super::refusals::{self, RefusalLog};
use crate::failure::Failure;
use crate::machine;
use crate::secret;
use legato_base::secret::{Keyring, Secret};
use legato_base::timeouts::{LIVENESS, OUTAGE};
use legato_base::{Bytes, Time};
use legato_fabric::{FabricConfig, Turn};
use legato_memnode::{Interface, NodeConfig, NodeServer};
use legato_providers::AnyProvider;
use legato_providers::ibverbs::OpenError;
use legato_verbs::{Address, ROCE_PORT};
use std::fmt::Display;
use tracing::{info, warn};

/// Programs, and children of programs, that use one node at the same time through one interface.
pub(crate) const CLIENTS_MAX: u32 = 256;

/// A node where it listens.
#[derive(Debug)]
pub(super) struct NodeInterface {
    address: Address,
    provider: AnyProvider,
    server: NodeServer,
    refusals: RefusalLog,
}

/// One node at all these addresses.
pub(super) fn open(
    addresses: &[Address],
    memory: Bytes,
    secret: Option<&Secret>,
) -> Result<Vec<NodeInterface>, Failure> {
    let mut interfaces = Vec::new();
    match open_all(&mut interfaces, addresses, memory, secret) {
        Ok(()) => Ok(interfaces),
        Err(failure) => {
            // The first failure is the one to tell. No socket's file is left.
            interfaces.into_iter().for_each(|one| drop(one.shutdown()));
            Err(failure)
        }
    }
}

fn open_all(
    interfaces: &mut Vec<NodeInterface>,
    addresses: &[Address],
    memory: Bytes,
    secret: Option<&Secret>,
) -> Result<(), Failure> {
    let incarnation = machine::random_bytes()
        .map(u64::from_le_bytes)
        .map_err(|error| Failure::system("cannot draw a random number", error))?;
    for address in addresses {
        for (provider, address) in providers(address, secret)? {
            let number = interfaces.len() as Interface;
            let first = interfaces.first().map(|first| &first.server);
            let config = (incarnation, memory);
            let interface = NodeInterface::new(address, provider, (number, first), config, secret)?;
            info!(address = %interface.address, %memory, "the memory node listens");
            interfaces.push(interface);
        }
    }
    Ok(())
}

/// What listens at an address. At one of any kind that is an RDMA device and what has sockets too.
fn providers(
    address: &Address,
    secret: Option<&Secret>,
) -> Result<Vec<(AnyProvider, Address)>, Failure> {
    let mut found = Vec::new();
    let mut sockets = address.clone();
    if let &Address::Any(place) = address {
        let device = Address::Verbs(place);
        match provider::listening_at(&device, None) {
            Ok(provider) => {
                found.push((provider, device));
                if place.port() == ROCE_PORT {
                    // Packets to that UDP port are the device's.
                    sockets = Address::RoceTcp(place);
                }
            }
            Err(OpenError::NoDeviceAt(_) | OpenError::Load(_)) => {}
            Err(error) => warn!(%address, %error, "the RDMA device there is not used"),
        }
    }
    let keys = keys_for(&sockets, secret);
    let provider =
        provider::listening_at(&sockets, keys.as_ref()).map_err(|error| refuse(&sockets, error))?;
    found.push((provider, sockets));
    Ok(found)
}

fn keys_for(address: &Address, secret: Option<&Secret>) -> Option<Keyring> {
    let secret = secret.filter(|_| secret::is_for(address))?;
    Some(Keyring::All(secret.clone()))
}

/// What cannot be found out limits nothing.
fn available() -> Bytes {
    machine::memory_available().unwrap_or(Bytes(u64::MAX))
}

impl NodeInterface {
    fn new(
        address: Address,
        mut provider: AnyProvider,
        (number, first): (Interface, Option<&NodeServer>),
        (incarnation, memory): (u64, Bytes),
        secret: Option<&Secret>,
    ) -> Result<Self, Failure> {
        let fabric = FabricConfig {
            incarnation,
            liveness: LIVENESS,
            outage: OUTAGE,
            connections_max: CLIENTS_MAX,
            // A node only answers: it starts no one-sided operation of its own.
            one_sided_max: 1,
            entries_max: 1,
            ..FabricConfig::default()
        };
        let node = NodeConfig {
            incarnation,
            capacity: memory,
            available,
        };
        let refused = |error| refuse(&address, error);
        let server = match first {
            None => NodeServer::new(&mut provider, fabric, node),
            Some(first) => first.on_another(number, &mut provider, fabric),
        };
        let mut server = server.map_err(refused)?;
        if let Some(keys) = keys_for(&address, secret) {
            server.prove_with(keys, secret::random()?);
        }
        server.listen(&mut provider, &address).map_err(refused)?;
        Ok(Self {
            address,
            provider,
            server,
            refusals: RefusalLog::default(),
        })
    }

    pub(super) const fn address(&self) -> &Address {
        &self.address
    }

    pub(super) const fn server(&self) -> &NodeServer {
        &self.server
    }

    pub(super) const fn provider(&mut self) -> &mut dyn Nic {
        &mut self.provider
    }

    /// One turn, and what is to be said of it.
    pub(super) fn turn(&mut self, now: Time) -> Turn {
        let mut turn = self.server.turn(&mut self.provider, now);
        while let Some(overdue) = self.server.poll_overdue() {
            warn!(
                handler = overdue.opcode,
                peer = ?overdue.client,
                connection = ?overdue.connection,
                waited = %overdue.waited,
                "a request waits too long for its reply"
            );
        }
        let counts = || refusals::counts(&self.server, &self.provider);
        let again = self.refusals.note(now, turn.progressed, counts);
        turn.deadline = turn.deadline.min(again);
        turn
    }

    pub(super) fn shutdown(mut self) -> Result<(), Failure> {
        let ended = self.server.shutdown(&mut self.provider);
        info!(address = %self.address, "the memory node ends");
        ended.map_err(|error| {
            let address = &self.address;
            Failure::refused(format_args!(
                "memory node {address} has not ended in order: {error}; its memory is the system's again; please \
                 report it"
            ))
        })
    }
}

fn refuse(address: &Address, error: impl Display) -> Failure {
    Failure::refused(format_args!(
        "memory node {address} cannot listen: {error}; name an address of this machine that is free (legato net \
         devices)"
    ))
}
