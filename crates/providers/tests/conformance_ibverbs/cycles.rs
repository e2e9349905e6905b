//! V-24, V-25: what a thousand connections leave in the kernel, and what killed peers leave.

use crate::rig::{Ground, Rig, Side, at};
use crate::world::{DeviceWorld, open};
use legato_base::Random;
use legato_verbs::conformance::{Advance, World as _};
use legato_verbs::{
    CompletionStatus, ConnectionEvent, Event, Provider as _, QueuePair, QueuePairState, VerbsError,
};
use std::io::Read as _;
use std::process::{Command, Stdio};

const CYCLES: u64 = 1000;
const DEATHS: u64 = 100;
/// A peer asks within this, on an emulated processor.
const PEER_MAX: std::time::Duration = std::time::Duration::from_secs(60);
/// Where the peers that are killed connect to.
const PORT: u16 = 19_000;
/// Set for the process that is such a peer.
const PEER: &str = "LEGATO_DOOMED_PEER";

/// What the kernel counts of its RDMA objects, in the words of `rdma res show`.
fn kernel_objects() -> String {
    let output = Command::new("rdma").args(["res", "show"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// With the descriptors of this process, when the library has made what it keeps: it opens each device once.
fn objects() -> (String, usize) {
    drop(open());
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (kernel_objects(), descriptors)
}

fn exchange(rig: &mut Rig, ends: [(Side, QueuePair, &Ground); 2], cycle: u64) {
    let [(_, left, left_ground), (_, right, right_ground)] = ends;
    let message = [cycle as u8; 64];
    rig.fill(Side::Left, left_ground, &message);
    rig.receive(Side::Right, right, 7, right_ground);
    rig.send(Side::Left, left, 8, left_ground);
    let sent = rig.completions(Side::Left, left_ground.queue, 1);
    assert!(sent[0].result.is_ok(), "{sent:?}");
    let received = rig.completions(Side::Right, right_ground.queue, 1);
    assert!(received[0].result.is_ok(), "{received:?}");
    assert_eq!(rig.bytes(Side::Right, right_ground, 64 * 7), message);
}

#[test]
#[ignore = "runs in the guest: in_a_guest"]
fn v24_a_thousand_cycles_leave_nothing_in_the_kernel() {
    let before = objects();
    let mut rig = Rig::new();
    let grounds = [Side::Left, Side::Right].map(|side| (side, rig.ground(side, 64)));
    let [(_, left_ground), (_, right_ground)] = grounds;
    let mut counts = None;
    for cycle in 0..CYCLES {
        let left = rig.queue_pair(Side::Left, &left_ground);
        let right = rig.queue_pair(Side::Right, &right_ground);
        rig.on(Side::Left).modify_to_init(left).unwrap();
        rig.on(Side::Right).modify_to_init(right).unwrap();
        rig.connect(left, right);
        let ends = [
            (Side::Left, left, &left_ground),
            (Side::Right, right, &right_ground),
        ];
        exchange(&mut rig, ends, cycle);
        rig.receive(Side::Right, right, 9, &right_ground);
        rig.on(Side::Left).disconnect(left).unwrap();
        rig.disconnected(Side::Right, right);
        let flushed = rig.completions(Side::Right, right_ground.queue, 1);
        let expected = Err(CompletionStatus::WorkRequestFlushed);
        assert_eq!(flushed[0].result, expected, "cycle {cycle}");
        rig.on(Side::Left).destroy_queue_pair(left).unwrap();
        rig.on(Side::Right).destroy_queue_pair(right).unwrap();
        rig.events.iter_mut().for_each(Vec::clear);
        let now = [Side::Left, Side::Right].map(|side| rig.on(side).resource_counts());
        assert_eq!(*counts.get_or_insert(now), now, "cycle {cycle}");
    }
    for side in [Side::Left, Side::Right] {
        let counters = rig.on(side).counters();
        println!("  {counters:?}");
        assert_eq!(counters.destructions_failed, 0);
        assert_eq!(counters.time_waits_cut, 0);
    }
    drop(rig);
    assert_eq!(objects(), before);
}

/// The process that connects, sends and receives until it is killed.
#[test]
#[ignore = "v25 starts it"]
fn doomed_peer() {
    let Ok(seed) = std::env::var(PEER) else {
        return;
    };
    let mut random = Random::from_seed(seed.parse().unwrap());
    let mut rig = Rig::new();
    let ground = rig.ground(Side::Left, 64);
    let queue_pair = rig.queue_pair(Side::Left, &ground);
    rig.on(Side::Left).modify_to_init(queue_pair).unwrap();
    for wr_id in 0..8 {
        rig.receive(Side::Left, queue_pair, wr_id, &ground);
    }
    // The one who kills counts from here.
    println!("begins");
    rig.on(Side::Left)
        .connect(queue_pair, &at(PORT), &[])
        .unwrap();
    rig.established(Side::Left, queue_pair);
    loop {
        // Until the peer has no more receives, and behind that in vain.
        if random.below(2) == 0
            && rig.on(Side::Left).query_queue_pair(queue_pair) == Ok(QueuePairState::ReadyToSend)
        {
            rig.send(Side::Left, queue_pair, 50, &ground);
        }
        let mut came = Vec::new();
        let left = rig.on(Side::Left);
        left.poll_completion_queue(ground.queue, 64, &mut came)
            .unwrap();
        if rig.world.advance() == Advance::Exhausted {
            rig.world.begin_wait();
        }
    }
}

#[test]
#[ignore = "runs in the guest: in_a_guest"]
fn v25_a_hundred_killed_peers_leave_nothing() {
    let before = objects();
    let mut rig = Rig {
        world: DeviceWorld::new(),
        events: [Vec::new(), Vec::new()],
    };
    let ground = rig.ground(Side::Right, 64);
    let listener = rig.on(Side::Right).listen(&at(PORT)).unwrap();
    let idle = rig.on(Side::Right).resource_counts();
    let mut random = Random::from_seed(25);
    let (mut connected, mut early) = (0, 0);
    for cycle in 0..DEATHS {
        let mut peer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cycles::doomed_peer", "--ignored", "--nocapture"])
            .env(PEER, cycle.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = peer.stdout.take().unwrap();
        let mut heard = Vec::new();
        let mut byte = [0; 1];
        while !String::from_utf8_lossy(&heard).contains("begins") {
            assert_eq!(said.read(&mut byte).unwrap(), 1, "the peer begins");
            heard.push(byte[0]);
        }
        let steps = 1 + random.below(400);
        // Every other one lives until it has been accepted, however long that takes here.
        let queue_pair = serve(&mut rig, &ground, steps, cycle % 2 == 0, &mut peer);
        peer.wait().unwrap();
        match queue_pair {
            Some(queue_pair) => {
                connected += 1;
                rig.ended(Side::Right, queue_pair);
                rig.on(Side::Right).destroy_queue_pair(queue_pair).unwrap();
            }
            None => early += 1,
        }
        settle(&mut rig, &ground);
        let counts = rig.on(Side::Right).resource_counts();
        assert_eq!(counts, idle, "cycle {cycle}");
    }
    println!("  {connected} were connected when they died, {early} were not");
    assert!(connected >= DEATHS / 2, "the test kills too early");
    rig.on(Side::Right).close_listener(listener).unwrap();
    // Who connects now finds nothing of theirs.
    let left = rig.ground(Side::Left, 64);
    let (one, two) = (
        rig.queue_pair(Side::Left, &left),
        rig.queue_pair(Side::Right, &ground),
    );
    rig.on(Side::Left).modify_to_init(one).unwrap();
    rig.on(Side::Right).modify_to_init(two).unwrap();
    rig.connect(one, two);
    exchange(
        &mut rig,
        [(Side::Left, one, &left), (Side::Right, two, &ground)],
        77,
    );
    drop(rig);
    assert_eq!(objects(), before);
}

/// Accepts the peer if it asks, and kills it after so many steps, of which the first may be that; the
/// queue pair if the peer got so far.
fn serve(
    rig: &mut Rig,
    ground: &Ground,
    steps: u64,
    from_accept: bool,
    peer: &mut std::process::Child,
) -> Option<QueuePair> {
    let mut queue_pair = None;
    let mut done = 0;
    let begun = std::time::Instant::now();
    while done < steps {
        if !from_accept || queue_pair.is_some() {
            done += 1;
        }
        assert!(begun.elapsed() < PEER_MAX, "the peer never asks");
        rig.world.advance();
        while let Some(event) = rig.on(Side::Right).poll_event() {
            if let Event::Connection(ConnectionEvent::Requested { request, .. }) = event {
                let accepting = rig.queue_pair(Side::Right, ground);
                rig.on(Side::Right).modify_to_init(accepting).unwrap();
                for wr_id in 0..8 {
                    rig.receive(Side::Right, accepting, wr_id, ground);
                }
                rig.on(Side::Right).accept(request, accepting, &[]).unwrap();
                queue_pair = Some(accepting);
            } else {
                rig.events[Side::Right as usize].push(event);
            }
        }
    }
    peer.kill().unwrap();
    queue_pair
}

/// Lets what the dead peer had asked for go by.
fn settle(rig: &mut Rig, ground: &Ground) {
    rig.world.settle();
    let mut came = Vec::new();
    let right = rig.on(Side::Right);
    right
        .poll_completion_queue(ground.queue, 64, &mut came)
        .unwrap();
    while let Some(event) = rig.on(Side::Right).poll_event() {
        if let Event::Connection(ConnectionEvent::Requested { request, .. }) = event {
            // Nobody says that it has died, but it cannot be answered.
            let rejected = rig.on(Side::Right).reject(request, &[]);
            assert!(
                matches!(rejected, Ok(()) | Err(VerbsError::UnknownHandle(_))),
                "{rejected:?}"
            );
        }
    }
    rig.events.iter_mut().for_each(Vec::clear);
}

/// What is opened is closed, with nothing made.
#[test]
#[ignore = "runs in the guest: in_a_guest"]
fn openings_leave_nothing() {
    let before = objects();
    for _ in 0..20 {
        drop(open());
    }
    assert_eq!(objects(), before);
}
