//! One connection: its states, its queue pair and its message buffers.

use crate::event::Buffer;
use crate::id::{Key, Kind, Token};
use crate::one_sided::Operation;
use crate::rpc::{Call, PendingReply};
use crate::shared::Shared;
use crate::table::Table;
use crate::{ConnectionId, FabricEvent, OperationError, Proof, ResetCause};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use legato_base::Time;
use legato_base::wire::message::Hello;
use legato_verbs::{
    AccessFlags, CompletionKind, CompletionStatus, MemoryRegion, Provider, QueuePair,
    ReceiveRequest, VerbsError, WorkRequestId,
};

/// Where a connection is in its life. It leaves the table after the last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// This side asked.
    Connecting {
        deadline: Time,
    },
    /// The peer asked and was accepted; the owner does not know of it yet.
    Accepting {
        deadline: Time,
    },
    Established,
    /// The queue pair is in the error state and gives back what was posted. At the deadline it is
    /// destroyed instead.
    Draining {
        cause: ResetCause,
        deadline: Time,
    },
}

#[derive(Debug)]
pub(crate) struct Connection<B> {
    pub(crate) id: ConnectionId,
    pub(crate) queue_pair: QueuePair,
    pub(crate) state: State,
    /// Receive buffers, then buffers for requests, then for replies.
    pub(crate) region: MemoryRegion,
    /// The generation with which each receive buffer is posted.
    receives: Vec<Option<u32>>,
    /// Messages that came before the connection event: buffer and length.
    early: Vec<(u16, u32)>,
    pub(crate) peer: Hello,
    pub(crate) private_data: Vec<u8>,
    pub(crate) calls: Table<Call>,
    pub(crate) request_sends: Table<Key>,
    pub(crate) reply_sends: Table<()>,
    pub(crate) pending_replies: VecDeque<PendingReply>,
    /// The peer's unanswered requests, by the peer's names for them.
    pub(crate) requests: Table<u64>,
    pub(crate) operations: Table<Operation<B>>,
}

impl<B: Buffer> Connection<B> {
    /// A queue pair in Init with all its receives posted.
    pub(crate) fn open(
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        id: ConnectionId,
        state: State,
    ) -> Result<Self, VerbsError> {
        let (sizes, credits) = (shared.sizes, shared.config.credits);
        let access = AccessFlags::LOCAL_WRITE;
        let region = provider.allocate_region(shared.domain, sizes.region_length, access)?;
        let queue_pair =
            match provider.create_queue_pair(shared.domain, shared.queue, sizes.capabilities) {
                Ok(queue_pair) => queue_pair,
                Err(error) => {
                    shared.deregister(provider, &region);
                    return Err(error);
                }
            };
        let mut connection = Self {
            id,
            queue_pair,
            state,
            region,
            receives: vec![None; sizes.receives as usize],
            early: Vec::new(),
            peer: Hello {
                credits: 0,
                message_length_max: 0,
            },
            private_data: Vec::new(),
            calls: Table::new(credits),
            request_sends: Table::new(credits),
            reply_sends: Table::new(credits),
            pending_replies: VecDeque::new(),
            requests: Table::new(credits),
            operations: Table::new(shared.config.one_sided_max),
        };
        if let Err(error) = connection.prepare(shared, provider) {
            connection.release(shared, provider);
            return Err(error);
        }
        Ok(connection)
    }

    fn prepare(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
    ) -> Result<(), VerbsError> {
        provider.modify_to_init(self.queue_pair)?;
        for index in 0..self.receives.len() {
            self.post_receive(shared, provider, index as u16)?;
        }
        Ok(())
    }

    /// Gives the queue pair and the message buffers back to the provider.
    pub(crate) fn release(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) {
        // The only refusal is that there is no such queue pair, which is what is wanted.
        let _ = provider.destroy_queue_pair(self.queue_pair);
        shared.deregister(provider, &self.region);
    }

    pub(crate) fn token(&self, kind: Kind, key: Key) -> Token {
        Token::new(kind, self.id.index as u16, key)
    }

    pub(crate) fn is_established(&self) -> bool {
        matches!(self.state, State::Established)
    }

    /// Work requests that the provider has not given back.
    pub(crate) fn is_drained(&self) -> bool {
        self.request_sends.len() == 0
            && self.reply_sends.len() == 0
            && self.operations.len() == 0
            && self.receives.iter().all(Option::is_none)
    }

    fn post_receive(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        index: u16,
    ) -> Result<(), VerbsError> {
        let generation = shared.generations.next();
        let token = self.token(Kind::Receive, Key { index, generation });
        let offset = u64::from(index) * shared.sizes.stride;
        let request = ReceiveRequest {
            wr_id: WorkRequestId(token.bits()),
            entries: vec![self.region.entry(offset, shared.sizes.stride as u32)],
        };
        if let Err(error) = provider.post_receive(self.queue_pair, &request) {
            shared.counters.posts_refused += 1;
            return Err(error);
        }
        self.receives[usize::from(index)] = Some(generation);
        Ok(())
    }

