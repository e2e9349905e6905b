//! Whoever is killed: nobody reads zeros where far pages were.

use crate::harness::{
    Finished, MIB, PATIENCE, Process, Run, Running, marked, poll_until, test_program,
    wait_until_gone,
};
use rustix::process::Signal;
use std::time::Duration;

const CACHE_MIB: u64 = 16;

/// Filled memory, of which most is far, and a program that waits.
pub(crate) fn holding() -> Running {
    holding_with(&[])
}

fn holding_with(options: &[&str]) -> Running {
    let run = start_holding(options);
    run.wait_for_far_pages(CACHE_MIB);
    run
}

fn start_holding(options: &[&str]) -> Running {
    Run::far(test_program("hold"))
        .arguments(["--bytes", "128MiB"])
        .arguments(options)
        .cache_mib(CACHE_MIB)
        .memory_mib(256)
        .start()
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

/// Somebody shares the program's memory, and has outlived the program or not.
fn shared(options: &[&str]) -> Running {
    let run = start_holding(&[&["--share"], options].concat());
    run.wait_for_output("ready");
    poll_until("most of the memory is far", PATIENCE, || {
        let programs = run.processes().into_iter().filter(Process::is_program);
        let mut local = programs.filter_map(|one| Some(one.resident()?.anonymous));
        local.all(|local| local <= CACHE_MIB * MIB)
    });
    run
}

/// P-31
#[test]
fn m26_an_agent_killed_after_its_program_leaves_no_zeros_to_who_shares_the_memory() {
    let mut run = shared(&[]);
    agent_of(&run).signal(Signal::KILL);
    run.write(b"go\n");
    let run = run.finish();
    assert!(!run.output().contains("hold:"), "{}", run.output());
    assert!(!run.stderr.contains("found"), "{}", run.stderr);
    run.expect_told("PROG (PID): its agent has ended");
}

/// P-30: another process waits for a page of a program when all have ended who could give it.
#[test]
fn m26_who_reads_a_dying_programs_memory_sees_no_zeros() {
    let run = holding();
    let agent = agent_of(&run);
    let processes = run.processes().into_iter();
    let program = processes
        .filter(Process::is_program)
        .find(|process| process.pid != agent.pid)
        .expect("it runs");
    agent.signal(Signal::STOP);
    poll_until("the agent has stopped", PATIENCE, || {
        agent.state() == Some('T')
    });
    let reader = Run::plain(test_program("peek"))
        .arguments([program.pid.to_string()])
        .start();
    reader.wait_for_output("reading");
    program.signal(Signal::KILL);
    agent.signal(Signal::KILL);
    let read = reader.finish();
    let found = read.output();
    assert!(found.contains(" 0 zeros, "), "{found}");
    assert!(!found.contains(" 0 errors"), "{found}");
    let run = run.finish();
    assert_eq!(run.code(), Some(128 + Signal::KILL.as_raw()));
}

/// While its program lives, both are killed.
#[test]
fn m26_who_shares_the_memory_of_a_program_dies_with_its_agent() {
    let run = shared(&["--stay"]);
    let programs = programs_of(&run);
    agent_of(&run).signal(Signal::KILL);
    wait_until_gone(&programs, PATIENCE);
    let run = run.finish();
    assert_eq!(run.code(), Some(128 + Signal::KILL.as_raw()));
    assert!(!run.output().contains("hold:"), "{}", run.output());
    run.expect_told("the agent of PROG (PID) has died");
}

/// Those that use the program's memory, but for the agent.
fn programs_of(run: &Running) -> Vec<Process> {
    let programs = run.processes().into_iter().filter(Process::is_program);
    programs
        .filter(|process| !process.leads_a_session())
        .collect()
}

#[test]
fn m26_a_supervisor_killed_after_its_program_takes_who_shares_the_memory_along() {
    let run = shared(&[]);
    let programs = programs_of(&run);
    let supervisor = Process::find(run.pid().as_raw_pid()).expect("it runs");
    supervisor.signal(Signal::KILL);
    wait_until_gone(&programs, PATIENCE);
    expect_no_zeros_and_nothing_left(run);
}

#[test]
fn m26_agent_and_supervisor_killed_after_the_program_leave_no_zeros() {
    expect_no_zeros_without_both(shared(&[]));
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
    let keepers = processes.filter(|process| process.command().starts_with("legato keep "));
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

/// A child whose memory the dead agent has served gets SIGBUS for its page.
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
    wait_until_gone(&[child], PATIENCE);
    expect_no_zeros_and_nothing_left(run);
}
