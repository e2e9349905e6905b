//! The worlds of a fixed list of seeds.

use legato_sim::world::{Defect, FailureKind, WorldConfig, run};

const SEEDS: u64 = 250;
const STEPS: u64 = 3_000;

fn config(seed: u64) -> WorldConfig {
    WorldConfig {
        seed,
        steps: STEPS,
        ..WorldConfig::default()
    }
}

// P-20
#[test]
fn every_seed_reads_what_it_wrote() {
    let failures: Vec<_> = (0..SEEDS)
        .filter_map(|seed| run(config(seed)).err())
        .collect();
    for failure in &failures {
        println!("{failure}");
    }
    assert!(
        failures.is_empty(),
        "{} of {SEEDS} seeds failed",
        failures.len()
    );
}

/// The simulated kernel reported writes to what MADV_FREE had left before that was followed, and forgot those
/// to what was registered and not reported yet. Nothing is protected then, and nobody sees them.
#[test]
fn what_is_written_before_it_is_protected_is_found_later() {
    for (seed, steps) in [(824_170, 5_004), (855_902, 3_118)] {
        let config = WorldConfig {
            steps,
            ..config(seed)
        };
        run(config).unwrap();
    }
}

#[test]
fn a_seed_is_one_history() {
    let hash = |seed| run(config(seed)).unwrap().trace_hash;
    assert_eq!(hash(7), hash(7));
    assert_ne!(hash(7), hash(8));
}

/// True if some seed finds wrong data. Others find other things, some only after a minute of
/// virtual time in which nothing happens any more: these do not come first.
fn is_caught(defect: Defect) -> bool {
    (20..1020).any(|seed| {
        let failure = run(WorldConfig {
            defect: Some(defect),
            ..config(seed)
        })
        .err();
        failure.is_some_and(|failure| matches!(failure.kind, FailureKind::WrongData { .. }))
    })
}

#[test]
fn a_pager_that_misses_removals_is_caught() {
    assert!(is_caught(Defect::RemovalsIgnored));
}

#[test]
fn pages_that_change_on_their_way_are_caught() {
    assert!(is_caught(Defect::PagesTorn));
}

/// For long runs: `SWARM_FIRST`, `SWARM_SEEDS` and `SWARM_STEPS` say how long.
#[test]
#[ignore = "takes as long as it is told to"]
fn swarm() {
    let number = |name: &str, default: u64| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let first = number("SWARM_FIRST", 1000);
    let steps = number("SWARM_STEPS", 20_000);
    let mut failed = 0;
    for seed in first..first + number("SWARM_SEEDS", 100) {
        match run(WorldConfig {
            steps,
            ..config(seed)
        }) {
            Ok(report) if seed == first => println!("{report}"),
            Ok(_) => {}
            Err(failure) => {
                failed += 1;
                println!("{failure}");
            }
        }
    }
    assert_eq!(failed, 0, "seeds failed");
}
