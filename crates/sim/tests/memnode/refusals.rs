//! A node whose provider does not take memory back.

use legato_base::wire::node::{NodeReply, NodeRequest};
use legato_base::wire::slot::SLOT_STRIDE;
use legato_base::{Bytes, ClientId};
use legato_fabric::ConnectionId;
use legato_memnode::{Caller, MemoryNode, NodeConfig};
use legato_sim::provider::{SimNetwork, SimNetworkConfig, SimProvider};
use legato_verbs::{MemoryRegion, ProtectionDomain, Provider, VerbsError, delegate};

/// A NIC that keeps its regions as long as it is told to.
struct Keeping {
    nic: SimProvider,
    keeps: bool,
}

/// Calls the same method of what is inside.
macro_rules! nic {
    ($provider:ident.$method:ident($($argument:expr),*)) => {
        $provider.nic.$method($($argument),*)
    };
}

impl Provider for Keeping {
    delegate!(nic:
        attributes resource_counts
        create_protection_domain destroy_protection_domain
        allocate_region read_region write_region
        allocate_window next_window_key deallocate_window
        create_completion_queue create_overcommitted_completion_queue
        destroy_completion_queue poll_completion_queue arm_completion_queue
        create_shared_receive_queue destroy_shared_receive_queue post_shared_receive
        arm_shared_receive_queue query_shared_receive_queue
        create_queue_pair query_queue_pair query_attributes queue_pair_number port_address
        modify_queue_pair destroy_queue_pair prepare_remote post_send post_receive
        listen close_listener connect accept reject disconnect
        poll_event progress progress_requests set_sleeping
    );

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        match self.keeps {
            true => Err(VerbsError::Busy("region")),
            false => self.nic.deregister_region(region),
        }
    }
}

struct World {
    nic: Keeping,
    domain: ProtectionDomain,
    node: MemoryNode,
}

const SLOTS: u32 = 10;

const fn bytes(slots: u32) -> u64 {
    slots as u64 * SLOT_STRIDE as u64
}

const fn client(number: u32) -> Caller {
    Caller {
        interface: 0,
        connection: ConnectionId {
            index: number,
            generation: 1,
        },
    }
}

impl World {
    fn new() -> Self {
        let network = SimNetwork::new(1, SimNetworkConfig::default());
        let nic = network.provider("node");
        let mut nic = Keeping { nic, keeps: false };
        let domain = nic.create_protection_domain().unwrap();
        let node = MemoryNode::new(NodeConfig {
            incarnation: 77,
            capacity: Bytes(bytes(SLOTS)),
            available: || Bytes(u64::MAX),
        });
        Self { nic, domain, node }
    }

    fn ask(&mut self, caller: Caller, request: NodeRequest) -> NodeReply {
        let (node, body) = (&mut self.node, request.to_bytes());
        let reply = node.handle_request(&mut self.nic, self.domain, caller, &body);
        NodeReply::parse(&reply).unwrap()
    }

    fn open(&mut self, caller: Caller) {
        let client = ClientId(caller.connection.index.into());
        let opened = self.ask(caller, NodeRequest::Open { client });
        assert!(matches!(opened, NodeReply::Opened { .. }), "{opened:?}");
    }

    fn allocate(&mut self, caller: Caller, slots: u32) -> NodeReply {
        self.ask(caller, NodeRequest::AllocateExtent { slots })
    }
}

/// P-12: what the provider does not take back counts as used, however its client has given it up, and is
/// in no other extent.
#[test]
fn memory_that_is_not_taken_back_is_used_and_nobodys() {
    let mut world = World::new();
    let (first, second) = (client(1), client(2));
    world.open(first);
    world.open(second);
    let NodeReply::ExtentAllocated {
        extent,
        address,
        remote_key,
        ..
    } = world.allocate(first, 6)
    else {
        panic!("there is room");
    };
    world.nic.keeps = true;
    let released = world.ask(first, NodeRequest::ReleaseExtent { extent });
    assert_eq!(released, NodeReply::Released);
    let status = world.node.status();
    assert_eq!((status.extents, status.used_bytes), (0, bytes(6)));
    assert_eq!(world.node.counters().regions_quarantined, 1);
    let refused = world.allocate(second, 5);
    let no_room = NodeReply::NoRoom {
        asked_bytes: bytes(5),
        free_bytes: bytes(4),
    };
    assert_eq!(refused, no_room);
    let other = world.allocate(second, 4);
    let NodeReply::ExtentAllocated {
        address: at,
        remote_key: key,
        ..
    } = other
    else {
        panic!("{other:?}");
    };
    assert!(at + bytes(4) <= address || address + bytes(6) <= at);
    assert_ne!(key, remote_key);
    // It goes with its connection, and is as little taken back.
    world.node.handle_disconnected(&mut world.nic, second);
    let status = world.node.status();
    assert_eq!((status.extents, status.used_bytes), (0, bytes(SLOTS)));
    let refused = world.allocate(first, 1);
    assert!(matches!(refused, NodeReply::NoRoom { free_bytes: 0, .. }));
    assert_eq!(world.nic.resource_counts().memory_regions, 2);

    world.nic.keeps = false;
    let all = world.allocate(first, SLOTS);
    assert!(matches!(all, NodeReply::ExtentAllocated { .. }), "{all:?}");
    let counters = world.node.counters();
    assert_eq!(
        (counters.used_bytes, counters.regions_quarantined),
        (bytes(SLOTS), 0)
    );
    world.node.clear(&mut world.nic, 0);
    assert_eq!(world.node.counters().used_bytes, 0);
    assert_eq!(world.nic.resource_counts().memory_regions, 0);
}
