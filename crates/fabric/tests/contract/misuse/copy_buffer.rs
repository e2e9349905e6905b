//! A buffer that was cut exists no more.

use legato_base::Time;
use legato_fabric::{ConnectionId, Fabric, RegionSlice};
use legato_verbs::{Provider, RemoteAddress};

pub fn operate<'region>(
    fabric: &mut Fabric<RegionSlice<'region>>,
    provider: &mut dyn Provider,
    (connection, remote): (ConnectionId, RemoteAddress),
    slice: RegionSlice<'region>,
) {
    let Ok((_first, _second)) = slice.split_at(8) else {
        return;
    };
    let _ = fabric.read(provider, connection, remote, slice, Time::NEVER);
}

fn main() {}
