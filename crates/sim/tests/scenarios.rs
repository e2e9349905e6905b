//! Every scenario over a few seeds; that a run can be replayed; that failures are found and shrunk.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

use legato_sim::fault::{Act, Action, DecisionList};
use legato_sim::scenario::{
    ALL, CREDULOUS, LOST_COMPLETION, Options, Scenario, TOY, UNFENCED, explain, find,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime};

/// How long new seeds are tried.
const BATCH: Duration = Duration::from_secs(15);
/// Runs that shrinking may take.
const BUDGET: u32 = 150;

fn options(scenario: &Scenario, seed: u64, personality: Option<&'static str>) -> Options {
    Options {
        personality,
        // The world of the whole product is in `seeds.rs`.
        steps: scenario.steps.min(500),
        ..scenario.options(seed)
    }
}

/// Every personality under which a scenario is not known to fail.
fn expect_to_hold(name: &str, seeds: u64) {
    let scenario = find(name).unwrap();
    let personalities: Vec<_> = match scenario.personalities {
        [] => vec![None],
        _ => scenario.ordinary().map(Some).collect(),
    };
    for personality in personalities {
        for seed in 0..seeds {
            let options = options(scenario, seed, personality);
            if scenario.run(&options).violation.is_some() {
                panic!("{}", explain(scenario, &options, BUDGET).unwrap());
            }
        }
    }
}

#[test]
fn every_scenario_has_a_name_of_its_own() {
    for scenario in &ALL {
        assert_eq!(find(scenario.name).unwrap().what, scenario.what);
        assert!(scenario.what.len() < 100, "{}", scenario.name);
    }
    assert!(find("toy").is_none());
}

#[test]
fn memory() {
    expect_to_hold("memory", 2);
}

#[test]
fn traffic() {
    expect_to_hold("traffic", 3);
}

#[test]
fn weather() {
    expect_to_hold("weather", 3);
}

#[test]
fn connections() {
    expect_to_hold("connections", 3);
}

#[test]
fn partitions() {
    expect_to_hold("partitions", 3);
}

#[test]
fn one_way() {
    expect_to_hold("one-way", 3);
}

#[test]
fn completions() {
    expect_to_hold("completions", 3);
}

#[test]
fn events() {
    expect_to_hold("events", 3);
}

#[test]
fn posts() {
    expect_to_hold("posts", 3);
}

#[test]
fn removal() {
    expect_to_hold("removal", 3);
}

/// V-41
#[test]
fn v_41_a_seed_is_one_history() {
    for scenario in &ALL {
        let run = |seed| scenario.run(&options(scenario, seed, None));
        let first = run(3);
        assert_eq!(first, run(3), "{}", scenario.name);
        assert_ne!(first.trace_hash, run(4).trace_hash, "{}", scenario.name);
    }
}

#[test]
fn lines_of_history_change_nothing() {
    for name in ["weather", "partitions"] {
        let scenario = find(name).unwrap();
        let mut options = options(scenario, 1, None);
        let silent = scenario.run(&options);
        options.lines = true;
        let told = scenario.run(&options);
        assert_eq!(silent.trace_hash, told.trace_hash);
        assert_eq!(silent.decisions, told.decisions);
        assert!(silent.lines.is_empty() && !told.lines.is_empty());
    }
}

/// A sender without retransmission must be caught, and three lost packets are enough.
#[test]
fn a_broken_toy_is_caught_and_shrunk() {
    let options = TOY.options(7);
    let report = explain(&TOY, &options, BUDGET).unwrap();
    assert_eq!(report.violation.invariant, "every question is answered");
    assert_eq!(report.shrunk.decisions, 3, "{report}");
    assert!(report.shrunk.steps < report.full.steps, "{report}");
    assert!(
        report.full.decisions > 10 * report.shrunk.decisions,
        "{report}"
    );
    assert!(report.shrunk.lines < report.full.lines, "{report}");
    assert!(report.runs <= BUDGET);
    let text = report.to_string();
    assert!(text.contains("every question is answered"), "{text}");
    let replay = format!("replay with: {}", report.replay);
    assert!(text.ends_with(&replay), "{text}");
    assert!(report.replay.contains("--scenario toy --seed 7 --steps "));
}

/// The options of a command, by what it says alone.
fn options_of(command: &str) -> (&'static Scenario, Options) {
    let mut words = command.strip_prefix("legato sim ").unwrap().split(' ');
    let mut said = BTreeMap::new();
    while let (Some(option), Some(value)) = (words.next(), words.next()) {
        said.insert(option, value);
    }
    let known = [&TOY, &LOST_COMPLETION, &UNFENCED, &CREDULOUS];
    let scenario = known.into_iter().find(|it| it.name == said["--scenario"]);
    let scenario = scenario.unwrap();
    let personality = said.get("--personality").map(|&name| {
        let mut names = scenario.personalities.iter();
        *names.find(|known| **known == name).unwrap()
    });
    let only: Option<DecisionList> = said.get("--only").map(|list| list.parse().unwrap());
    let options = Options {
        steps: said["--steps"].parse().unwrap(),
        personality,
        only: only.map(|list| list.0),
        lines: true,
        ..scenario.options(said["--seed"].parse().unwrap())
    };
    (scenario, options)
}

