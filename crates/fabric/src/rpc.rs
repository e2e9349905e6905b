//! Requests and replies.
//!
//! A call's slot is its credit: it is given away again when the reply has come, or when the
//! connection is gone. A deadline ends the call for its caller and leaves the slot to the late
//! reply, which is then recognised, counted and dropped.

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::event::Buffer;
use crate::id::{Key, Kind, Token};
use crate::lifecycle::State;
use crate::shared::Shared;
use crate::waiting::Waiting;
use crate::{
    CONTRACT, CallId, FabricEvent, OperationError, Refused, ReplyError, RequestId, ResetCause,
};
use alloc::vec;
use alloc::vec::Vec;
use legato_base::Time;
use legato_base::wire::message::{
    MESSAGE_HEADER_SIZE, MessageError, MessageHeader, MessageKind, TimeLeft,
};
use legato_verbs::{
    CompletionKind, CompletionStatus, Provider, SendFlags, SendOperation, SendRequest, VerbsError,
    WorkRequestId,
};

/// The slot of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Waiting {
        deadline: Deadline,
    },
    /// The caller has its outcome; the peer still owes the reply.
    Abandoned {
        since: Time,
    },
}

/// A request whose send has not completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSend {
    call: Key,
    pub(crate) posted: Time,
}

/// A reply that waits for a buffer.
#[derive(Debug)]
pub(crate) struct PendingReply {
    pub(crate) kind: MessageKind,
    pub(crate) call: u64,
    pub(crate) body: Vec<u8>,
}

impl<B: Buffer> Connection<B> {
    pub(crate) fn start_call(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        body: &[u8],
        deadline: Time,
    ) -> Result<CallId, Refused> {
        if !self.is_established() {
            return Err(Refused::NotConnected);
        }
        if body.len() > self.body_length_max(shared) {
            return Err(Refused::TooLong);
        }
        if deadline <= shared.now {
            return Err(Refused::DeadlinePassed);
        }
        // P-60: nothing new is started.
        if shared.is_quarantine_full() {
            return Err(Refused::QuarantineFull);
        }
        // P-4: no more than the peer's Hello gave.
        if self.calls.len() >= self.peer.credits as usize || self.request_sends.is_full() {
            return Err(Refused::WouldBlock);
        }
        let waiting = Call::Waiting {
            deadline: Deadline::at(deadline),
        };
        let Ok(key) = self.calls.insert(&mut shared.generations, waiting) else {
            return Err(Refused::WouldBlock);
        };
        let call = self.token(Kind::Call, key);
        let header = MessageHeader {
            kind: MessageKind::Request,
            call: call.bits(),
            length: body.len() as u32,
            // P-48: what the caller has left.
            time_left: TimeLeft::of(deadline.since(shared.now)),
            epoch: self.epoch,
        };
        let send = RequestSend {
            call: key,
            posted: shared.now,
        };
        let Ok(send) = self.request_sends.insert(&mut shared.generations, send) else {
            self.calls.remove(key);
            return Err(Refused::WouldBlock);
        };
        let first = self.layout.first_request();
        let token = self.token(Kind::RequestSend, send);
        if let Err(error) = self.post_message(shared, provider, first, token, header, body) {
            self.request_sends.remove(send);
            self.calls.remove(key);
            return Err(self.refuse_post(shared, provider, error));
        }
        shared.note_deadline(deadline);
        shared.counters.calls_started += 1;
        Ok(CallId(call))
    }

    pub(crate) fn start_reply(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        request: RequestId,
        body: &[u8],
    ) -> Result<(), ReplyError> {
        if !self.is_established() || self.requests.get_mut(request.0.key()).is_none() {
            return Err(ReplyError::NotWaiting);
        }
        if body.len() > self.body_length_max(shared) {
            return Err(ReplyError::TooLong);
        }
        self.answer(shared, provider, request, MessageKind::Reply, body.to_vec())
    }

    /// Takes a request off the list of those that wait, and sends what ends it for its caller.
    pub(crate) fn answer(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        request: RequestId,
        kind: MessageKind,
        body: Vec<u8>,
    ) -> Result<(), ReplyError> {
        let Some(waiting) = self.requests.remove(request.0.key()) else {
            return Err(ReplyError::NotWaiting);
        };
        shared.counters.requests_replied += 1;
        let call = waiting.call;
        let reply = PendingReply { kind, call, body };
        shared.waiting_replies += 1;
        self.pending_replies.push_back(reply);
        self.post_pending_replies(shared, provider)
            .map(|_posted| ())
            .map_err(ReplyError::Provider)
    }

