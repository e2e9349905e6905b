//! Whoever is killed: nobody reads zeros where far pages were.

use crate::harness::{
    Finished, PATIENCE, Process, Run, Running, marked, poll_until, test_program, wait_until_gone,
};
use rustix::process::Signal;
use std::time::Duration;

const CACHE_MIB: u64 = 16;

/// Filled memory, of which most is far, and a program that waits.
pub(crate) fn holding() -> Running {
    holding_with(&[])
}

fn holding_with(options: &[&str]) -> Running {
    let run = Run::far(test_program("hold"))
        .arguments(["--bytes", "128MiB"])
        .arguments(options)
        .cache_mib(CACHE_MIB)
        .memory_mib(256)
        .start();
    run.wait_for_far_pages(CACHE_MIB);
    run
}

pub(crate) fn agent_of(run: &Running) -> Process {
    let mut agents = run.processes().into_iter().filter(Process::leads_a_session);
    agents.next().expect("the program has an agent")
}

/// `hold: R right, L lost, W wrong`: a page that reads zeros is a wrong one.
fn expect_message_and_no_zeros(run: &Finished) {
    assert_ne!(run.code(), Some(0), "the program went on: {}", run.output());
    assert!(
        !run.stderr.contains("found"),
        "wrong memory was seen: {}",
        run.stderr
    );
    let says = run.stderr.lines().any(|line| line.starts_with("legato:"));
    assert!(says, "no message: {}", run.stderr);
}

#[test]
fn m26_a_killed_agent_ends_the_program_with_a_message() {
    let mut run = holding();
    agent_of(&run).signal(Signal::KILL);
    run.write(b"go\n");
    let run = run.finish();
    expect_message_and_no_zeros(&run);
    run.expect_told("the agent of PROG (PID) has died");
}

/// While the program touches far pages.
#[test]
fn m26_an_agent_killed_at_work_leaves_no_zeros() {
    for pause in [3, 10, 40] {
        let mut run = holding();
        let agent = agent_of(&run);
        run.write(b"go\n");
        std::thread::sleep(Duration::from_millis(pause));
        agent.signal(Signal::KILL);
        let run = run.finish();
        if run.code() == Some(0) {
            // It was done before.
            assert!(
                run.output().contains(" 0 lost, 0 wrong"),
                "{}",
                run.output()
            );
        } else {
            expect_message_and_no_zeros(&run);
        }
    }
}

/// Of a run that was killed: it cannot say so any more, but nothing is wrong, and nothing is left.
fn expect_no_zeros_and_nothing_left(run: Running) {
    let run = run.finish();
    assert_eq!(run.signal(), Some(Signal::KILL.as_raw()));
    assert!(!run.output().contains("hold:"), "{}", run.output());
    assert_eq!(run.stderr, "");
    wait_until_gone(&marked(&run.mark), PATIENCE);
}

/// The supervisor, in which nothing moves, and that cannot do anything about the death of the agent.
fn stop_supervisor_and_kill_agent(run: &Running) -> Process {
    let supervisor = Process::find(run.pid().as_raw_pid()).expect("it runs");
    let agent = agent_of(run);
    supervisor.signal(Signal::STOP);
    poll_until("the supervisor has stopped", PATIENCE, || {
        supervisor.state() == Some('T')
    });
    agent.signal(Signal::KILL);
    wait_until_gone(&[agent], PATIENCE);
    supervisor
}

fn expect_no_zeros_without_both(mut run: Running) {
    let supervisor = stop_supervisor_and_kill_agent(&run);
    run.write(b"go\n");
    supervisor.signal(Signal::KILL);
    expect_no_zeros_and_nothing_left(run);
}

fn keepers(run: &Running) -> Vec<Process> {
    let processes = run.processes().into_iter();
    let keepers = processes.filter(|process| process.command().trim_end() == "legato keep");
    keepers.collect()
}

/// P-30: the last holders of the userfaultfd but one.
#[test]
fn m26_an_agent_and_a_supervisor_killed_together_leave_no_zeros() {
    expect_no_zeros_without_both(holding());
}

/// The last one but one has died before, and there is another.
#[test]
fn m26_a_killed_keeper_is_replaced() {
    let run = holding();
    for keeper in keepers(&run) {
        keeper.signal(Signal::KILL);
        wait_until_gone(&[keeper], PATIENCE);
    }
    poll_until("another one holds as much", PATIENCE, || {
        keepers(&run)
            .iter()
            .any(|keeper| keeper.userfaultfds() == 1)
    });
    expect_no_zeros_without_both(run);
}

/// A child whose memory the dead agent has served waits for its page, until somebody kills it.
#[test]
fn m26_a_child_of_an_agent_and_a_supervisor_killed_together_sees_no_zeros() {
    let mut run = holding_with(&["--fork"]);
    poll_until("the keeper holds the child's too", PATIENCE, || {
        keepers(&run)
            .iter()
            .any(|keeper| keeper.userfaultfds() == 2)
    });
    let programs = || run.processes().into_iter().filter(Process::is_program);
    let child = programs()
        .max_by_key(|process| process.pid)
        .expect("a child");
    let supervisor = stop_supervisor_and_kill_agent(&run);
    supervisor.signal(Signal::KILL);
    poll_until("the parent is gone", PATIENCE, || programs().count() == 1);
    run.write(b"go\n");
    poll_until("the child waits for a page", PATIENCE, || {
        let output = run.output_so_far();
        assert!(child.is_alive() && !output.contains("hold:"), "{output}");
        child.waits_for_a_page()
    });
    child.signal(Signal::KILL);
    expect_no_zeros_and_nothing_left(run);
}
