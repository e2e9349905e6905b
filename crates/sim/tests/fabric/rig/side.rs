//! One node: a NIC, a fabric, and memory for one-sided operations.

use crate::faulty::Faulty;
use legato_base::Time;
use legato_fabric::{
    Buffer, CallId, Cause, ConnectError, ConnectionId, Effect, Fabric, FabricConfig, FabricEvent,
    OperationId, Proof, Quarantine, RequestId,
};
use legato_sim::provider::SimProvider;
use legato_verbs::{
    AccessFlags, MemoryRegion, Provider, RemoteAddress, ResourceCounts, ScatterGatherEntry,
};

pub(crate) const PIECE: u32 = 64;
const REGION: u64 = 64 * 1024;

/// A numbered piece of a region.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) number: u32,
    pub(crate) entry: ScatterGatherEntry,
    /// The region, if there is nothing else in it.
    pub(crate) own: Option<MemoryRegion>,
}

impl Buffer for Piece {
    fn entries(&self) -> Vec<ScatterGatherEntry> {
        vec![self.entry]
    }

    fn own_region(&self) -> Option<MemoryRegion> {
        self.own
    }
}

/// What an outcome says, without the blame.
pub(crate) type Decided = Result<(), (Cause, Effect)>;

pub(crate) struct Side<P = SimProvider> {
    pub(crate) nic: Faulty<P>,
    pub(crate) fabric: Fabric<Piece>,
    pub(crate) region: MemoryRegion,
    pub(crate) events: Vec<FabricEvent<Piece>>,
    /// Its software does nothing; its NIC goes on.
    pub(crate) paused: bool,
    /// Times that the fabric was run.
    pub(crate) turns: u64,
}

impl<P: Provider> Side<P> {
    pub(crate) fn new(nic: P, config: FabricConfig) -> Self {
        Self::on(Faulty::new(nic), config)
    }

    pub(crate) fn on(mut nic: Faulty<P>, config: FabricConfig) -> Self {
        let fabric = Fabric::new(&mut nic, config).unwrap();
        let access = AccessFlags::from_bits(7);
        let region = nic
            .allocate_region(fabric.domain(), REGION, access)
            .unwrap();
        Self {
            nic,
            fabric,
            region,
            events: Vec::new(),
            paused: false,
            turns: 0,
        }
    }

    /// One turn: when the next is due, and whether anything happened.
    pub(crate) fn turn(&mut self, now: Time) -> (Time, bool) {
        if self.paused {
            return (Time::NEVER, false);
        }
        self.turns += 1;
        let turn = self.fabric.turn(&mut self.nic, now);
        while let Some(event) = self.fabric.poll_event() {
            self.events.push(event);
        }
        (turn.deadline, turn.progressed)
    }

    pub(crate) fn posted_receives(&self) -> usize {
        self.nic.resource_counts().posted_receives
    }

    pub(crate) fn piece(&self, number: u32) -> Piece {
        Piece {
            number,
            entry: self.region.entry(u64::from(number * PIECE), PIECE),
            own: None,
        }
    }

    /// Where a peer finds the piece of this number.
    pub(crate) fn place(&self, number: u32) -> RemoteAddress {
        RemoteAddress {
            key: self.region.remote_key,
            address: self.region.address + u64::from(number * PIECE),
        }
    }

    pub(crate) fn fill(&mut self, number: u32, byte: u8) {
        let bytes = [byte; PIECE as usize];
        let at = u64::from(number * PIECE);
        self.nic.write_region(&self.region, at, &bytes).unwrap();
    }