/// Not another history that breaks the same invariant: the shortest that was found, line by line.
#[test]
fn the_replay_command_is_the_shortest_history() {
    for (scenario, seed) in [(&TOY, 7), (&LOST_COMPLETION, 1), (&UNFENCED, 0)] {
        let found = options(scenario, seed, None);
        let report = explain(scenario, &found, BUDGET).unwrap();
        assert!(report.shrunk.decisions < report.full.decisions, "{report}");
        let (scenario, options) = options_of(&report.replay);
        let replayed = scenario.run(&options);
        assert_eq!(replayed.violation.as_ref(), Some(&report.violation));
        assert_eq!(replayed.decisions, report.decisions, "{report}");
        assert_eq!(replayed.lines.len(), report.shrunk.lines, "{report}");
        let told = replayed.lines.iter().map(|line| &line.text);
        let told: BTreeSet<_> = told.collect();
        assert!(report.lines.iter().all(|line| told.contains(&line.text)));
        // And it cannot be made shorter, which the same command would say.
        let again = explain(scenario, &options, BUDGET).unwrap();
        assert_eq!(again.replay, report.replay);
        assert_eq!(again.lines, report.lines);
    }
}

/// A model that is not told of a lost completion must notice it, and one is enough.
#[test]
fn a_completion_that_never_comes_is_caught_and_shrunk() {
    let options = LOST_COMPLETION.options(1);
    let report = explain(&LOST_COMPLETION, &options, BUDGET).unwrap();
    let invariant = report.violation.invariant;
    assert!(invariant.contains("complete"), "{report}");
    assert_eq!(report.shrunk.decisions, 1, "{report}");
    assert!(report.shrunk.lines < report.full.lines, "{report}");
    assert!(
        report.decisions[0].to_string().ends_with("lost"),
        "{report}"
    );
}

/// P-57: a device that goes on writing, and a fabric that knows it; another one believes the device.
#[test]
fn l_28_buffers_that_are_written_late_are_held_back() {
    expect_to_hold("scribbler", 4);
    let found = (0..5).find_map(|seed| UNFENCED.run(&options(&UNFENCED, seed, None)).violation);
    assert_eq!(found.unwrap().invariant, "a returned buffer is not touched");
}

/// P-46: nobody says that a peer has died; a fabric that believes silence keeps its queue pairs.
#[test]
fn v_26_what_a_silent_peer_held_is_given_back() {
    expect_to_hold("silence", 2);
    let found = CREDULOUS.run(&CREDULOUS.options(0)).violation.unwrap();
    assert_eq!(found.invariant, "what a dead peer held is given back");
}

#[test]
fn mixed() {
    expect_to_hold("mixed", 10);
}

/// Found by a soak: a machine that had stood still past the deadline of a call of its own counted as late. So it
/// does in these histories.
#[test]
fn a_machine_is_not_late_for_the_time_that_it_stood_still() {
    for (name, seed, personality) in [
        ("partitions", 7, "careless"),
        ("partitions", 129, "mlx5"),
        ("mixed", 109, "hostile"),
    ] {
        let scenario = find(name).unwrap();
        let options = Options {
            steps: 90,
            personality: Some(personality),
            ..scenario.options(seed)
        };
        assert_eq!(scenario.run(&options).violation, None, "{name}");
    }
}

/// With its NIC, which then serves nobody, and without it.
#[test]
fn software_stands_still_with_its_nic_and_without() {
    for name in ["partitions", "silence", "mixed"] {
        let scenario = find(name).unwrap();
        let mut stops = 0;
        let mut freezes = 0;
        for seed in 0..8 {
            let outcome = scenario.run(&options(scenario, seed, None));
            for decision in outcome.decisions {
                match decision.action {
                    Action::Act(Act::Stop(_)) => stops += 1,
                    Action::Act(Act::Freeze(_)) => freezes += 1,
                    _ => {}
                }
            }
        }
        assert!(stops > 2, "{name}: {stops}");
        assert_eq!(freezes > 2, name != "silence", "{name}: {freezes}");
    }
}

/// Seeds that nobody has run before, for as long as this takes; a failure names its seed.
#[test]
fn mixed_on_new_seeds() {
    let scenario = find("mixed").unwrap();
    let begun = Instant::now();
    let first = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    let mut seeds = 0;
    while begun.elapsed() < BATCH {
        let options = scenario.options(first.wrapping_add(seeds));
        if scenario.run(&options).violation.is_some() {
            panic!("{}", explain(scenario, &options, BUDGET).unwrap());
        }
        seeds += 1;
    }
    // Past the harness, which shows what a test prints only if it fails.
    let _ = writeln!(
        std::io::stderr(),
        "legato sim --scenario mixed --seed {first} --seeds {seeds}: all held"
    );
}

#[test]
fn a_run_that_holds_has_no_report() {
    let calm = Options {
        only: Some(Vec::new()),
        ..TOY.options(7)
    };
    assert!(TOY.run(&calm).violation.is_none());
    assert!(explain(&TOY, &calm, BUDGET).is_none());
}
