//! The loop body: what daemon, agent and simulator call again and again.

use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::id::{Kind, Token};
use crate::lifecycle::{Drain, State};
use crate::outage::Lack;
use crate::{CONTRACT, ConnectError, FabricEvent, ProofError, ResetCause};
use legato_base::wire::message::{Hello, MessageError};
use legato_base::wire::proof::Refusal;
use legato_base::{Duration, Time};
use legato_verbs::{
    AsyncEvent, Completion, CompletionStatus, ConnectionEvent, Event, Provider, QueuePair, Subject,
    VerbsError,
};

/// What a turn says to whoever waits between turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// When the next turn is due even if nothing happens.
    pub deadline: Time,
    /// Something happened: turn again before sleeping.
    pub progressed: bool,
}

/// A completion of nothing that is outstanding.
struct Stale;

/// Completions taken from the queue at a time.
const POLL_BATCH: usize = 64;

impl<B: Buffer> Fabric<B> {
    /// Lets the provider work, handles its events and completions, ends what is overdue, and
    /// sends what had to wait.
    ///
    /// Call it first after a pause: what is started before it looks as if it had been under way meanwhile.
    /// A turn that comes late by a 200th of the time of liveness or more puts off all deadlines, by the
    /// same and at most as much again: this side may have missed the answers.
    pub fn turn(&mut self, provider: &mut dyn Provider, now: Time) -> Turn {
        self.note_time(now);
        let due = provider.progress(now);
        self.follow(provider, due)
    }

    /// As [`Self::turn`], without a look at the sockets or whatever else connections come and go by. For
    /// callers with somebody waiting, who call [`Self::turn`] later.
    pub fn turn_requests(&mut self, provider: &mut dyn Provider, now: Time) -> Turn {
        self.note_time(now);
        let due = provider.progress_requests(now);
        self.follow(provider, due)
    }

    /// Handles what the provider has to tell. It wants to be called at `due` again.
    fn follow(&mut self, provider: &mut dyn Provider, due: Time) -> Turn {
        let now = self.shared.now;
        let mut progressed = false;
        while let Some(event) = provider.poll_event() {
            progressed = true;
            self.handle_event(provider, event);
        }
        progressed |= self.poll_completions(provider);
        self.watch_receives();
        if now >= self.shared.earliest {
            progressed |= self.expire(provider);
        }
        if self.shared.waiting_replies > 0 {
            progressed |= self.send_waiting_replies(provider);
        }
        if self.shared.draining > 0 {
            progressed |= self.finish_drained(provider);
        }
        if !self.shared.retired_domains.is_empty() {
            self.shared.destroy_retired(provider);
        }
        if self.shared.queue_failed {
            self.replace_queue(provider);
        }
        let mut deadline = due.min(self.shared.earliest);
        if self.shared.waiting_replies > 0 {
            deadline = deadline.min(now + self.shared.timeouts.retry);
        }
        self.shared.due = deadline;
        Turn {
            deadline,
            progressed,
        }
    }

    /// A peer is not blamed for what it said, or did not say, while this side did not look (P-47).
    fn note_time(&mut self, now: Time) {
        let late = now.since(self.shared.due);
        self.shared.now = now;
        if late < self.shared.timeouts.settling {
            return;
        }
        let grace = late.min(self.shared.timeouts.grace);
        for slot in &mut self.slots {
            if let Some(connection) = slot.connection.as_deref_mut() {
                connection.forgive(late, grace);
            }
        }
    }

    fn poll_completions(&mut self, provider: &mut dyn Provider) -> bool {
        let mut batch = core::mem::take(&mut self.polled);
        // Completing a receive posts it again, so a fast peer could keep this busy for ever.
        let mut left = self.shared.sizes.completion_queue_entries as usize;
        let mut progressed = false;
        self.shared.polled_empty = false;
        while left > 0 {
            batch.clear();
            let max = left.min(POLL_BATCH);
            let polled = provider.poll_completion_queue(self.shared.queue, max, &mut batch);
            // The event that says it may be lost, or later.
            if polled == Err(VerbsError::CompletionQueueOverrun) && !self.shared.queue_failed {
                self.fail_queue(provider);
                progressed = true;
                break;
            }
            if batch.is_empty() {
                self.shared.polled_empty = polled.is_ok();
                break;
            }
            left = left.saturating_sub(batch.len());
            progressed = true;
            for completion in &batch {
                self.handle_completion(provider, completion);
            }
        }
        self.polled = batch;
        progressed
    }

