//! Asking a memory node about itself, over the fabric as every client does.

use super::drive::{Clock, Waiter};
use crate::args::StatusArguments;
use crate::failure::Failure;
use legato_base::wire::node::{NodeReply, NodeRequest, NodeStatus, NodeWireError};
use legato_base::{Bytes, Duration, Time};
use legato_fabric::{
    CallId, ConnectError, ConnectionId, Fabric, FabricConfig, FabricEvent, NoBuffer,
    OperationError, Refused,
};
use legato_providers::ShmProvider;
use legato_verbs::{Address, VerbsError};
use serde_json::json;

/// How long a node may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Why a node did not say how it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    #[error("{0}")]
    Provider(#[from] VerbsError),
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
}

pub(crate) fn run(arguments: &StatusArguments) -> Result<u8, Failure> {
    let address = &arguments.node;
    let status = query(address, ANSWER_MAX)
        .map_err(|error| Failure::refused(format_args!("memory node {address}: {error}")))?;
    if arguments.json {
        let value = json!({
            "address": address.to_string(),
            "capacity_bytes": status.capacity_bytes,
            "used_bytes": status.used_bytes,
            "clients": status.clients,
            "extents": status.extents,
        });
        println!("{value:#}");
    } else {
        println!(
            "{address}: {} of {} used, {} clients, {} extents",
            Bytes(status.used_bytes),
            Bytes(status.capacity_bytes),
            status.clients,
            status.extents
        );
    }
    Ok(0)
}

/// Connects, asks, and disconnects.
pub(crate) fn query(address: &Address, limit: Duration) -> Result<NodeStatus, StatusError> {
    let mut provider = ShmProvider::new()?;
    let config = FabricConfig {
        connections_max: 1,
        one_sided_max: 1,
        entries_max: 1,
        ..FabricConfig::default()
    };
    let mut fabric: Fabric<NoBuffer> = Fabric::new(&mut provider, config)?;
    let result = ask(&mut fabric, &mut provider, address, limit);
    fabric.shutdown(&mut provider)?;
    result
}

fn ask(
    fabric: &mut Fabric<NoBuffer>,
    provider: &mut ShmProvider,
    address: &Address,
    limit: Duration,
) -> Result<NodeStatus, StatusError> {
    let clock = Clock::start();
    let mut waiter = Waiter::new(clock);
    let deadline = clock.now() + limit;
    fabric.connect(provider, address, &[], deadline)?;
    let mut asked = None;
    loop {
        let turn = fabric.turn(provider, clock.now());
        while let Some(event) = fabric.poll_event() {
            match event {
                FabricEvent::Connected { connection, .. } => {
                    asked = Some(call(fabric, provider, connection, deadline)?);
                }
                FabricEvent::ConnectFailed { error, .. } => return Err(error.into()),
                FabricEvent::Replied { call, outcome } if asked == Some(call) => {
                    return match NodeReply::parse(&outcome?)? {
                        NodeReply::Status(status) => Ok(status),
                        _ => Err(StatusError::UnexpectedReply),
                    };
                }
                FabricEvent::Disconnected { .. } => return Err(StatusError::Disconnected),
                // Nobody connects to this side or asks it anything.
                _ => {}
            }
        }
        waiter.wait(provider, turn, &[]);
    }
}

fn call(
    fabric: &mut Fabric<NoBuffer>,
    provider: &mut ShmProvider,
    connection: ConnectionId,
    deadline: Time,
) -> Result<CallId, Refused> {
    fabric.call(
        provider,
        connection,
        &NodeRequest::Status.to_bytes(),
        deadline,
    )
}
