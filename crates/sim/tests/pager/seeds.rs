//! The worlds of a fixed list of seeds.

use legato_pager::PagerEvent;
use legato_sim::world::{Defect, FailureKind, Trouble, WorldConfig, run};
use std::collections::BTreeMap;

const SEEDS: u64 = 60;
/// With fewer, most of what a program maps is local still when it ends.
const STEPS: u64 = 9_000;

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
    let mut troubles = BTreeMap::new();
    let [mut fetched, mut lost, mut bus_errors] = [0; 3];
    let mut failures = Vec::new();
    for seed in 0..SEEDS {
        match run(config(seed)) {
            Ok(report) => {
                fetched += report.counters.pages_fetched;
                lost += report.counters.pages_lost;
                bus_errors += report.bus_errors;
                for (kind, count) in report.troubles {
                    *troubles.entry(kind).or_insert(0) += count;
                }
            }
            Err(failure) => failures.push(failure),
        }
    }
    for failure in &failures {
        println!("{failure}");
    }
    assert!(
        failures.is_empty(),
        "{} of {SEEDS} seeds failed",
        failures.len()
    );
    println!("{troubles:?}, {fetched} fetched, {lost} lost, {bus_errors} SIGBUS");
    assert!(fetched > 5_000 && lost > 500 && bus_errors > 500);
    for kind in Trouble::ALL {
        assert!(troubles.get(&kind) > Some(&2), "{kind:?} hardly ever came");
    }
}

/// The simulated kernel reported writes to what MADV_FREE had left before that was followed, and forgot those
/// to what was registered and not reported yet. Nothing is protected then, and nobody sees them.
#[test]
fn what_is_written_before_it_is_protected_is_found_later() {
    for (seed, steps) in [(824_170, 5_004), (855_902, 3_118)] {
        let config = WorldConfig {
            steps,
            troubled: false,
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

/// True if some seed finds it in one of these ways. Others find other things, some only after a minute of
/// virtual time in which nothing happens any more: these do not come first.
fn is_caught(defect: Defect, is_way: impl Fn(&FailureKind) -> bool) -> bool {
    (20..320).any(|seed| {
        let failure = run(WorldConfig {
            defect: Some(defect),
            ..config(seed)
        })
        .err();
        failure.is_some_and(|failure| is_way(&failure.kind))
    })
}

const fn is_wrong_data(kind: &FailureKind) -> bool {
    matches!(kind, FailureKind::WrongData { .. })
}

/// As a slot is seen by the simulation, and as the pager sees it that fetches it.
const fn is_wrong_slot(kind: &FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::WrongCopy { .. } | FailureKind::GaveUp(PagerEvent::PageRejected { .. })
    )
}

#[test]
fn a_pager_that_misses_removals_is_caught() {
    assert!(is_caught(Defect::RemovalsIgnored, is_wrong_data));
}

#[test]
fn pages_that_change_on_their_way_are_caught() {
    assert!(is_caught(Defect::PagesTorn, is_wrong_data));
    assert!(is_caught(Defect::PagesTorn, is_wrong_slot));
}

#[test]
fn zeros_in_place_of_lost_pages_are_caught() {
    assert!(is_caught(Defect::LossesForgotten, |kind| {
        is_wrong_data(kind) || matches!(kind, FailureKind::LostWithCopy { .. })
    }));
}

#[test]
fn sigbus_for_pages_that_have_a_copy_is_caught() {
    assert!(is_caught(Defect::LossesSpread, |kind| {
        matches!(kind, FailureKind::BusError { .. })
    }));
}

#[test]
fn a_node_that_is_given_up_while_it_can_be_reached_is_caught() {
    assert!(is_caught(Defect::Impatience, |kind| {
        matches!(kind, FailureKind::GivenUp { .. })
    }));
}

#[test]
fn memory_that_others_were_granted_too_is_caught() {
    assert!(is_caught(Defect::GrantedTwice, is_wrong_slot));
}

#[test]
fn slots_that_are_old_after_an_outage_are_caught() {
    assert!(is_caught(Defect::OldSlots, is_wrong_slot));
}

#[test]
fn a_nic_that_writes_into_what_was_in_quarantine_is_caught() {
    assert!(is_caught(Defect::LateWrites, |kind| {
        is_wrong_data(kind) || matches!(kind, FailureKind::Miscounted(_))
    }));
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
