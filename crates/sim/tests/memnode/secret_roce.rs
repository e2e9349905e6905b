//! A memory node over RoCE, and two clients that both know its secret: what one was given the other
//! cannot touch, even if it knows the key.

use legato_base::secret::{Keyring, RunId, Secret, SecureRandom};
use legato_base::wire::node::{NodeReply, NodeRequest};
use legato_base::{Bytes, ClientId, Duration, Time};
use legato_fabric::{
    Buffer, Cause, ConnectionId, Fabric, FabricConfig, FabricEvent, OperationError, ResetCause,
};
use legato_memnode::{NodeConfig, NodeServer};
use legato_providers::RoceProvider;
use legato_verbs::{
    AccessFlags, Address, CompletionStatus, MemoryRegion, Provider, RemoteAddress, RemoteKey,
    ScatterGatherEntry,
};

const LENGTH: u32 = 4096;

/// All of a region.
#[derive(Debug)]
struct Whole(MemoryRegion);

impl Buffer for Whole {
    fn entries(&self) -> Vec<ScatterGatherEntry> {
        vec![self.0.entry(0, LENGTH)]
    }
}

struct Node {
    provider: RoceProvider,
    server: NodeServer,
    now: Time,
}

impl Node {
    fn new(address: &Address) -> Self {
        let keys = Keyring::All(Secret::new([1; 32]));
        let mut provider = RoceProvider::open_with(address, Some(&keys)).unwrap();
        let config = NodeConfig {
            incarnation: 9,
            capacity: Bytes::mib(64),
            available: || Bytes(u64::MAX),
        };
        let mut server = NodeServer::new(&mut provider, fabric_config(9), config).unwrap();
        server.prove_with(keys, SecureRandom::from_seed([9; 32]));
        server.listen(&mut provider, address).unwrap();
        Self {
            provider,
            server,
            now: Time::from_nanos(1),
        }
    }

    fn turn(&mut self) {
        self.now = self.now + Duration::from_micros(20);
        self.server.turn(&mut self.provider, self.now);
    }
}

fn fabric_config(incarnation: u64) -> FabricConfig {
    FabricConfig {
        incarnation,
        liveness: Duration::from_secs(60),
        ..FabricConfig::default()
    }
}

struct Client {
    provider: RoceProvider,
    fabric: Fabric<Whole>,
    region: MemoryRegion,
    connection: ConnectionId,
    extent: RemoteAddress,
}

impl Client {
    /// With an extent of its own.
    fn new(node: &mut Node, address: &Address, number: u8) -> Self {
        let keys = Keyring::One(Secret::new([1; 32]).key_of(RunId([number; 6])));
        let mut provider = RoceProvider::open_towards(address, Some(&keys)).unwrap();
        let mut fabric = Fabric::new(&mut provider, fabric_config(u64::from(number))).unwrap();
        fabric.prove_with(keys, SecureRandom::from_seed([number; 32]));
        let access = AccessFlags::LOCAL_WRITE;
        let region = provider.allocate_region(fabric.domain(), LENGTH.into(), access);
        let deadline = node.now + Duration::from_secs(30);
        let connection = fabric
            .connect(&mut provider, address, &[], deadline)
            .unwrap();
        let mut client = Self {
            region: region.unwrap(),
            provider,
            fabric,
            connection,
            extent: RemoteAddress {
                key: RemoteKey(0),
                address: 0,
            },
        };
        client.until(node, |event| match event {
            FabricEvent::Connected { .. } => Some(()),
            FabricEvent::ConnectFailed { error, .. } => panic!("{error}"),
            _ => None,
        });
        let id = ClientId(u64::from(number));
        client.ask(node, NodeRequest::Open { client: id });
        let given = client.ask(node, NodeRequest::AllocateExtent { slots: 4 });
        let NodeReply::ExtentAllocated {
            remote_key: key,
            address,
            ..
        } = given
        else {
            panic!("{given:?}");
        };
        client.extent = RemoteAddress {
            key: RemoteKey(key),
            address,
        };
        client
    }

