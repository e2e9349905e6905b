//! Every call of libibverbs and librdmacm that the provider makes fails once: the first of its
//! function, and the second. What comes of it is a typed error that names the call and its errno, or
//! what [`outcomes`] says; it is never a panic, a hang, or something left behind.
//!
//! The libraries are a stand-in over a device in memory (`stand_in/`), so that this needs no RDMA
//! device, only a C compiler and rdma-core's headers.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

#[path = "../guest_headers/mod.rs"]
mod guest_headers;
mod outcomes;
mod run;
mod scenario;

use legato_providers::ibverbs::{IbverbsProvider, Library, SYMBOLS};
use legato_verbs::Address;
use outcomes::{can_fail, expected_outcome, may_be_left};
use run::{Fault, LIBRARY_VARIABLE, OUTCOME, Report, StandIn};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where the scenario listens. The stand-in has the address.
const ADDRESS: &str = "verbs://127.0.0.1:7471";
/// An errno that nothing treats in a way of its own (E2BIG).
const ERRNO: i32 = 7;
const FOR_EVER: u64 = 1 << 40;
/// `RDMA_CM_EVENT_ESTABLISHED`: the word to the acceptor. Data that comes stands for it.
const ESTABLISHED: u32 = 9;

/// One run, in the process that `StandIn::run` starts.
#[test]
#[ignore = "`StandIn::run` runs it, with the library in the environment"]
fn the_scenario() {
    let library = PathBuf::from(std::env::var_os(LIBRARY_VARIABLE).expect(LIBRARY_VARIABLE));
    let address: Address = ADDRESS.parse().unwrap();
    let library = Library::open_at(&library, &library).unwrap();
    let open = || IbverbsProvider::open_with(&library, &address);
    match scenario::run(open, &address) {
        Ok(()) => println!("\n{OUTCOME}done"),
        Err(ended) => println!("\n{OUTCOME}{ended:?}"),
    }
}

/// What is left, but for these kinds, and what was done that must never be.
fn dirt(report: &Report, may_be_left: &[&str]) -> Vec<String> {
    let is_too_much = |kind: &str| !may_be_left.contains(&kind);
    let left = report.left.iter().filter(|(kind, _)| is_too_much(kind));
    let left = left.map(|(kind, count)| format!("{count} {kind} left"));
    left.chain(report.violations.iter().cloned()).collect()
}

#[track_caller]
fn expect_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}\n", wrong.join("\n"));
}

#[test]
fn the_scenario_comes_to_its_end() {
    let Some(stand_in) = StandIn::compile("end") else {
        return;
    };
    let report = stand_in.run(&Fault::none());
    assert_eq!(report.outcome, "done", "{report:?}");
    expect_none(&dirt(&report, &[]));
}

/// A symbol that the scenario does not call cannot fail in it.
#[test]
fn the_scenario_calls_every_function_of_the_table() {
    let Some(stand_in) = StandIn::compile("table") else {
        return;
    };
    let mut calls = stand_in.run(&Fault::none()).calls;
    calls.extend(stand_in.run(&Fault::silent(ESTABLISHED)).calls);
    let all = SYMBOLS.iter().map(|(_, symbol)| symbol);
    let missing = all.filter(|symbol| !calls.contains_key(**symbol));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "never called: {missing:?}");
}

#[test]
fn every_call_may_fail() {
    let Some(stand_in) = StandIn::compile("calls") else {
        return;
    };
    let usual = stand_in.run(&Fault::none()).calls;
    let after_a_loss = stand_in.run(&Fault::silent(ESTABLISHED)).calls;
    let calls_in = |calls: &BTreeMap<String, u64>| -> Vec<(String, u64)> {
        let calls = calls.iter();
        calls
            .flat_map(|(function, &count)| (1..=count.min(2)).map(|call| (function.clone(), call)))
            .collect()
    };
    let mut wrong = Vec::new();
    for (function, call) in calls_in(&usual) {
        let fault = Fault::of(&function, call, ERRNO, 1);
        wrong.extend(one_failure(&stand_in, &function, call, &fault));
    }
    for (function, call) in calls_in(&after_a_loss) {
        if usual.contains_key(&function) {
            continue;
        }
        let fault = Fault::of(&function, call, ERRNO, 1).and(Fault::silent(ESTABLISHED));
        wrong.extend(one_failure(&stand_in, &function, call, &fault));
    }
    expect_none(&wrong);
}

