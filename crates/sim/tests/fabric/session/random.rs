//! Whatever goes wrong: a call that may be executed once is executed at most once, and every call
//! has one outcome, which is true and comes in time.

use super::chaos::Chaos;
use legato_sim::provider::Personality;

/// What happened in all runs together, so that the test is known to have seen it.
#[derive(Debug, Default)]
struct Seen {
    replied: u64,
    failed: u64,
    resent: u64,
    duplicates: u64,
    forgotten: u64,
    evicted: u64,
    crashed: u64,
}

impl Seen {
    fn run(&mut self, seed: u64, steps: u64) {
        let personality = Personality::ALL[seed as usize % Personality::ALL.len()];
        let mut chaos = Chaos::new(seed, personality);
        for step in 0..steps {
            chaos.step();
            if step % 16 == 0 {
                chaos.check_all();
            }
        }
        chaos.recover();
        for machine in &chaos.world.machines {
            let server = machine.server.counters();
            self.duplicates += server.duplicates;
            self.forgotten += server.calls_forgotten;
            self.evicted += server.clients_evicted;
            for session in &machine.sessions {
                self.replied += session.counters().calls_replied;
                self.failed += session.counters().calls_failed;
                self.resent += session.counters().calls_resent;
            }
        }
        self.crashed += chaos.crashed;
        chaos.world.end();
    }
}

#[test]
fn random_histories_execute_at_most_once_and_end_every_call_once_and_in_time() {
    let mut seen = Seen::default();
    for seed in 0..60 {
        seen.run(seed, 400);
    }
    println!("{seen:?}");
    let Seen {
        replied,
        failed,
        resent,
        duplicates,
        forgotten,
        evicted,
        crashed,
    } = seen;
    for count in [
        replied, failed, resent, duplicates, forgotten, evicted, crashed,
    ] {
        assert!(count > 0, "{seen:?}");
    }
}

/// For long runs: `SWARM_FIRST`, `SWARM_SEEDS` and `SWARM_STEPS` say how long.
#[test]
#[ignore = "takes as long as it is told to"]
fn swarm() {
    let number = |name: &str, default: u64| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let first = number("SWARM_FIRST", 1000);
    let steps = number("SWARM_STEPS", 1000);
    let mut seen = Seen::default();
    for seed in first..first + number("SWARM_SEEDS", 100) {
        println!("seed {seed}");
        seen.run(seed, steps);
    }
    println!("{seen:?}");
}