    fn until<T>(&mut self, node: &mut Node, wanted: impl Fn(FabricEvent<Whole>) -> Option<T>) -> T {
        for _ in 0..1_000_000 {
            self.fabric.turn(&mut self.provider, node.now);
            while let Some(event) = self.fabric.poll_event() {
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
            node.turn();
        }
        panic!("it never happens");
    }

    fn ask(&mut self, node: &mut Node, request: NodeRequest) -> NodeReply {
        let deadline = node.now + Duration::from_secs(30);
        let body = request.to_bytes();
        let called = self
            .fabric
            .call(&mut self.provider, self.connection, &body, deadline);
        called.unwrap();
        let reply = self.until(node, |event| match event {
            FabricEvent::Replied { outcome, .. } => Some(outcome.unwrap()),
            _ => None,
        });
        NodeReply::parse(&reply).unwrap()
    }

    /// Writes bytes somewhere at the node.
    fn write(
        &mut self,
        node: &mut Node,
        to: RemoteAddress,
        byte: u8,
    ) -> Result<(), OperationError> {
        let bytes = vec![byte; LENGTH as usize];
        self.provider.write_region(&self.region, 0, &bytes).unwrap();
        let deadline = node.now + Duration::from_secs(30);
        let buffer = Whole(self.region);
        let (connection, provider) = (self.connection, &mut self.provider);
        let started = self
            .fabric
            .write(provider, connection, to, buffer, deadline);
        started.unwrap();
        self.outcome(node)
    }

    fn read(&mut self, node: &mut Node, from: RemoteAddress) -> Result<Vec<u8>, OperationError> {
        let deadline = node.now + Duration::from_secs(30);
        let buffer = Whole(self.region);
        let (connection, provider) = (self.connection, &mut self.provider);
        let started = self
            .fabric
            .read(provider, connection, from, buffer, deadline);
        started.unwrap();
        self.outcome(node)?;
        let mut bytes = vec![0; LENGTH as usize];
        self.provider
            .read_region(&self.region, 0, &mut bytes)
            .unwrap();
        Ok(bytes)
    }

    fn outcome(&mut self, node: &mut Node) -> Result<(), OperationError> {
        self.until(node, |event| match event {
            FabricEvent::Outcome { outcome, .. } => Some(outcome),
            _ => None,
        })
    }
}

/// The node's NIC says no, and nothing else does.
#[track_caller]
fn expect_refused(result: Result<(), OperationError>) {
    let status = CompletionStatus::RemoteAccess;
    match result.unwrap_err().cause {
        Cause::Completion(found) | Cause::Reset(ResetCause::Transport(found)) => {
            assert_eq!(found, status);
        }
        other => panic!("{other}"),
    }
}

// P-81
#[test]
fn what_one_client_was_given_no_other_can_touch_though_it_knows_the_key() {
    for (kind, port) in [("roce", 20_401), ("roce+tcp", 20_402)] {
        let address: Address = format!("{kind}://127.0.0.1:{port}").parse().unwrap();
        let mut node = Node::new(&address);
        let mut owner = Client::new(&mut node, &address, 1);
        let extent = owner.extent;
        owner.write(&mut node, extent, 7).unwrap();
        for writes in [true, false] {
            let mut thief = Client::new(&mut node, &address, 2 + u8::from(writes));
            assert_ne!(thief.extent.key, extent.key);
            let own = thief.extent;
            thief.write(&mut node, own, 8).unwrap();
            let stolen = match writes {
                true => thief.write(&mut node, extent, 9),
                false => thief.read(&mut node, extent).map(drop),
            };
            expect_refused(stolen);
        }
        // It goes on undisturbed.
        let bytes = owner.read(&mut node, extent).unwrap();
        assert_eq!(bytes, [7; LENGTH as usize]);
        let counters = node.server.fabric_counters();
        assert_eq!(
            (counters.connections_established, counters.proofs_wrong),
            (3, 0)
        );
    }
}

// P-82
#[test]
fn nobody_guesses_the_keys_of_a_nic_from_those_of_another() {
    let place: Address = "roce://127.0.0.1:0".parse().unwrap();
    let keys = || {
        let mut provider = RoceProvider::open(&place).unwrap();
        let domain = provider.create_protection_domain().unwrap();
        let mut key = || {
            let region = provider.allocate_region(domain, 4096, AccessFlags::LOCAL_WRITE);
            region.unwrap().remote_key.0
        };
        [key(), key(), key(), key()]
    };
    let (one, other) = (keys(), keys());
    assert_ne!(one, other);
    let distances = |keys: [u32; 4]| [1, 2, 3].map(|n: usize| keys[n].wrapping_sub(keys[n - 1]));
    assert_ne!(distances(one), distances(other));
}