    /// Sends the replies that find a buffer, oldest first, and returns how many.
    ///
    /// # Errors
    /// The provider's refusal, which has reset the connection.
    pub(crate) fn post_pending_replies(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
    ) -> Result<usize, VerbsError> {
        let first = self.layout.first_reply();
        let mut posted = 0;
        while let Some(reply) = self.pending_replies.pop_front() {
            let Ok(send) = self.reply_sends.insert(&mut shared.generations, shared.now) else {
                self.pending_replies.push_front(reply);
                break;
            };
            let header = MessageHeader {
                kind: reply.kind,
                call: reply.call,
                length: reply.body.len() as u32,
                time_left: TimeLeft::UNBOUNDED,
                epoch: self.epoch,
            };
            let token = self.token(Kind::ReplySend, send);
            let sent = self.post_message(shared, provider, first, token, header, &reply.body);
            if let Err(error) = sent {
                shared.counters.posts_refused += 1;
                self.reply_sends.remove(send);
                self.pending_replies.push_front(reply);
                if matches!(error, VerbsError::QueueFull(_)) {
                    break;
                }
                self.reset(shared, provider, ResetCause::Provider(error));
                return Err(error);
            }
            shared.waiting_replies -= 1;
            posted += 1;
        }
        Ok(posted)
    }

    fn body_length_max(&self, shared: &Shared<B>) -> usize {
        let lengths = (
            shared.config.message_length_max,
            self.peer.message_length_max,
        );
        lengths.0.min(lengths.1) as usize
    }

    /// Copies a message into its send buffer, `token`'s index after buffer `first`, and posts it.
    pub(crate) fn post_message(
        &self,
        shared: &Shared<B>,
        provider: &mut dyn Provider,
        first: u32,
        token: Token,
        header: MessageHeader,
        body: &[u8],
    ) -> Result<(), VerbsError> {
        let buffer = u64::from(first) + u64::from(token.key().index);
        let offset = buffer * shared.sizes.stride;
        provider.write_region(&self.region, offset, &header.to_bytes())?;
        provider.write_region(&self.region, offset + MESSAGE_HEADER_SIZE as u64, body)?;
        let length = (MESSAGE_HEADER_SIZE + body.len()) as u32;
        let request = SendRequest {
            wr_id: WorkRequestId(token.bits()),
            operation: SendOperation::Send,
            entries: vec![self.region.entry(offset, length)],
            flags: SendFlags::SIGNALED,
        };
        provider.post_send(self.queue_pair, &request)
    }

    pub(crate) fn complete_request_send(
        &mut self,
        shared: &mut Shared<B>,
        key: Key,
        result: Result<CompletionKind, CompletionStatus>,
    ) -> bool {
        let Some(RequestSend { call, .. }) = self.request_sends.remove(key) else {
            return false;
        };
        // A flushed one may have arrived and its reply may still be among the completions: it
        // ends with the connection.
        if let Err(status) = result
            && status != CompletionStatus::WorkRequestFlushed
            && let Some(Call::Waiting { .. }) = self.calls.remove(call)
        {
            let call = self.token(Kind::Call, call);
            shared.end_call(call, Err(OperationError::completion(status)));
        }
        true
    }

    /// Handles a message that was taken out of its receive buffer.
    pub(crate) fn handle_message(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        message: Result<(MessageHeader, Vec<u8>), ResetCause>,
    ) {
        match message {
            Ok((header, body)) => {
                self.note_heard(shared);
                match header.kind {
                    MessageKind::Request => self.handle_request(shared, provider, header, body),
                    MessageKind::Reply => self.handle_reply(shared, header.call, Ok(body)),
                    MessageKind::Expired => {
                        let error = OperationError::EXPIRED_UNEXECUTED;
                        self.handle_reply(shared, header.call, Err(error));
                    }
                    MessageKind::Ping => self.handle_ping(shared, provider),
                    MessageKind::Pong => {}
                }
            }
            Err(cause) => {
                // P-8: it costs this connection and no other.
                if matches!(cause, ResetCause::Malformed(_)) {
                    shared.counters.messages_malformed += 1;
                }
                self.reset(shared, provider, cause);
            }
        }
    }

