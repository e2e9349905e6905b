//! Managers on a wire that a test rules, in virtual time.

use legato_base::{Duration, Random, Time};
use legato_transport::cm::{
    AcceptParameters, Bits, CaGuid, ConnectParameters, ConnectionId, ConnectionManager,
    DisconnectCause, Event, Gid, LocalPort, Mad, ManagerCounts, Message, MessageBody, Parameters,
    PrivateData, RejectReason, ServiceId, TimeoutCode,
};
use legato_transport::{PacketSequenceNumber, PathMtu, QueuePairNumber};
use std::collections::BTreeMap;

pub(crate) const SERVICE: ServiceId = ServiceId::tcp(7174);

/// What becomes of a message: copies arrive after so long each; none means that it is lost.
pub(crate) type Rule = Box<dyn FnMut(&Flight) -> Vec<Duration>>;

#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) mad: Mad,
}

/// A message without what differs from run to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Req,
    Mra,
    Rej(u16),
    Rep,
    Rtu,
    Dreq,
    Drep,
}

pub(crate) struct Node {
    pub(crate) gid: Gid,
    pub(crate) manager: ConnectionManager,
    pub(crate) events: Vec<Event>,
}

pub(crate) struct Wire {
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    pub(crate) rule: Rule,
    /// All that was sent, lost or not.
    pub(crate) log: Vec<(usize, usize, Kind)>,
    flights: BTreeMap<(Time, u64), Flight>,
    sent: u64,
}

pub(crate) const LATENCY: Duration = Duration::from_millis(1);

pub(crate) fn kind(mad: &Mad) -> Kind {
    match Message::parse(mad).unwrap().body {
        MessageBody::ConnectRequest(_) => Kind::Req,
        MessageBody::MessageReceiptAcknowledgment(_) => Kind::Mra,
        MessageBody::ConnectReject(it) => Kind::Rej(it.reason.0),
        MessageBody::ConnectReply(_) => Kind::Rep,
        MessageBody::ReadyToUse(_) => Kind::Rtu,
        MessageBody::DisconnectRequest(_) => Kind::Dreq,
        MessageBody::DisconnectReply(_) => Kind::Drep,
    }
}

pub(crate) fn gid(node: usize) -> Gid {
    let mut gid = Gid([0; 16]);
    gid.0[15] = u8::try_from(node + 1).unwrap();
    gid
}

pub(crate) fn manager(node: usize, seed: u64, parameters: Parameters) -> ConnectionManager {
    let port = LocalPort {
        ca_guid: CaGuid(0xCA00 + node as u64),
        gid: gid(node),
    };
    let mut manager = ConnectionManager::new(port, parameters, Random::from_seed(seed));
    manager.listen(SERVICE).unwrap();
    manager
}

pub(crate) fn connect_parameters(peer: usize, queue_pair: u32) -> ConnectParameters {
    ConnectParameters {
        peer: gid(peer),
        service: SERVICE,
        queue_pair: QueuePairNumber::new(queue_pair),
        starting_sequence: PacketSequenceNumber::new(0xFF_FFF0),
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: Bits::new(6),
        rnr_retry_count: Bits::new(6),
        path_mtu: PathMtu::Bytes1024,
        ack_timeout: TimeoutCode::new(18),
        traffic_class: 0,
        shared_receive_queue: false,
        private_data: PrivateData::EMPTY,
    }
}

pub(crate) fn accept_parameters(queue_pair: u32) -> AcceptParameters {
    AcceptParameters {
        queue_pair: QueuePairNumber::new(queue_pair),
        starting_sequence: PacketSequenceNumber::new(0x12_3456),
        responder_resources: 4,
        initiator_depth: 4,
        target_ack_delay: TimeoutCode::new(15),
        rnr_retry_count: Bits::new(6),
        shared_receive_queue: false,
        private_data: PrivateData::EMPTY,
    }
}

impl Wire {
    /// Without losses.
    pub(crate) fn new(nodes: usize, seed: u64) -> Self {
        Self::with(nodes, seed, Parameters::default())
    }

