//! A memory node and its clients on the simulated network.

use legato_base::wire::node::{NodeRefusal, NodeReply, NodeRequest, NodeStatus};
use legato_base::wire::slot::SLOT_STRIDE;
use legato_base::{Bytes, ClientId, Duration, ExtentId, Random, Time};
use legato_fabric::{
    Buffer, Cause, ConnectionId, Effect, Fabric, FabricConfig, FabricEvent, OperationError,
};
use legato_memnode::{LEFT_AVAILABLE, NodeConfig, NodeServer};
use legato_sim::provider::{SimNetwork, SimNetworkConfig, SimProvider};
use legato_verbs::{
    AccessFlags, Address, CompletionStatus, MemoryRegion, Provider, RemoteAddress, RemoteKey,
    ResourceCounts, ScatterGatherEntry,
};

struct Whole(MemoryRegion);

impl Buffer for Whole {
    fn entries(&self) -> Vec<ScatterGatherEntry> {
        vec![self.0.entry(0, self.0.length as u32)]
    }
}

struct Client {
    nic: SimProvider,
    fabric: Fabric<Whole>,
    connection: ConnectionId,
    region: MemoryRegion,
    name: ClientId,
    is_dead: bool,
}

struct World {
    network: SimNetwork,
    nic: SimProvider,
    server: NodeServer,
    /// The node's second interface, if it has one.
    second: Option<(SimProvider, NodeServer)>,
    clients: Vec<Client>,
}

/// Room for ten slots and a little more.
const CAPACITY: u64 = 10 * SLOT_STRIDE as u64 + 100;
const SECOND: Duration = Duration::from_secs(1);

fn address() -> Address {
    Address::Sim("node".to_owned())
}

fn second_address() -> Address {
    Address::Sim("second".to_owned())
}

impl World {
    fn new(seed: u64) -> Self {
        Self::of(Bytes(CAPACITY), || Bytes(u64::MAX), seed)
    }

    fn of(capacity: Bytes, available: fn() -> Bytes, seed: u64) -> Self {
        let network = SimNetwork::new(seed, SimNetworkConfig::default());
        let mut nic = network.provider("node");
        let config = NodeConfig {
            incarnation: 77,
            capacity,
            available,
        };
        let mut server = NodeServer::new(&mut nic, FabricConfig::default(), config).unwrap();
        server.listen(&mut nic, &address()).unwrap();
        Self {
            network,
            nic,
            server,
            second: None,
            clients: Vec::new(),
        }
    }

    fn with_two_interfaces(seed: u64) -> Self {
        let mut world = Self::new(seed);
        let mut nic = world.network.provider("second");
        let server = world
            .server
            .on_another(1, &mut nic, FabricConfig::default());
        let mut server = server.unwrap();
        server.listen(&mut nic, &second_address()).unwrap();
        world.second = Some((nic, server));
        world
    }

    /// A connected client on a machine of its own, which has not opened yet.
    fn connect(&mut self) -> usize {
        self.connect_to(&address())
    }

    fn connect_to(&mut self, address: &Address) -> usize {
        let number = self.clients.len();
        let mut nic = self.network.provider(&format!("client-{number}"));
        let mut fabric = Fabric::new(&mut nic, FabricConfig::default()).unwrap();
        let access = AccessFlags::LOCAL_WRITE;
        let length = SLOT_STRIDE as u64;
        let region = nic
            .allocate_region(fabric.domain(), length, access)
            .unwrap();
        let deadline = self.network.now() + SECOND;
        let connection = fabric.connect(&mut nic, address, &[], deadline).unwrap();
        self.clients.push(Client {
            nic,
            fabric,
            connection,
            region,
            name: ClientId(1000 + number as u64),
            is_dead: false,
        });
        self.wait_for(number, |event| {
            matches!(event, FabricEvent::Connected { .. }).then_some(())
        });
        number
    }

    fn open(&mut self) -> usize {
        self.open_at(&address())
    }

    fn open_at(&mut self, address: &Address) -> usize {
        let number = self.connect_to(address);
        let client = self.clients[number].name;
        let reply = self.ask(number, NodeRequest::Open { client });
        assert!(matches!(
            reply,
            NodeReply::Opened {
                incarnation: 77,
                ..
            }
        ));
        number
    }

