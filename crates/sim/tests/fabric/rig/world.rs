//! Two nodes and what is between them.

use super::device::DeviceNet;
use super::net::{Net, RoceNet, ShmNet, sim_address};
use super::side::{Piece, Side};
use super::{GUEST, SECOND, config, times};
use crate::faulty::{Faulty, QueueDepth};
use legato_base::secret::{Keyring, RunId, Secret, SecureRandom};
use legato_base::{Duration, Time};
use legato_fabric::{
    CallId, ConnectError, ConnectionId, FabricConfig, FabricEvent, OperationId, Refused,
};
use legato_providers::{IbverbsProvider, RoceProvider, ShmProvider};
use legato_sim::provider::{Personality, SimNetwork, SimNetworkConfig};
use legato_verbs::Address;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

/// How a simulated world is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) left: Personality,
    pub(crate) right: Personality,
    pub(crate) network: SimNetworkConfig,
    pub(crate) config: FabricConfig,
    /// The completion queues of the left side.
    pub(crate) queue_depth: QueueDepth,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: times("LEGATO_RIG_SEED", 1),
            left: Personality::IDEAL,
            right: Personality::IDEAL,
            network: SimNetworkConfig::default(),
            config: config(),
            queue_depth: QueueDepth::Asked,
        }
    }
}

impl Plan {
    /// Both with the same NIC.
    pub(crate) fn both(personality: Personality) -> Self {
        Self {
            left: personality,
            right: personality,
            ..Self::default()
        }
    }
}

/// Every process has an incarnation of its own.
pub(crate) const fn life(config: FabricConfig, incarnation: u64) -> FabricConfig {
    FabricConfig {
        incarnation,
        ..config
    }
}

/// The right side listens.
pub(crate) struct World<N: Net = SimNetwork> {
    pub(crate) network: N,
    pub(crate) left: Side<N::Nic>,
    pub(crate) right: Side<N::Nic>,
    pub(crate) address: Address,
}

impl World<SimNetwork> {
    /// On NICs as the specification says.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self::new(Plan {
            seed,
            ..Plan::default()
        })
    }

    pub(crate) fn new(plan: Plan) -> Self {
        let network = SimNetwork::new(plan.seed, plan.network);
        let left = network.provider_with("left", plan.left);
        let right = network.provider_with("right", plan.right);
        let mut left = Faulty::new(left);
        left.queue_depth = plan.queue_depth;
        let mut world = Self {
            left: Side::on(left, life(plan.config, 1)),
            right: Side::new(right, life(plan.config, 2)),
            network,
            address: sim_address(),
        };
        world.listen();
        world
    }

    /// Both sides have these secrets, if any, and prove that they know them. The configuration must separate
    /// peers.
    pub(crate) fn prove(&mut self, seed: u64, left: Option<u8>, right: Option<u8>) {
        let secret = |number: u8| Secret::new([number; 32]);
        let random = |side: u8| SecureRandom::from_seed([side ^ seed as u8; 32]);
        if let Some(number) = left {
            // A run knows its own key, and not the secret.
            let key = secret(number).key_of(RunId([5; 6]));
            self.left.fabric.prove_with(Keyring::One(key), random(1));
        }
        if let Some(number) = right {
            let keys = Keyring::All(secret(number));
            self.right.fabric.prove_with(keys, random(2));
        }
    }

    /// The right side's machine stands still, with its software.
    pub(crate) fn freeze_right(&mut self) {
        self.network.freeze("right");
        self.right.paused = true;
    }
}

/// So that tests of one process do not meet.
static PORTS: AtomicU32 = AtomicU32::new(0);

impl World<ShmNet> {
    pub(crate) fn shm(config: FabricConfig) -> Self {
        let port = PORTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("@legato-rig-{}-{port}", std::process::id());
        let mut world = Self {
            network: ShmNet {
                now: Time::from_nanos(1),
            },
            left: Side::new(ShmProvider::new().unwrap(), life(config, 1)),
            right: Side::new(ShmProvider::new().unwrap(), life(config, 2)),
            address: Address::Shm(name),
        };
        world.listen();
        world
    }
}

impl World<RoceNet> {
    pub(crate) fn roce(config: FabricConfig) -> Self {
        let world = PORTS.fetch_add(1, Ordering::Relaxed) & 0xFF;
        let place = |side: u32| {
            let process = std::process::id() & 0x7FFF;
            let host = 127 << 24 | side << 23 | process << 8 | world;
            let address: Address = format!("roce://{}", Ipv4Addr::from(host)).parse().unwrap();
            address
        };
        let [left, right] = [0, 1].map(|side| RoceProvider::open(&place(side)).unwrap());
        let mut world = Self {
            network: RoceNet::between([&left, &right]),
            left: Side::new(left, life(config, 1)),
            right: Side::new(right, life(config, 2)),
            address: place(1),
        };
        world.listen();
        world
    }
}

impl World<DeviceNet> {
    /// In the guest.
    pub(crate) fn device(config: FabricConfig) -> Self {
        let world = PORTS.fetch_add(1, Ordering::Relaxed);
        let port = 21_000 + (world & 0x3FFF) as u16;
        let address = Address::Verbs((GUEST, port).into());
        let [left, right] = [0; 2].map(|_| IbverbsProvider::open(&address).unwrap());
        let mut world = Self {
            network: DeviceNet::between([&left, &right]),
            left: Side::new(left, life(config, 1)),
            right: Side::new(right, life(config, 2)),
            address,
        };
        world.listen();
        world
    }
}