    /// The queue pair is ready: what came early is handled now.
    pub(crate) fn establish(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) {
        self.state = State::Established;
        shared.counters.connections_established += 1;
        for (index, length) in core::mem::take(&mut self.early) {
            self.handle_received(shared, provider, index, length);
        }
        let posted = self.receives.iter().all(Option::is_some);
        if self.is_established() && !posted {
            // A receive failed meanwhile, and the peer's credits count on it.
            self.reset(shared, provider, ResetCause::Unexpected);
        }
    }

    /// To the error state. What is outstanding ends when the queue pair has given it back.
    pub(crate) fn reset(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        cause: ResetCause,
    ) {
        if let State::Draining { cause: first, .. } = &mut self.state {
            // A flush says only that something else came first, and this may be that.
            if *first == ResetCause::Transport(CompletionStatus::WorkRequestFlushed) {
                *first = cause;
            }
            return;
        }
        // Refused only in Reset, where nothing is posted, or if there is no such queue pair: the
        // deadline then destroys it.
        let _ = provider.modify_to_error(self.queue_pair);
        if cause != ResetCause::Closed {
            shared.counters.connections_reset += 1;
        }
        let deadline = shared.now + shared.config.drain;
        shared.note_deadline(deadline);
        shared.draining += 1;
        self.state = State::Draining { cause, deadline };
        shared.waiting_replies -= self.pending_replies.len();
        shared.counters.requests_replied -= self.pending_replies.len() as u64;
        shared.counters.requests_dropped +=
            (self.requests.len() + self.pending_replies.len()) as u64;
        self.pending_replies.clear();
        self.requests.take_all();
    }

    pub(crate) fn handle_completion(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        token: Token,
        result: Result<CompletionKind, CompletionStatus>,
    ) {
        let key = token.key();
        let known = match token.kind() {
            Some(Kind::OneSided) => self.complete_operation(shared, key, result),
            Some(Kind::Receive) => self.complete_receive(shared, provider, key, result),
            Some(Kind::RequestSend) => self.complete_request_send(shared, key, result),
            Some(Kind::ReplySend) => self.reply_sends.remove(key).is_some(),
            Some(Kind::Call | Kind::Request) | None => false,
        };
        if !known {
            shared.counters.completions_stale += 1;
        } else if let Err(status) = result
            && !matches!(
                self.state,
                State::Connecting { .. } | State::Accepting { .. }
            )
        {
            self.reset(shared, provider, ResetCause::Transport(status));
        }
    }

    fn complete_receive(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        key: Key,
        result: Result<CompletionKind, CompletionStatus>,
    ) -> bool {
        let posted = self.receives.get_mut(usize::from(key.index));
        let Some(posted) = posted.filter(|posted| **posted == Some(key.generation)) else {
            return false;
        };
        *posted = None;
        match (result, self.state) {
            (Ok(CompletionKind::Receive { length }), State::Established) => {
                self.handle_received(shared, provider, key.index, length);
            }
            (Ok(CompletionKind::Receive { length }), State::Draining { .. }) => {
                self.handle_message(shared, provider, key.index, length);
            }
            (Ok(CompletionKind::Receive { length }), _) => self.early.push((key.index, length)),
            (Ok(_), _) => self.reset(shared, provider, ResetCause::Unexpected),
            (Err(_), _) => {}
        }
        true
    }

    /// Takes the message out and posts the buffer again, both before the turn ends: nobody can
    /// give the peer its credit back before the receive is there.
    fn handle_received(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        index: u16,
        length: u32,
    ) {
        self.handle_message(shared, provider, index, length);
        if self.is_established()
            && let Err(error) = self.post_receive(shared, provider, index)
        {
            self.reset(shared, provider, ResetCause::Provider(error));
        }
    }

    /// Ends everything that is left, after the queue pair has drained or in place of it.
    pub(crate) fn finish(
        mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
    ) -> ResetCause {
        let cause = match self.state {
            State::Draining { cause, .. } => cause,
            _ => {
                self.reset(shared, provider, ResetCause::Closed);
                ResetCause::Closed
            }
        };
        shared.draining -= 1;
        self.release(shared, provider);
        let error = OperationError::reset(cause);
        for (key, operation) in self.operations.take_all() {
            let operation_id = self.token(Kind::OneSided, key);
            shared.end_operation(
                operation_id,
                operation,
                Err(error),
                Proof::QueuePairDestroyed,
            );
        }
        for (key, call) in self.calls.take_all() {
            if matches!(call, Call::Waiting { .. }) {
                let call = self.token(Kind::Call, key);
                shared.end_call(call, Err(error));
            }
        }
        let connection = self.id;
        shared
            .events
            .push_back(FabricEvent::Disconnected { connection });
        cause
    }

    /// For an operation that the queue pair gave back unexecuted, as far as it knows.
    pub(crate) const fn flush_error(&self) -> OperationError {
        match self.state {
            State::Draining { cause, .. } => OperationError::reset(cause),
            _ => OperationError::completion(CompletionStatus::WorkRequestFlushed),
        }
    }

    /// Ends what has not ended in time. True if anything did.
    pub(crate) fn expire(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) -> bool {
        let calls = self.expire_calls(shared);
        let operations = self.expire_operations(shared);
        if operations {
            self.reset(shared, provider, ResetCause::OperationExpired);
        }
        calls || operations
    }
}