    fn step(&mut self) {
        self.step_until(Time::NEVER);
    }

    fn step_until(&mut self, end: Time) {
        let now = self.network.now();
        let mut turns = vec![self.server.turn(&mut self.nic, now)];
        if let Some((nic, server)) = &mut self.second {
            turns.push(server.turn(nic, now));
        }
        for client in self.clients.iter_mut().filter(|client| !client.is_dead) {
            turns.push(client.fabric.turn(&mut client.nic, now));
        }
        if turns.iter().all(|turn| !turn.progressed) {
            let next = self.network.next_event_time().unwrap_or(Time::NEVER);
            let next = turns
                .iter()
                .fold(next, |next, turn| next.min(turn.deadline));
            let next = next.min(end);
            assert_ne!(next, Time::NEVER, "nothing happens any more");
            self.network.advance_to(next.max(now));
        }
    }

    fn wait_for<T>(
        &mut self,
        number: usize,
        mut pick: impl FnMut(FabricEvent<Whole>) -> Option<T>,
    ) -> T {
        for _ in 0..100_000 {
            let now = self.network.now();
            let client = &mut self.clients[number];
            client.fabric.turn(&mut client.nic, now);
            while let Some(event) = client.fabric.poll_event() {
                if let Some(picked) = pick(event) {
                    return picked;
                }
            }
            self.step();
        }
        panic!("it never happens");
    }

    fn ask_bytes(&mut self, number: usize, body: &[u8]) -> NodeReply {
        let deadline = self.network.now() + SECOND;
        let client = &mut self.clients[number];
        let asked = client
            .fabric
            .call(&mut client.nic, client.connection, body, deadline)
            .unwrap();
        self.wait_for(number, |event| match event {
            FabricEvent::Replied { call, outcome } if call == asked => {
                Some(NodeReply::parse(&outcome.unwrap()).unwrap())
            }
            _ => None,
        })
    }

    fn ask(&mut self, number: usize, request: NodeRequest) -> NodeReply {
        self.ask_bytes(number, &request.to_bytes())
    }

    fn allocate(&mut self, number: usize, slots: u32) -> (ExtentId, RemoteAddress) {
        match self.ask(number, NodeRequest::AllocateExtent { slots }) {
            NodeReply::ExtentAllocated {
                extent,
                remote_key,
                address,
                slots: granted,
            } => {
                assert_eq!(granted, slots);
                let key = RemoteKey(remote_key);
                (extent, RemoteAddress { key, address })
            }
            other => panic!("{other:?}"),
        }
    }

    /// Moves the client's slot from or to the node.
    fn transfer(
        &mut self,
        number: usize,
        far: RemoteAddress,
        write: bool,
    ) -> Result<(), OperationError> {
        let deadline = self.network.now() + SECOND;
        let client = &mut self.clients[number];
        let (nic, buffer) = (&mut client.nic, Whole(client.region));
        let fabric = &mut client.fabric;
        let started = if write {
            fabric.write(nic, client.connection, far, buffer, deadline)
        } else {
            fabric.read(nic, client.connection, far, buffer, deadline)
        };
        let started = started.map_err(|(refused, _)| refused).unwrap();
        self.wait_for(number, |event| match event {
            FabricEvent::Outcome { operation, outcome } if operation == started => Some(outcome),
            _ => None,
        })
    }

    fn close(&mut self, number: usize) {
        let client = &mut self.clients[number];
        client.fabric.close(&mut client.nic, client.connection);
        self.wait_for(number, |event| {
            matches!(event, FabricEvent::Disconnected { .. }).then_some(())
        });
    }

    fn status(&self) -> NodeStatus {
        self.server.status()
    }

    fn kill(&mut self, number: usize) {
        self.clients[number].is_dead = true;
        self.network.kill(&format!("client-{number}"));
    }

    /// Longer than it takes to find out that a peer is gone.
    fn settle(&mut self) {
        let end = self.network.now() + Duration::from_secs(100);
        while self.network.now() < end {
            self.step_until(end);
        }
    }

