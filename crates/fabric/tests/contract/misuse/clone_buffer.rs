//! A buffer cannot be cloned.

use legato_base::Time;
use legato_fabric::{ConnectionId, Fabric, RegionSlice};
use legato_verbs::{Provider, RemoteAddress};

pub fn operate<'region>(
    fabric: &mut Fabric<RegionSlice<'region>>,
    provider: &mut dyn Provider,
    (connection, remote): (ConnectionId, RemoteAddress),
    slice: RegionSlice<'region>,
) {
    let twin = slice.clone();
    for slice in [slice, twin] {
        let _ = fabric.read(provider, connection, remote, slice, Time::NEVER);
    }
}

fn main() {}
