//! The answering side: executes each call of a session at most once.

use super::window::{Verdict, Window};
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::{ConnectionId, FabricEvent, ReplyError, RequestId};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use legato_base::Time;
use legato_base::wire::session::{
    SessionClient, SessionReplyHeader, SessionRequestHeader, SessionStatus, SessionWireError,
};
use legato_verbs::Provider;

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct SessionServerConfig {
    /// Replies kept of each client. With no less than the credits that the fabric gives, a client
    /// on one connection after the other never finds its call forgotten.
    pub window: usize,
    /// Calls of one client that are executed at a time.
    pub executing_max: usize,
    pub clients_max: usize,
}

impl SessionServerConfig {
    /// For a fabric that gives so many credits.
    pub const fn for_credits(credits: u32) -> Self {
        Self {
            window: credits as usize,
            // Those of a connection that has ended may still be under way.
            executing_max: 2 * credits as usize,
            clients_max: 1024,
        }
    }
}

/// Counts since the server was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ServerCounters {
    pub calls_delivered: u64,
    /// Came again while they were executed, or afterwards.
    pub duplicates: u64,
    /// Refused because they may have been executed.
    pub calls_forgotten: u64,
    pub calls_busy: u64,
    pub calls_malformed: u64,
    /// Dropped before they were executed, because their deadline had passed.
    pub calls_expired: u64,
    /// Replies that nobody waited for when they were ready.
    pub replies_kept: u64,
    /// Clients without a connection that made room for others.
    pub clients_evicted: u64,
}

/// A call to be executed. Reply exactly once.
#[derive(Debug, PartialEq, Eq)]
pub struct Delivery {
    pub ticket: Ticket,
    pub client: SessionClient,
    pub connection: ConnectionId,
    /// As in [`FabricEvent::Request`].
    pub deadline: Time,
    pub body: Vec<u8>,
}

/// Names a call that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    client: SessionClient,
    sequence: u64,
    /// The one that waits, of a call that is not in a window because it may be executed again.
    outside: Option<RequestId>,
}

/// The calls of all sessions that come to one fabric.
#[derive(Debug)]
pub struct SessionServer {
    config: SessionServerConfig,
    clients: BTreeMap<SessionClient, Window>,
    deliveries: VecDeque<Delivery>,
    counters: ServerCounters,
    /// Requests so far.
    heard: u64,
}

impl SessionServer {
    pub const fn new(config: SessionServerConfig) -> Self {
        Self {
            config,
            clients: BTreeMap::new(),
            deliveries: VecDeque::new(),
            counters: ServerCounters {
                calls_delivered: 0,
                duplicates: 0,
                calls_forgotten: 0,
                calls_busy: 0,
                calls_malformed: 0,
                calls_expired: 0,
                replies_kept: 0,
                clients_evicted: 0,
            },
            heard: 0,
        }
    }

    pub const fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// The oldest call not yet taken.
    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    /// Takes a request, and returns any other event.
    pub fn handle_event<B: Buffer>(
        &mut self,
        fabric: &mut Fabric<B>,
        provider: &mut dyn Provider,
        event: FabricEvent<B>,
    ) -> Option<FabricEvent<B>> {
        let FabricEvent::Request {
            connection,
            request,
            deadline,
            body,
        } = event
        else {
            return Some(event);
        };
        // Its connection has ended already: nothing was done, and it may come again.
        fabric.waiting_request(request)?;
        self.heard += 1;
        let incarnation = fabric.peer_incarnation(connection);
        match SessionRequestHeader::parse(&body) {
            Err(SessionWireError::Version(_)) => {
                self.refuse(fabric, provider, request, SessionStatus::Version, 0);
            }
            // A connection carries the calls of its own process only: it is by the connections that
            // a server knows what may still come of a client (P-70).
            Ok((header, body)) if incarnation == Some(header.client.incarnation) => {
                let delivery = Delivery {
                    ticket: Ticket {
                        client: header.client,
                        sequence: header.sequence,
                        outside: header.is_idempotent.then_some(request),
                    },
                    client: header.client,
                    connection,
                    deadline,
                    body: body.to_vec(),
                };
                self.receive(fabric, provider, request, header, delivery);
            }
            _ => self.refuse(fabric, provider, request, SessionStatus::Malformed, 0),
        }
        None
    }

    fn receive<B: Buffer>(
        &mut self,
        fabric: &mut Fabric<B>,
        provider: &mut dyn Provider,
        request: RequestId,
        header: SessionRequestHeader,
        delivery: Delivery,
    ) {
        let (heard, executing_max) = (self.heard, self.config.executing_max);
        let sequence = header.sequence;
        let Some(window) = self.window(fabric, header) else {
            self.refuse(fabric, provider, request, SessionStatus::Busy, sequence);
            return;
        };
        window.heard = heard;
        window.raise_floor(header.oldest);
        if header.is_idempotent {
            self.deliver(delivery);
            return;
        }
        let still_waits = |earlier| fabric.waiting_request(earlier).is_some();
        match window.receive(sequence, request, executing_max, still_waits) {
            Verdict::Execute => self.deliver(delivery),
            Verdict::Wait => self.counters.duplicates += 1,
            Verdict::Repeat(reply) => {
                self.counters.duplicates += 1;
                // P-64: the same reply. If it cannot be sent now, the client asks again.
                let _ = fabric.reply(provider, request, &reply);
            }
            Verdict::Forgotten => {
                self.refuse(
                    fabric,
                    provider,
                    request,
                    SessionStatus::Forgotten,
                    sequence,
                );
            }
            Verdict::Busy => {
                self.refuse(fabric, provider, request, SessionStatus::Busy, sequence);
            }
        }
    }

