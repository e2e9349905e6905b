//! The bytes of a buffer are written before it is posted.

use legato_base::Time;
use legato_fabric::{ConnectionId, Fabric, RegionSlice};
use legato_verbs::{Provider, RemoteAddress};

pub fn operate<'region>(
    fabric: &mut Fabric<RegionSlice<'region>>,
    provider: &mut dyn Provider,
    (connection, remote): (ConnectionId, RemoteAddress),
    mut slice: RegionSlice<'region>,
) {
    let _ = slice.write(provider, 0, &[0; 8]);
    let _ = fabric.write(provider, connection, remote, slice, Time::NEVER);
}
