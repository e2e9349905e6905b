//! Who is at the two ends of a connection.

use crate::connection::Connection;
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::{ConnectionId, FabricConfig};
use legato_base::Time;

impl<B: Buffer> Fabric<B> {
    pub const fn config(&self) -> &FabricConfig {
        &self.shared.config
    }

    /// When the last turn was.
    pub const fn now(&self) -> Time {
        self.shared.now
    }

    /// Connections in any state.
    pub fn connections(&self) -> usize {
        self.existing().count()
    }

    /// The life of the process at the other end, as it said itself. Zero says nothing. None while
    /// it is not connected.
    pub fn peer_incarnation(&self, connection: ConnectionId) -> Option<u64> {
        let connected = self.connected(connection)?;
        connected
            .is_established()
            .then_some(connected.peer.incarnation)
    }

    /// The number of a connection among all that the connecting side ever asked for. None if it
    /// does not exist any more.
    pub fn epoch(&self, connection: ConnectionId) -> Option<u64> {
        self.connected(connection).map(|connected| connected.epoch)
    }

    fn connected(&self, connection: ConnectionId) -> Option<&Connection<B>> {
        let slot = self.slots.get(connection.index as usize)?;
        let connected = slot.connection.as_deref();
        connected.filter(|connected| connected.id == connection)
    }

    /// Is there any connection with this peer? Without one nothing that it ever sent can arrive any
    /// more.
    pub(crate) fn hears_of(&self, incarnation: u64) -> bool {
        self.existing()
            .any(|connected| connected.peer.incarnation == incarnation)
    }
}
