//! What a world is like.

use super::defect::Defect;
use super::failure::{Failure, FailureKind};
use crate::provider::SimNetworkConfig;
use legato_base::{Bytes, Duration, Random, Time};

/// When pages can leave a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attaching {
    /// Sooner or later, or never.
    ByChance,
    /// When a test says so.
    ByHand,
}

/// When the pager hears what it has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registering {
    /// At once, or a turn later.
    ByChance,
    /// Not before a test says so: threads change the address space all the time.
    ByHand,
}

/// The world of a seed.
#[derive(Clone, Copy, Debug)]
pub struct WorldConfig {
    pub seed: u64,
    /// Operations of the program's threads, together.
    pub steps: u64,
    pub nodes: u32,
    pub node_capacity: Bytes,
    /// Limit of local memory.
    pub cache_pages: u64,
    /// What the program maps.
    pub memory_pages: u64,
    pub threads: usize,
    /// Of a thousand operations so many move memory.
    pub moves: u64,
    /// Whatever can go wrong does so now and then.
    pub troubled: bool,
    /// A node that dies half way through; there must be another.
    pub kill_node: Option<usize>,
    pub network: SimNetworkConfig,
    /// Draws all of the above but `seed` and `steps` from the seed, so that the two name a world.
    pub varied: bool,
    /// Now and then everything but the wires and the NICs stands still for so long.
    pub standstill: Option<Duration>,
    pub attaching: Attaching,
    pub registering: Registering,
    /// For tests of the checks themselves.
    pub defect: Option<Defect>,
}

impl Default for WorldConfig {
    /// A program four times as large as its cache, on two nodes in one rack. Lost nodes are found
    /// within milliseconds, so that the time of a run is not spent waiting.
    fn default() -> Self {
        Self {
            seed: 0,
            steps: 20_000,
            nodes: 2,
            node_capacity: Bytes::mib(64),
            cache_pages: 768,
            memory_pages: 3072,
            threads: 3,
            moves: 10,
            troubled: true,
            kill_node: None,
            network: SimNetworkConfig {
                // 4 x 4.2 ms.
                timeout: 10,
                detection_time: Some(Duration::from_millis(30)),
                ..SimNetworkConfig::default()
            },
            varied: true,
            standstill: None,
            attaching: Attaching::ByChance,
            registering: Registering::ByChance,
            defect: None,
        }
    }
}

impl WorldConfig {
    /// The world that `run` makes of this.
    pub(super) fn drawn(self) -> Self {
        if !self.varied {
            return self;
        }
        // A stream of its own: see `run`.
        let mut random = Random::from_seed(self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut one_of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        let cache_pages = one_of(&[768, 1024, 2048]);
        let nodes = one_of(&[1, 2, 3]);
        let latency = one_of(&[1, 2, 20, 200]);
        let network = SimNetworkConfig {
            latency: Duration::from_micros(latency),
            jitter: Duration::from_micros(latency * one_of(&[0, 1, 3])),
            posting_delay: Duration::from_nanos(one_of(&[100, 300, 20_000])),
            bytes_per_second: Some(one_of(&[12_500_000_000, 1_000_000_000, 200_000_000])),
            ..self.network
        };
        Self {
            nodes: nodes as u32,
            cache_pages,
            memory_pages: cache_pages * one_of(&[2, 3, 5]),
            threads: one_of(&[1, 2, 3, 4]) as usize,
            moves: one_of(&[10, 10, 20, 40]),
            kill_node: (nodes > 1 && one_of(&[0, 1, 2]) == 0).then_some(0),
            // Another stream: what is drawn above names the worlds that have failed before.
            troubled: self.troubled && Random::from_seed(!self.seed).ratio(2, 3),
            standstill: [
                None,
                Some(Duration::from_secs(10)),
                Some(Duration::from_secs(3600)),
            ][random.below(3) as usize],
            network,
            varied: false,
            ..self
        }
    }

    pub(super) const fn failure(&self, at: Time, kind: FailureKind) -> Failure {
        Failure {
            seed: self.seed,
            steps: self.steps,
            at,
            kind,
        }
    }
}
