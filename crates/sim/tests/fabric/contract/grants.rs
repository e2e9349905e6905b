//! Memory that a peer may use for a time, and not a moment longer.

use crate::rig::{MILLISECOND, Net, Piece, Plan, SECOND, World, config, is_refusal, link};
use legato_base::Duration;
use legato_fabric::{ConnectionId, FabricConfig, OperationId, Proof, Refused};
use legato_sim::fault::{Effect, Frequency, PacketEffect, Rule, Scope, Span};
use legato_sim::provider::Personality;
use legato_verbs::{AccessFlags, MemoryRegion, Provider, RemoteAddress, VerbsError};

const CANARY: u8 = 0xC5;
/// Twelve packets.
const LENGTH: u32 = 12 * 1024;

fn granting() -> FabricConfig {
    FabricConfig {
        grants_max: 4,
        ..config()
    }
}

fn plan(personality: Personality) -> Plan {
    Plan {
        config: granting(),
        ..Plan::both(Personality {
            careless: None,
            late_writes: None,
            ..personality
        })
    }
}

/// Memory of the right side that the left one is to use.
struct Lent {
    region: MemoryRegion,
    grant: OperationId,
    at: RemoteAddress,
}

fn region<N: Net>(world: &mut World<N>) -> MemoryRegion {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::WINDOW_BIND;
    let domain = world.right.fabric.domain();
    let nic = &mut world.right.nic;
    nic.allocate_region(domain, LENGTH.into(), access).unwrap()
}

fn try_lend<N: Net>(
    world: &mut World<N>,
    to: ConnectionId,
    region: MemoryRegion,
) -> Result<(OperationId, RemoteAddress), (Refused, Piece)> {
    let piece = Piece {
        number: 9,
        entry: region.entry(0, LENGTH),
        own: None,
    };
    let deadline = world.in_time(SECOND);
    let right = &mut world.right;
    let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    right
        .fabric
        .grant(&mut right.nic, to, piece, access, deadline)
}

fn lend<N: Net>(world: &mut World<N>, to: ConnectionId) -> Lent {
    let region = region(world);
    let (grant, at) = try_lend(world, to, region).unwrap();
    let mut outcomes = Vec::new();
    world.run_until(|world| {
        outcomes.extend(world.right.outcomes());
        !outcomes.is_empty()
    });
    assert_eq!(outcomes, [(grant, Ok(()))]);
    Lent { region, grant, at }
}

/// The left side writes all of it.
fn write<N: Net>(world: &mut World<N>, on: ConnectionId, at: RemoteAddress) -> OperationId {
    let deadline = world.in_time(Duration::from_secs(60));
    let piece = Piece {
        number: 1,
        entry: world.left.region.entry(0, LENGTH),
        own: None,
    };
    let left = &mut world.left;
    left.fabric
        .write(&mut left.nic, on, at, piece, deadline)
        .unwrap()
}

fn revoke<N: Net>(world: &mut World<N>, lent: &Lent, lasts: Duration) {
    let deadline = world.in_time(lasts);
    let right = &mut world.right;
    right
        .fabric
        .revoke(&mut right.nic, lent.grant, deadline)
        .unwrap();
}

fn fill<N: Net>(world: &mut World<N>, lent: &Lent, byte: u8) {
    let bytes = [byte; LENGTH as usize];
    world
        .right
        .nic
        .write_region(&lent.region, 0, &bytes)
        .unwrap();
}

fn holds<N: Net>(world: &World<N>, lent: &Lent, byte: u8) -> bool {
    let mut bytes = [0; LENGTH as usize];
    world
        .right
        .nic
        .read_region(&lent.region, 0, &mut bytes)
        .unwrap();
    bytes == [byte; LENGTH as usize]
}

fn end<N: Net>(mut world: World<N>, lent: &[Lent]) {
    world
        .right
        .fabric
        .disconnect_all(&mut world.right.nic)
        .unwrap();
    for one in lent {
        world.right.nic.deregister_region(&one.region).unwrap();
    }
    world.left.end();
    world.right.end();
}