    fn end(mut self) {
        self.server.shutdown(&mut self.nic).unwrap();
        assert_eq!(self.nic.resource_counts(), ResourceCounts::default());
        if let Some((nic, server)) = &mut self.second {
            server.shutdown(nic).unwrap();
            assert_eq!(nic.resource_counts(), ResourceCounts::default());
        }
        let counters = self.server.counters();
        assert_eq!(counters.clients_opened, counters.clients_closed);
        assert_eq!(counters.extents_allocated, counters.extents_released);
        assert_eq!((counters.used_bytes, counters.regions_quarantined), (0, 0));
    }
}

const EMPTY: NodeStatus = NodeStatus {
    capacity_bytes: CAPACITY,
    used_bytes: 0,
    clients: 0,
    extents: 0,
};

// P-10
#[test]
fn a_node_refuses_more_than_it_has_headers_included() {
    let mut world = World::new(1);
    let client = world.open();
    let eleven = NodeRequest::AllocateExtent { slots: 11 };
    let no_room = NodeReply::NoRoom {
        asked_bytes: 11 * SLOT_STRIDE as u64,
        free_bytes: CAPACITY,
    };
    assert_eq!(world.ask(client, eleven), no_room);
    let all = NodeRequest::AllocateExtent { slots: u32::MAX };
    assert!(matches!(world.ask(client, all), NodeReply::NoRoom { .. }));
    world.allocate(client, 4);
    let (second, _) = world.allocate(client, 6);
    let one = NodeRequest::AllocateExtent { slots: 1 };
    assert!(matches!(
        world.ask(client, one),
        NodeReply::NoRoom {
            free_bytes: 100,
            ..
        }
    ));
    let release = NodeRequest::ReleaseExtent { extent: second };
    assert_eq!(world.ask(client, release), NodeReply::Released);
    let (third, _) = world.allocate(client, 6);
    assert!(third > second, "an extent's name is never given again");
    assert_eq!(world.server.counters().refused_no_room, 3);
    let NodeReply::Status(status) = world.ask(client, NodeRequest::Status) else {
        panic!("no status");
    };
    assert_eq!(status, world.status());
    assert_eq!(status.used_bytes, 10 * SLOT_STRIDE as u64);
    world.end();
}

/// Whatever it offers. The kernel would end processes to find more.
#[test]
fn a_node_leaves_the_last_of_its_machines_memory() {
    let three = || Bytes(LEFT_AVAILABLE.0 + 3 * SLOT_STRIDE as u64);
    let mut world = World::of(Bytes(CAPACITY), three, 13);
    let client = world.open();
    let four = NodeRequest::AllocateExtent { slots: 4 };
    let refused = NodeReply::Refused(NodeRefusal::OutOfMemory);
    assert_eq!(world.ask(client, four), refused);
    world.allocate(client, 3);
    assert_eq!(world.server.counters().refused_no_memory, 1);
    world.end();
}

/// As large as a pager asks for them, and nothing is written there: a simulated region is memory that nobody has
/// touched.
#[test]
fn a_node_of_sixteen_gib_gives_them_all_and_has_them_back() {
    const EXTENTS: u32 = 2048;
    const SLOTS: u32 = 2048;
    const CAPACITY: u64 = EXTENTS as u64 * SLOTS as u64 * SLOT_STRIDE as u64;
    const { assert!(CAPACITY > 16 << 30) };
    let mut world = World::of(Bytes(CAPACITY), || Bytes(u64::MAX), 16);
    let client = world.open();
    let extents: Vec<_> = (0..EXTENTS)
        .map(|_| world.allocate(client, SLOTS).0)
        .collect();
    let status = world.status();
    assert_eq!((status.used_bytes, status.extents), (CAPACITY, EXTENTS));
    let one = NodeRequest::AllocateExtent { slots: 1 };
    let full = world.ask(client, one);
    assert!(
        matches!(full, NodeReply::NoRoom { free_bytes: 0, .. }),
        "{full:?}"
    );
    for extent in extents {
        let release = NodeRequest::ReleaseExtent { extent };
        assert_eq!(world.ask(client, release), NodeReply::Released);
    }
    assert_eq!((world.status().used_bytes, world.status().extents), (0, 0));
    world.allocate(client, SLOTS);
    world.end();
}

