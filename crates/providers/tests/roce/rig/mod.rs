//! Software RoCE NICs with a relay between them, which may change, lose and repeat what it carries.
//! The clock is the test's: it jumps to the next thing that is due.

pub(crate) mod town;

use crate::carrier_rig::{Kind, Side};
use legato_base::{Duration, Time};
use legato_providers::RoceProvider;
use legato_providers::roce::carrier::Options;
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionQueue, ConnectionEvent, Event, Listener,
    MemoryRegion, ProtectionDomain, Provider, QueuePair, QueuePairCapabilities, QueuePairInit,
    ReceiveRequest, Receives, RemoteAddress, SendFlags, SendOperation, SendRequest, WorkRequestId,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;

pub(crate) const REGION_LENGTH: u64 = 64 * 1024;
pub(crate) const REQUESTS: u32 = 64;
/// The service that is listened for.
pub(crate) const SERVICE: u16 = 20_001;
const ALL: AccessFlags = AccessFlags::from_bits(15);

/// One side, with a region for its peers and one that is its own.
pub(crate) struct Node {
    pub(crate) provider: RoceProvider,
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    /// Of the queue pairs that are made next.
    pub(crate) receives: Receives,
    pub(crate) region: MemoryRegion,
    pub(crate) private: MemoryRegion,
    pub(crate) events: Vec<Event>,
    pub(crate) done: Vec<Completion>,
}

impl Node {
    pub(crate) fn new(place: &str) -> Self {
        Self::open(&roce(place))
    }

    pub(crate) fn open(address: &Address) -> Self {
        let mut provider = RoceProvider::open(address).unwrap();
        let domain = provider.create_protection_domain().unwrap();
        let queue = provider.create_completion_queue(4 * REQUESTS).unwrap();
        let mut allocate = |access| provider.allocate_region(domain, REGION_LENGTH, access);
        Self {
            region: allocate(ALL).unwrap(),
            private: allocate(AccessFlags::LOCAL_WRITE).unwrap(),
            provider,
            domain,
            queue,
            receives: Receives::Own,
            events: Vec::new(),
            done: Vec::new(),
        }
    }

    pub(crate) fn queue_pair(&mut self) -> QueuePair {
        let capabilities = QueuePairCapabilities {
            send_requests_max: REQUESTS,
            receive_requests_max: REQUESTS,
            entries_max: 2,
        };
        let init = QueuePairInit {
            receives: self.receives,
            ..QueuePairInit::new(self.domain, self.queue, capabilities)
        };
        let queue_pair = self.provider.create_queue_pair(&init).unwrap();
        self.provider.modify_to_init(queue_pair).unwrap();
        queue_pair
    }

    pub(crate) fn progress(&mut self, now: Time) -> Time {
        let deadline = self.provider.progress(now);
        while let Some(event) = self.provider.poll_event() {
            self.events.push(event);
        }
        let (queue, done) = (self.queue, &mut self.done);
        let polled = self.provider.poll_completion_queue(queue, usize::MAX, done);
        polled.unwrap();
        deadline
    }

    /// Whether the connection of a queue pair has begun, or has failed or ended.
    pub(crate) fn stage(&self, of: QueuePair) -> Option<bool> {
        self.events.iter().rev().find_map(|event| match event {
            Event::Connection(ConnectionEvent::Established { queue_pair, .. }) => {
                (*queue_pair == of).then_some(true)
            }
            Event::Connection(
                ConnectionEvent::Rejected { queue_pair, .. }
                | ConnectionEvent::Unreachable { queue_pair, .. }
                | ConnectionEvent::Disconnected { queue_pair },
            ) => (*queue_pair == of).then_some(false),
            _ => None,
        })
    }

    pub(crate) fn take_request(&mut self) -> Option<legato_verbs::ConnectionRequest> {
        let found = self.events.iter().position(|event| {
            matches!(event, Event::Connection(ConnectionEvent::Requested { .. }))
        })?;
        match self.events.remove(found) {
            Event::Connection(ConnectionEvent::Requested { request, .. }) => Some(request),
            _ => None,
        }
    }

    pub(crate) fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress {
            key: self.region.remote_key,
            address: self.region.address + offset,
        }
    }

    /// False if the queue pair takes no request any more.
    pub(crate) fn post(
        &mut self,
        queue_pair: QueuePair,
        wr_id: u64,
        operation: SendOperation,
        (offset, length): (u64, u32),
    ) -> bool {
        let request = SendRequest {
            wr_id: WorkRequestId(wr_id),
            operation,
            entries: vec![self.region.entry(offset, length)],
            flags: SendFlags::SIGNALED | SendFlags::FENCE,
        };
        self.provider.post_send(queue_pair, &request).is_ok()
    }

    pub(crate) fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        wr_id: u64,
        (offset, length): (u64, u32),
    ) {
        let request = ReceiveRequest {
            wr_id: WorkRequestId(wr_id),
            entries: vec![self.region.entry(offset, length)],
        };
        self.provider.post_receive(queue_pair, &request).unwrap();
    }

    pub(crate) fn fill(&mut self, offset: u64, bytes: &[u8]) {
        let region = self.region;
        self.provider.write_region(&region, offset, bytes).unwrap();
    }

    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        read(&self.provider, &self.region, offset, length)
    }

    pub(crate) fn private_bytes(&self) -> Vec<u8> {
        read(&self.provider, &self.private, 0, REGION_LENGTH as usize)
    }
}

fn read(provider: &RoceProvider, region: &MemoryRegion, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    provider.read_region(region, offset, &mut bytes).unwrap();
    bytes
}

