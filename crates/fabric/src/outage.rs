//! Ports that are down and addresses that are missing at this end: what is under way gets through when
//! they are back. How long that is waited for is the owner's choice, because nobody knows the time before.

use crate::connection::Connection;
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::shared::Shared;
use crate::{ConnectError, ResetCause};
use legato_base::{Duration, Time};
use legato_verbs::Provider;

/// One thing at this end without which a connection cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Port,
    Address,
}

impl Lack {
    const fn cause(self) -> ResetCause {
        match self {
            Self::Port => ResetCause::PortDown,
            Self::Address => ResetCause::AddressRemoved,
        }
    }
}

/// The time in which an established connection lacks something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    lacks_port: bool,
    lacks_address: bool,
    /// When the connection ends for it: some time after the first thing went, whatever else comes and goes.
    pub(crate) ends: Time,
}

impl Outage {
    const fn lacks(&mut self, lack: Lack) -> &mut bool {
        match lack {
            Lack::Port => &mut self.lacks_port,
            Lack::Address => &mut self.lacks_address,
        }
    }

    /// Why the connection ends for it: nothing is known of an address while its port is down.
    const fn cause(&self) -> ResetCause {
        let lack = if self.lacks_port {
            Lack::Port
        } else {
            Lack::Address
        };
        lack.cause()
    }
}

impl<B: Buffer> Fabric<B> {
    /// A connection cannot be used for now (P-56). One that is not established yet has its own deadline.
    pub(crate) fn begin_outage(&mut self, provider: &mut dyn Provider, index: usize, lack: Lack) {
        let lasts = self.shared.config.outage;
        if lasts == Duration::ZERO {
            return self.end(provider, index, ConnectError::Disconnected, lack.cause());
        }
        let Some(connection) = self.slots[index].connection.as_deref_mut() else {
            return;
        };
        if connection.outage.is_none() && !connection.is_established() {
            return;
        }
        let ends = self.shared.now + lasts;
        let outage = connection.outage.get_or_insert(Outage {
            lacks_port: false,
            lacks_address: false,
            ends,
        });
        *outage.lacks(lack) = true;
        self.shared.note_deadline(outage.ends);
    }

    /// Something is back; the connection can be used if nothing else is missing.
    pub(crate) fn end_outage(&mut self, index: usize, lack: Lack) {
        let Some(connection) = self.slots[index].connection.as_deref_mut() else {
            return;
        };
        if let Some(outage) = &mut connection.outage {
            *outage.lacks(lack) = false;
            if !outage.lacks_port && !outage.lacks_address {
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
        Some(outage.cause())
    }
}
