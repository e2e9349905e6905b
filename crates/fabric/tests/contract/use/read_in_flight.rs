//! The bytes of a buffer are read before it is posted.

use legato_base::Time;
use legato_fabric::{ConnectionId, Fabric, RegionSlice};
use legato_verbs::{Provider, RemoteAddress};

pub fn operate<'region>(
    fabric: &mut Fabric<RegionSlice<'region>>,
    provider: &mut dyn Provider,
    (connection, remote): (ConnectionId, RemoteAddress),
    slice: RegionSlice<'region>,
) {
    let _ = slice.read(provider, 0, &mut [0; 8]);
    let _ = fabric.read(provider, connection, remote, slice, Time::NEVER);
}
