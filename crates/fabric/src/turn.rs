//! The loop body: what daemon, agent and simulator call again and again.

use crate::connection::{Connection, State};
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::id::Token;
use crate::{ConnectError, FabricEvent, ResetCause};
use alloc::vec::Vec;
use legato_base::wire::message::Hello;
use legato_base::{Duration, Time};
use legato_verbs::{
    AsyncEvent, Completion, ConnectionEvent, ConnectionRequest, Event, Listener, Provider,
    QueuePair,
};

/// What a turn says to whoever waits between turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When the next turn is due even if nothing happens.
    pub deadline: Time,
    /// Something happened: turn again before sleeping.
    pub progressed: bool,
}

/// Completions taken from the queue at a time.
const POLL_BATCH: usize = 64;
/// How soon a reply that the provider refused is tried again.
const RETRY: Duration = Duration::from_millis(1);

impl<B: Buffer> Fabric<B> {
    /// Lets the provider work, handles its events and completions, ends what is overdue, and
    /// sends what had to wait.
    pub fn turn(&mut self, provider: &mut dyn Provider, now: Time) -> Turn {
        self.shared.now = now;
        let provider_deadline = provider.progress(now);
        let mut progressed = false;
        while let Some(event) = provider.poll_event() {
            progressed = true;
            self.handle_event(provider, event);
        }
        progressed |= self.poll_completions(provider);
        if now >= self.shared.earliest {
            progressed |= self.expire(provider);
        }
        if self.shared.waiting_replies > 0 {
            progressed |= self.send_waiting_replies(provider);
        }
        if self.shared.draining > 0 {
            progressed |= self.finish_drained(provider);
        }
        let mut deadline = provider_deadline.min(self.shared.earliest);
        if self.shared.waiting_replies > 0 {
            deadline = deadline.min(now + RETRY);
        }
        Turn {
            deadline,
            progressed,
        }
    }

    fn poll_completions(&mut self, provider: &mut dyn Provider) -> bool {
        let mut batch: Vec<Completion> = Vec::new();
        // Completing a receive posts it again, so a fast peer could keep this busy for ever.
        let mut left = self.shared.sizes.completion_queue_entries as usize;
        let mut progressed = false;
        while left > 0 {
            batch.clear();
            let max = left.min(POLL_BATCH);
            // The queue lives as long as the fabric; an error is an empty queue.
            let polled = provider.poll_completion_queue(self.shared.queue, max, &mut batch);
            if polled.is_err() || batch.is_empty() {
                break;
            }
            left = left.saturating_sub(batch.len());
            progressed = true;
            for completion in &batch {
                self.handle_completion(provider, completion);
            }
        }
        progressed
    }

    fn handle_completion(&mut self, provider: &mut dyn Provider, completion: &Completion) {
        let token = Token::from_bits(completion.wr_id.0);
        let slot = self.slots.get_mut(token.connection());
        let connection = slot
            .and_then(|slot| slot.connection.as_deref_mut())
            .filter(|connection| connection.queue_pair == completion.queue_pair);
        match connection {
            Some(connection) => {
                connection.handle_completion(&mut self.shared, provider, token, completion.result);
            }
            None => self.shared.counters.completions_stale += 1,
        }
    }

    fn handle_event(&mut self, provider: &mut dyn Provider, event: Event) {
        match event {
            Event::Connection(ConnectionEvent::Requested {
                listener,
                request,
                private_data,
            }) => self.handle_requested(provider, listener, request, &private_data),
            Event::Connection(ConnectionEvent::Established {
                queue_pair,
                private_data,
            }) => self.handle_established(provider, queue_pair, &private_data),
            Event::Connection(ConnectionEvent::Rejected {
                queue_pair, reason, ..
            }) => {
                let error = ConnectError::Rejected(reason);
                self.handle_end(provider, queue_pair, error, ResetCause::Unexpected);
            }
            Event::Connection(ConnectionEvent::Unreachable { queue_pair, reason }) => {
                let error = ConnectError::Unreachable(reason);
                self.handle_end(provider, queue_pair, error, ResetCause::Unexpected);
            }
            Event::Connection(ConnectionEvent::Disconnected { queue_pair }) => {
                let cause = ResetCause::PeerDisconnected;
                self.handle_end(provider, queue_pair, ConnectError::Disconnected, cause);
            }
            Event::Async(event) => {
                let (queue_pair, cause) = match event {
                    AsyncEvent::QueuePairFatal { queue_pair } => {
                        (queue_pair, ResetCause::QueuePairFatal)
                    }
                    AsyncEvent::QueuePairAccessError { queue_pair } => {
                        (queue_pair, ResetCause::PeerAccess)
                    }
                    AsyncEvent::QueuePairRequestError { queue_pair } => {
                        (queue_pair, ResetCause::PeerRequest)
                    }
                };
                self.handle_end(provider, queue_pair, ConnectError::Disconnected, cause);
            }
        }
    }

    fn handle_requested(
        &mut self,
        provider: &mut dyn Provider,
        listener: Listener,
        request: ConnectionRequest,
        private_data: &[u8],
    ) {
        if !self.listeners.contains(&listener) {
            self.shared.counters.events_unexpected += 1;
        } else if self.accept(provider, request, private_data).is_some() {
            return;
        }
        self.shared.counters.peers_rejected += 1;
        // The peer may have gone away meanwhile; then it needs no answer.
        let _ = provider.reject(request, &[]);
    }