/// One capacity, one list of extents; and what went wrong on one interface is told on the other.
#[test]
fn a_node_is_one_node_on_all_its_interfaces() {
    let mut world = World::with_two_interfaces(12);
    let (first, second) = (world.open(), world.open_at(&second_address()));
    let (near, at_near) = world.allocate(first, 6);
    let (far, at_far) = world.allocate(second, 3);
    assert_ne!(near, far);
    for (client, place) in [(first, at_near), (second, at_far)] {
        assert_eq!(world.transfer(client, place, true), Ok(()));
    }
    let slots = 4;
    let full = world.ask(first, NodeRequest::AllocateExtent { slots });
    assert!(matches!(full, NodeReply::NoRoom { .. }), "{full:?}");
    // Neither the number of a connection nor that of an extent says who somebody is.
    let release = NodeRequest::ReleaseExtent { extent: near };
    assert_eq!(world.ask(second, release), NodeReply::NotYours);
    for client in [first, second] {
        let NodeReply::Status(status) = world.ask(client, NodeRequest::Status) else {
            panic!("no status");
        };
        let expected = (2, 2, 9 * SLOT_STRIDE as u64);
        assert_eq!(
            (status.clients, status.extents, status.used_bytes),
            expected
        );
    }
    world.kill(second);
    world.settle();
    let NodeReply::Health(health) = world.ask(first, NodeRequest::Health) else {
        panic!("no health");
    };
    assert_eq!(health.connections_reset, 1);
    assert_eq!(world.status().used_bytes, 6 * SLOT_STRIDE as u64);
    assert_eq!(world.transfer(first, at_near, true), Ok(()));
    world.end();
}

// P-11
#[test]
fn an_extent_is_released_by_its_owner_and_nobody_else() {
    let mut world = World::new(2);
    let (owner, other) = (world.open(), world.open());
    let (extent, _) = world.allocate(owner, 2);
    let release = NodeRequest::ReleaseExtent { extent };
    assert_eq!(world.ask(other, release), NodeReply::NotYours);
    assert_eq!(world.status().extents, 1);
    assert_eq!(world.ask(owner, release), NodeReply::Released);
    let unknown = NodeReply::Refused(NodeRefusal::UnknownExtent);
    assert_eq!(world.ask(owner, release), unknown);
    assert_eq!(world.server.counters().refused_not_yours, 1);
    world.end();
}

// P-9
#[test]
fn nothing_is_done_for_whoever_has_not_opened_or_is_not_understood() {
    let mut world = World::new(3);
    let client = world.connect();
    let status = world.ask(client, NodeRequest::Status);
    assert_eq!(status, NodeReply::Status(EMPTY));
    let health = world.ask(client, NodeRequest::Health);
    assert!(matches!(health, NodeReply::Health(_)), "{health:?}");
    let allocate = NodeRequest::AllocateExtent { slots: 1 };
    let not_open = NodeReply::Refused(NodeRefusal::NotOpen);
    assert_eq!(world.ask(client, allocate), not_open);
    let extent = ExtentId(1);
    let release = NodeRequest::ReleaseExtent { extent };
    assert_eq!(world.ask(client, release), not_open);
    let malformed = NodeReply::Refused(NodeRefusal::Malformed);
    assert_eq!(world.ask_bytes(client, b"?"), malformed);
    let mut newer = NodeRequest::Status.to_bytes();
    newer[4] = 9;
    let mismatch = NodeReply::Refused(NodeRefusal::VersionMismatch);
    assert_eq!(world.ask_bytes(client, &newer), mismatch);
    assert_eq!(world.status(), EMPTY);
    let name = world.clients[client].name;
    let open = NodeRequest::Open { client: name };
    assert!(matches!(world.ask(client, open), NodeReply::Opened { .. }));
    assert!(matches!(world.ask(client, open), NodeReply::Opened { .. }));
    let client_other = ClientId(5);
    let again = NodeRequest::Open {
        client: client_other,
    };
    let already = NodeReply::Refused(NodeRefusal::AlreadyOpen);
    assert_eq!(world.ask(client, again), already);
    assert_eq!(world.status().clients, 1);
    world.end();
}

