//! Buffers that are slices of regions: they move into operations and come back with their bytes.

use legato_base::{Duration, Time};
use legato_fabric::{
    Buffer as _, ConnectionId, Fabric, FabricConfig, FabricEvent, NoBuffer, Proof, Region,
    RegionSlice,
};
use legato_sim::provider::{SimNetwork, SimNetworkConfig, SimProvider};
use legato_verbs::{
    AccessFlags, Address, Provider as _, RemoteAddress, ResourceCounts, VerbsError,
};

const LENGTH: u64 = 4096;
const HALF: u64 = LENGTH / 2;
const LOCAL: AccessFlags = AccessFlags::LOCAL_WRITE;

/// A network, the side that is tested, and a peer that lets everything happen.
struct Network {
    network: SimNetwork,
    nic: SimProvider,
    peer: (SimProvider, Fabric<NoBuffer>),
}

impl Network {
    fn new() -> Self {
        let network = SimNetwork::new(1, SimNetworkConfig::default());
        let mut nic = network.provider("right");
        let mut fabric = Fabric::new(&mut nic, FabricConfig::default()).unwrap();
        fabric.listen(&mut nic, &Self::address()).unwrap();
        Self {
            nic: network.provider("left"),
            peer: (nic, fabric),
            network,
        }
    }

    fn address() -> Address {
        Address::Sim("port".to_owned())
    }

    /// A region of the peer's that may be read and written.
    fn peer_region(&mut self) -> Region {
        let access = LOCAL | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        let (nic, fabric) = &mut self.peer;
        Region::allocate(nic, fabric.domain(), LENGTH, access).unwrap()
    }

    fn connect(&mut self, fabric: &mut Fabric<RegionSlice<'_>>) -> ConnectionId {
        let address = Self::address();
        let deadline = self.soon();
        let connected = fabric.connect(&mut self.nic, &address, &[], deadline);
        let connected = connected.unwrap();
        let event = self.next(fabric);
        assert!(matches!(event, FabricEvent::Connected { .. }), "{event:?}");
        connected
    }

    fn soon(&self) -> Time {
        self.network.now() + Duration::from_secs(1)
    }

    /// The next event of the tested side.
    fn next<'region>(
        &mut self,
        fabric: &mut Fabric<RegionSlice<'region>>,
    ) -> FabricEvent<RegionSlice<'region>> {
        loop {
            if let Some(event) = fabric.poll_event() {
                return event;
            }
            let now = self.network.now();
            let (nic, peer) = &mut self.peer;
            let turns = [fabric.turn(&mut self.nic, now), peer.turn(nic, now)];
            while peer.poll_event().is_some() {}
            if turns.iter().all(|turn| !turn.progressed) {
                let due = self.network.next_event_time().unwrap_or(Time::NEVER);
                let due = turns.iter().fold(due, |due, turn| due.min(turn.deadline));
                assert!(due != Time::NEVER, "nothing happens any more");
                self.network.advance_to(due.max(now));
            }
        }
    }

    /// The buffer of an operation that succeeds.
    fn finished<'region>(
        &mut self,
        fabric: &mut Fabric<RegionSlice<'region>>,
    ) -> RegionSlice<'region> {
        let event = self.next(fabric);
        let succeeded = matches!(
            event,
            FabricEvent::Outcome {
                outcome: Ok(()),
                ..
            }
        );
        assert!(succeeded, "{event:?}");
        match self.next(fabric) {
            FabricEvent::Quiesced { buffer, proof, .. } => {
                assert_eq!(proof, Proof::Completion);
                buffer
            }
            event => panic!("{event:?}"),
        }
    }
}

