//! What a fault costs the agent, counted: so a regression shows on a busy machine too.

use crate::harness::{Process, Run, is_soak, test_program};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// What the agent executes itself, without what the kernel does for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    instructions: u64,
    calls: u64,
}

/// From looking for a fault to its page, where nothing else is done meanwhile.
const TO_ITS_PAGE: Count = Count {
    instructions: 8_800,
    calls: 3,
};
/// For a hundred faults in all: with what leaves for them, and what is done now and then. Of the calls one
/// for each fault marks the page that has left.
const IN_ALL: Count = Count {
    instructions: 1_920_000,
    calls: 590,
};

impl Count {
    /// From a line of `steps`, for as many faults as are asked for.
    fn parse(line: &str, faults: u64) -> Self {
        let words = line.split(|letter: char| !letter.is_ascii_digit());
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        let [counted, instructions, calls] = numbers[..] else {
            panic!("{line}")
        };
        Self {
            instructions: instructions * faults / counted,
            calls: calls * faults / counted,
        }
    }
}

/// More than a twelfth above what is committed is a regression. What has become less should be committed
/// too: nothing asks for it.
#[track_caller]
fn expect_at_most(what: &str, now: u64, committed: u64) {
    println!("{what}: {now}, committed {committed}");
    let most = committed + committed / 12;
    assert!(now <= most, "{what}: {now}, and it was {committed}");
}

/// Lets a program begin to touch twice its cache at random, reads and writes by one thread with the node in
/// shared memory, and counts what its agent does. Returns the least for a hundred faults, and to the page of
/// one.
fn count(options: &[&str]) -> [Count; 2] {
    let mut run = Run::far(test_program("scan"))
        .arguments(["--bytes", "32MiB", "--order", "random", "--write", "50"])
        .arguments(["--rounds", "1", "--warm"])
        .cache_mib(16)
        .memory_mib(256)
        .start();
    run.wait_for_output("ready");
    let agents = run.processes().into_iter();
    let agents: Vec<_> = agents.filter(Process::leads_a_session).collect();
    let [agent] = agents[..] else {
        panic!("not one agent: {agents:?}")
    };
    let mut steps = Command::new(test_program("steps"))
        .args(["--process", &agent.pid.to_string()])
        .args(options)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(steps.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "stopped");
    run.write(b"go\n");
    let lines: Vec<_> = lines.map(Result::unwrap).collect();
    assert!(steps.wait().unwrap().success(), "{lines:?}");
    run.finish().expect_code(0).expect_far_pages();
    [(0, 100), (1, 1)].map(|(first, faults)| {
        let lines = lines.iter().skip(first).step_by(2);
        let counts = lines.map(|line| Count::parse(line, faults));
        counts
            .min_by_key(|count| (count.instructions, count.calls))
            .unwrap()
    })
}

#[test]
fn a_fault_takes_as_many_system_calls_as_before() {
    let [in_all, to_its_page] = count(&["--calls", "--faults", "500", "--rounds", "5"]);
    expect_at_most("system calls of 100 faults", in_all.calls, IN_ALL.calls);
    assert_eq!(to_its_page.calls, TO_ITS_PAGE.calls);
}

#[test]
fn a_fault_takes_as_many_instructions_as_before() {
    // Each instruction takes a hundred thousand others.
    let faults = if is_soak() { "150" } else { "8" };
    let [in_all, to_its_page] = count(&["--faults", faults]);
    let what = "instructions from looking for a fault to its page";
    expect_at_most(what, to_its_page.instructions, TO_ITS_PAGE.instructions);
    if is_soak() {
        let what = "instructions of 100 faults";
        expect_at_most(what, in_all.instructions, IN_ALL.instructions);
    }
}
