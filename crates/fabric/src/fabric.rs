//! The fabric: its connections, and what its owner can ask of it.

use crate::connection::{Connection, State};
use crate::credits::Sizes;
use crate::event::Buffer;
use crate::id::Generations;
use crate::shared::Shared;
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
    Address, Listener, ProtectionDomain, Provider, RemoteAddress, SendOperation, VerbsError,
};

/// The connections of one owner over one provider, whose only user it is.
///
/// Every call takes that provider. A fabric that is dropped leaves its objects in it: see
/// [`Self::shutdown`].
#[derive(Debug)]
pub struct Fabric<B> {
    pub(crate) shared: Shared<B>,
    pub(crate) slots: Vec<Slot<B>>,
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
    /// A protection domain, and a completion queue for as many connections as there may be.
    ///
    /// # Errors
    /// When the configuration exceeds a limit or the provider has no room.
    pub fn new(provider: &mut dyn Provider, config: FabricConfig) -> Result<Self, VerbsError> {
        let sizes = Sizes::of(&config)?;
        let domain = provider.create_protection_domain()?;
        let queue = match provider.create_completion_queue(sizes.completion_queue_entries) {
            Ok(queue) => queue,
            Err(error) => {
                // Nothing belongs to it yet, so it goes.
                let _ = provider.destroy_protection_domain(domain);
                return Err(error);
            }
        };
        Ok(Self {
            shared: Shared {
                config,
                sizes,
                domain,
                queue,
                transfer_length_max: u64::from(provider.attributes().message_length_max),
                generations: Generations::starting_at(config.first_generation),
                counters: FabricCounters::default(),
                events: VecDeque::new(),
                now: Time::ZERO,
                earliest: Time::NEVER,
                draining: 0,
                waiting_replies: 0,
            },
            slots: Vec::new(),
            listeners: Vec::new(),
        })
    }

    /// Where regions for the buffers of reads and writes are to be registered.
    pub const fn domain(&self) -> ProtectionDomain {
        self.shared.domain
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
    /// the latter by the deadline.
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
        let id = self.vacant_id().ok_or(ConnectError::TooManyConnections)?;
        let state = State::Connecting { deadline };
        let mut connection = Connection::open(&mut self.shared, provider, id, state)
            .map_err(ConnectError::Provider)?;
        let greeting = self.greeting(private_data);
        if let Err(error) = provider.connect(connection.queue_pair, address, &greeting) {
            connection.release(&mut self.shared, provider);
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
            State::Connecting { .. } | State::Accepting { .. } => {
                self.fail_handshake(provider, index, ConnectError::Closed);
            }
            State::Established => {
                // The peer is told; whatever this refuses, the reset below does.
                let _ = provider.disconnect(connection.queue_pair);
                connection.reset(&mut self.shared, provider, ResetCause::Closed);
            }
            State::Draining { .. } => {}
        }
    }

    /// Asks the peer. [`FabricEvent::Replied`] follows, at the latest in the turn in which the
    /// deadline has passed.
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

    /// The oldest event not yet taken.
    pub fn poll_event(&mut self) -> Option<FabricEvent<B>> {
        self.shared.events.pop_front()
    }

    /// Ends every listener and connection at once, without waiting for queue pairs to drain. The
    /// events of what ended are still to be taken.
    ///
    /// # Errors
    /// As [`Provider::close_listener`].
    pub fn disconnect_all(&mut self, provider: &mut dyn Provider) -> Result<(), VerbsError> {
        for listener in self.listeners.drain(..) {
            provider.close_listener(listener)?;
        }
        for index in 0..self.slots.len() {
            match self.slots[index].connection.as_deref().map(|c| c.state) {
                Some(State::Connecting { .. } | State::Accepting { .. }) => {
                    self.fail_handshake(provider, index, ConnectError::Closed);
                }
                Some(State::Established | State::Draining { .. }) => {
                    self.finish(provider, index);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// As [`Self::disconnect_all`], and gives the completion queue and the protection domain
    /// back. Afterwards only [`Self::poll_event`] may be called.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while a region of the owner belongs to the protection domain.
    pub fn shutdown(&mut self, provider: &mut dyn Provider) -> Result<(), VerbsError> {
        self.disconnect_all(provider)?;
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

    fn find(&mut self, id: ConnectionId) -> Option<(&mut Connection<B>, &mut Shared<B>)> {
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

    /// The private data of a connect or accept.
    pub(crate) fn greeting(&self, private_data: &[u8]) -> Vec<u8> {
        let hello = Hello {
            credits: self.shared.config.credits,
            message_length_max: self.shared.config.message_length_max,
        };
        let mut greeting = hello.to_bytes().to_vec();
        greeting.extend_from_slice(private_data);
        greeting
    }

    /// Ends a connection that was never established. Its queue pair is destroyed at once: only
    /// receives were posted.
    pub(crate) fn fail_handshake(
        &mut self,
        provider: &mut dyn Provider,
        index: usize,
        error: ConnectError,
    ) {
        let Some(mut connection) = self.slots[index].connection.take() else {
            return;
        };
        connection.release(&mut self.shared, provider);
        if matches!(connection.state, State::Connecting { .. }) {
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