fn bytes(slice: &RegionSlice<'_>, nic: &SimProvider) -> Vec<u8> {
    let mut bytes = vec![0; slice.length() as usize];
    slice.read(nic, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn slices_go_through_operations_and_bring_back_their_own_bytes() {
    let mut world = Network::new();
    let mut region;
    let mut fabric = Fabric::new(&mut world.nic, FabricConfig::default()).unwrap();
    region = Region::allocate(&mut world.nic, fabric.domain(), LENGTH, LOCAL).unwrap();
    let mut target = world.peer_region();
    let (mut near, far) = target.slice().unwrap().split_at(HALF).unwrap();
    near.write(&mut world.peer.0, 0, &[7; HALF as usize])
        .unwrap();
    let connection = world.connect(&mut fabric);

    let (first, second) = region.slice().unwrap().split_at(HALF).unwrap();
    let deadline = world.soon();
    fabric
        .read(&mut world.nic, connection, near.remote(), first, deadline)
        .unwrap();
    let first = world.finished(&mut fabric);
    assert_eq!(bytes(&first, &world.nic), [7; HALF as usize]);
    assert_eq!(bytes(&second, &world.nic), [0; HALF as usize]);
    fabric
        .write(&mut world.nic, connection, far.remote(), first, deadline)
        .unwrap();
    let first = world.finished(&mut fabric);
    assert_eq!(bytes(&far, &world.peer.0), [7; HALF as usize]);

    // One operation is under way when the fabric ends, and its buffer comes back too.
    fabric
        .read(&mut world.nic, connection, near.remote(), second, deadline)
        .unwrap();
    let domain = fabric.domain();
    let events = fabric.dismantle(&mut world.nic).unwrap();
    let buffers = events.into_iter().filter_map(|event| match event {
        FabricEvent::Quiesced { buffer, .. } => Some(buffer),
        _ => None,
    });
    let [second]: [_; 1] = buffers.collect::<Vec<_>>().try_into().unwrap();
    assert_eq!([first.length(), second.length()], [HALF; 2]);
    drop((first, second, near, far));
    region.deregister(&mut world.nic).unwrap();
    world.nic.destroy_protection_domain(domain).unwrap();
    assert_eq!(world.nic.resource_counts(), ResourceCounts::default());

    let (nic, mut peer) = (&mut world.peer.0, world.peer.1);
    target.deregister(nic).unwrap();
    peer.shutdown(nic).unwrap();
    assert_eq!(nic.resource_counts(), ResourceCounts::default());
}

#[test]
fn slices_of_a_region_are_disjoint_and_reach_nothing_else() {
    let mut world = Network::new();
    let domain = world.peer.1.domain();
    let nic = &mut world.peer.0;
    let mut region = Region::allocate(nic, domain, LENGTH, LOCAL).unwrap();
    let whole = region.slice().unwrap();
    let whole = whole.split_at(LENGTH + 1).unwrap_err();
    let (mut first, mut second) = whole.split_at(100).unwrap();
    assert_eq!([first.length(), second.length()], [100, LENGTH - 100]);
    let [one] = first.entries().try_into().unwrap();
    let [other] = second.entries().try_into().unwrap();
    assert_eq!(one.address + u64::from(one.length), other.address);
    assert_eq!(
        second.remote().address,
        first.remote().address + first.length()
    );

    first.write(nic, 90, &[1; 10]).unwrap();
    second.write(nic, 0, &[2; 10]).unwrap();
    let mut seen = [0; 10];
    first.read(nic, 90, &mut seen).unwrap();
    assert_eq!(seen, [1; 10]);
    for offset in [91, 100, u64::MAX] {
        let outside = Err(VerbsError::LocalProtection);
        assert_eq!(first.read(nic, offset, &mut seen), outside);
        assert_eq!(first.write(nic, offset, &seen), outside);
    }
    let (empty, first) = first.split_at(0).unwrap();
    assert_eq!(empty.entries(), []);
    drop((empty, first, second));
    assert_eq!(region.slice().unwrap().length(), LENGTH);
    region.deregister(nic).unwrap();
}

/// P-73: operations go on when their fabric is dropped or forgotten: nobody gets their bytes, and the
/// region stays.
#[test]
fn bytes_that_were_left_in_an_operation_are_not_given_out_again() {
    for forgotten in [false, true] {
        let mut world = Network::new();
        let mut region;
        let mut fabric = Fabric::new(&mut world.nic, FabricConfig::default()).unwrap();
        region = Region::allocate(&mut world.nic, fabric.domain(), LENGTH, LOCAL).unwrap();
        let connection = world.connect(&mut fabric);
        let from = RemoteAddress {
            key: legato_verbs::RemoteKey(1),
            address: 0,
        };
        let deadline = world.soon();
        let (slice, rest) = region.slice().unwrap().split_at(HALF).unwrap();
        drop(rest);
        fabric
            .read(&mut world.nic, connection, from, slice, deadline)
            .unwrap();
        match forgotten {
            true => core::mem::forget(fabric),
            false => drop(fabric),
        }
        assert!(matches!(region.slice(), Err(VerbsError::Busy(_))));
        let (error, region) = region.deregister(&mut world.nic).unwrap_err();
        assert!(matches!(error, VerbsError::Busy(_)), "{error:?}");
        assert_eq!(region.length(), LENGTH);
        core::mem::forget(region);
    }
}

/// P-74: what the device may still write to keeps its region.
#[test]
fn a_fabric_that_holds_what_is_not_quiet_is_not_dismantled() {
    let mut world = Network::new();
    let config = FabricConfig {
        late_write_bound: Duration::from_secs(5),
        ..FabricConfig::default()
    };
    let mut region;
    let mut fabric = Fabric::new(&mut world.nic, config).unwrap();
    region = Region::allocate(&mut world.nic, fabric.domain(), LENGTH, LOCAL).unwrap();
    let connection = world.connect(&mut fabric);
    let from = RemoteAddress {
        key: legato_verbs::RemoteKey(1),
        address: 0,
    };
    let (begin, deadline) = (world.network.now(), world.soon());
    let slice = region.slice().unwrap();
    fabric
        .read(&mut world.nic, connection, from, slice, deadline)
        .unwrap();
    let (error, mut fabric) = fabric.dismantle(&mut world.nic).unwrap_err();
    assert!(matches!(error, VerbsError::Busy(_)), "{error:?}");
    let slice = loop {
        if let FabricEvent::Quiesced { buffer, .. } = world.next(&mut fabric) {
            break buffer;
        }
    };
    assert!(world.network.now() >= begin + config.late_write_bound);
    drop((fabric.dismantle(&mut world.nic).unwrap(), slice));
    region.deregister(&mut world.nic).unwrap();
}

fn drop_a_region(nic: &mut SimProvider) {
    let domain = nic.create_protection_domain().unwrap();
    drop(Region::allocate(nic, domain, LENGTH, LOCAL).unwrap());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic = "a region of 4096 bytes was dropped and is registered still"]
fn a_region_that_is_dropped_is_heard() {
    drop_a_region(&mut Network::new().nic);
}

#[test]
#[cfg(not(debug_assertions))]
fn a_region_that_is_dropped_is_counted() {
    let mut world = Network::new();
    drop_a_region(&mut world.nic);
    assert_eq!(world.nic.resource_counts().memory_regions, 1);
}