    pub(crate) fn with(nodes: usize, seed: u64, parameters: Parameters) -> Self {
        let node = |index| Node {
            gid: gid(index),
            manager: manager(index, seed.wrapping_mul(31) + index as u64, parameters),
            events: Vec::new(),
        };
        Self {
            now: Time::from_nanos(1),
            nodes: (0..nodes).map(node).collect(),
            rule: Box::new(|_| vec![LATENCY]),
            log: Vec::new(),
            flights: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Loses what this says of messages by their number, kind and sender.
    pub(crate) fn lose(&mut self, mut lost: impl FnMut(Kind, usize) -> bool + 'static) {
        self.rule = Box::new(move |flight| {
            if lost(kind(&flight.mad), flight.from) {
                Vec::new()
            } else {
                vec![LATENCY]
            }
        });
    }

    pub(crate) fn heal(&mut self) {
        self.rule = Box::new(|_| vec![LATENCY]);
    }

    /// The manager starts anew, without memory of what was.
    pub(crate) fn restart(&mut self, node: usize, seed: u64) {
        self.nodes[node].manager = manager(node, seed, Parameters::default());
        self.nodes[node].events.clear();
    }

    pub(crate) fn connect(&mut self, from: usize, to: usize, queue_pair: u32) -> ConnectionId {
        let parameters = connect_parameters(to, queue_pair);
        let id = self.nodes[from].manager.connect(&parameters, self.now);
        self.collect(from);
        id.unwrap()
    }

    pub(crate) fn accept(&mut self, node: usize, id: ConnectionId, queue_pair: u32) {
        let parameters = accept_parameters(queue_pair);
        let accepted = self.nodes[node].manager.accept(id, &parameters, self.now);
        self.collect(node);
        accepted.unwrap();
    }

    pub(crate) fn disconnect(&mut self, node: usize, id: ConnectionId) {
        self.nodes[node].manager.disconnect(id, self.now).unwrap();
        self.collect(node);
    }

    /// Hands a message to a manager and checks that it is not answered with more than one. A
    /// connection that was found stale may begin to be disconnected besides.
    pub(crate) fn deliver(&mut self, from: Gid, to: usize, bytes: &[u8]) {
        let node = &mut self.nodes[to];
        let stale = node.manager.counters().stale;
        node.manager.handle_message(from, bytes, self.now);
        let allowed = 1 + node.manager.counters().stale - stale;
        let sent = self.collect(to);
        assert!(sent as u64 <= allowed, "{sent} answers to one message");
    }

    /// Takes events and messages from a manager, and returns how many messages.
    pub(crate) fn collect(&mut self, from: usize) -> usize {
        let node = &mut self.nodes[from];
        while let Some(event) = node.manager.poll_event() {
            node.events.push(event);
        }
        let mut count = 0;
        while let Some(transmit) = self.nodes[from].manager.poll_transmit() {
            count += 1;
            let Some(to) = self
                .nodes
                .iter()
                .position(|node| node.gid == transmit.destination)
            else {
                continue;
            };
            let flight = Flight {
                from,
                to,
                mad: transmit.mad,
            };
            self.log.push((from, to, kind(&flight.mad)));
            for delay in (self.rule)(&flight) {
                self.sent += 1;
                self.flights
                    .insert((self.now + delay, self.sent), flight.clone());
            }
        }
        count
    }

    /// Does the next thing that is to happen up to `until`, and returns whether there was one.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        let deadline = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(index, node)| Some((node.manager.next_deadline()?, index)))
            .min();
        let arrival = self.flights.keys().next().copied();
        match (arrival, deadline) {
            (Some(key), deadline)
                if key.0 <= until && deadline.is_none_or(|(time, _)| key.0 <= time) =>
            {
                let flight = self.flights.remove(&key).unwrap();
                self.now = self.now.max(key.0);
                self.deliver(self.nodes[flight.from].gid, flight.to, &flight.mad);
                true
            }
            (_, Some((time, index))) if time <= until => {
                self.now = self.now.max(time);
                self.nodes[index].manager.handle_timeout(self.now);
                self.collect(index);
                assert!(
                    self.nodes[index]
                        .manager
                        .next_deadline()
                        .is_none_or(|next| next > self.now),
                    "a deadline that is not met"
                );
                true
            }
            _ => false,
        }
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
    }

    /// Until messages have come and gone, which takes no longer than this.
    pub(crate) fn settle(&mut self) {
        self.run(Duration::from_millis(20));
    }

    /// Until nothing is left to happen.
    pub(crate) fn finish(&mut self) {
        while self.step(Time::NEVER) {}
    }

    pub(crate) fn events(&mut self, node: usize) -> Vec<Event> {
        std::mem::take(&mut self.nodes[node].events)
    }

    /// Takes the only event that there is, a request, and returns its connection.
    pub(crate) fn requested(&mut self, node: usize) -> ConnectionId {
        let events = self.events(node);
        let [Event::Requested { connection, .. }] = events.as_slice() else {
            panic!("{events:?}");
        };
        *connection
    }

    /// Connects two nodes.
    pub(crate) fn establish(
        &mut self,
        from: (usize, u32),
        to: (usize, u32),
    ) -> (ConnectionId, ConnectionId) {
        let active = self.connect(from.0, to.0, from.1);
        self.settle();
        let passive = self.requested(to.0);
        self.accept(to.0, passive, to.1);
        self.settle();
        let events = self.events(from.0);
        assert!(
            matches!(events.as_slice(), [Event::Established { connection, reply: Some(_) }] if *connection == active),
            "{events:?}"
        );
        assert_eq!(
            self.events(to.0),
            [Event::Established {
                connection: passive,
                reply: None
            }]
        );
        (active, passive)
    }

    pub(crate) fn kinds(&mut self) -> Vec<Kind> {
        self.log.drain(..).map(|(_, _, kind)| kind).collect()
    }

    /// Nothing is left anywhere.
    pub(crate) fn assert_idle(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            assert_eq!(
                node.manager.counts(),
                ManagerCounts::default(),
                "node {index}"
            );
            assert_eq!(node.manager.next_deadline(), None);
        }
    }
}

pub(crate) fn rejected(event: &Event) -> Option<(ConnectionId, RejectReason)> {
    match event {
        Event::Rejected {
            connection, reason, ..
        } => Some((*connection, *reason)),
        _ => None,
    }
}

pub(crate) const LOCAL: fn(bool) -> DisconnectCause =
    |acknowledged| DisconnectCause::Local { acknowledged };

pub(crate) fn disconnected(connection: ConnectionId, cause: DisconnectCause) -> Event {
    Event::Disconnected { connection, cause }
}

pub(crate) fn exit(connection: ConnectionId, number: u32) -> Event {
    Event::TimeWaitExit {
        connection,
        queue_pair: QueuePairNumber::new(number),
    }
}

/// Loses the first `count` messages of a kind.
pub(crate) fn lose_first(wire: &mut Wire, what: Kind, mut count: u32) {
    wire.lose(move |kind, _| {
        let lost = kind == what && count > 0;
        count -= u32::from(lost);
        lost
    });
}

pub(crate) fn count(wire: &Wire, what: Kind) -> usize {
    wire.log.iter().filter(|(_, _, kind)| *kind == what).count()
}
