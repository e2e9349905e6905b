//! The fabric: its connections, and what its owner can ask of it.

use crate::connection::Connection;
use crate::credits::Sizes;
use crate::deadline::Deadline;
use crate::event::Buffer;
use crate::fence::{Fence, Quarantine};
use crate::id::{Generations, Token};
use crate::lifecycle::State;
use crate::receive_pool::ReceivePool;
use crate::shared::Shared;
use crate::timeouts::Timeouts;
use crate::{
    CallId, ConnectError, ConnectionId, FabricConfig, FabricCounters, FabricEvent, OperationId,
    PRIVATE_DATA_USER_MAX, Refused, ReplyError, RequestId, ResetCause,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_base::Time;
use legato_base::wire::message::Hello;
use legato_verbs::{
    Address, Completion, Listener, Prepared, ProtectionDomain, Provider, RemoteAddress, RemoteKey,
    SendOperation, VerbsError,
};

/// The connections of one owner over one provider, whose only user it is.
///
/// Every call takes that provider. A fabric that is dropped leaves its objects in it: see
/// [`Self::shutdown`].
#[derive(Debug)]
pub struct Fabric<B> {
    pub(crate) shared: Shared<B>,
    pub(crate) slots: Vec<Slot<B>>,
    /// Room for completions that are polled.
    pub(crate) polled: Vec<Completion>,
    pub(crate) listeners: Vec<Listener>,
}

/// The place of a connection.
#[derive(Debug)]
pub(crate) struct Slot<B> {
    /// Of the connection that is here, or was last.
    pub(crate) generation: u32,
    pub(crate) connection: Option<Box<Connection<B>>>,
    /// Why the last connection ended, until the next.
    pub(crate) reset_cause: Option<ResetCause>,
}

impl<B: Buffer> Fabric<B> {
    /// A protection domain, and a completion queue for as many connections as there may be; and their
    /// receives, where they share them.
    ///
    /// # Errors
    /// When the configuration exceeds a limit or the provider has no room.
    pub fn new(provider: &mut dyn Provider, config: FabricConfig) -> Result<Self, VerbsError> {
        let sizes = Sizes::of(&config)?;
        let timeouts = Timeouts::of(&config);
        let domain = provider.create_protection_domain()?;
        let queue = match provider.create_completion_queue(sizes.completion_queue_entries) {
            Ok(queue) => queue,
            Err(error) => {
                // Nothing belongs to it yet, so it goes.
                let _ = provider.destroy_protection_domain(domain);
                return Err(error);
            }
        };
        let mut generations = Generations::starting_at(config.first_generation);
        let pool = match config.shared_receives {
            None => None,
            Some(count) => {
                let stride = sizes.stride;
                let made = ReceivePool::new(provider, domain, count, stride, &mut generations);
                match made {
                    Ok(pool) => Some(pool),
                    Err(error) => {
                        // Nothing belongs to them yet, so they go.
                        let _ = provider.destroy_completion_queue(queue);
                        let _ = provider.destroy_protection_domain(domain);
                        return Err(error);
                    }
                }
            }
        };
        Ok(Self {
            shared: Shared {
                config,
                sizes,
                domain,
                queue,
                queue_failed: false,
                timeouts,
                fence: Fence::new(),
                transfer_length_max: u64::from(provider.attributes().message_length_max),
                generations,
                counters: FabricCounters::default(),
                events: VecDeque::new(),
                now: Time::ZERO,
                // What could not be posted is tried again in the first turn.
                due: Time::NEVER,
                earliest: match &pool {
                    Some(_) => Time::ZERO,
                    None => Time::NEVER,
                },
                draining: 0,
                next_epoch: 1,
                waiting_replies: 0,
                prover: None,
                retired_domains: Vec::new(),
                pool,
                polled_empty: false,
            },
            slots: Vec::new(),
            polled: Vec::new(),
            listeners: Vec::new(),
        })
    }

    /// Where regions for the buffers of reads and writes are to be registered.
    pub const fn domain(&self) -> ProtectionDomain {
        self.shared.domain
    }

    /// Where regions are to be registered that the peer of a connection may use: with
    /// [`FabricConfig::separate_peers`] no other can. None if the connection does not exist any more.
    pub fn domain_of(&self, connection: ConnectionId) -> Option<ProtectionDomain> {
        let slot = &self.slots[self.index_of(connection)?];
        let own = slot.connection.as_deref()?.own_domain;
        Some(own.unwrap_or(self.shared.domain))
    }

    /// By this number the two sides of a connection name it: later ones of the same side have greater
    /// ones. None if the connection does not exist any more.
    pub fn epoch_of(&self, connection: ConnectionId) -> Option<u64> {
        let slot = &self.slots[self.index_of(connection)?];
        Some(slot.connection.as_deref()?.epoch)
    }

    /// Can nothing any more reach the peer that this side had sent on the connection which it had made as
    /// number `epoch` and which is over? A write whose outcome is not known is sent again on a connection
    /// of which this is true, and on no other: elsewhere the first one may still arrive, after the
    /// second and whatever followed it. It is true of the connections made after everything older than
    /// them has ended here: their peer has ended its sides before it accepted (P-96). Without an
    /// [`FabricConfig::incarnation`] it is true of none.
    pub fn is_after(&self, connection: ConnectionId, epoch: u64) -> bool {
        let slot = self.index_of(connection).map(|index| &self.slots[index]);
        let connection = slot.and_then(|slot| slot.connection.as_deref());
        self.shared.config.incarnation != 0
            && connection.is_some_and(|connection| {
                connection.is_active
                    && connection.is_established()
                    && epoch < connection.oldest_told
            })
    }

    pub const fn counters(&self) -> &FabricCounters {
        &self.shared.counters
    }

    /// Why a connection ended: from its last event until its place is given away.
    pub fn reset_cause(&self, connection: ConnectionId) -> Option<ResetCause> {
        let slot = self.slots.get(connection.index as usize)?;
        slot.reset_cause
            .filter(|_| slot.generation == connection.generation)
    }

    /// # Errors
    /// As [`Provider::listen`].
    pub fn listen(
        &mut self,
        provider: &mut dyn Provider,
        address: &Address,
    ) -> Result<Listener, VerbsError> {
        let listener = provider.listen(address)?;
        self.listeners.push(listener);
        Ok(listener)
    }

    /// Starts connecting. [`FabricEvent::Connected`] or [`FabricEvent::ConnectFailed`] follows,
    /// the latter in the first turn after the deadline, unless turns come late ([`Self::turn`]).
    ///
    /// # Errors
    /// When it cannot even start.
    pub fn connect(
        &mut self,
        provider: &mut dyn Provider,
        address: &Address,
        private_data: &[u8],
        deadline: Time,
    ) -> Result<ConnectionId, ConnectError> {
        if private_data.len() > PRIVATE_DATA_USER_MAX {
            return Err(ConnectError::PrivateDataTooLong);
        }
        // P-60: nothing new is started.
        if self.shared.is_quarantine_full() {
            return Err(ConnectError::QuarantineFull);
        }
        let id = self.vacant_id().ok_or(ConnectError::TooManyConnections)?;
        let state = State::Connecting {
            deadline: Deadline::at(deadline),
        };
        let epoch = self.shared.next_epoch;
        self.shared.next_epoch += 1;
        let mut connection = Connection::open(&mut self.shared, provider, id, epoch, state)
            .map_err(ConnectError::Provider)?;
        let greeting = match &mut self.shared.prover {
            None => {
                let oldest = self.oldest_epoch().unwrap_or(epoch).min(epoch);
                let credits = connection.layout.credits;
                connection.oldest_told = oldest;
                self.greeting(credits, epoch, oldest, private_data)
            }
            Some(prover) => match prover.ask() {
                Ok((handshake, asking)) => {
                    connection.handshake = handshake;
                    connection.private_data = private_data.to_vec();
                    asking.to_vec()
                }
                Err(error) => {
                    connection.release(&mut self.shared, provider, ResetCause::Closed);
                    return Err(ConnectError::Proof(error));
                }
            },
        };
        if let Err(error) = provider.connect(connection.queue_pair, address, &greeting) {
            connection.release(&mut self.shared, provider, ResetCause::Closed);
            return Err(ConnectError::Provider(error));
        }
        self.shared.note_deadline(deadline);
        self.install(connection);
        Ok(id)
    }

    /// Ends a connection. What is outstanding comes back before [`FabricEvent::Disconnected`]. A
    /// connection that does not exist any more is left alone.
    pub fn close(&mut self, provider: &mut dyn Provider, connection: ConnectionId) {
        let Some(index) = self.index_of(connection) else {
            return;
        };
        let Some(connection) = self.slots[index].connection.as_deref_mut() else {
            return;
        };
        match connection.state {
            State::Connecting { .. } | State::Accepting { .. } | State::Confirming { .. } => {
                self.fail_handshake(provider, index, ConnectError::Closed);
            }
            State::Established(_) => {
                // The peer is told; whatever this refuses, the reset below does.
                let _ = provider.disconnect(connection.queue_pair);
                connection.reset(&mut self.shared, provider, ResetCause::Closed);
            }
            State::Draining(_) => {}
        }
    }

    /// Asks the peer. [`FabricEvent::Replied`] follows, at the latest in the first turn after the
    /// deadline, unless turns come late ([`Self::turn`]).
    ///
    /// # Errors
    /// [`Refused`]: nothing was sent.
    pub fn call(
        &mut self,
        provider: &mut dyn Provider,
        connection: ConnectionId,
        body: &[u8],
        deadline: Time,
    ) -> Result<CallId, Refused> {
        match self.find(connection) {
            Some((connection, shared)) => connection.start_call(shared, provider, body, deadline),
            None => Err(Refused::NotConnected),
        }
    }

    /// Answers a request, once.
    ///
    /// # Errors
    /// [`ReplyError`]. The caller learns nothing then, except from the end of its connection or
    /// from its deadline.
    pub fn reply(
        &mut self,
        provider: &mut dyn Provider,
        request: RequestId,
        body: &[u8],
    ) -> Result<(), ReplyError> {
        let slot = self.slots.get_mut(request.0.connection());
        match slot.and_then(|slot| slot.connection.as_deref_mut()) {
            Some(connection) => connection.start_reply(&mut self.shared, provider, request, body),
            None => Err(ReplyError::NotWaiting),
        }
    }

    /// Prepares reads and writes under a key of the peer's, as [`Provider::prepare_remote`] does.
    ///
    /// # Errors
    /// [`Refused::NotConnected`].
    pub fn prepare(
        &mut self,
        provider: &mut dyn Provider,
        connection: ConnectionId,
        key: RemoteKey,
    ) -> Result<Prepared, Refused> {
        let (connection, _) = self.find(connection).ok_or(Refused::NotConnected)?;
        let prepared = provider.prepare_remote(connection.queue_pair, key);
        prepared.map_err(|_| Refused::NotConnected)
    }

    /// Fetches the peer's bytes into the buffer. [`FabricEvent::Outcome`] and
    /// [`FabricEvent::Quiesced`] follow. Operations of one connection execute in the order in
    /// which they were started. One that misses its deadline costs the connection.
    ///
    /// # Errors
    /// [`Refused`], with the buffer: nothing was started.
    pub fn read(
        &mut self,
        provider: &mut dyn Provider,
        connection: ConnectionId,
        from: RemoteAddress,
        buffer: B,
        deadline: Time,
    ) -> Result<OperationId, (Refused, B)> {
        let operation = SendOperation::RdmaRead(from);
        self.start_operation(provider, connection, operation, buffer, deadline)
    }

    /// Places the buffer's bytes in the peer's memory, as [`Self::read`].
    ///
    /// # Errors
    /// [`Refused`], with the buffer: nothing was started.
    pub fn write(
        &mut self,
        provider: &mut dyn Provider,
        connection: ConnectionId,
        to: RemoteAddress,
        buffer: B,
        deadline: Time,
    ) -> Result<OperationId, (Refused, B)> {
        let operation = SendOperation::RdmaWrite(to);
        self.start_operation(provider, connection, operation, buffer, deadline)
    }

    /// Gives the operation up. Its outcome is [`crate::Cause::Canceled`], with what is known about the far
    /// side: what was posted cannot be called back, so that is nothing. Its buffer comes when it is
    /// quiet, as always. False if the outcome has been said already.
    pub fn cancel(&mut self, operation: OperationId) -> bool {
        let key = operation.0.key();
        self.of_token(operation.0)
            .is_some_and(|(connection, shared)| connection.cancel_operation(shared, key))
    }

    /// As [`Self::cancel`]. The call keeps its credit until the late reply.
    pub fn cancel_call(&mut self, call: CallId) -> bool {
        let key = call.0.key();
        self.of_token(call.0)
            .is_some_and(|(connection, shared)| connection.cancel_call(shared, key))
    }

    /// What is over and not known to be quiet.
    pub fn quarantine(&self) -> Quarantine {
        self.shared.fence.quarantine()
    }

    /// Someone has seen to it that the device does nothing any more: everything in quarantine comes
    /// back ([`crate::Proof::DeviceStopped`]). It is the word of an operator, who has reset the device.
    pub fn device_stopped(&mut self) {
        self.shared.note_stopped();
    }

    /// The oldest event not yet taken.
    pub fn poll_event(&mut self) -> Option<FabricEvent<B>> {
        self.shared.events.pop_front()
    }

    /// Ends every listener and connection at once, without waiting for queue pairs to drain. The
    /// events of what ended are still to be taken.
    ///
    /// # Errors
    /// As [`Provider::close_listener`], of the first one that failed. Everything else has ended.
    pub fn disconnect_all(&mut self, provider: &mut dyn Provider) -> Result<(), VerbsError> {
        let mut closed = Ok(());
        self.listeners
            .retain(|&listener| match provider.close_listener(listener) {
                Ok(()) => false,
                Err(error) => {
                    closed = closed.and(Err(error));
                    true
                }
            });
        for index in 0..self.slots.len() {
            match self.slots[index].connection.as_deref().map(|c| c.state) {
                Some(
                    State::Connecting { .. } | State::Accepting { .. } | State::Confirming { .. },
                ) => {
                    self.fail_handshake(provider, index, ConnectError::Closed);
                }
                Some(State::Established(_) | State::Draining(_)) => {
                    self.finish(provider, index);
                }
                None => {}
            }
        }
        closed
    }

    /// As [`Self::disconnect_all`], and gives the completion queue and the protection domain
    /// back. Afterwards only [`Self::poll_event`] may be called.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while a region of the owner belongs to the protection domain.
    pub fn shutdown(&mut self, provider: &mut dyn Provider) -> Result<(), VerbsError> {
        self.disconnect_all(provider)?;
        self.shared.destroy_retired(provider);
        self.shared.end_receives(provider)?;
        provider.destroy_completion_queue(self.shared.queue)?;
        provider.destroy_protection_domain(self.shared.domain)
    }

    fn start_operation(
        &mut self,
        provider: &mut dyn Provider,
        connection: ConnectionId,
        operation: SendOperation,
        buffer: B,
        deadline: Time,
    ) -> Result<OperationId, (Refused, B)> {
        match self.find(connection) {
            Some((connection, shared)) => {
                connection.start_operation(shared, provider, operation, buffer, deadline)
            }
            None => Err((Refused::NotConnected, buffer)),
        }
    }

    pub(crate) fn of_token(
        &mut self,
        token: Token,
    ) -> Option<(&mut Connection<B>, &mut Shared<B>)> {
        let connection = self
            .slots
            .get_mut(token.connection())?
            .connection
            .as_deref_mut()?;
        Some((connection, &mut self.shared))
    }

    /// The connections, in any state.
    pub(crate) fn existing(&self) -> impl Iterator<Item = &Connection<B>> {
        let slots = self.slots.iter();
        slots.filter_map(|slot| slot.connection.as_deref())
    }

    pub(crate) fn find(
        &mut self,
        id: ConnectionId,
    ) -> Option<(&mut Connection<B>, &mut Shared<B>)> {
        let index = self.index_of(id)?;
        let connection = self.slots[index].connection.as_deref_mut()?;
        Some((connection, &mut self.shared))
    }

    fn index_of(&self, id: ConnectionId) -> Option<usize> {
        let index = id.index as usize;
        let slot = self.slots.get(index)?;
        (slot.generation == id.generation && slot.connection.is_some()).then_some(index)
    }

    /// The name of the next connection, if there is a place for one.
    pub(crate) fn vacant_id(&mut self) -> Option<ConnectionId> {
        let vacant = |slot: &Slot<B>| slot.connection.is_none();
        let index = match self.slots.iter().position(vacant) {
            Some(index) => index,
            None if self.slots.len() < self.shared.config.connections_max as usize => {
                self.slots.push(Slot {
                    generation: 0,
                    connection: None,
                    reset_cause: None,
                });
                self.slots.len() - 1
            }
            None => return None,
        };
        Some(ConnectionId {
            index: index as u32,
            generation: self.slots[index].generation.wrapping_add(1),
        })
    }

    pub(crate) fn install(&mut self, connection: Connection<B>) {
        let slot = &mut self.slots[connection.id.index as usize];
        slot.generation = connection.id.generation;
        slot.reset_cause = None;
        slot.connection = Some(Box::new(connection));
    }

    /// The oldest of this side's own connections whose queue pair exists (P-59).
    pub(crate) fn oldest_epoch(&self) -> Option<u64> {
        self.oldest_where(|is_active, _| is_active)
    }

    /// The oldest of a peer's connections whose queue pair exists (P-59).
    pub(crate) fn oldest_of(&self, incarnation: u64) -> Option<u64> {
        self.oldest_where(|is_active, peer| !is_active && peer == incarnation)
    }

    /// The oldest epoch whose queue pair exists, of connections and of what is left of them, for whose
    /// direction (true: connected by this side) and peer the condition holds.
    fn oldest_where(&self, counts: impl Fn(bool, u64) -> bool) -> Option<u64> {
        let connections = self.existing().map(|connection| {
            let peer = connection.peer.incarnation;
            (connection.is_active, peer, connection.epoch)
        });
        let stuck = self.shared.fence.with_queue_pair();
        let stuck = stuck.map(|remains| (remains.is_active, remains.peer, remains.epoch));
        let all = connections.chain(stuck);
        let counted = all.filter(|&(is_active, peer, _)| counts(is_active, peer));
        counted.map(|(_, _, epoch)| epoch).min()
    }

    /// What a peer must know of this side.
    pub(crate) const fn hello(&self, credits: u32, epoch: u64, oldest: u64) -> Hello {
        Hello {
            credits,
            message_length_max: self.shared.config.message_length_max,
            incarnation: self.shared.config.incarnation,
            epoch,
            oldest_epoch: oldest,
        }
    }

    /// The private data of a connect or accept where nobody has a secret.
    pub(crate) fn greeting(
        &self,
        credits: u32,
        epoch: u64,
        oldest: u64,
        private_data: &[u8],
    ) -> Vec<u8> {
        let mut greeting = self.hello(credits, epoch, oldest).to_bytes().to_vec();
        greeting.extend_from_slice(private_data);
        greeting
    }

    /// Ends a connection that was never established. Its queue pair is destroyed at once: only
    /// receives were posted, and the confirmation.
    pub(crate) fn fail_handshake(
        &mut self,
        provider: &mut dyn Provider,
        index: usize,
        error: ConnectError,
    ) {
        let Some(mut connection) = self.slots[index].connection.take() else {
            return;
        };
        if matches!(connection.state, State::Confirming { .. }) {
            // The peer need not wait; whatever this refuses, its deadline does.
            let _ = provider.disconnect(connection.queue_pair);
        }
        connection.is_refused = matches!(
            error,
            ConnectError::Rejected(_) | ConnectError::Unreachable(_)
        );
        connection.release(&mut self.shared, provider, ResetCause::Closed);
        if connection.is_active {
            let connection = connection.id;
            self.shared
                .events
                .push_back(FabricEvent::ConnectFailed { connection, error });
        }
    }

    /// Ends a connection that has drained, or will not.
    pub(crate) fn finish(&mut self, provider: &mut dyn Provider, index: usize) {
        let slot = &mut self.slots[index];
        if let Some(connection) = slot.connection.take() {
            slot.reset_cause = Some(connection.finish(&mut self.shared, provider));
        }
    }
}
