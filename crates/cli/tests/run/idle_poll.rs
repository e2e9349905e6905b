//! Agents may ask that idle processors poll: those that are to, where the machine allows it.

use crate::harness::{PATIENCE, Run, poll_until};
use std::fs::OpenOptions;

const DEVICE: &str = "/dev/cpu_dma_latency";

/// How many descriptors of the device the agent of a program has, once that is so many, or the program has
/// spoken.
fn requests(when: &str, expected: usize) -> usize {
    let run = Run::far("sh").arguments(["-c", "echo ready; read line || exit 0"]);
    let run = run
        .option("--idle-poll", when)
        .cache_mib(8)
        .memory_mib(64)
        .start();
    run.wait_for_output("ready");
    let mut agents = run.processes().into_iter();
    let agent = agents.find(|process| process.leads_a_session());
    let agent = agent.expect("a program on far memory has an agent");
    let count = || agent.descriptors_of(DEVICE);
    poll_until("the agent has its request", PATIENCE, || {
        count() == expected
    });
    let count = count();
    let run = run.finish().expect_code(0);
    if count == 0 {
        assert_eq!(run.stat("idle_poll_trials"), 0);
    }
    count
}

#[test]
fn an_agent_has_a_request_where_this_user_may_have_one() {
    let expected = match OpenOptions::new().write(true).open(DEVICE) {
        Ok(_) => 1,
        Err(error) => {
            eprintln!("{DEVICE}: {error}; an agent must start without it");
            0
        }
    };
    assert_eq!(requests("auto", expected), expected);
}

#[test]
fn an_agent_has_none_if_it_is_not_to() {
    assert_eq!(requests("never", 0), 0);
}