    pub(crate) fn bytes(&self, number: u32) -> [u8; PIECE as usize] {
        let mut bytes = [0; PIECE as usize];
        let at = u64::from(number * PIECE);
        self.nic.read_region(&self.region, at, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn holds(&self, number: u32, byte: u8) -> bool {
        self.bytes(number) == [byte; PIECE as usize]
    }

    pub(crate) fn reply(&mut self, request: RequestId, body: &[u8]) {
        self.fabric.reply(&mut self.nic, request, body).unwrap();
    }

    /// Replies to all that wait, and says how many did.
    pub(crate) fn serve(&mut self, reply: impl Fn(&[u8]) -> Vec<u8>) -> usize {
        let requests = self.requests();
        for (request, body) in &requests {
            // One whose connection has ended meanwhile cannot be answered.
            let _ = self.fabric.reply(&mut self.nic, *request, &reply(body));
        }
        requests.len()
    }

    /// Empties the node and checks that nothing is left in its NIC, and that the books balance.
    pub(crate) fn end(&mut self) {
        self.nic.deregister_region(&self.region).unwrap();
        self.fabric.shutdown(&mut self.nic).unwrap();
        assert_eq!(self.nic.resource_counts(), ResourceCounts::default());
        while let Some(event) = self.fabric.poll_event() {
            self.events.push(event);
        }
        self.balance();
    }

    /// Everything that was started has ended, and ended once.
    pub(crate) fn balance(&self) {
        let counters = *self.fabric.counters();
        assert_eq!(
            counters.calls_started,
            counters.calls_replied
                + counters.calls_failed
                + counters.calls_expired
                + counters.calls_canceled
        );
        assert_eq!(
            counters.requests_received,
            counters.requests_replied + counters.requests_dropped
        );
        assert_eq!(
            counters.operations_started,
            counters.operations_completed
                + counters.operations_failed
                + counters.operations_expired
                + counters.operations_canceled
        );
        assert_eq!(counters.operations_started, counters.operations_quiesced);
        assert_eq!(self.fabric.quarantine(), Quarantine::default());
    }

    pub(crate) fn take<T>(&mut self, pick: impl Fn(&FabricEvent<Piece>) -> Option<T>) -> Vec<T> {
        let mut taken = Vec::new();
        self.events.retain(|event| {
            let picked = pick(event);
            let keep = picked.is_none();
            taken.extend(picked);
            keep
        });
        taken
    }

    pub(crate) fn requests(&mut self) -> Vec<(RequestId, Vec<u8>)> {
        self.take(|event| match event {
            FabricEvent::Request { request, body, .. } => Some((*request, body.clone())),
            _ => None,
        })
    }

    pub(crate) fn replies(&mut self) -> Vec<(CallId, Result<Vec<u8>, Cause>)> {
        self.take(|event| match event {
            FabricEvent::Replied { call, outcome } => {
                Some((*call, outcome.clone().map_err(|error| error.cause)))
            }
            _ => None,
        })
    }

    pub(crate) fn outcomes(&mut self) -> Vec<(OperationId, Decided)> {
        self.take(|event| match event {
            FabricEvent::Outcome { operation, outcome } => {
                let outcome = outcome.map_err(|error| (error.cause, error.effect));
                Some((*operation, outcome))
            }
            _ => None,
        })
    }

    pub(crate) fn quiesced(&mut self) -> Vec<(OperationId, u32, Proof)> {
        self.take(|event| match event {
            FabricEvent::Quiesced {
                operation,
                buffer,
                proof,
            } => Some((*operation, buffer.number, *proof)),
            _ => None,
        })
    }

    pub(crate) fn failed_connects(&mut self) -> Vec<(ConnectionId, ConnectError)> {
        self.take(|event| match event {
            FabricEvent::ConnectFailed { connection, error } => Some((*connection, *error)),
            _ => None,
        })
    }

    pub(crate) fn accepted(&mut self) -> Vec<ConnectionId> {
        self.take(|event| match event {
            FabricEvent::Accepted { connection, .. } => Some(*connection),
            _ => None,
        })
    }

    pub(crate) fn disconnected(&mut self) -> Vec<ConnectionId> {
        self.take(|event| match event {
            FabricEvent::Disconnected { connection } => Some(*connection),
            _ => None,
        })
    }
}
