//! Connections of fabrics come and go, and peers are killed, through shared memory and over RoCE, and
//! nothing of them is left in the process. Alone in its program, because it counts what the process has.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

#[path = "fabric/faulty/mod.rs"]
#[allow(dead_code, reason = "what the fabric's other tests need")]
mod faulty;
#[path = "fabric/rig/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "what the fabric's other tests need"
)]
mod rig;

use legato_base::{Random, Time};
use legato_fabric::FabricEvent;
use legato_providers::{Pollable as _, ShmProvider};
use legato_verbs::{Address, Provider, RemoteAddress, RemoteKey, ResourceCounts};
use rig::{Net, Side, World, answer, config, cycles, life, times};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

/// What counts the process has it to itself, also where tests are threads.
static ALONE: Mutex<()> = Mutex::new(());

/// Objects of both providers; then descriptors, threads and mappings of the process.
fn held<N: Net>(world: &World<N>) -> ([ResourceCounts; 2], [usize; 3]) {
    let counts = [
        world.left.nic.resource_counts(),
        world.right.nic.resource_counts(),
    ];
    let entries = |path| std::fs::read_dir(path).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // Those of segments: the allocator's own come and go.
    let segments = maps.lines().filter(|line| line.contains("/memfd:")).count();
    let process = [
        entries("/proc/self/fd"),
        entries("/proc/self/task"),
        segments,
    ];
    (counts, process)
}

fn leave_nothing<N: Net>(mut world: World<N>) {
    let is_soak = std::env::var("LEGATO_TEST_SOAK").is_ok_and(|value| value == "1");
    cycles(&mut world, if is_soak { 10_000 } else { 2_000 }, held);
    world.left.end();
    world.right.end();
}

#[test]
fn v_24_cycles_leave_nothing_in_the_process() {
    let _alone = ALONE.lock().unwrap();
    leave_nothing(World::shm(config()));
    leave_nothing(World::roce(config()));
}

/// Where the peer that is to be killed connects to, and the key and the address of a region there.
const PEER_OF: &str = "LEGATO_TEST_PEER_OF";

/// Calls, writes and reads until it is killed.
#[test]
#[ignore = "is a process of v_25, which kills it"]
fn a_peer_until_it_is_killed() {
    let Ok(said) = std::env::var(PEER_OF) else {
        return;
    };
    let words: Vec<_> = said.split(' ').collect();
    let address = Address::Shm(words[0].to_owned());
    let at = RemoteAddress {
        key: RemoteKey(words[1].parse().unwrap()),
        address: words[2].parse().unwrap(),
    };
    let life = life(config(), u64::from(std::process::id()));
    let mut side = Side::new(ShmProvider::new().unwrap(), life);
    let begun = Instant::now();
    let never = Time::NEVER;
    let connected = side.fabric.connect(&mut side.nic, &address, b"", never);
    let here = connected.unwrap();
    loop {
        turn(&mut side, begun);
        // Whatever is refused is tried again.
        let _ = side.fabric.call(&mut side.nic, here, b"?", never);
        let (first, second) = (side.piece(1), side.piece(2));
        let _ = side.fabric.write(&mut side.nic, here, at, first, never);
        let _ = side.fabric.read(&mut side.nic, here, at, second, never);
        let ended = |event: &FabricEvent<_>| matches!(event, FabricEvent::Disconnected { .. });
        assert!(!side.events.iter().any(ended), "who kills ends first");
        side.events.clear();
    }
}

/// A turn, and if nothing came of it, a wait for whatever comes next.
fn turn(side: &mut Side<ShmProvider>, begun: Instant) -> bool {
    let nanos = begun.elapsed().as_nanos() as u64;
    let progressed = side.turn(Time::from_nanos(1 + nanos)).1;
    if !progressed && side.nic.set_sleeping(true) {
        let mut descriptors = Vec::new();
        side.nic.nic.descriptors(&mut descriptors);
        let polled = descriptors.iter();
        let mut polled: Vec<_> = polled.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        poll(&mut polled, Some(&moment)).unwrap();
        side.nic.set_sleeping(false);
    }
    progressed
}

fn shm_name(address: &Address) -> &str {
    match address {
        Address::Shm(name) => name,
        _ => unreachable!("the world is of shared memory"),
    }
}

fn start(place: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_peer_until_it_is_killed", "--ignored"])
        .env(PEER_OF, place)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn v_25_peers_that_are_killed_leave_nothing_in_the_process() {
    let _alone = ALONE.lock().unwrap();
    let mut world = World::shm(config());
    let begun = Instant::now();
    let at = world.right.place(1);
    let place = format!("{} {} {}", shm_name(&world.address), at.key.0, at.address);
    let (mut before, mut served) = (None, 0);
    let mut random = Random::from_seed(25);
    for death in 0..times("LEGATO_DEATHS", 250) {
        let mut peer = start(&place);
        // From before its first step on.
        let mut left = random.below(60);
        while left > 0 {
            left -= u64::from(turn(&mut world.right, begun));
            served += world.right.serve(answer);
            assert_eq!(peer.try_wait().unwrap(), None, "it ended by itself");
        }
        peer.kill().unwrap();
        peer.wait().unwrap();
        let end = Instant::now() + std::time::Duration::from_secs(60);
        while world.right.nic.resource_counts().queue_pairs > 0 || turn(&mut world.right, begun) {
            turn(&mut world.right, begun);
            assert!(Instant::now() < end, "a queue pair of the dead is left");
        }
        world.right.events.clear();
        // What the first one has left, such as the allocator's, is left once.
        let held = held(&world);
        assert_eq!(*before.get_or_insert(held), held, "death {death}");
    }
    assert!(served > 0);
    world.left.end();
    world.right.end();
}
