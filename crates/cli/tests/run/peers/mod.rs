//! Memory nodes as processes, and clients of theirs on the fabric: frozen, killed, absent and idle; and
//! sessions over a real network.

mod absent;
mod frozen;
mod idle;
mod killed;
mod sessions;
mod station;

use crate::harness::{self, Node};
use legato_base::wire::node::{NodeReply, NodeRequest, NodeStatus};
use legato_base::{Duration, Time};
use legato_fabric::{
    Buffer, CallId, ConnectError, ConnectionId, FabricConfig, FabricEvent, OperationError,
};
use legato_providers::AnyProvider;
use legato_verbs::{Address, MemoryRegion, ScatterGatherEntry};
use station::Station;
use std::collections::BTreeMap;

/// Of a call whose peer answers.
const PATIENCE: Duration = Duration::from_secs(harness::PATIENCE.as_secs());

type Outcome = Result<Vec<u8>, OperationError>;

/// All of a region.
#[derive(Debug)]
struct Whole(MemoryRegion);

impl Buffer for Whole {
    fn entries(&self) -> Vec<ScatterGatherEntry> {
        vec![self.0.entry(0, self.0.length as u32)]
    }
}

/// A fabric with a real clock and real sleep.
struct Client {
    station: Station<Whole>,
    /// Turns so far.
    turns: u64,
    events: Vec<FabricEvent<Whole>>,
    outcomes: BTreeMap<CallId, (Time, Outcome)>,
}

impl Client {
    /// Over shared memory.
    fn new(liveness: Duration) -> Self {
        Self::reaching(&[], liveness)
    }

    /// Over what the address asks for.
    fn towards(address: &str, liveness: Duration) -> Self {
        Self::reaching(&[address.parse().unwrap()], liveness)
    }

    fn reaching(addresses: &[Address], liveness: Duration) -> Self {
        let provider = AnyProvider::reaching(addresses, None).unwrap();
        let config = FabricConfig {
            liveness,
            incarnation: u64::from(std::process::id()),
            ..FabricConfig::default()
        };
        Self {
            station: Station::new(provider, config),
            turns: 0,
            events: Vec::new(),
            outcomes: BTreeMap::new(),
        }
    }

    fn now(&self) -> Time {
        self.station.now()
    }

    /// One turn, and a sleep until something is due or comes, `end` at the latest.
    fn step(&mut self, end: Time) {
        self.turns += 1;
        let turn = self.station.turn();
        while let Some(event) = self.station.fabric.poll_event() {
            match event {
                FabricEvent::Replied { call, outcome } => {
                    self.outcomes.insert(call, (self.now(), outcome));
                }
                other => self.events.push(other),
            }
        }
        self.station.rest(turn, end);
    }

    fn run_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now() + PATIENCE;
        while !done(self) {
            assert!(self.now() < end, "{what} never happened: {:?}", self.events);
            self.step(end);
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now() + time;
        while self.now() < end {
            self.step(end);
        }
    }

    fn has(&self, wanted: impl Fn(&FabricEvent<Whole>) -> bool) -> bool {
        self.events.iter().any(wanted)
    }

    fn try_connect(&mut self, address: &str) -> Result<ConnectionId, ConnectError> {
        let address: Address = address.parse().unwrap();
        let deadline = self.now() + PATIENCE;
        let Station {
            fabric, provider, ..
        } = &mut self.station;
        let asked = fabric.connect(provider, &address, &[], deadline)?;
        let mut ended = None;
        let end = self.now() + PATIENCE;
        while ended.is_none() {
            self.step(end);
            ended = self.events.iter().find_map(|event| match event {
                FabricEvent::Connected { connection, .. } if *connection == asked => Some(Ok(())),
                FabricEvent::ConnectFailed { connection, error } if *connection == asked => {
                    Some(Err(*error))
                }
                _ => None,
            });
        }
        ended.unwrap().map(|()| asked)
    }

    fn connect(&mut self, node: &Node) -> ConnectionId {
        self.try_connect(&node.address).unwrap()
    }

    fn call(
        &mut self,
        connection: ConnectionId,
        request: NodeRequest,
        time: Duration,
    ) -> Result<CallId, legato_fabric::Refused> {
        let deadline = self.now() + time;
        let Station {
            fabric, provider, ..
        } = &mut self.station;
        fabric.call(provider, connection, &request.to_bytes(), deadline)
    }

    fn outcome(&mut self, call: CallId) -> Outcome {
        self.run_until("the outcome of a call", |client| {
            client.outcomes.contains_key(&call)
        });
        self.outcomes[&call].1.clone()
    }

    fn ask(&mut self, connection: ConnectionId, request: NodeRequest) -> NodeReply {
        let call = self.call(connection, request, PATIENCE).unwrap();
        NodeReply::parse(&self.outcome(call).unwrap()).unwrap()
    }

    fn status(&mut self, connection: ConnectionId) -> NodeStatus {
        match self.ask(connection, NodeRequest::Status) {
            NodeReply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }
}