    /// None if the peer must be sent away.
    fn accept(
        &mut self,
        provider: &mut dyn Provider,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Option<()> {
        let (peer, private_data) = Hello::parse(private_data).ok()?;
        let id = self.vacant_id()?;
        let deadline = self.shared.now + self.shared.config.handshake;
        let state = State::Accepting { deadline };
        let mut connection = Connection::open(&mut self.shared, provider, id, state).ok()?;
        connection.peer = peer;
        connection.private_data = private_data.to_vec();
        let greeting = self.greeting(&[]);
        if provider
            .accept(request, connection.queue_pair, &greeting)
            .is_err()
        {
            connection.release(&mut self.shared, provider);
            return None;
        }
        self.shared.note_deadline(deadline);
        self.install(connection);
        Some(())
    }

    fn handle_established(
        &mut self,
        provider: &mut dyn Provider,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) {
        let Some(index) = self.index_of_queue_pair(queue_pair) else {
            self.shared.counters.events_unexpected += 1;
            return;
        };
        let shared = &mut self.shared;
        let Some(connection) = self.slots[index].connection.as_deref_mut() else {
            return;
        };
        let id = connection.id;
        match connection.state {
            State::Connecting { .. } => match Hello::parse(private_data) {
                Ok((peer, private_data)) => {
                    connection.peer = peer;
                    shared.events.push_back(FabricEvent::Connected {
                        connection: id,
                        private_data: private_data.to_vec(),
                    });
                    connection.establish(shared, provider);
                }
                Err(error) => {
                    self.fail_handshake(provider, index, ConnectError::Incompatible(error));
                }
            },
            State::Accepting { .. } => {
                shared.events.push_back(FabricEvent::Accepted {
                    connection: id,
                    private_data: core::mem::take(&mut connection.private_data),
                });
                connection.establish(shared, provider);
            }
            State::Established => {
                shared.counters.events_unexpected += 1;
                connection.reset(shared, provider, ResetCause::Unexpected);
            }
            State::Draining { .. } => {}
        }
    }

    /// The provider says that a queue pair is in the error state.
    fn handle_end(
        &mut self,
        provider: &mut dyn Provider,
        queue_pair: QueuePair,
        error: ConnectError,
        cause: ResetCause,
    ) {
        let Some(index) = self.index_of_queue_pair(queue_pair) else {
            // Its queue pair was destroyed before the event was delivered.
            self.shared.counters.events_unexpected += 1;
            return;
        };
        let Some(connection) = self.slots[index].connection.as_deref_mut() else {
            return;
        };
        match connection.state {
            State::Connecting { .. } | State::Accepting { .. } => {
                self.fail_handshake(provider, index, error);
            }
            State::Established | State::Draining { .. } => {
                connection.reset(&mut self.shared, provider, cause);
            }
        }
    }

    /// Events of connections are rare, so they are looked for.
    fn index_of_queue_pair(&self, queue_pair: QueuePair) -> Option<usize> {
        self.slots.iter().position(|slot| {
            let connection = slot.connection.as_deref();
            connection.is_some_and(|connection| connection.queue_pair == queue_pair)
        })
    }

    /// Ends what is overdue and finds out what is due next.
    fn expire(&mut self, provider: &mut dyn Provider) -> bool {
        self.shared.earliest = Time::NEVER;
        let now = self.shared.now;
        let mut progressed = false;
        for index in 0..self.slots.len() {
            let Some(connection) = self.slots[index].connection.as_deref_mut() else {
                continue;
            };
            progressed |= connection.expire(&mut self.shared, provider);
            match connection.state {
                State::Connecting { deadline } | State::Accepting { deadline }
                    if deadline <= now =>
                {
                    progressed = true;
                    self.fail_handshake(provider, index, ConnectError::DeadlineExpired);
                }
                State::Draining { deadline, .. } if deadline <= now => {
                    progressed = true;
                    self.shared.counters.drains_overdue += 1;
                    self.finish(provider, index);
                }
                State::Connecting { deadline }
                | State::Accepting { deadline }
                | State::Draining { deadline, .. } => self.shared.note_deadline(deadline),
                State::Established => {}
            }
        }
        progressed
    }

    fn send_waiting_replies(&mut self, provider: &mut dyn Provider) -> bool {
        let mut progressed = false;
        for slot in &mut self.slots {
            if let Some(connection) = slot.connection.as_deref_mut() {
                let posted = connection.post_pending_replies(&mut self.shared, provider);
                progressed |= !matches!(posted, Ok(0));
            }
        }
        progressed
    }

    fn finish_drained(&mut self, provider: &mut dyn Provider) -> bool {
        let mut progressed = false;
        for index in 0..self.slots.len() {
            let drained = self.slots[index]
                .connection
                .as_deref()
                .is_some_and(|c| matches!(c.state, State::Draining { .. }) && c.is_drained());
            if drained {
                progressed = true;
                self.finish(provider, index);
            }
        }
        progressed
    }
}
