//! Asking a memory node about itself, over the fabric as every client does.

use super::drive::{Clock, Waiter};
use crate::args::{SecretArguments, StatusArguments};
use crate::failure::Failure;
use crate::output::print;
use crate::secret;
use legato_base::secret::Keyring;
use legato_base::timeouts::{DATAGRAMS, NODE_ANSWER};
use legato_base::wire::node::{NodeHealth, NodeReply, NodeRequest, NodeStatus, NodeWireError};
use legato_base::{Bytes, Duration, Time};
use legato_fabric::{
    ConnectError, ConnectionId, Fabric, FabricConfig, FabricEvent, NoBuffer, OperationError,
    ProofError, Refused,
};
use legato_providers::AnyProvider;
use legato_providers::ibverbs::OpenError;
use legato_verbs::{Address, ROCE_PORT, RejectReason, UnreachableReason, VerbsError};
use serde_json::json;
use std::net::SocketAddr;

/// What a node says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    status: NodeStatus,
    health: NodeHealth,
}

/// Why a node did not say how it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    #[error("{0}")]
    Provider(#[from] VerbsError),
    #[error("{0}")]
    Device(#[from] OpenError),
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Refused(#[from] Refused),
    #[error("{0}")]
    Operation(#[from] OperationError),
    #[error("{0}")]
    Wire(#[from] NodeWireError),
    #[error("unexpected answer")]
    UnexpectedReply,
    #[error("the connection ended before the answer")]
    Disconnected,
    #[error("{0}")]
    Random(String),
    /// Neither way.
    #[error("over UDP: {datagrams}; over TCP: {stream}")]
    Neither {
        datagrams: Box<Self>,
        stream: Box<Self>,
    },
    /// A software node there does not answer, and what a device answers cannot be heard.
    #[error(
        "{0}; whether it is at an RDMA device cannot be seen, because UDP port {ROCE_PORT} of this machine, \
         to which devices answer, is in use"
    )]
    PortInUse(Box<Self>),
}

impl From<Failure> for StatusError {
    fn from(failure: Failure) -> Self {
        Self::Random(failure.text)
    }
}

impl StatusError {
    /// Nobody there has said anything, as far as this side knows.
    fn is_silence(&self) -> bool {
        use ConnectError::{DeadlineExpired, Unreachable};
        match self {
            Self::Connect(DeadlineExpired | Unreachable(_)) | Self::Neither { .. } => true,
            Self::PortInUse(silence) => silence.is_silence(),
            _ => false,
        }
    }

    /// Nobody who could be a node is there, as far as this side knows.
    pub(crate) fn is_absence(&self) -> bool {
        use ConnectError::{Rejected, Unreachable};
        match self {
            Self::Connect(Unreachable(UnreachableReason::PermissionDenied)) => false,
            Self::Connect(Rejected(RejectReason::InvalidServiceId)) => true,
            other => other.is_silence(),
        }
    }

    /// What to do about it: the end of a message.
    fn advice(&self) -> &'static str {
        use ConnectError::{Incompatible, Rejected, Unreachable};
        use UnreachableReason::{Failed, NoSuchAddress, PermissionDenied};
        match self {
            Self::Connect(
                Rejected(RejectReason::InvalidServiceId) | Unreachable(NoSuchAddress),
            ) => "nobody listens there; start the node, or check the address",
            Self::Connect(Unreachable(PermissionDenied)) => {
                "the node is another user's; ask as that user"
            }
            Self::Connect(Rejected(_) | Unreachable(Failed) | Incompatible(_))
            | Self::Wire(_)
            | Self::UnexpectedReply => {
                "it may be no node, or one of another version; check the address"
            }
            Self::Provider(_) | Self::Device(_) => {
                "this machine cannot reach it; see legato net devices"
            }
            Self::PortInUse(_) => "only one process can have that port; ask from another machine",
            other if other.is_silence() => {
                "it does not answer; see that it runs, and that nothing on the way drops packets"
            }
            _ => "something is wrong at the node; see its log",
        }
    }

    /// What the user is told: whose fault it is, and what to do.
    pub(crate) fn failure(&self, address: &Address, secret: &SecretArguments) -> Failure {
        let file = secret.name();
        if let (Address::RoceService(_), Self::Device(OpenError::Verbs(VerbsError::AddressInUse))) =
            (address, self)
        {
            let why = super::provider::device_port_in_use();
            return Failure::refused(format_args!("memory node {address}: {why}"));
        }
        let Self::Connect(ConnectError::Proof(error)) = self else {
            let advice = self.advice();
            return Failure::refused(format_args!("memory node {address}: {self}; {advice}"));
        };
        match error {
            ProofError::Required => Failure::refused(format_args!(
                "memory node {address}: {error}; name its file with --secret-file"
            )),
            ProofError::Wrong => Failure::refused(format_args!(
                "memory node {address} refused the secret in {file}; it has another one; copy the file \
                 that the node was started with"
            )),
            ProofError::NotExpected => Failure::refused(format_args!(
                "memory node {address} has no secret, and {file} was given; start it with --secret-file, \
                 or leave the file out here"
            )),
            _ => Failure::refused(format_args!(
                "memory node {address}: {error} (secret file {file}); somebody else may answer there, or be \
                 between the two; check the address, and the network"
            )),
        }
    }
}

pub(crate) fn run(arguments: &StatusArguments) -> Result<u8, Failure> {
    let address = &arguments.node;
    let keys = arguments.secret.load(core::slice::from_ref(address))?;
    let keys = keys.map(Keyring::All);
    let (address, answers) = find(address, keys.as_ref(), NODE_ANSWER)
        .map_err(|error| error.failure(address, &arguments.secret))?;
    match arguments.json {
        true => print(format_args!("{:#}", as_json(&address, &answers)))?,
        false => print(lines(&address, &answers))?,
    }
    Ok(0)
}

fn as_json(address: &Address, Answers { status, health }: &Answers) -> serde_json::Value {
    json!({
        "address": address.to_string(),
        "capacity_bytes": status.capacity_bytes,
        "used_bytes": status.used_bytes,
        "clients": status.clients,
        "extents": status.extents,
        "connections_reset": health.connections_reset,
        "peers_refused": health.peers_refused,
        "peers_suspected": health.peers_suspected,
        "handlers_overdue": health.handlers_overdue,
        "regions_quarantined": health.regions_quarantined,
    })
}

fn lines(address: &Address, Answers { status, health }: &Answers) -> String {
    format!(
        "{address}: {} of {} used, {} clients, {} extents\n  \
         since it started: {} connections reset, {} peers refused, {} suspected, {} requests overdue; \
         {} regions in quarantine",
        Bytes(status.used_bytes),
        Bytes(status.capacity_bytes),
        status.clients,
        status.extents,
        health.connections_reset,
        health.peers_refused,
        health.peers_suspected,
        health.handlers_overdue,
        health.regions_quarantined
    )
}

/// Asks a node; if nothing else was said, through an RDMA device, if there is one on the way, else over
/// UDP, else over TCP, whichever gets through first. Returns the address by which it was reached.
pub(crate) fn find(
    address: &Address,
    keys: Option<&Keyring>,
    limit: Duration,
) -> Result<(Address, Answers), StatusError> {
    match *address {
        Address::Any(place) => find_any(place, keys, limit),
        Address::Roce(place) => find_roce(place, keys, limit),
        _ => Ok((address.clone(), query(address, keys, limit)?)),
    }
}

fn find_any(
    place: SocketAddr,
    keys: Option<&Keyring>,
    limit: Duration,
) -> Result<(Address, Answers), StatusError> {
    let device = Address::Verbs(place);
    // Without a device of its own on the way this side knows at once.
    match query(&device, keys, limit) {
        Ok(answers) => return Ok((device, answers)),
        // A node has answered, which the other ways lead to as well.
        Err(error @ StatusError::Connect(ConnectError::Proof(_))) => return Err(error),
        // No device, or nobody who speaks RDMA at the other end of it.
        Err(_) => {}
    }
    let silence = match find_roce(place, keys, limit.min(DATAGRAMS)) {
        Err(error) if error.is_silence() => error,
        found_or_not => return found_or_not,
    };
    let stream = Address::RoceTcp(place);
    match query(&stream, keys, limit) {
        Ok(answers) => Ok((stream, answers)),
        Err(error) if error.is_silence() => Err(StatusError::Neither {
            datagrams: Box::new(silence),
            stream: Box::new(error),
        }),
        Err(error) => Err(error),
    }
}

/// A node of software is at the UDP port, and answers to any. A device is at port 4791 whatever service is
/// meant, and answers to the same port only.
fn find_roce(
    place: SocketAddr,
    keys: Option<&Keyring>,
    limit: Duration,
) -> Result<(Address, Answers), StatusError> {
    let software = Address::Roce(place);
    let silence = match query(&software, keys, limit.min(DATAGRAMS)) {
        Ok(answers) => return Ok((software, answers)),
        Err(error) if error.is_silence() => error,
        Err(error) => return Err(error),
    };
    // A device is not on the loopback interface.
    if place.ip().is_loopback() {
        return Err(silence);
    }
    let device = Address::RoceService(place);
    match query(&device, keys, limit.min(DATAGRAMS)) {
        Ok(answers) => Ok((device, answers)),
        Err(error @ StatusError::Connect(ConnectError::Proof(_))) => Err(error),
        Err(StatusError::Device(OpenError::Verbs(VerbsError::AddressInUse))) => {
            Err(StatusError::PortInUse(Box::new(silence)))
        }
        // No device there, so what is there is slow.
        Err(_) => Ok((software.clone(), query(&software, keys, limit)?)),
    }
}

/// Connects, asks, and disconnects.
fn query(
    address: &Address,
    keys: Option<&Keyring>,
    limit: Duration,
) -> Result<Answers, StatusError> {
    let keys = keys.filter(|_| secret::is_for(address));
    let mut provider = super::provider::reaching(address, keys)?;
    let config = FabricConfig {
        connections_max: 1,
        one_sided_max: 1,
        entries_max: 1,
        ..FabricConfig::default()
    };
    let mut fabric: Fabric<NoBuffer> = Fabric::new(&mut provider, config)?;
    if let Some(keys) = keys {
        fabric.prove_with(keys.clone(), secret::random()?);
    }
    let result = ask(&mut fabric, &mut provider, address, limit);
    fabric.shutdown(&mut provider)?;
    result
}

fn ask(
    fabric: &mut Fabric<NoBuffer>,
    provider: &mut AnyProvider,
    address: &Address,
    limit: Duration,
) -> Result<Answers, StatusError> {
    let clock = Clock::start();
    let mut asking = Asking {
        fabric,
        provider,
        waiter: Waiter::new(clock),
        clock,
        deadline: clock.now() + limit,
    };
    let connection = asking.connect(address)?;
    let NodeReply::Status(status) = asking.ask(connection, NodeRequest::Status)? else {
        return Err(StatusError::UnexpectedReply);
    };
    let NodeReply::Health(health) = asking.ask(connection, NodeRequest::Health)? else {
        return Err(StatusError::UnexpectedReply);
    };
    Ok(Answers { status, health })
}

struct Asking<'a> {
    fabric: &'a mut Fabric<NoBuffer>,
    provider: &'a mut AnyProvider,
    clock: Clock,
    waiter: Waiter,
    deadline: Time,
}

