//! One place after the other can post to a queue.

use legato_base::Time;
use legato_fabric::{ConnectionId, Fabric, RegionSlice};
use legato_verbs::Provider;

/// A place from which calls are posted to a fabric's queues.
struct Poster<'fabric, 'region>(&'fabric mut Fabric<RegionSlice<'region>>);

impl Poster<'_, '_> {
    fn post(self, provider: &mut dyn Provider, connection: ConnectionId) {
        let _ = self.0.call(provider, connection, &[], Time::NEVER);
    }
}

pub fn post(
    mut fabric: Fabric<RegionSlice<'_>>,
    provider: &mut dyn Provider,
    connection: ConnectionId,
) {
    let one = Poster(&mut fabric);
    one.post(provider, connection);
    let other = Poster(&mut fabric);
    other.post(provider, connection);
}
