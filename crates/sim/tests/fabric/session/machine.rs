//! One machine: a fabric, sessions to others, and a server.

use legato_base::{Duration, Time};
use legato_fabric::session::{
    Delivery, Session, SessionCallId, SessionError, SessionEvent, SessionServer,
    SessionServerConfig,
};
use legato_fabric::{ConnectionId, Fabric, FabricConfig, FabricEvent, NoBuffer};
use legato_sim::provider::SimProvider;
use legato_verbs::{Address, ConnectionEvent, Event, Provider as _, ResourceCounts};
use std::collections::BTreeMap;

/// What a call ended with, and when.
pub(crate) type End = (Result<Vec<u8>, SessionError>, Time);

pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) nic: SimProvider,
    pub(crate) fabric: Fabric<NoBuffer>,
    pub(crate) server: SessionServer,
    /// Deliveries are answered as soon as they come; otherwise they are kept in `open`.
    pub(crate) answers: bool,
    pub(crate) open: Vec<Delivery>,
    /// The body of every call that was executed here, in this life.
    pub(crate) executed: Vec<Vec<u8>>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) ends: BTreeMap<SessionCallId, End>,
    /// Connections of the sessions, the oldest first, with their epochs.
    pub(crate) connections: Vec<(ConnectionId, u64)>,
    /// Events that are nobody's.
    pub(crate) events: Vec<FabricEvent<NoBuffer>>,
    pub(crate) accepted: Vec<ConnectionId>,
    /// Sessions that it has ever had.
    pub(crate) numbers: u32,
    /// Its software stands still.
    pub(crate) stopped: bool,
    /// It rejects everybody.
    pub(crate) is_stranger: bool,
    /// Requests are events like others.
    pub(crate) is_raw: bool,
    /// Its clock is so far ahead.
    pub(crate) ahead: Duration,
}

pub(crate) fn address(name: &str) -> Address {
    Address::Sim(format!("{name}-port"))
}

pub(crate) fn answer(body: &[u8]) -> Vec<u8> {
    body.iter().rev().map(|byte| byte ^ 0x5A).collect()
}

impl Machine {
    pub(crate) fn new(name: &str, mut nic: SimProvider, config: FabricConfig) -> Self {
        let mut fabric = Fabric::new(&mut nic, config).unwrap();
        fabric.listen(&mut nic, &address(name)).unwrap();
        Self {
            name: name.to_owned(),
            nic,
            fabric,
            server: SessionServer::new(SessionServerConfig::for_credits(config.credits)),
            answers: true,
            open: Vec::new(),
            executed: Vec::new(),
            sessions: Vec::new(),
            ends: BTreeMap::new(),
            connections: Vec::new(),
            events: Vec::new(),
            accepted: Vec::new(),
            numbers: 0,
            stopped: false,
            is_stranger: false,
            is_raw: false,
            ahead: Duration::ZERO,
        }
    }

    /// One turn of everything on the machine. When the next is due, and whether anything happened.
    pub(crate) fn turn(&mut self, now: Time) -> (Time, bool) {
        if self.is_stranger {
            return (Time::NEVER, self.reject());
        }
        let local = now + self.ahead;
        let turn = self.fabric.turn(&mut self.nic, local);
        let (mut deadline, mut progressed) = (turn.deadline, turn.progressed);
        while let Some(event) = self.fabric.poll_event() {
            progressed = true;
            self.hear(event);
        }
        while let Some(delivery) = self.server.poll_delivery() {
            progressed = true;
            if self.answers {
                self.execute(&delivery);
            } else {
                self.open.push(delivery);
            }
        }
        for session in &mut self.sessions {
            let turn = session.turn(&mut self.fabric, &mut self.nic, local);
            deadline = deadline.min(turn.deadline);
            progressed |= turn.progressed;
            while let Some(event) = session.poll_event() {
                progressed = true;
                match event {
                    SessionEvent::Ended { call, outcome } => {
                        let again = self.ends.insert(call, (outcome, now));
                        assert!(again.is_none(), "{call:?} has two outcomes");
                    }
                    SessionEvent::Connected { connection } => {
                        let epoch = self.fabric.epoch(connection).unwrap();
                        self.connections.push((connection, epoch));
                    }
                    SessionEvent::Disconnected { .. } => {}
                }
            }
        }
        let early = deadline.since(Time::ZERO) - self.ahead;
        let deadline = if deadline == Time::NEVER {
            deadline
        } else {
            Time::ZERO + early
        };
        (deadline, progressed)
    }

    fn reject(&mut self) -> bool {
        let Some(event) = self.nic.poll_event() else {
            return false;
        };
        if let Event::Connection(ConnectionEvent::Requested { request, .. }) = event {
            self.nic.reject(request, &[]).unwrap();
        }
        true
    }

    fn hear(&mut self, event: FabricEvent<NoBuffer>) {
        let mut event = Some(event);
        for session in &mut self.sessions {
            if let Some(unheard) = event.take() {
                event = session.handle_event(&mut self.fabric, &mut self.nic, unheard);
            }
        }
        let Some(event) = event else {
            return;
        };
        let left = if self.is_raw {
            Some(event)
        } else {
            let (fabric, nic) = (&mut self.fabric, &mut self.nic);
            self.server.handle_event(fabric, nic, event)
        };
        if let Some(FabricEvent::Accepted { connection, .. }) = left {
            self.accepted.push(connection);
        }
        self.events.extend(left);
    }

    /// Executes a call and answers it.
    pub(crate) fn execute(&mut self, delivery: &Delivery) {
        self.executed.push(delivery.body.clone());
        let reply = answer(&delivery.body);
        let (fabric, nic) = (&mut self.fabric, &mut self.nic);
        self.server
            .reply(fabric, nic, delivery.ticket, &reply)
            .unwrap();
    }

    pub(crate) fn execute_all(&mut self) {
        for delivery in std::mem::take(&mut self.open) {
            self.execute(&delivery);
        }
    }

    pub(crate) fn times_executed(&self, body: &[u8]) -> usize {
        self.executed.iter().filter(|done| *done == body).count()
    }

    /// The bodies of the outcomes of these calls.
    pub(crate) fn replies(&self, calls: &[SessionCallId]) -> Vec<Option<Vec<u8>>> {
        calls
            .iter()
            .map(|call| self.ends[call].0.clone().ok())
            .collect()
    }

    /// Closes everything and checks that nothing is left.
    pub(crate) fn end(&mut self) {
        for session in &mut self.sessions {
            session.close(&mut self.fabric, &mut self.nic);
            while session.poll_event().is_some() {}
            assert_eq!(session.calls_open(), 0);
            let counters = session.counters();
            let ended = counters.calls_replied + counters.calls_failed;
            assert_eq!(counters.calls_started, ended);
        }
        self.fabric.shutdown(&mut self.nic).unwrap();
        assert_eq!(self.nic.resource_counts(), ResourceCounts::default());
        while let Some(event) = self.fabric.poll_event() {
            self.hear(event);
        }
        let counters = *self.fabric.counters();
        let failed = counters.calls_failed + counters.calls_expired + counters.calls_canceled;
        assert_eq!(counters.calls_started, counters.calls_replied + failed);
        assert_eq!(
            counters.requests_received,
            counters.requests_replied + counters.requests_dropped
        );
        assert_eq!(counters.operations_quarantined, 0);
    }
}