/// What came of it that should not.
fn one_failure(stand_in: &StandIn, function: &str, call: u64, fault: &Fault) -> Vec<String> {
    let mut wrong = Vec::new();
    let report = stand_in.run(fault);
    if report.failed != u64::from(can_fail(function)) {
        wrong.push(format!("{} failed", report.failed));
    }
    let expected = expected_outcome(function, call, ERRNO);
    if !expected.contains(&report.outcome) {
        wrong.push(format!("{} and not {expected:?}", report.outcome));
    }
    wrong.extend(dirt(&report, may_be_left(function)));
    let what = format!("call {call} of {function}: ");
    wrong.iter().map(|text| format!("{what}{text}")).collect()
}

/// A device whose every call of one kind fails is not waited for, and nothing of it is used wrongly.
#[test]
fn a_function_that_never_works_holds_nobody_up() {
    let Some(stand_in) = StandIn::compile("never") else {
        return;
    };
    let calls = stand_in.run(&Fault::none()).calls;
    let mut wrong = Vec::new();
    for function in calls.keys().filter(|function| can_fail(function)) {
        let report = stand_in.run(&Fault::of(function, 1, ERRNO, FOR_EVER));
        let is_end = outcomes::AT_THE_END.contains(&function.as_str());
        if (report.outcome == "done") != is_end {
            wrong.push(format!("{function}: {}", report.outcome));
        }
        let dirt = dirt(&report, may_be_left(function));
        wrong.extend(dirt.iter().map(|dirt| format!("{function}: {dirt}")));
    }
    expect_none(&wrong);
}

/// P-58. Lost: a queue pair whose destruction had failed was forgotten, and the second try was answered as if it
/// had been destroyed: its buffers were given back while the device could reach them.
#[test]
fn what_does_not_end_is_there_still() {
    let Some(stand_in) = StandIn::compile("still_there") else {
        return;
    };
    const EIO: i32 = 5;
    let mut wrong = Vec::new();
    for function in ["ibv_destroy_qp", "ibv_dereg_mr", "ibv_dealloc_mw"] {
        for (times, expected) in [(1, "done"), (2, "Verb(System"), (FOR_EVER, "Verb(System")] {
            let mut fault = Fault::of(function, 1, EIO, times);
            fault.environment.push((scenario::TWICE, String::new()));
            let report = stand_in.run(&fault);
            if !report.outcome.starts_with(expected) {
                wrong.push(format!("{function}, {times} times: {}", report.outcome));
            }
        }
    }
    expect_none(&wrong);
}

/// Events of connection management that never come: the limits of the provider's own end the wait.
#[test]
fn events_that_never_come_are_not_waited_for() {
    let Some(stand_in) = StandIn::compile("silences") else {
        return;
    };
    let mut wrong = Vec::new();
    for (event, expected) in outcomes::SILENCES {
        let report = stand_in.run(&Fault::silent(event));
        if report.outcome != expected {
            wrong.push(format!(
                "event {event}: {} and not {expected}",
                report.outcome
            ));
        }
        let dirt = dirt(&report, &[]);
        wrong.extend(dirt.iter().map(|dirt| format!("event {event}: {dirt}")));
    }
    expect_none(&wrong);
}

/// What a user is told who forgot a right, a limit or the device.
#[test]
fn what_a_machine_lacks_is_said() {
    let Some(stand_in) = StandIn::compile("lacks") else {
        return;
    };
    let mut wrong = Vec::new();
    for (fault, expected) in outcomes::lacks() {
        let report = stand_in.run(&fault);
        if !report.outcome.contains(expected) {
            wrong.push(format!("{fault:?}: {} and not {expected}", report.outcome));
        }
        wrong.extend(dirt(&report, &[]));
    }
    expect_none(&wrong);
}
