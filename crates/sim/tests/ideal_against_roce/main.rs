//! V-23: the same verbs on two simulated ideal NICs and on two software RoCE NICs with real sockets
//! give the same answers, completions, events, states and memory.
//!
//! A script follows from a seed alone, never from what came of its steps. After each step both worlds
//! go on until nothing is under way. Time is virtual in both.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

mod machines;
mod play;
mod script;
mod side;

use legato_sim::provider::Personality;
use machines::{RocePair, SimulatedPair};
use play::play;
use script::Script;
use std::collections::BTreeMap;

const SEEDS: u64 = 40;
const STEPS: usize = 80;
/// Lines of a transcript that are shown before the first that differs.
const SHOWN: usize = 40;

/// How often something was seen: that the scripts reach it.
type Seen = BTreeMap<String, u64>;

fn count(seen: &mut Seen, transcript: &[String]) {
    for line in transcript {
        for kind in ["Ok(", "Err(", "Async(", "Connection("] {
            for (place, _) in line.match_indices(kind) {
                let name = &line[place + kind.len()..];
                let end = name.find([' ', ')', '(', ',']).unwrap_or(name.len());
                let name = format!("{kind}{}", &name[..end]);
                *seen.entry(name).or_default() += 1;
            }
        }
    }
}

fn compare(seed: u64, seen: &mut Seen) {
    let script = Script::of_seed(seed, STEPS);
    let ideal = play(&script, &mut SimulatedPair::new(seed, Personality::IDEAL));
    let roce = play(&script, &mut RocePair::new());
    let differs = ideal
        .iter()
        .zip(&roce)
        .position(|(one, other)| one != other);
    if let Some(place) = differs {
        let before = ideal[place.saturating_sub(SHOWN)..place].join("\n");
        panic!(
            "seed {seed}, after\n{before}\nideal: {}\nroce:  {}",
            ideal[place], roce[place]
        );
    }
    assert_eq!(ideal.len(), roce.len(), "seed {seed}");
    count(seen, &ideal);
}

#[test]
fn v23_the_same_calls_on_the_ideal_nic_and_on_roce() {
    let mut seen = Seen::new();
    for seed in 0..SEEDS {
        compare(seed, &mut seen);
    }
    println!("{seen:#?}");
    for name in [
        "Ok(Send",
        "Ok(Receive",
        "Ok(RdmaWrite",
        "Ok(RdmaRead",
        "Ok(CompareAndSwap",
        "Ok(FetchAndAdd",
        "Ok(BindWindow",
        "Ok(ReceiveWithImmediate",
        "Ok(ReceiveRdmaWithImmediate",
        "Err(LocalLength",
        "Err(LocalProtection",
        "Err(RemoteAccess",
        "Err(RemoteInvalidRequest",
        "Err(RetryExceeded",
        "Err(ReceiverNotReadyRetryExceeded",
        "Err(WorkRequestFlushed",
        "Err(QueueFull",
        "Err(InvalidState",
        "Async(QueuePairAccessError",
        "Async(SendQueueDrained",
        "Async(LastWorkRequestReached",
        "Async(SharedReceiveQueueLimit",
        "Connection(Established",
        "Connection(Disconnected",
        "Connection(Rejected",
    ] {
        assert!(seen.get(name) > Some(&3), "{name} is hardly reached");
    }
}

/// The comparison can fail: a device that flushes in another order, say, is told apart.
#[test]
fn v23_another_personality_is_told_apart() {
    for personality in [Personality::RXE, Personality::IWARP] {
        let differs = (0..SEEDS).any(|seed| {
            let script = Script::of_seed(seed, STEPS);
            let [ideal, other] = [Personality::IDEAL, personality]
                .map(|personality| play(&script, &mut SimulatedPair::new(seed, personality)));
            ideal != other
        });
        assert!(differs, "{}", personality.name);
    }
}
