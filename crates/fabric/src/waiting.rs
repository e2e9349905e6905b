//! Requests of peers that wait for their reply: the watchdog over them, what is left of their
//! deadlines, and those that came to nothing before they were executed.

use crate::connection::Connection;
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::id::{Key, Kind};
use crate::shared::Shared;
use crate::{CallId, ConnectionId, FabricEvent, Refused, ReplyError, RequestId};
use alloc::vec::Vec;
use legato_base::wire::message::{MessageHeader, MessageKind};
use legato_base::{Duration, Time};
use legato_verbs::Provider;

/// A request in its connection's table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// The peer's name for it.
    pub(crate) call: u64,
    since: Time,
    /// When its caller gives it up.
    pub(crate) deadline: Time,
    /// When its handler takes too long.
    pub(crate) overdue_from: Time,
    is_reported: bool,
}

/// A request that this side has received and not replied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingRequest {
    pub connection: ConnectionId,
    pub request: RequestId,
    pub since: Time,
    /// As in [`FabricEvent::Request`].
    pub deadline: Time,
    /// [`FabricEvent::HandlerOverdue`] was said of it.
    pub is_overdue: bool,
}

impl Waiting {
    pub(crate) fn new(header: &MessageHeader, now: Time, handler_max: Duration) -> Self {
        let left = header.time_left.duration();
        let deadline = left.map_or(Time::NEVER, |left| now + left);
        Self {
            call: header.call,
            since: now,
            deadline,
            overdue_from: deadline.min(now + handler_max),
            is_reported: false,
        }
    }
}

impl<B: Buffer> Connection<B> {
    /// Reports the requests that have waited too long, each once (P-49). True if there were any.
    pub(crate) fn report_overdue(&mut self, shared: &mut Shared<B>) -> bool {
        let now = shared.now;
        let mut overdue = Vec::new();
        for (key, waiting) in self.requests.iter_mut() {
            if waiting.is_reported {
                continue;
            }
            if waiting.overdue_from <= now {
                waiting.is_reported = true;
                overdue.push((key, now.since(waiting.since)));
            } else {
                shared.note_deadline(waiting.overdue_from);
            }
        }
        shared.counters.handlers_overdue += overdue.len() as u64;
        for &(key, waited) in &overdue {
            shared.events.push_back(FabricEvent::HandlerOverdue {
                connection: self.id,
                request: RequestId(self.token(Kind::Request, key)),
                waited,
            });
        }
        !overdue.is_empty()
    }

    fn waiting(&self) -> impl Iterator<Item = WaitingRequest> {
        let requests = self.requests.iter();
        requests.map(|(key, waiting)| self.describe(key, waiting))
    }

    fn describe(&self, key: Key, waiting: &Waiting) -> WaitingRequest {
        WaitingRequest {
            connection: self.id,
            request: RequestId(self.token(Kind::Request, key)),
            since: waiting.since,
            deadline: waiting.deadline,
            is_overdue: waiting.is_reported,
        }
    }
}

impl<B: Buffer> Fabric<B> {
    /// The requests that wait for their reply, of all connections.
    pub fn waiting_requests(&self) -> impl Iterator<Item = WaitingRequest> {
        self.existing().flat_map(Connection::waiting)
    }

    /// The request, if it still waits for its reply.
    pub fn waiting_request(&self, request: RequestId) -> Option<WaitingRequest> {
        let slot = self.slots.get(request.0.connection())?;
        let connection = slot.connection.as_deref()?;
        let key = request.0.key();
        let waiting = connection.requests.get(key)?;
        Some(connection.describe(key, waiting))
    }

    /// A call on behalf of a request that this side has not replied to yet. It gets no more time
    /// than is left of the request's own deadline: whoever asked does not wait any longer (P-48).
    ///
    /// # Errors
    /// [`Refused::DeadlinePassed`] when nothing is left, or the request waits no more; otherwise as
    /// [`Self::call`].
    pub fn call_for(
        &mut self,
        provider: &mut dyn Provider,
        request: RequestId,
        connection: ConnectionId,
        body: &[u8],
        deadline: Time,
    ) -> Result<CallId, Refused> {
        let outer = self
            .waiting_request(request)
            .ok_or(Refused::DeadlinePassed)?;
        self.call(provider, connection, body, deadline.min(outer.deadline))
    }

    /// Drops a request that was not executed, if its deadline has passed: true if it has. Its
    /// caller learns that it was not executed, should it still wait by its own clock, and gets its
    /// credit back. No other reply is needed then (P-48). Of a request that still has time, false, and it
    /// waits on.
    ///
    /// # Errors
    /// As [`Self::reply`].
    pub fn drop_expired(
        &mut self,
        provider: &mut dyn Provider,
        request: RequestId,
    ) -> Result<bool, ReplyError> {
        let waiting = self
            .waiting_request(request)
            .ok_or(ReplyError::NotWaiting)?;
        if self.shared.now < waiting.deadline {
            return Ok(false);
        }
        let slot = self.slots.get_mut(request.0.connection());
        let connection = slot
            .and_then(|slot| slot.connection.as_deref_mut())
            .filter(|connection| connection.is_established())
            .ok_or(ReplyError::NotWaiting)?;
        self.shared.counters.requests_expired += 1;
        let kind = MessageKind::Expired;
        connection
            .answer(&mut self.shared, provider, request, kind, Vec::new())
            .map(|()| true)
    }
}