impl<N: Net> World<N> {
    pub(crate) fn listen(&mut self) {
        let right = &mut self.right;
        right.fabric.listen(&mut right.nic, &self.address).unwrap();
    }

    pub(crate) fn in_time(&self, duration: Duration) -> Time {
        self.network.now() + duration
    }

    /// One turn of both sides: when anything is due next, and whether anything happened.
    fn turn(&mut self) -> (Time, bool) {
        let now = self.network.now();
        let left = self.left.turn(now);
        let right = self.right.turn(now);
        // What the turns have posted comes before what they wait for.
        let alone = self.network.next_event_time().unwrap_or(Time::NEVER);
        let progressed = left.1 || right.1;
        if progressed {
            self.network.stirred();
        }
        (left.0.min(right.0).min(alone), progressed)
    }

    /// One turn of both sides, or one step of time. False if nothing will ever happen.
    pub(crate) fn step(&mut self) -> bool {
        let (next, progressed) = self.turn();
        if progressed {
            return true;
        }
        if next != Time::NEVER {
            self.network.advance_to(next.max(self.network.now()));
        }
        next != Time::NEVER
    }

    pub(crate) fn run_until(&mut self, done: impl FnMut(&mut Self) -> bool) {
        self.run_at_most(2_000_000, done);
    }

    /// A test that takes more steps has failed.
    pub(crate) fn run_at_most(&mut self, steps: u64, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..steps {
            if done(self) {
                return;
            }
            assert!(self.step(), "nothing happens any more");
        }
        panic!("it never happens");
    }

    /// Both sides at work until so much later.
    pub(crate) fn run_for(&mut self, duration: Duration) {
        let end = self.in_time(duration);
        while self.network.now() < end {
            let (next, progressed) = self.turn();
            if !progressed {
                self.network
                    .advance_to(next.min(end).max(self.network.now()));
            }
        }
    }

    /// The left side begins to connect to the right one.
    pub(crate) fn try_connect(&mut self, lasts: Duration) -> Result<ConnectionId, ConnectError> {
        let deadline = self.in_time(lasts);
        let left = &mut self.left;
        left.fabric
            .connect(&mut left.nic, &self.address, b"left", deadline)
    }

    /// A connection from left to right: both ends of it.
    pub(crate) fn connect(&mut self) -> (ConnectionId, ConnectionId) {
        let here = self.try_connect(SECOND).unwrap();
        let mut ends = (None, None);
        self.run_until(|world| {
            let connected = world.left.take(|event| match event {
                FabricEvent::Connected { connection, .. } => Some(*connection),
                _ => None,
            });
            ends.0 = ends.0.or(connected.first().copied());
            ends.1 = ends.1.or(world.right.accepted().first().copied());
            ends.0.is_some() && ends.1.is_some()
        });
        assert_eq!(ends.0, Some(here));
        (here, ends.1.unwrap())
    }

    pub(crate) fn try_call(
        &mut self,
        connection: ConnectionId,
        body: &[u8],
        lasts: Duration,
    ) -> Result<CallId, Refused> {
        let deadline = self.in_time(lasts);
        let left = &mut self.left;
        left.fabric.call(&mut left.nic, connection, body, deadline)
    }

    pub(crate) fn call(
        &mut self,
        connection: ConnectionId,
        body: &[u8],
        lasts: Duration,
    ) -> CallId {
        self.try_call(connection, body, lasts).unwrap()
    }

    /// From a piece of the left side to the same piece of the right.
    pub(crate) fn write(
        &mut self,
        connection: ConnectionId,
        number: u32,
        lasts: Duration,
    ) -> Result<OperationId, (Refused, Piece)> {
        let deadline = self.in_time(lasts);
        let (to, piece) = (self.right.place(number), self.left.piece(number));
        let left = &mut self.left;
        left.fabric
            .write(&mut left.nic, connection, to, piece, deadline)
    }

    /// From a piece of the right side to the same piece of the left.
    pub(crate) fn read(
        &mut self,
        connection: ConnectionId,
        number: u32,
        lasts: Duration,
    ) -> Result<OperationId, (Refused, Piece)> {
        let deadline = self.in_time(lasts);
        let (from, piece) = (self.right.place(number), self.left.piece(number));
        let left = &mut self.left;
        left.fabric
            .read(&mut left.nic, connection, from, piece, deadline)
    }

    /// Whatever was before, the next connection works, and of no connection is anything left.
    pub(crate) fn works_again_and_ends(&mut self) {
        self.left.events.clear();
        self.right.events.clear();
        let (again, _) = self.connect();
        self.ask(again, b"?");
        self.left.end();
        self.right.end();
    }

    /// A call that the right side answers at once, to the end.
    pub(crate) fn ask(&mut self, connection: ConnectionId, body: &[u8]) {
        let call = self.call(connection, body, SECOND);
        let mut replies = Vec::new();
        self.run_until(|world| {
            world.right.serve(super::answer);
            replies.extend(world.left.replies());
            !replies.is_empty()
        });
        assert_eq!(replies, [(call, Ok(super::answer(body)))]);
    }
}