pub(crate) fn roce(place: &str) -> Address {
    Address::Roce(place.parse().unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    ToServer,
    ToClient,
}

/// What becomes of a packet: what is sent in its place, and after how long.
pub(crate) type Rule = Box<dyn FnMut(Way, &[u8]) -> Vec<(Duration, Vec<u8>)>>;

/// A client, a server, and between them a relay: each takes it for the other.
pub(crate) struct Rig {
    pub(crate) client: Node,
    pub(crate) server: Node,
    pub(crate) listener: Listener,
    to_server: Side,
    to_client: Side,
    server_at: SocketAddr,
    client_at: SocketAddr,
    pub(crate) rule: Rule,
    under_way: BTreeMap<(Time, u64), (Way, Vec<u8>)>,
    carried: u64,
    idle: u32,
    pub(crate) now: Time,
}

impl Rig {
    /// At addresses that no other test uses.
    pub(crate) fn new(net: u8) -> Self {
        Self::with(net, &Options::default())
    }

    /// The same with a relay whose packets are as `options` say.
    pub(crate) fn with(net: u8, options: &Options) -> Self {
        let host = |host: u8, port: u16| format!("127.31.{net}.{host}:{port}");
        let mut server = Node::new(&host(1, 4791));
        let side = |place: &str| Side::open(Kind::Datagram, place, options);
        let service = roce(&host(1, SERVICE));
        let listener = server.provider.listen(&service).unwrap();
        Self {
            client: Node::new(&host(2, 4791)),
            server,
            listener,
            to_server: side(&host(4, 4791)),
            to_client: side(&host(3, SERVICE)),
            server_at: host(1, SERVICE).parse().unwrap(),
            client_at: host(2, 4791).parse().unwrap(),
            rule: Box::new(|_, bytes| vec![(Duration::ZERO, bytes.to_vec())]),
            under_way: BTreeMap::new(),
            carried: 0,
            idle: 0,
            now: Time::from_nanos(1),
        }
    }

    /// Sends a packet to the server, or to the client, as the other's.
    pub(crate) fn forge(&mut self, way: Way, bytes: &[u8]) {
        let (side, to) = match way {
            Way::ToServer => (&mut self.to_server, self.server_at),
            Way::ToClient => (&mut self.to_client, self.client_at),
        };
        side.send(to, bytes);
        side.carrier.flush();
    }

    /// The relay alone. True if anything came or went.
    pub(crate) fn carry(&mut self) -> bool {
        let mut any = false;
        for (way, side) in [
            (Way::ToServer, &mut self.to_client),
            (Way::ToClient, &mut self.to_server),
        ] {
            for (_, bytes) in side.receive() {
                for (after, bytes) in (self.rule)(way, &bytes) {
                    self.carried += 1;
                    let key = (self.now + after, self.carried);
                    self.under_way.insert(key, (way, bytes));
                }
                any = true;
            }
        }
        while let Some(first) = self.under_way.first_entry()
            && first.key().0 <= self.now
        {
            let (way, bytes) = first.remove();
            self.forge(way, &bytes);
            any = true;
        }
        any
    }

    /// Lets both sides and the relay do what they can, or time pass, but no further than to `until`.
    pub(crate) fn turn(&mut self, until: Time) {
        let mut deadline = self.client.progress(self.now);
        let mut any = self.carry();
        deadline = deadline.min(self.server.progress(self.now));
        any |= self.carry();
        // What went past the relay needs a turn on each side.
        self.idle = if any { 0 } else { self.idle + 1 };
        self.now = self.now + Duration::from_micros(1);
        if self.idle > 3 {
            self.idle = 0;
            let carried = self.under_way.first_key_value().map(|(key, _)| key.0);
            let next = deadline.min(carried.unwrap_or(Time::NEVER)).min(until);
            self.now = next.max(self.now);
        }
    }

    /// Turns until `done` says so. False if it never did in so much time.
    pub(crate) fn run(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) {
            if self.now >= end {
                return false;
            }
            self.turn(end);
        }
        true
    }

    /// Writes these bytes to the server and reads them again. False if one of both does not end well in that time.
    pub(crate) fn moves(&mut self, client: QueuePair, bytes: &[u8], within: Duration) -> bool {
        let length = bytes.len() as u32;
        self.client.fill(0, bytes);
        let far = self.server.at(0);
        for (operation, at) in [
            (SendOperation::RdmaWrite(far), 0),
            (SendOperation::RdmaRead(far), u64::from(length)),
        ] {
            assert!(self.client.post(client, 1, operation, (at, length)));
            if !self.run(within, |rig| !rig.client.done.is_empty())
                || self.client.done.pop().unwrap().result.is_err()
            {
                return false;
            }
        }
        assert_eq!(self.client.bytes(length.into(), bytes.len()), bytes);
        true
    }

    /// Connects two new queue pairs: the client's, the server's, and whether they were.
    pub(crate) fn connect(&mut self) -> (QueuePair, Option<QueuePair>, bool) {
        let client = self.client.queue_pair();
        let relay = Address::Roce(self.to_client.address());
        self.client.provider.connect(client, &relay, &[]).unwrap();
        let mut server = None;
        self.run(Duration::from_secs(6), |rig| {
            if server.is_none()
                && let Some(request) = rig.server.take_request()
            {
                let queue_pair = rig.server.queue_pair();
                server = Some(queue_pair);
                let _ = rig.server.provider.accept(request, queue_pair, &[]);
            }
            let far = server.and_then(|queue_pair| rig.server.stage(queue_pair));
            rig.client.stage(client) == Some(false)
                || rig.client.stage(client).is_some() && far.is_some()
        });
        let connected = self.client.stage(client) == Some(true)
            && server.is_some_and(|server| self.server.stage(server) == Some(true));
        (client, server, connected)
    }
}
