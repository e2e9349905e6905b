//! The naive stack and the fabric behind the same calls, so that one schedule fits both.

use legato_base::Time;
use legato_fabric::{
    Buffer, CallId, ConnectionId, Fabric, FabricConfig, FabricEvent, OperationId, RequestId,
};
use legato_sim::naive::{Asked, Habits, NaiveConfig, NaiveEvent, NaiveStack};
use legato_verbs::{
    Address, ProtectionDomain, Provider, RemoteAddress, ScatterGatherEntry, SendOperation,
};

/// What either says, with plain numbers in the order in which things were started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Connected {
        connection: usize,
    },
    Request {
        request: usize,
        body: Vec<u8>,
    },
    /// Without a body the call failed.
    Replied {
        call: usize,
        body: Option<Vec<u8>>,
    },
    Over {
        operation: usize,
        succeeded: bool,
    },
    Returned {
        operation: usize,
    },
    Ended {
        connection: usize,
    },
}

pub(crate) trait Stack {
    fn domain(&self) -> ProtectionDomain;
    fn listen(&mut self, nic: &mut dyn Provider, address: &Address);
    /// None if there is no place for one more.
    fn connect(&mut self, nic: &mut dyn Provider, address: &Address, by: Time) -> Option<usize>;
    /// When it wants to be run again, and whether anything happened.
    fn turn(&mut self, nic: &mut dyn Provider, now: Time) -> (Time, bool);
    fn said(&mut self) -> Option<Said>;
    /// `into` is memory of the caller, for a stack whose replies are written there.
    fn call(
        &mut self,
        nic: &mut dyn Provider,
        connection: usize,
        body: &[u8],
        into: RemoteAddress,
        by: Time,
    ) -> Option<usize>;
    fn reply(&mut self, nic: &mut dyn Provider, request: usize, body: &[u8]);
    fn start(
        &mut self,
        nic: &mut dyn Provider,
        connection: usize,
        operation: SendOperation,
        buffer: ScatterGatherEntry,
        by: Time,
    ) -> Option<usize>;
    fn close(&mut self, nic: &mut dyn Provider, connection: usize);
}

pub(crate) struct Naive {
    pub(crate) stack: NaiveStack,
    asked: Vec<Asked>,
    calls: Vec<u64>,
    operations: Vec<u64>,
}

impl Naive {
    pub(crate) fn new(nic: &mut dyn Provider, config: NaiveConfig) -> Self {
        Self {
            stack: NaiveStack::new(nic, config).unwrap(),
            asked: Vec::new(),
            calls: Vec::new(),
            operations: Vec::new(),
        }
    }

    pub(crate) fn with(habits: Habits) -> impl FnMut(&mut dyn Provider) -> Self {
        let config = NaiveConfig {
            habits,
            ..NaiveConfig::default()
        };
        move |nic| Self::new(nic, config)
    }
}

fn place<T: PartialEq>(all: &[T], one: &T) -> usize {
    all.iter().position(|it| it == one).unwrap()
}

impl Stack for Naive {
    fn domain(&self) -> ProtectionDomain {
        self.stack.domain()
    }

    fn listen(&mut self, nic: &mut dyn Provider, address: &Address) {
        nic.listen(address).unwrap();
    }

    fn connect(&mut self, nic: &mut dyn Provider, address: &Address, _: Time) -> Option<usize> {
        self.stack.connect(nic, address)
    }

    fn turn(&mut self, nic: &mut dyn Provider, now: Time) -> (Time, bool) {
        (self.stack.turn(nic, now), false)
    }

    fn said(&mut self) -> Option<Said> {
        Some(match self.stack.poll_event()? {
            NaiveEvent::Connected { connection } => Said::Connected { connection },
            NaiveEvent::Request { asked, body } => {
                self.asked.push(asked);
                let request = self.asked.len() - 1;
                Said::Request { request, body }
            }
            NaiveEvent::Replied { call, body } => Said::Replied {
                call: place(&self.calls, &call),
                body,
            },
            NaiveEvent::Over {
                operation,
                succeeded,
            } => Said::Over {
                operation: place(&self.operations, &operation),
                succeeded,
            },
            NaiveEvent::Returned { operation } => Said::Returned {
                operation: place(&self.operations, &operation),
            },
            NaiveEvent::Ended { connection } => Said::Ended { connection },
        })
    }

    fn call(
        &mut self,
        nic: &mut dyn Provider,
        connection: usize,
        body: &[u8],
        into: RemoteAddress,
        by: Time,
    ) -> Option<usize> {
        let call = self.stack.call(nic, connection, body, Some(into), by)?;
        self.calls.push(call);
        Some(self.calls.len() - 1)
    }

    fn reply(&mut self, nic: &mut dyn Provider, request: usize, body: &[u8]) {
        self.stack.reply(nic, self.asked[request], body);
    }

    fn start(
        &mut self,
        nic: &mut dyn Provider,
        connection: usize,
        operation: SendOperation,
        buffer: ScatterGatherEntry,
        by: Time,
    ) -> Option<usize> {
        let started = self.stack.start(nic, connection, operation, buffer, by)?;
        self.operations.push(started);
        Some(self.operations.len() - 1)
    }

