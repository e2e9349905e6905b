//! Ports that are down and addresses that are missing at this end: what is under way gets through when
//! they are back. How long that is waited for is the owner's choice, because nobody knows the time before.

use crate::connection::Connection;
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::shared::Shared;
use crate::{ConnectError, ResetCause};
use legato_base::{Duration, Time};
use legato_verbs::Provider;

/// Of an established connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) cause: ResetCause,
    /// When the connection ends for it.
    pub(crate) ends: Time,
}

impl<B: Buffer> Fabric<B> {
    /// A connection cannot be used for now (P-56). One that is not established yet has its own deadline.
    pub(crate) fn note_outage(
        &mut self,
        provider: &mut dyn Provider,
        index: usize,
        cause: ResetCause,
    ) {
        let lasts = self.shared.config.outage;
        if lasts == Duration::ZERO {
            return self.end(provider, index, ConnectError::Disconnected, cause);
        }
        let Some(connection) = self.slots[index].connection.as_deref_mut() else {
            return;
        };
        if connection.is_established() && connection.outage.is_none() {
            let ends = self.shared.now + lasts;
            connection.outage = Some(Outage { cause, ends });
            self.shared.note_deadline(ends);
        }
    }

    pub(crate) fn end_outages(&mut self) {
        for slot in &mut self.slots {
            if let Some(connection) = slot.connection.as_deref_mut() {
                connection.outage = None;
            }
        }
    }
}

impl<B: Buffer> Connection<B> {
    /// Why it ends now, if it does for an outage.
    pub(crate) fn outlasted(&self, shared: &mut Shared<B>) -> Option<ResetCause> {
        let outage = self.outage?;
        if shared.now < outage.ends {
            shared.note_deadline(outage.ends);
            return None;
        }
        Some(outage.cause)
    }
}
