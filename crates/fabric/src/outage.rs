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

/// Of an established connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    first: Lack,
    /// What has been missing besides, at the same time.
    second: Option<Lack>,
    /// When the connection ends for it: some time after the first went, whatever else comes and goes.
    pub(crate) ends: Time,
}

impl Outage {
    fn add(&mut self, lack: Lack) {
        if lack != self.first {
            self.second = Some(lack);
        }
    }

    /// None if nothing is missing any more.
    fn without(self, lack: Lack) -> Option<Self> {
        let first = if lack == self.first {
            self.second?
        } else {
            self.first
        };
        Some(Self {
            first,
            second: None,
            ..self
        })
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
        if let Some(outage) = &mut connection.outage {
            outage.add(lack);
        } else if connection.is_established() {
            let ends = self.shared.now + lasts;
            connection.outage = Some(Outage {
                first: lack,
                second: None,
                ends,
            });
            self.shared.note_deadline(ends);
        }
    }

    /// What was missing is back; the connection can be used if that was all.
    pub(crate) fn end_outage(&mut self, index: usize, lack: Lack) {
        if let Some(connection) = self.slots[index].connection.as_deref_mut() {
            connection.outage = connection.outage.and_then(|outage| outage.without(lack));
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
        Some(outage.first.cause())
    }
}