    fn handle_completion(&mut self, provider: &mut dyn Provider, completion: &Completion) {
        let token = Token::from_bits(completion.wr_id.0);
        let is_shared = token.kind() == Some(Kind::SharedReceive);
        let place = match self.place_of(token, completion.queue_pair) {
            Ok(place) => place,
            Err(Stale) => {
                // P-17: it changes nothing but the count.
                self.shared.counters.completions_stale += 1;
                return;
            }
        };
        if !matches!(
            completion.result,
            Ok(_) | Err(CompletionStatus::WorkRequestFlushed)
        ) {
            self.shared.counters.vendor_error = completion.vendor_error;
        }
        let slot = place.and_then(|place| self.slots.get_mut(place));
        let connection = slot
            .and_then(|slot| slot.connection.as_deref_mut())
            .filter(|connection| !CONTRACT || connection.queue_pair == completion.queue_pair);
        match (connection, place) {
            (Some(connection), Some(place)) => {
                connection.handle_completion(&mut self.shared, provider, token, completion.result);
                if matches!(connection.state, State::Confirming { .. }) {
                    self.go_on_confirming(provider, place, completion.result.err());
                }
            }
            _ if is_shared => {
                self.shared.counters.receives_orphaned += 1;
                let late = match completion.result {
                    Ok(_) => Duration::ZERO,
                    Err(_) => self.shared.config.late_write_bound,
                };
                self.shared
                    .give_back_receive(provider, token.key().index, late);
            }
            _ => self.shared.counters.completions_stale += 1,
        }
    }