    fn close(&mut self, nic: &mut dyn Provider, connection: usize) {
        self.stack.close(nic, connection);
    }
}

#[derive(Debug)]
pub(crate) struct Entry(ScatterGatherEntry);

impl Buffer for Entry {
    fn entries(&self) -> Vec<ScatterGatherEntry> {
        vec![self.0]
    }
}

pub(crate) struct Real {
    pub(crate) fabric: Fabric<Entry>,
    connections: Vec<ConnectionId>,
    requests: Vec<RequestId>,
    calls: Vec<CallId>,
    operations: Vec<OperationId>,
}

/// As many of everything as the naive stack has by default.
pub(crate) fn limits() -> FabricConfig {
    FabricConfig {
        connections_max: 4,
        credits: 8,
        message_length_max: 200,
        one_sided_max: 16,
        ..FabricConfig::default()
    }
}

impl Real {
    pub(crate) fn new(nic: &mut dyn Provider) -> Self {
        Self::limited(nic, limits())
    }

    pub(crate) fn limited(nic: &mut dyn Provider, config: FabricConfig) -> Self {
        Self {
            fabric: Fabric::new(nic, config).unwrap(),
            connections: Vec::new(),
            requests: Vec::new(),
            calls: Vec::new(),
            operations: Vec::new(),
        }
    }

    pub(crate) fn name(&self, connection: usize) -> ConnectionId {
        self.connections[connection]
    }

    /// The connection that was made last.
    pub(crate) fn last(&self) -> ConnectionId {
        *self.connections.last().unwrap()
    }

    fn known(&mut self, connection: ConnectionId) -> usize {
        if !self.connections.contains(&connection) {
            self.connections.push(connection);
        }
        place(&self.connections, &connection)
    }
}

impl Stack for Real {
    fn domain(&self) -> ProtectionDomain {
        self.fabric.domain()
    }

    fn listen(&mut self, nic: &mut dyn Provider, address: &Address) {
        self.fabric.listen(nic, address).unwrap();
    }

    fn connect(&mut self, nic: &mut dyn Provider, address: &Address, by: Time) -> Option<usize> {
        let connection = self.fabric.connect(nic, address, &[], by).ok()?;
        Some(self.known(connection))
    }

    fn turn(&mut self, nic: &mut dyn Provider, now: Time) -> (Time, bool) {
        let turn = self.fabric.turn(nic, now);
        (turn.deadline, turn.progressed)
    }

    fn said(&mut self) -> Option<Said> {
        loop {
            let said = match self.fabric.poll_event()? {
                FabricEvent::Connected { connection, .. }
                | FabricEvent::Accepted { connection, .. } => Said::Connected {
                    connection: self.known(connection),
                },
                FabricEvent::Disconnected { connection }
                | FabricEvent::ConnectFailed { connection, .. } => Said::Ended {
                    connection: self.known(connection),
                },
                FabricEvent::Request { request, body, .. } => {
                    self.requests.push(request);
                    let request = self.requests.len() - 1;
                    Said::Request { request, body }
                }
                FabricEvent::Replied { call, outcome } => Said::Replied {
                    call: place(&self.calls, &call),
                    body: outcome.ok(),
                },
                FabricEvent::Outcome { operation, outcome } => Said::Over {
                    operation: place(&self.operations, &operation),
                    succeeded: outcome.is_ok(),
                },
                FabricEvent::Quiesced { operation, .. } => Said::Returned {
                    operation: place(&self.operations, &operation),
                },
                #[allow(unreachable_patterns, reason = "what a schedule does not look at")]
                _ => continue,
            };
            return Some(said);
        }
    }

    fn call(
        &mut self,
        nic: &mut dyn Provider,
        connection: usize,
        body: &[u8],
        _: RemoteAddress,
        by: Time,
    ) -> Option<usize> {
        let connection = self.connections[connection];
        self.calls
            .push(self.fabric.call(nic, connection, body, by).ok()?);
        Some(self.calls.len() - 1)
    }

    fn reply(&mut self, nic: &mut dyn Provider, request: usize, body: &[u8]) {
        // One whose connection has ended cannot be answered.
        let _ = self.fabric.reply(nic, self.requests[request], body);
    }

    fn start(
        &mut self,
        nic: &mut dyn Provider,
        connection: usize,
        operation: SendOperation,
        buffer: ScatterGatherEntry,
        by: Time,
    ) -> Option<usize> {
        let connection = self.connections[connection];
        let buffer = Entry(buffer);
        let started = match operation {
            SendOperation::RdmaRead(from) => self.fabric.read(nic, connection, from, buffer, by),
            SendOperation::RdmaWrite(to) => self.fabric.write(nic, connection, to, buffer, by),
            other => panic!("no schedule has {other:?}"),
        };
        self.operations.push(started.ok()?);
        Some(self.operations.len() - 1)
    }

    fn close(&mut self, nic: &mut dyn Provider, connection: usize) {
        self.fabric.close(nic, self.connections[connection]);
    }
}
