//! Two machines with the same stack, and the tests' hand on time.

use super::stack::{Said, Stack};
use crate::faulty::Faulty;
use crate::rig::sim_address;
use legato_base::{Duration, Time};
use legato_sim::fault::Rule;
use legato_sim::provider::{Personality, SimNetwork, SimNetworkConfig};
use legato_verbs::{AccessFlags, MemoryRegion, Provider, RemoteAddress, SendOperation};

pub(crate) const PIECE: u32 = 64;

pub(crate) struct Machine<S> {
    pub(crate) nic: Faulty,
    pub(crate) stack: S,
    /// The program's own memory, in pieces.
    pub(crate) region: MemoryRegion,
    pub(crate) said: Vec<Said>,
    /// Times that the stack was run.
    pub(crate) turns: u64,
    /// Its software does nothing; its NIC goes on.
    pub(crate) paused: bool,
}

/// The client connects, the server listens.
pub(crate) struct Stage<S> {
    pub(crate) network: SimNetwork,
    pub(crate) client: Machine<S>,
    pub(crate) server: Machine<S>,
}

impl<S: Stack> Machine<S> {
    fn new(nic: Faulty, make: &mut dyn FnMut(&mut dyn Provider) -> S) -> Self {
        let mut nic = nic;
        let stack = make(&mut nic);
        let access = AccessFlags::from_bits(7);
        let region = nic
            .allocate_region(stack.domain(), 64 * u64::from(PIECE), access)
            .unwrap();
        Self {
            nic,
            stack,
            region,
            said: Vec::new(),
            turns: 0,
            paused: false,
        }
    }

    pub(crate) fn place(&self, number: u32) -> RemoteAddress {
        RemoteAddress {
            key: self.region.remote_key,
            address: self.region.address + u64::from(number * PIECE),
        }
    }

    pub(crate) fn fill(&mut self, number: u32, byte: u8) {
        let (at, bytes) = (u64::from(number * PIECE), [byte; PIECE as usize]);
        self.nic.write_region(&self.region, at, &bytes).unwrap();
    }

    pub(crate) fn holds(&self, number: u32, byte: u8) -> bool {
        let mut bytes = [0; PIECE as usize];
        let at = u64::from(number * PIECE);
        self.nic.read_region(&self.region, at, &mut bytes).unwrap();
        bytes == [byte; PIECE as usize]
    }

    /// One run; when it wants the next.
    fn turn(&mut self, now: Time) -> (Time, bool) {
        if self.paused {
            return (Time::NEVER, false);
        }
        self.turns += 1;
        let (next, progressed) = self.stack.turn(&mut self.nic, now);
        let before = self.said.len();
        while let Some(said) = self.stack.said() {
            self.said.push(said);
        }
        (next, progressed || self.said.len() > before)
    }

    pub(crate) fn requests(&self) -> Vec<(usize, Vec<u8>)> {
        let said = self.said.iter();
        said.filter_map(|said| match said {
            Said::Request { request, body } => Some((*request, body.clone())),
            _ => None,
        })
        .collect()
    }

    pub(crate) fn replies(&self) -> Vec<(usize, Option<Vec<u8>>)> {
        let said = self.said.iter();
        said.filter_map(|said| match said {
            Said::Replied { call, body } => Some((*call, body.clone())),
            _ => None,
        })
        .collect()
    }

    /// Replies that brought something.
    pub(crate) fn answers(&self) -> Vec<(usize, Vec<u8>)> {
        let replies = self.replies().into_iter();
        replies
            .filter_map(|(call, body)| Some((call, body?)))
            .collect()
    }

    pub(crate) fn count(&self, one: &Said) -> usize {
        self.said.iter().filter(|said| *said == one).count()
    }

    pub(crate) fn queue_pairs(&self) -> usize {
        self.nic.resource_counts().queue_pairs
    }

