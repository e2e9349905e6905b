//! A buffer that was refused can be posted again.

use legato_base::Time;
use legato_fabric::{ConnectionId, Fabric, RegionSlice};
use legato_verbs::{Provider, RemoteAddress};

pub fn operate<'region>(
    fabric: &mut Fabric<RegionSlice<'region>>,
    provider: &mut dyn Provider,
    (connection, remote): (ConnectionId, RemoteAddress),
    slice: RegionSlice<'region>,
) {
    if let Err((_, slice)) = fabric.read(provider, connection, remote, slice, Time::NEVER) {
        let _ = fabric.write(provider, connection, remote, slice, Time::NEVER);
    }
}