    fn deliver(&mut self, delivery: Delivery) {
        self.counters.calls_delivered += 1;
        self.deliveries.push_back(delivery);
    }

    fn refuse<B: Buffer>(
        &mut self,
        fabric: &mut Fabric<B>,
        provider: &mut dyn Provider,
        request: RequestId,
        status: SessionStatus,
        sequence: u64,
    ) {
        match status {
            SessionStatus::Forgotten => self.counters.calls_forgotten += 1,
            SessionStatus::Busy => self.counters.calls_busy += 1,
            _ => self.counters.calls_malformed += 1,
        }
        let reply = SessionReplyHeader { status, sequence }.to_bytes();
        // A client whose connection has ended needs no answer.
        let _ = fabric.reply(provider, request, &reply);
    }

    /// The window of a client. None if there is no room for one more.
    fn window<B: Buffer>(
        &mut self,
        fabric: &Fabric<B>,
        header: SessionRequestHeader,
    ) -> Option<&mut Window> {
        let is_new = !self.clients.contains_key(&header.client);
        if is_new && self.clients.len() >= self.config.clients_max && !self.evict(fabric) {
            return None;
        }
        // This may be a client that had to make room. What it sent over earlier connections may
        // have been executed then (P-69).
        let floor = if self.counters.clients_evicted > 0 {
            header.opened
        } else {
            0
        };
        let window = self.clients.entry(header.client);
        Some(window.or_insert_with(|| Window::starting_at(floor)))
    }

    /// Forgets the client that was not heard for the longest, of those of whom nothing can come
    /// but over a new connection (P-69).
    fn evict<B: Buffer>(&mut self, fabric: &Fabric<B>) -> bool {
        let idle = self
            .clients
            .iter()
            .filter(|(client, window)| window.is_idle() && !fabric.hears_of(client.incarnation));
        let oldest = idle.min_by_key(|(_, window)| window.heard);
        let Some((&client, _)) = oldest else {
            return false;
        };
        self.clients.remove(&client);
        self.counters.clients_evicted += 1;
        true
    }

    /// Is it for this call that the request waits? So an overdue handler gets its name.
    pub fn is_of(&self, ticket: Ticket, request: RequestId) -> bool {
        let window = self.clients.get(&ticket.client);
        let waiting = window.and_then(|window| window.waiting(ticket.sequence));
        ticket.outside == Some(request) || waiting.is_some_and(|waiting| waiting.contains(&request))
    }

    /// The result of a call. It is kept for the case that the client asks again.
    ///
    /// # Errors
    /// [`ReplyError::NotWaiting`] if it was replied to already, [`ReplyError::TooLong`] if it still
    /// waits.
    pub fn reply<B: Buffer>(
        &mut self,
        fabric: &mut Fabric<B>,
        provider: &mut dyn Provider,
        ticket: Ticket,
        body: &[u8],
    ) -> Result<(), ReplyError> {
        let header = SessionReplyHeader {
            status: SessionStatus::Done,
            sequence: ticket.sequence,
        };
        let reply = [&header.to_bytes()[..], body].concat();
        if let Some(request) = ticket.outside {
            return match fabric.reply(provider, request, &reply) {
                // Its connection has ended: the client asks again, and it is executed again.
                Err(ReplyError::NotWaiting) => {
                    self.counters.replies_kept += 1;
                    Ok(())
                }
                other => other,
            };
        }
        let window = self.clients.get_mut(&ticket.client);
        let window = window.ok_or(ReplyError::NotWaiting)?;
        let waiting = window.waiting(ticket.sequence);
        let waiting = waiting.ok_or(ReplyError::NotWaiting)?.to_vec();
        let mut is_sent = false;
        for request in waiting {
            match fabric.reply(provider, request, &reply) {
                Ok(()) => is_sent = true,
                Err(ReplyError::TooLong) if !is_sent => return Err(ReplyError::TooLong),
                // The client asks again, and gets it from the window.
                Err(_) => {}
            }
        }
        self.counters.replies_kept += u64::from(!is_sent);
        window.finish(ticket.sequence, reply, self.config.window);
        Ok(())
    }

    /// Drops a call that was not executed, if the deadlines of all who wait for it have passed: true
    /// if they have, and then no reply is needed. As [`Fabric::drop_expired`].
    ///
    /// # Errors
    /// [`ReplyError::NotWaiting`] if it was replied to already.
    pub fn drop_expired<B: Buffer>(
        &mut self,
        fabric: &mut Fabric<B>,
        provider: &mut dyn Provider,
        ticket: Ticket,
    ) -> Result<bool, ReplyError> {
        let waiting: Vec<RequestId> = match ticket.outside {
            Some(request) => Vec::from([request]),
            None => {
                let window = self.clients.get(&ticket.client);
                let waiting = window.and_then(|window| window.waiting(ticket.sequence));
                waiting.ok_or(ReplyError::NotWaiting)?.to_vec()
            }
        };
        let now = fabric.now();
        let mut deadlines = waiting.iter().map(|&request| {
            let waiting = fabric.waiting_request(request);
            waiting.map_or(Time::ZERO, |waiting| waiting.deadline)
        });
        if deadlines.any(|deadline| now < deadline) {
            return Ok(false);
        }
        for request in waiting {
            // One whose connection has ended needs no answer.
            let _ = fabric.drop_expired(provider, request);
        }
        if let Some(window) = self.clients.get_mut(&ticket.client) {
            window.abandon(ticket.sequence);
        }
        self.counters.calls_expired += 1;
        Ok(true)
    }
}