/// P-12: pages come back, new extents are zero, and the keys of old ones open nothing.
#[test]
fn an_extent_holds_its_pages_until_it_is_released_and_never_shows_them_again() {
    let mut world = World::new(4);
    let client = world.open();
    let (extent, far) = world.allocate(client, 10);
    let written: Vec<u8> = (0..SLOT_STRIDE).map(|n| n as u8 | 1).collect();
    let last = RemoteAddress {
        address: far.address + 9 * SLOT_STRIDE as u64,
        ..far
    };
    let region = world.clients[client].region;
    let fill = |world: &mut World, bytes: &[u8]| {
        let nic = &mut world.clients[client].nic;
        nic.write_region(&region, 0, bytes).unwrap();
    };
    let content = |world: &World| {
        let mut bytes = vec![0; SLOT_STRIDE];
        let nic = &world.clients[client].nic;
        nic.read_region(&region, 0, &mut bytes).unwrap();
        bytes
    };
    fill(&mut world, &written);
    world.transfer(client, last, true).unwrap();
    fill(&mut world, &vec![0; SLOT_STRIDE]);
    world.transfer(client, last, false).unwrap();
    assert_eq!(content(&world), written);
    let release = NodeRequest::ReleaseExtent { extent };
    assert_eq!(world.ask(client, release), NodeReply::Released);
    let (_, fresh) = world.allocate(client, 10);
    assert_ne!(fresh.key, far.key);
    world.transfer(client, fresh, false).unwrap();
    assert_eq!(content(&world), vec![0; SLOT_STRIDE]);
    let error = world.transfer(client, last, true).unwrap_err();
    let refused = Cause::Completion(CompletionStatus::RemoteAccess);
    assert_eq!((error.cause, error.effect), (refused, Effect::Unknown));
    world.end();
}

/// M-52, P-11: however a client goes, its memory is freed.
#[test]
fn everything_of_a_client_ends_with_its_connection() {
    let mut world = World::new(5);
    let (closing, dying, staying) = (world.open(), world.open(), world.open());
    for client in [closing, dying, staying] {
        world.allocate(client, 1);
        world.allocate(client, 2);
    }
    assert_eq!(world.status().used_bytes, 9 * SLOT_STRIDE as u64);
    world.close(closing);
    world.kill(dying);
    world.settle();
    let status = world.status();
    assert_eq!((status.clients, status.extents), (1, 2));
    assert_eq!(status.used_bytes, 3 * SLOT_STRIDE as u64);
    assert_eq!(world.server.counters().clients_closed, 2);
    world.allocate(staying, 7);
    world.end();
}

/// F-22, P-12 for the node: after any history the counters balance and the NIC is empty.
#[test]
fn random_histories_balance() {
    for seed in 0..20 {
        let mut random = Random::from_seed(seed);
        let mut world = World::new(seed);
        let mut alive: Vec<(usize, Vec<ExtentId>)> = Vec::new();
        for _ in 0..60 {
            let choice = random.below(10);
            if alive.is_empty() || (choice == 0 && alive.len() < 5) {
                alive.push((world.open(), Vec::new()));
                continue;
            }
            let which = random.below(alive.len() as u64) as usize;
            let client = alive[which].0;
            if choice == 1 {
                world.close(client);
                alive.swap_remove(which);
                world.settle();
            } else if choice < 7 {
                let slots = 1 + random.below(3) as u32;
                let request = NodeRequest::AllocateExtent { slots };
                match world.ask(client, request) {
                    NodeReply::ExtentAllocated { extent, .. } => alive[which].1.push(extent),
                    NodeReply::NoRoom { .. } => {}
                    other => panic!("{other:?}"),
                }
            } else if let Some(extent) = alive[which].1.pop() {
                let request = NodeRequest::ReleaseExtent { extent };
                assert_eq!(world.ask(client, request), NodeReply::Released);
            }
            let status = world.status();
            assert!(status.used_bytes <= CAPACITY);
            let extents: usize = alive.iter().map(|(_, extents)| extents.len()).sum();
            assert_eq!(
                (status.clients, status.extents),
                (alive.len() as u32, extents as u32)
            );
        }
        for (client, _) in alive {
            world.close(client);
        }
        world.settle();
        assert_eq!(world.status(), EMPTY, "seed {seed}");
        world.end();
    }
}
