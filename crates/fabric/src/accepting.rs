//! Peers that ask for a connection: who is accepted, and what the others are told.

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::lifecycle::State;
use crate::{ConnectError, ResetCause};
use legato_base::Time;
use legato_base::wire::message::Hello;
use legato_base::wire::proof::{Asking, Refusal};
use legato_verbs::{ConnectionRequest, Listener, Provider};

impl<B: Buffer> Fabric<B> {
    pub(crate) fn handle_requested(
        &mut self,
        provider: &mut dyn Provider,
        listener: Listener,
        request: ConnectionRequest,
        private_data: &[u8],
    ) {
        let refused = match self.listeners.contains(&listener) {
            true => self.accept(provider, request, private_data),
            false => {
                self.shared.counters.events_unexpected += 1;
                Err(None)
            }
        };
        let Err(refusal) = refused else {
            return;
        };
        self.shared.counters.peers_rejected += 1;
        if let Some(refusal) = refusal {
            self.shared.counters.note_refusal(refusal);
        }
        let reason = refusal.map(Refusal::to_bytes);
        let reason = reason.as_ref().map_or(&[][..], |reason| reason);
        // The peer may have gone away meanwhile; then it needs no answer.
        let _ = provider.reject(request, reason);
    }

    /// An error if the peer must be sent away, and what it is told.
    fn accept(
        &mut self,
        provider: &mut dyn Provider,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), Option<Refusal>> {
        if self.shared.prover.is_some() {
            return self.accept_unproved(provider, request, private_data);
        }
        // P-77: nobody with a secret is talked to by one without.
        if Asking::parse(private_data).is_some() {
            return Err(Some(Refusal::NotExpected));
        }
        // P-1: whoever has no Hello of this version is sent away.
        let (peer, private_data) = Hello::parse(private_data).map_err(|_| None)?;
        // P-96: what the peer calls over may still write here.
        if !self.note_closed(provider, &peer, false) {
            return Err(None);
        }
        let deadline = self.shared.now + self.shared.timeouts.handshake;
        let epoch = peer.epoch;
        let mut connection = self.open_accepted(provider, epoch, deadline)?;
        connection.peer = peer;
        connection.private_data = private_data.to_vec();
        let oldest = self.oldest_of(peer.incarnation).unwrap_or(epoch).min(epoch);
        let credits = connection.layout.credits;
        let greeting = self.greeting(credits, epoch, oldest, &[]);
        self.answer(provider, request, connection, &greeting)
    }

    /// The peer may be a recording of someone who knows the secret. It gets a queue pair for a short
    /// time, shorter if somebody else wants it, and half of all places are kept for those who have proved
    /// more (P-79).
    fn accept_unproved(
        &mut self,
        provider: &mut dyn Provider,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), Option<Refusal>> {
        let unproved_max = (self.shared.config.connections_max as usize / 2).max(1);
        let mut yields = None;
        if self.unproved().count() >= unproved_max {
            let oldest = self.unproved().min_by_key(|&(_, until)| until);
            let timeouts = &self.shared.timeouts;
            let latest = self.shared.now + (timeouts.proof - timeouts.yielding);
            yields = oldest.filter(|&(_, until)| until <= latest);
            if yields.is_none() {
                return Err(Some(Refusal::Busy));
            }
        }
        let Some(prover) = &mut self.shared.prover else {
            return Err(None);
        };
        // P-77: refused before there is a queue pair.
        let (handshake, answer) = prover.answer(private_data).map_err(Some)?;
        if let Some((index, _)) = yields {
            let error = ConnectError::DeadlineExpired;
            self.shared.counters.note_unproved(error);
            self.fail_handshake(provider, index, error);
        }
        let deadline = self.shared.now + self.shared.timeouts.proof;
        let mut connection = self.open_accepted(provider, 0, deadline)?;
        connection.handshake = handshake;
        self.answer(provider, request, connection, &answer)
    }

    /// Accepted connections whose peer has not proved itself: their places, and until when they may.
    fn unproved(&self) -> impl Iterator<Item = (usize, Time)> {
        self.existing().filter_map(|connection| {
            let (State::Accepting { deadline } | State::Confirming { deadline }) =
                &connection.state
            else {
                return None;
            };
            let unproved = !connection.is_active;
            unproved.then(|| (connection.id.index as usize, deadline.time()))
        })
    }

    fn open_accepted(
        &mut self,
        provider: &mut dyn Provider,
        epoch: u64,
        deadline: Time,
    ) -> Result<Connection<B>, Option<Refusal>> {
        // P-60: nothing new is started.
        if self.shared.is_quarantine_full() {
            return Err(None);
        }
        let id = self.vacant_id().ok_or(None)?;
        let state = State::Accepting {
            deadline: Deadline::at(deadline),
        };
        Connection::open(&mut self.shared, provider, id, epoch, state).map_err(|_| None)
    }

    fn answer(
        &mut self,
        provider: &mut dyn Provider,
        request: ConnectionRequest,
        mut connection: Connection<B>,
        private_data: &[u8],
    ) -> Result<(), Option<Refusal>> {
        let accepted = provider.accept(request, connection.queue_pair, private_data);
        if accepted.is_err() {
            connection.release(&mut self.shared, provider, ResetCause::Closed);
            return Err(None);
        }
        if let State::Accepting { deadline } = connection.state {
            self.shared.note_deadline(deadline.time());
        }
        self.install(connection);
        Ok(())
    }
}