/// It is given, used, taken back by the invalidation of its key alone, and given again many times, to
/// more than one window has keys.
fn comes_and_goes<N: Net>(mut world: World<N>, name: &str) {
    let (here, there) = world.connect();
    let region = region(&mut world);
    let mut keys = Vec::new();
    for round in 0..300 {
        let (grant, at) = try_lend(&mut world, there, region).unwrap();
        assert!(!keys.contains(&at.key), "{name}");
        keys.push(at.key);
        let lent = Lent { region, grant, at };
        world.run_until(|world| world.right.outcomes() == [(grant, Ok(()))]);
        let byte = round as u8 | 1;
        let bytes = [byte; LENGTH as usize];
        let left = &mut world.left;
        left.nic.write_region(&left.region, 0, &bytes).unwrap();
        let written = write(&mut world, here, at);
        world.run_until(|world| world.left.outcomes() == [(written, Ok(()))]);
        assert!(holds(&world, &lent, byte), "{name}");
        revoke(&mut world, &lent, SECOND);
        let quiet = [(grant, 9, Proof::LocalInvalidation)];
        world.run_until(|world| world.right.quiesced() == quiet);
    }
    let counters = world.right.fabric.counters();
    assert_eq!(counters.fences.local_invalidation, 300, "{name}");
    assert_eq!(counters.connections_reset, 0, "{name}");
    world.right.nic.deregister_region(&region).unwrap();
    world.ask(here, b"?");
    world.left.end();
    world.right.end();
}

#[test]
fn l_29_a_grant_comes_and_goes() {
    for personality in Personality::ALL {
        comes_and_goes(World::new(plan(personality)), personality.name);
    }
    comes_and_goes(World::roce(granting()), "roce");
}

/// P-95: a write that is on its way when the grant ends is refused at its arrival, and nothing is written.
#[test]
fn l_28_l_29_a_late_write_after_the_end_of_a_grant() {
    for personality in Personality::ALL {
        let mut world = World::new(plan(personality));
        let (here, there) = world.connect();
        let other = world.connect();
        let lent = lend(&mut world, there);
        let way = link(&world.network, "left", "right");
        let late = PacketEffect::Delay(Span::exactly(Duration::from_millis(20)));
        let late = Rule::new(Frequency::Always, Effect::Packet(late)).within(Scope::Link(way));
        let late = world.network.faults(|faults| faults.add(late));
        let written = write(&mut world, here, lent.at);
        world.run_for(MILLISECOND);
        world.network.faults(|faults| faults.end(late));
        revoke(&mut world, &lent, SECOND);
        world.run_for(MILLISECOND);
        let quiet = [(lent.grant, 9, Proof::LocalInvalidation)];
        assert_eq!(world.right.quiesced(), quiet, "{}", personality.name);
        fill(&mut world, &lent, CANARY);
        let watch = world.network.watch("right", &lent.region, 0..LENGTH.into());
        let watch = watch.unwrap();
        world.run_for(SECOND);
        assert!(!world.network.touched(watch), "{}", personality.name);
        assert!(holds(&world, &lent, CANARY), "{}", personality.name);
        let outcomes = world.left.outcomes();
        assert_eq!((outcomes.len(), outcomes[0].0), (1, written));
        let (cause, _) = outcomes[0].1.unwrap_err();
        assert!(is_refusal(cause), "{}: {cause:?}", personality.name);
        // It has cost that peer its connection, and nobody else.
        world.run_for(Duration::from_secs(12));
        assert_eq!(world.left.disconnected(), [here], "{}", personality.name);
        world.ask(other.0, b"?");
        world.left.events.clear();
        end(world, &[lent]);
    }
}

/// P-95: a grant ends between any two packets of a write: afterwards no byte changes.
#[test]
fn l_29_a_grant_that_ends_in_the_middle_of_a_write() {
    for personality in Personality::ALL {
        let mut halves = 0;
        for micros in 1..40 {
            let mut plan = plan(personality);
            // 12 us for the packets.
            plan.network.bytes_per_second = Some(1_000_000_000);
            let mut world = World::new(plan);
            let (here, there) = world.connect();
            let lent = lend(&mut world, there);
            fill(&mut world, &lent, CANARY);
            let (left, bytes) = (&mut world.left, [1; LENGTH as usize]);
            left.nic.write_region(&left.region, 0, &bytes).unwrap();
            write(&mut world, here, lent.at);
            world.run_for(Duration::from_micros(micros));
            revoke(&mut world, &lent, SECOND);
            world.run_until(|world| !world.right.quiesced().is_empty());
            let (all, none) = (holds(&world, &lent, 1), holds(&world, &lent, CANARY));
            halves += u32::from(!all && !none);
            let watch = world.network.watch("right", &lent.region, 0..LENGTH.into());
            let watch = watch.unwrap();
            world.run_for(SECOND);
            let name = personality.name;
            assert!(!world.network.touched(watch), "{name} {micros}");
            // And what is left of a connection that has ended.
            world.run_for(SECOND);
            world.left.events.clear();
            end(world, &[lent]);
        }
        assert!(halves > 0, "{}", personality.name);
    }
}

