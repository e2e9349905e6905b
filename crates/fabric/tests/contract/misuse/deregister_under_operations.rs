//! A region cannot be deregistered while a fabric may hold a piece of it.

use legato_base::Time;
use legato_fabric::{ConnectionId, Fabric, FabricConfig, Region};
use legato_verbs::{AccessFlags, Provider, RemoteAddress, VerbsError};

pub fn operate(
    provider: &mut dyn Provider,
    (connection, remote): (ConnectionId, RemoteAddress),
) -> Result<(), VerbsError> {
    let mut region;
    let mut fabric = Fabric::new(provider, FabricConfig::default())?;
    let access = AccessFlags::LOCAL_WRITE;
    region = Region::allocate(provider, fabric.domain(), 4096, access)?;
    let slice = region.slice()?;
    let _ = fabric.read(provider, connection, remote, slice, Time::NEVER);
    let _ = region.deregister(provider);
    Ok(())
}

fn main() {}
