//! `legato sim`, the command: what it prints, and with which status it ends.
#![allow(
    clippy::unwrap_used,
    reason = "what a test did not expect ends the test"
)]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

fn sim(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_legato"));
    command.arg("sim").args(arguments);
    command
}

/// Runs it, and checks its exit status.
fn finish(arguments: &[&str], code: i32) -> Output {
    let output = sim(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    output
}

fn stdout(arguments: &[&str], code: i32) -> String {
    String::from_utf8(finish(arguments, code).stdout).unwrap()
}

fn json(arguments: &[&str], code: i32) -> Value {
    let arguments = [arguments, &["--json"]].concat();
    serde_json::from_str(&stdout(&arguments, code)).unwrap()
}

#[test]
fn without_a_scenario_it_is_the_world_of_memory_as_before() {
    let arguments = ["--seed", "7", "--steps", "500"];
    let text = stdout(&arguments, 0);
    assert!(text.starts_with("seed 7, 500 steps: history "), "{text}");
    let value = json(&arguments, 0);
    assert_eq!(value["steps"], 500);
    let hash = value["trace_hash"].as_str().unwrap();
    assert!(text.contains(hash), "{text}");
    assert!(value["accesses"].as_u64().unwrap() > 0);
    assert!(value["counters"]["faults"].is_u64());
    let named = json(&[&arguments[..], &["--scenario", "memory"]].concat(), 0);
    assert_eq!(named["runs"][0]["trace_hash"], hash);
}

#[test]
fn the_list_names_every_scenario_in_a_line() {
    let text = stdout(&["--list"], 0);
    let list = json(&["--list"], 0);
    let list = list.as_array().unwrap();
    assert!(list.len() >= 10);
    for scenario in list {
        let (name, what) = (&scenario["name"], &scenario["what"]);
        let (name, what) = (name.as_str().unwrap(), what.as_str().unwrap());
        let found = text
            .lines()
            .any(|line| line.starts_with(&format!("{name} ")) && line.ends_with(what));
        assert!(found, "{name} is not in: {text}");
    }
    assert_eq!(list[0]["name"], "memory");
}

#[test]
fn a_seed_and_a_personality_are_one_history() {
    let arguments = [
        "--scenario",
        "traffic",
        "--seed",
        "3",
        "--steps",
        "50",
        "--personality",
        "rxe",
    ];
    let first = json(&arguments, 0);
    assert_eq!(first, json(&arguments, 0));
    let run = &first["runs"][0];
    assert_eq!(run["personality"], "rxe");
    assert_eq!(run["held"], true);
    assert!(run["counts"]["requests"].as_u64().unwrap() > 0);
    assert_eq!(first["failures"].as_array().unwrap().len(), 0);
    assert!(stdout(&arguments, 0).contains("scenario traffic, seed 3, rxe: held"));
}

#[test]
fn many_seeds_are_counted_and_their_progress_is_told() {
    let arguments = [
        "--scenario",
        "partitions",
        "--seed",
        "10",
        "--seeds",
        "3",
        "--steps",
        "20",
    ];
    let output = finish(&arguments, 0);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("3 of 3 seeds, 0 failed"), "{told}");
    let text = String::from_utf8(output.stdout).unwrap();
    let value = json(&arguments, 0);
    // Of another process, which had its memory elsewhere.
    let histories = value["histories"].as_str().unwrap();
    let expected =
        format!("scenario partitions: 3 of 3 seeds held, 0 failed, histories {histories}\n");
    assert_eq!(text, expected);
    let hashes = value["runs"].as_array().unwrap().iter().map(|run| {
        let hash = run["trace_hash"].as_str().unwrap();
        u64::from_str_radix(hash, 16).unwrap()
    });
    let sum = hashes.fold(0, u64::wrapping_add);
    assert_eq!(histories, format!("{sum:016x}"));
    let seeds: Vec<_> = value["runs"].as_array().unwrap().iter().collect();
    assert_eq!(seeds.len(), 3);
    assert_eq!(seeds[2]["seed"], 12);
}

/// A fabric that believes its NIC fails: it has a report, and the command in it leads there again.
#[test]
fn a_broken_invariant_is_reported_and_replayed() {
    let arguments = ["--scenario", "unfenced", "--seed", "0", "--seeds", "2"];
    let output = finish(&arguments, 1);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("unfenced is known to fail: "), "{told}");
    let text = String::from_utf8(output.stdout).unwrap();
    let invariant = "broken: a returned buffer is not touched";
    assert!(text.contains(invariant), "{text}");
    let replay = text
        .lines()
        .find_map(|line| line.strip_prefix("replay with: legato sim "))
        .unwrap();
    let again: Vec<_> = replay.split(' ').collect();
    assert!(replay.contains(" --only "), "{replay}");
    // The report is on the same faults, the same history, and the same command.
    let (_, report) = text.split_once("faults:\n").unwrap();
    let (report, _) = report.split_once("replay with: ").unwrap();
    let replayed = stdout(&again, 1);
    assert!(replayed.contains(invariant), "{replay}");
    assert!(replayed.contains(report), "{replayed}");
    assert!(replayed.trim_end().ends_with(replay), "{replayed}");
    let failure = &json(&again, 1)["failures"][0];
    assert_eq!(failure["invariant"], "a returned buffer is not touched");
    assert!(failure["shrunk"]["decisions"].as_u64() <= failure["full"]["decisions"].as_u64());
    assert!(!failure["history"].as_array().unwrap().is_empty());
}

#[test]
fn wrong_arguments_end_with_2() {
    for arguments in [
        &["--seed", "1", "--scenario", "happiness"][..],
        &["--seed", "1", "--personality", "mlx5"],
        &[
            "--seed",
            "1",
            "--scenario",
            "scribbler",
            "--personality",
            "ideal",
        ],
        &["--seed", "many"],
        &["--seed", "1", "--scenario", "mixed", "--only", "everything"],
        &["--seed", "1", "--scenario", "mixed", "--only", "act.1,"],
        &["--seed", "1", "--only", "act.1"],
        &[],
    ] {
        let output = finish(arguments, 2);
        assert!(output.stdout.is_empty());
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn an_interrupt_ends_it_with_what_was_done() {
    let arguments = [
        "--scenario",
        "traffic",
        "--seed",
        "0",
        "--seeds",
        "100000000",
        "--steps",
        "10",
    ];
    let mut child = sim(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    errors.read_line(&mut told).unwrap();
    assert!(told.contains(" of 100000000 seeds, 0 failed"), "{told}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    // Its pipe is read to the end, so that it cannot block on it.
    std::io::copy(&mut errors, &mut std::io::sink()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains(" of 100000000 seeds held, 0 failed, interrupted"),
        "{text}"
    );
}
