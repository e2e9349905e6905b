//! The conformance suite on a pair of shm providers in one process.

use legato_base::{Duration, Time};
use legato_providers::ShmProvider;
use legato_verbs::conformance::{Advance, Facts, Side, World, run};
use legato_verbs::{Address, Provider};
use std::sync::atomic::{AtomicU32, Ordering};

/// Both providers run in this thread and the kernel delivers at once, so time can be virtual.
struct ShmWorld {
    left: ShmProvider,
    right: ShmProvider,
    now: Time,
    wait_until: Time,
}

const STEP: Duration = Duration::from_millis(1);
/// Everything that the provider waits for is over after 5 s (the connect timeout).
const BOUND: Duration = Duration::from_secs(6);
/// Longer than the wait for a receive, in steps.
const SETTLE_STEPS: u32 = 120;

static ADDRESSES: AtomicU32 = AtomicU32::new(0);

impl ShmWorld {
    fn new() -> Self {
        Self {
            left: ShmProvider::new().unwrap(),
            right: ShmProvider::new().unwrap(),
            now: Time::ZERO,
            wait_until: Time::ZERO,
        }
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        self.left.progress(self.now);
        self.right.progress(self.now);
    }
}

impl World for ShmWorld {
    fn left(&mut self) -> &mut dyn Provider {
        &mut self.left
    }

    fn right(&mut self) -> &mut dyn Provider {
        &mut self.right
    }

    fn fresh_address(&mut self, _: Side) -> Address {
        let number = ADDRESSES.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        // Both kinds of name in turn.
        if number.is_multiple_of(2) {
            Address::Shm(format!("@legato-conformance-{process}-{number}"))
        } else {
            let path = std::env::temp_dir().join(format!("legato-{process}-{number}.sock"));
            Address::Shm(path.to_str().unwrap().to_string())
        }
    }

    fn begin_wait(&mut self) {
        self.wait_until = self.now + BOUND;
    }

    fn advance(&mut self) -> Advance {
        self.step();
        if self.now >= self.wait_until {
            Advance::Exhausted
        } else {
            Advance::Stepped
        }
    }

    fn settle(&mut self) {
        for _ in 0..SETTLE_STEPS {
            self.step();
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            refused_write_may_be_partial: false,
            cycles: 500,
            ..Facts::IDEAL
        }
    }
}

// P-38
#[test]
fn the_shm_provider_keeps_every_rule() {
    let report = run(&mut || Box::new(ShmWorld::new()));
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert!(!report.passed.is_empty());
}