    pub(crate) fn answer(&mut self, request: usize, body: &[u8]) {
        self.stack.reply(&mut self.nic, request, body);
    }
}

impl<S: Stack> Stage<S> {
    pub(crate) fn new(make: impl FnMut(&mut dyn Provider) -> S) -> Self {
        Self::on(Personality::IDEAL, SimNetworkConfig::default(), make)
    }

    pub(crate) fn on(
        personality: Personality,
        config: SimNetworkConfig,
        mut make: impl FnMut(&mut dyn Provider) -> S,
    ) -> Self {
        let network = SimNetwork::new(1, config);
        let mut machine = |name| {
            let nic = network.provider_with(name, personality);
            Machine::new(Faulty::new(nic), &mut make)
        };
        let (client, mut server) = (machine("client"), machine("server"));
        server.stack.listen(&mut server.nic, &sim_address());
        Self {
            network,
            client,
            server,
        }
    }

    pub(crate) fn in_time(&self, duration: Duration) -> Time {
        self.network.now() + duration
    }

    /// Both run until so much later. A run takes a microsecond of whoever spins.
    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.in_time(duration);
        while self.network.now() < end {
            let now = self.network.now();
            let client = self.client.turn(now);
            let server = self.server.turn(now);
            if client.1 || server.1 {
                continue;
            }
            let alone = self.network.next_event_time().unwrap_or(end);
            let next = client.0.min(server.0).min(alone).min(end);
            let soonest = now + Duration::from_micros(u64::from(next <= now));
            self.network.advance_to(next.max(soonest));
        }
    }

    /// One more connection, if one can be had.
    pub(crate) fn try_connect(&mut self) -> Option<usize> {
        let by = self.in_time(Duration::from_secs(1));
        let client = &mut self.client;
        let connection = client.stack.connect(&mut client.nic, &sim_address(), by)?;
        let connected = Said::Connected { connection };
        let before = self.client.count(&connected);
        self.run_for(Duration::from_millis(5));
        (self.client.count(&connected) > before).then_some(connection)
    }

    pub(crate) fn connect(&mut self) -> usize {
        self.try_connect().unwrap()
    }

    /// With the piece of this number for its reply.
    pub(crate) fn call_into(
        &mut self,
        connection: usize,
        body: &[u8],
        piece: u32,
        lasts: Duration,
    ) -> Option<usize> {
        let by = self.in_time(lasts);
        let client = &mut self.client;
        let into = client.place(piece);
        client
            .stack
            .call(&mut client.nic, connection, body, into, by)
    }

    pub(crate) fn call(
        &mut self,
        connection: usize,
        body: &[u8],
        lasts: Duration,
    ) -> Option<usize> {
        self.call_into(connection, body, 0, lasts)
    }

    /// The server's piece of this number into the client's.
    pub(crate) fn read(&mut self, connection: usize, piece: u32, lasts: Duration) -> Option<usize> {
        let operation = SendOperation::RdmaRead(self.server.place(piece));
        self.start(connection, operation, piece, lasts)
    }

    /// The client's piece of this number into the server's.
    pub(crate) fn write(
        &mut self,
        connection: usize,
        piece: u32,
        lasts: Duration,
    ) -> Option<usize> {
        let operation = SendOperation::RdmaWrite(self.server.place(piece));
        self.start(connection, operation, piece, lasts)
    }

    fn start(
        &mut self,
        connection: usize,
        operation: SendOperation,
        piece: u32,
        lasts: Duration,
    ) -> Option<usize> {
        let by = self.in_time(lasts);
        let client = &mut self.client;
        let buffer = client.region.entry(u64::from(piece * PIECE), PIECE);
        client
            .stack
            .start(&mut client.nic, connection, operation, buffer, by)
    }

    pub(crate) fn add(&self, rule: Rule) {
        self.network.faults(|faults| faults.add(rule));
    }

    pub(crate) fn number(&self, name: &str) -> usize {
        self.network.machine_number(name).unwrap()
    }
}