    /// The place of the connection that a completion is of, if it exists.
    fn place_of(&mut self, token: Token, queue_pair: QueuePair) -> Result<Option<usize>, Stale> {
        match (token.kind(), &mut self.shared.pool) {
            (Some(Kind::SharedReceive), Some(pool)) => {
                let taken = pool.complete(token.key(), queue_pair).ok_or(Stale)?;
                Ok(taken.map(usize::from))
            }
            _ => Ok(Some(token.connection())),
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
                queue_pair,
                reason,
                private_data,
            }) => {
                let error = match Refusal::parse(&private_data) {
                    Some(refusal) => ConnectError::Proof(refusal.into()),
                    None => ConnectError::Rejected(reason),
                };
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
            Event::Connection(ConnectionEvent::DeviceRemoved { queue_pair }) => {
                let cause = ResetCause::DeviceRemoved;
                self.handle_end(provider, queue_pair, ConnectError::Disconnected, cause);
            }
            Event::Connection(ConnectionEvent::AddressRemoved { queue_pair }) => {
                if let Some(index) = self.index_of_queue_pair(queue_pair) {
                    self.begin_outage(provider, index, Lack::Address);
                }
            }
            Event::Connection(ConnectionEvent::AddressReturned { queue_pair }) => {
                if let Some(index) = self.index_of_queue_pair(queue_pair) {
                    self.end_outage(index, Lack::Address);
                }
            }
            // A queue pair is destroyed when its connection ends, and never used again.
            Event::Connection(ConnectionEvent::TimeWaitExit { .. }) => {}
            Event::Connection(ConnectionEvent::AddressChanged { .. }) => {
                self.shared.counters.address_changes += 1;
            }
            Event::Async(event) => self.handle_async(provider, event),
            // Nobody arms the queue: it is polled in each turn.
            Event::CompletionQueueReady(_) => self.shared.counters.events_unexpected += 1,
        }
    }

    fn handle_async(&mut self, provider: &mut dyn Provider, event: AsyncEvent) {
        let cause = match event {
            AsyncEvent::QueuePairFatal(_) | AsyncEvent::PathMigrationError(_) => {
                ResetCause::QueuePairFatal
            }
            AsyncEvent::QueuePairAccessError(_) => ResetCause::PeerAccess,
            AsyncEvent::QueuePairRequestError(_) => ResetCause::PeerRequest,
            AsyncEvent::CompletionQueueError(queue) => {
                if queue == self.shared.queue && !self.shared.queue_failed {
                    self.fail_queue(provider);
                }
                return;
            }
            AsyncEvent::LastWorkRequestReached(queue_pair) => {
                return self.note_last_request(provider, queue_pair);
            }
            AsyncEvent::SharedReceiveQueueLimit(queue) => {
                return self.note_receives_low(provider, queue);
            }
            AsyncEvent::SharedReceiveQueueError(queue) => {
                return self.note_receives_failed(provider, queue);
            }
            AsyncEvent::DeviceFatal => ResetCause::DeviceRemoved,
            // All connections are of one port of one device (P-56).
            AsyncEvent::PortActive(_) => {
                (0..self.slots.len()).for_each(|index| self.end_outage(index, Lack::Port));
                return;
            }
            AsyncEvent::PortError(_) => {
                (0..self.slots.len())
                    .for_each(|index| self.begin_outage(provider, index, Lack::Port));
                return;
            }
            AsyncEvent::AddressChange(_) => {
                self.shared.counters.address_changes += 1;
                return;
            }
            // The end of a connection is not taken from these: completions and the connection's own
            // events say it.
            _ => return,
        };
        if let Subject::QueuePair(queue_pair) = event.subject() {
            self.handle_end(provider, queue_pair, ConnectError::Disconnected, cause);
            return;
        }
        for index in 0..self.slots.len() {
            self.end(provider, index, ConnectError::Disconnected, cause);
        }
    }

    /// Something has completed on a connection whose peer has not proved itself.
    fn go_on_confirming(
        &mut self,
        provider: &mut dyn Provider,
        index: usize,
        failed: Option<CompletionStatus>,
    ) {
        match failed {
            Some(_) => {
                let error = ConnectError::Proof(ProofError::Ended);
                self.shared.counters.note_unproved(error);
                self.fail_handshake(provider, index, error);
            }
            None => self.hear_confirmation(provider, index),
        }
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
        if !connection.handshake.is_none() && !matches!(connection.state, State::Confirming { .. })
        {
            return self.begin_confirming(provider, index, private_data);
        }
        match connection.state {
            State::Connecting { .. } => match Hello::parse(private_data) {
                // P-45: the accept repeats the number of the connection.
                Ok((peer, _)) if peer.epoch != connection.epoch => {
                    let error = ConnectError::Incompatible(MessageError::Epoch);
                    self.fail_handshake(provider, index, error);
                }
                Ok((peer, private_data)) => {
                    connection.peer = peer;
                    shared.events.push_back(FabricEvent::Connected {
                        connection: id,
                        private_data: private_data.to_vec(),
                    });
                    connection.establish(shared, provider);
                    // What it had sent on those goes nowhere that this side has given back.
                    let _ = self.note_closed(provider, &peer, true);
                }
                Err(error) => {
                    // P-1: an accept without a Hello of this version.
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
            State::Confirming { .. } => shared.counters.events_unexpected += 1,
            State::Established(_) => {
                shared.counters.events_unexpected += 1;
                connection.reset(shared, provider, ResetCause::Unexpected);
            }
            State::Draining(_) => {}
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
            // Its queue pair was destroyed before the event was delivered (P-54).
            self.shared.counters.events_unexpected += 1;
            return;
        };
        self.end(provider, index, error, cause);
    }

    pub(crate) fn end(
        &mut self,
        provider: &mut dyn Provider,
        index: usize,
        error: ConnectError,
        cause: ResetCause,
    ) {
        let Some(connection) = self.slots[index].connection.as_deref_mut() else {
            return;
        };
        match connection.state {
            State::Connecting { .. } | State::Accepting { .. } => {
                self.fail_handshake(provider, index, error);
            }
            State::Confirming { .. } => {
                let error = ConnectError::Proof(ProofError::Ended);
                self.shared.counters.note_unproved(error);
                self.fail_handshake(provider, index, error);
            }
            State::Established(_) | State::Draining(_) => {
                connection.reset(&mut self.shared, provider, cause);
            }
        }
    }

    /// Events of connections are rare, so they are looked for.
    pub(crate) fn index_of_queue_pair(&self, queue_pair: QueuePair) -> Option<usize> {
        self.slots.iter().position(|slot| {
            let connection = slot.connection.as_deref();
            connection.is_some_and(|connection| connection.queue_pair == queue_pair)
        })
    }

    /// Ends what is overdue and finds out what is due next.
    fn expire(&mut self, provider: &mut dyn Provider) -> bool {
        self.shared.earliest = Time::NEVER;
        let now = self.shared.now;
        let mut progressed = self.shared.check_fence(provider);
        progressed |= self.look_after_receives(provider);
        for index in 0..self.slots.len() {
            let Some(connection) = self.slots[index].connection.as_deref_mut() else {
                continue;
            };
            progressed |= connection.expire(&mut self.shared, provider);
            match connection.state {
                State::Connecting { deadline } | State::Accepting { deadline }
                    if deadline.has_passed(now) =>
                {
                    progressed = true;
                    self.fail_handshake(provider, index, ConnectError::DeadlineExpired);
                }
                State::Confirming { deadline } if deadline.has_passed(now) => {
                    progressed = true;
                    let error = ConnectError::DeadlineExpired;
                    self.shared.counters.note_unproved(error);
                    self.fail_handshake(provider, index, error);
                }
                State::Draining(Drain { deadline, .. }) if deadline <= now => {
                    progressed = true;
                    self.shared.counters.drains_overdue += 1;
                    self.finish(provider, index);
                }
                State::Connecting { deadline }
                | State::Accepting { deadline }
                | State::Confirming { deadline } => self.shared.note_deadline(deadline.time()),
                State::Draining(Drain { deadline, .. }) => self.shared.note_deadline(deadline),
                State::Established(_) => {}
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
            let (slots, shared) = (&self.slots, &self.shared);
            let connection = slots[index].connection.as_deref();
            let drained = connection.is_some_and(|connection| connection.is_drained(shared));
            if drained {
                progressed = true;
                self.finish(provider, index);
            }
        }
        progressed
    }

    /// The peer's word about the connections that it has no more: what is left of them here ends.
    /// False if one of them may still let what the peer had sent on it into memory: then a write that the
    /// peer repeats on another connection could be overtaken by the first (P-96).
    #[must_use]
    pub(crate) fn note_closed(
        &mut self,
        provider: &mut dyn Provider,
        hello: &Hello,
        is_active: bool,
    ) -> bool {
        if hello.incarnation == 0 {
            return true;
        }
        for index in 0..self.slots.len() {
            let connection = self.slots[index].connection.as_deref();
            // P-59: of that peer alone.
            let is_meant = connection.is_some_and(|connection| {
                connection.is_active == is_active
                    && connection.peer.incarnation == hello.incarnation
                    && connection.epoch < hello.oldest_epoch
            });
            if !is_meant {
                continue;
            }
            let error = ConnectError::Disconnected;
            self.end(provider, index, error, ResetCause::PeerClosed);
            let connection = self.slots[index].connection.as_deref();
            if connection.is_some_and(|connection| !connection.is_in_error()) {
                self.finish(provider, index);
            }
        }
        self.shared.note_closed(hello, is_active)
    }

    /// The completion queue was overrun. Nothing is known of what has not completed, and no queue pair
    /// on it can be drained: all are destroyed (P-55).
    fn fail_queue(&mut self, provider: &mut dyn Provider) {
        self.shared.queue_failed = true;
        let cause = ResetCause::CompletionQueueOverrun;
        for index in 0..self.slots.len() {
            self.end(provider, index, ConnectError::Disconnected, cause);
            self.finish(provider, index);
        }
    }

    /// P-55: another queue takes the place of the one that was overrun.
    fn replace_queue(&mut self, provider: &mut dyn Provider) {
        let entries = self.shared.sizes.completion_queue_entries;
        if provider.destroy_completion_queue(self.shared.queue).is_ok()
            && let Ok(queue) = provider.create_completion_queue(entries)
        {
            self.shared.queue = queue;
            self.shared.queue_failed = false;
            self.shared.counters.completion_queues_replaced += 1;
        } else {
            // A queue pair that could not be destroyed uses it still.
            self.shared
                .note_deadline(self.shared.now + self.shared.timeouts.drain);
        }
    }
}