    /// Takes the message out of receive buffer `index`.
    pub(crate) fn read_message(
        &self,
        shared: &Shared<B>,
        provider: &dyn Provider,
        index: u16,
        length: u32,
    ) -> Result<(MessageHeader, Vec<u8>), ResetCause> {
        if u64::from(length) > shared.sizes.stride {
            return Err(ResetCause::Unexpected);
        }
        if (length as usize) < MESSAGE_HEADER_SIZE {
            return Err(ResetCause::Malformed(MessageError::Short));
        }
        let (region, offset) = self.received_at(shared, index);
        let mut header = [0; MESSAGE_HEADER_SIZE];
        provider
            .read_region(&region, offset, &mut header)
            .map_err(ResetCause::Provider)?;
        let header = MessageHeader::parse(&header, length).map_err(ResetCause::Malformed)?;
        // P-45: it is of another connection.
        if CONTRACT && header.epoch != self.epoch {
            return Err(ResetCause::Malformed(MessageError::Epoch));
        }
        let mut body = vec![0; header.length as usize];
        provider
            .read_region(&region, offset + MESSAGE_HEADER_SIZE as u64, &mut body)
            .map_err(ResetCause::Provider)?;
        Ok((header, body))
    }

    fn handle_request(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        header: MessageHeader,
        body: Vec<u8>,
    ) {
        if matches!(self.state, State::Draining(_)) {
            shared.counters.requests_received += 1;
            shared.counters.requests_dropped += 1;
            return;
        }
        let waiting = Waiting::new(&header, shared.now, shared.config.handler_max);
        let Ok(key) = self.requests.insert(&mut shared.generations, waiting) else {
            // P-4: the peer has more unanswered than it may.
            self.reset(shared, provider, ResetCause::CreditsExceeded);
            return;
        };
        shared.counters.requests_received += 1;
        shared.note_deadline(waiting.overdue_from);
        shared.events.push_back(FabricEvent::Request {
            connection: self.id,
            request: RequestId(self.token(Kind::Request, key)),
            deadline: waiting.deadline,
            body,
        });
    }

    fn handle_reply(
        &mut self,
        shared: &mut Shared<B>,
        call: u64,
        outcome: Result<Vec<u8>, OperationError>,
    ) {
        let token = Token::from_bits(call);
        // P-6: one that names no waiting call is counted and dropped.
        let ours = token == self.token(Kind::Call, token.key());
        match ours.then(|| self.calls.remove(token.key())).flatten() {
            Some(Call::Waiting { .. }) => shared.end_call(token, outcome),
            Some(Call::Abandoned { .. }) => shared.counters.replies_late += 1,
            None => shared.counters.replies_stale += 1,
        }
    }

    /// Ends the calls whose deadline has passed; they keep their credits (P-7). True if there were any.
    pub(crate) fn expire_calls(&mut self, shared: &mut Shared<B>) -> bool {
        let now = shared.now;
        let mut expired: Vec<Key> = Vec::new();
        for (key, call) in self.calls.iter_mut() {
            match *call {
                Call::Waiting { deadline } if deadline.has_passed(now) => {
                    *call = Call::Abandoned { since: now };
                    expired.push(key);
                }
                Call::Waiting { deadline } => shared.note_deadline(deadline.time()),
                Call::Abandoned { .. } => {}
            }
        }
        for &key in &expired {
            let call = self.token(Kind::Call, key);
            shared.end_call(call, Err(OperationError::EXPIRED));
        }
        !expired.is_empty()
    }

    /// Gives a call up: its outcome is said at once (P-61). False if it has been said already.
    pub(crate) fn cancel_call(&mut self, shared: &mut Shared<B>, key: Key) -> bool {
        let token = self.token(Kind::Call, key);
        let Some(call @ Call::Waiting { .. }) = self.calls.get_mut(key) else {
            return false;
        };
        *call = Call::Abandoned { since: shared.now };
        shared.end_call(token, Err(OperationError::CANCELED));
        true
    }
}
