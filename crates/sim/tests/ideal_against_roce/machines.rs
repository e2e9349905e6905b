//! Two NICs and what is between them.

use legato_base::{Duration, Time};
use legato_providers::RoceProvider;
use legato_sim::provider::{Personality, SimNetwork, SimNetworkConfig, SimProvider};
use legato_verbs::{Address, Provider};
use std::time::Instant;

/// A world that a script can be played in.
pub(crate) trait Pair {
    fn nic(&mut self, side: usize) -> &mut dyn Provider;
    /// Where the second NIC listens.
    fn address(&self) -> Address;
    /// Nothing is under way afterwards, but for what takes longer than `most`.
    fn settle(&mut self, most: Duration);
}

pub(crate) struct SimulatedPair {
    network: SimNetwork,
    nics: [SimProvider; 2],
}

impl SimulatedPair {
    pub(crate) fn new(seed: u64, personality: Personality) -> Self {
        let config = SimNetworkConfig {
            personality,
            ..SimNetworkConfig::default()
        };
        let network = SimNetwork::new(seed, config);
        Self {
            nics: ["left", "right"].map(|name| network.provider(name)),
            network,
        }
    }
}

impl Pair for SimulatedPair {
    fn nic(&mut self, side: usize) -> &mut dyn Provider {
        &mut self.nics[side]
    }

    fn address(&self) -> Address {
        Address::Sim("service".to_owned())
    }

    fn settle(&mut self, most: Duration) {
        let end = self.network.now() + most;
        while let Some(time) = self.network.next_event_time()
            && time <= end
        {
            self.network.advance_to(time);
            for nic in &mut self.nics {
                nic.progress(self.network.now());
            }
        }
    }
}

/// Between two addresses of the loopback interface.
pub(crate) struct RocePair {
    nics: [RoceProvider; 2],
    now: Time,
}

/// The system has brought by then what was sent, even where other work keeps it busy: packets that are
/// late are sent again, but only so often.
const ON_THE_WAY: std::time::Duration = std::time::Duration::from_millis(2);
/// Turns at least in which nothing may come.
const TURNS: u32 = 4;
const HOSTS: [&str; 2] = ["127.35.0.1:4791", "127.35.0.2:4791"];

impl RocePair {
    pub(crate) fn new() -> Self {
        Self {
            nics: HOSTS.map(|host| RoceProvider::open(&roce(host)).unwrap()),
            now: Time::from_nanos(1),
        }
    }

    fn received(&self) -> u64 {
        let counts = self
            .nics
            .each_ref()
            .map(|nic| nic.received().packets_received);
        counts.iter().sum()
    }

    /// Progress until no packet has come for a while. Returns when there is something to do next.
    fn calm_down(&mut self, longest: bool) -> Time {
        let mut quiet = Instant::now();
        let (mut turns, mut received) = (0, self.received());
        loop {
            // Time goes on, so that nobody waits for the clock alone.
            self.now = self.now + Duration::from_nanos(100);
            let now = self.now;
            let [left, right] = self.nics.each_mut().map(|nic| nic.progress(now));
            turns += 1;
            let deadline = left.min(right);
            if self.received() != received || deadline <= now {
                (turns, received, quiet) = (0, self.received(), Instant::now());
            } else if turns >= TURNS && (!longest || quiet.elapsed() >= ON_THE_WAY) {
                return deadline;
            }
            std::thread::yield_now();
        }
    }
}

fn roce(place: &str) -> Address {
    Address::Roce(place.parse().unwrap())
}

impl Pair for RocePair {
    fn nic(&mut self, side: usize) -> &mut dyn Provider {
        &mut self.nics[side]
    }

    fn address(&self) -> Address {
        roce(HOSTS[1])
    }

    fn settle(&mut self, most: Duration) {
        let end = self.now + most;
        loop {
            if self.calm_down(false) == Time::NEVER {
                return;
            }
            // Somebody waits for an answer, which may only be late.
            let deadline = self.calm_down(true);
            if deadline > end {
                return;
            }
            self.now = self.now.max(deadline);
        }
    }
}