impl Asking<'_> {
    fn connect(&mut self, address: &Address) -> Result<ConnectionId, StatusError> {
        let asked = self
            .fabric
            .connect(self.provider, address, &[], self.deadline)?;
        loop {
            match self.next() {
                FabricEvent::Connected { .. } => return Ok(asked),
                FabricEvent::ConnectFailed { error, .. } => return Err(error.into()),
                // Nobody connects to this side or asks it anything.
                _ => {}
            }
        }
    }

    fn ask(
        &mut self,
        connection: ConnectionId,
        request: NodeRequest,
    ) -> Result<NodeReply, StatusError> {
        let body = request.to_bytes();
        let asked = self
            .fabric
            .call(self.provider, connection, &body, self.deadline)?;
        loop {
            match self.next() {
                FabricEvent::Replied { call, outcome } if call == asked => {
                    return Ok(NodeReply::parse(&outcome?)?);
                }
                FabricEvent::Disconnected { .. } => return Err(StatusError::Disconnected),
                _ => {}
            }
        }
    }

    /// The next event: each call and each connect has one in time.
    fn next(&mut self) -> FabricEvent<NoBuffer> {
        loop {
            let turn = self.fabric.turn(self.provider, self.clock.now());
            if let Some(event) = self.fabric.poll_event() {
                return event;
            }
            self.waiter.wait(&mut [&mut *self.provider], turn, &[]);
        }
    }
}