/// Another peer's connection does not reach what one was given, though it knows the key.
#[test]
fn l_29_a_grant_is_of_one_peer() {
    for personality in Personality::ALL {
        let mut world = World::new(plan(personality));
        let (_, there) = world.connect();
        let (other, _) = world.connect();
        let lent = lend(&mut world, there);
        fill(&mut world, &lent, CANARY);
        let stolen = write(&mut world, other, lent.at);
        let mut outcomes = Vec::new();
        world.run_until(|world| {
            outcomes.extend(world.left.outcomes());
            !outcomes.is_empty()
        });
        assert_eq!(outcomes[0].0, stolen);
        assert!(outcomes[0].1.is_err(), "{}", personality.name);
        world.run_for(Duration::from_secs(12));
        assert!(holds(&world, &lent, CANARY), "{}", personality.name);
        assert_eq!(world.right.quiesced(), [], "{}", personality.name);
        end(world, &[lent]);
    }
}

/// P-95: the invalidation does not complete: the connection ends at the deadline, and the grant with it.
#[test]
fn l_28_a_grant_whose_end_does_not_complete() {
    for personality in Personality::ALL {
        let mut world = World::new(plan(personality));
        let (_, there) = world.connect();
        let [first, second] = [0; 2].map(|_| lend(&mut world, there));
        world.right.nic.hold_completions = true;
        revoke(&mut world, &first, Duration::from_millis(10));
        world.run_for(Duration::from_millis(500));
        assert_eq!(world.right.quiesced(), [], "{}", personality.name);
        world.run_for(SECOND);
        let mut quiesced = world.right.quiesced();
        quiesced.sort_unstable();
        let destroyed = Proof::QueuePairDestroyed;
        let both = [(first.grant, 9, destroyed), (second.grant, 9, destroyed)];
        assert_eq!(quiesced, both, "{}", personality.name);
        assert_eq!(world.right.disconnected(), [there]);
        assert_eq!(world.right.nic.resource_counts().memory_windows, 0);
        world.right.nic.hold_completions = false;
        world.left.events.clear();
        end(world, &[first, second]);
    }
}

/// The queue pair cannot be destroyed: its windows can end all the same.
#[test]
fn l_32_grants_of_a_queue_pair_that_stays() {
    const EIO: VerbsError = VerbsError::System {
        call: "destroy",
        errno: 5,
    };
    for personality in Personality::ALL {
        let mut world = World::new(plan(personality));
        let (_, there) = world.connect();
        let lent = lend(&mut world, there);
        world.right.nic.refuse_destroys = Some(EIO);
        world.right.fabric.close(&mut world.right.nic, there);
        world.run_for(Duration::from_secs(2));
        let quiet = [(lent.grant, 9, Proof::LocalInvalidation)];
        assert_eq!(world.right.quiesced(), quiet, "{}", personality.name);
        assert_eq!(world.right.fabric.quarantine().operations, 0);
        world.right.nic.refuse_destroys = None;
        world.run_for(Duration::from_secs(12));
        world.left.events.clear();
        end(world, &[lent]);
    }
}

#[test]
fn what_is_refused_of_grants() {
    let mut world = World::new(plan(Personality::IDEAL));
    let (_, there) = world.connect();
    let lent: Vec<Lent> = (0..4).map(|_| lend(&mut world, there)).collect();
    let one_more = try_lend(&mut world, there, lent[0].region);
    assert_eq!(one_more.unwrap_err().0, Refused::WouldBlock);
    assert!(!world.right.fabric.cancel(lent[0].grant));
    // What is posted already ends it once.
    revoke(&mut world, &lent[0], SECOND);
    revoke(&mut world, &lent[0], SECOND);
    world.run_for(MILLISECOND);
    assert_eq!(world.right.quiesced().len(), 1);
    let deadline = world.in_time(SECOND);
    let right = &mut world.right;
    let again = right.fabric.revoke(&mut right.nic, lent[0].grant, deadline);
    assert_eq!(again, Err(Refused::NotConnected));
    end(world, &lent);

    let mut world = World::shm(granting());
    let (_, there) = world.connect();
    let region = world.right.region;
    let refused = try_lend(&mut world, there, region).unwrap_err().0;
    assert!(matches!(
        refused,
        Refused::Provider(VerbsError::Unsupported(_))
    ));
    world.left.end();
    world.right.end();
}
