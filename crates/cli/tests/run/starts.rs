//! How programs start, whatever they were left with, and what becomes of those whose agent cannot
//! start or cannot go on.

use crate::harness::{
    Finished, PATIENCE, Process, Run, Running, legato, poll_until, sized, system_program,
    system_python, test_directory, test_program,
};
use std::fs;
use std::process::Command;

/// The shell has an agent, and so has what it starts.
fn script(text: &str) -> Run {
    Run::far("bash").arguments(["-c", text]).cache_mib(64)
}

#[track_caller]
fn expect_quiet(run: &Finished, output: &str) {
    assert_eq!(
        (run.output().as_str(), run.stderr.as_str()),
        (output, ""),
        "{:?}",
        run.code()
    );
}

/// CAP_SYS_RESOURCE (linux/capability.h).
fn may_raise_limits() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(effective.unwrap().trim(), 16).unwrap() & CAP_SYS_RESOURCE != 0
}

/// Exactly one line, which says of a command that it runs without far memory, and why.
#[track_caller]
fn expect_one_remark(run: &Finished, command: &str, why: &str) {
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains(command), "{}", run.stderr);
    run.expect_told("PROG (PID) runs without");
    run.expect_told(why);
}

#[test]
fn a_program_finds_the_descriptors_that_it_was_given() {
    let list = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')))";
    let python = system_python();
    let plain = Run::plain(&python).arguments(["-c", list]).finish();
    let far = Run::far(&python).arguments(["-c", list]).cache_mib(64);
    let far = far.finish().expect_code(0);
    assert_eq!(far.output(), plain.output());
}

/// Agents and hands by their names, once `name` is among them.
fn tasks_with(run: &Running, name: &str) -> Vec<String> {
    let mut names = Vec::new();
    poll_until(&format!("there is {name}"), PATIENCE, || {
        let processes = run.processes().into_iter();
        let sharing = processes.filter(|process| process.leads_a_session());
        let named = |process: Process| fs::read_to_string(format!("/proc/{}/comm", process.pid));
        names = sharing.filter_map(|process| named(process).ok()).collect();
        names.sort();
        names.iter().any(|found| found.trim_end() == name)
    });
    names
}

#[track_caller]
fn expect_joined_and_served(run: Running, joined: u64, served: u64) {
    let run = run.finish().expect_code(0);
    let found = (run.stat("processes_injected"), run.stat("children_served"));
    assert_eq!(found, (joined, served));
}

#[test]
fn an_agent_and_a_hand_have_names_of_their_own() {
    // Memory is far when the child is forked, so the parent's agent serves the child.
    let text = "import os, sys; a = bytearray(b'x') * (48 << 20); os.fork(); sys.stdin.read()";
    let run = Run::far(system_python())
        .arguments(["-c", text])
        .cache_mib(16);
    let run = run.memory_mib(256).start();
    assert_eq!(
        tasks_with(&run, "legato-hand"),
        ["legato-agent\n", "legato-hand\n"]
    );
    expect_joined_and_served(run, 0, 1);
}

/// Nothing of its parent's memory is registered yet, so nobody serves it.
#[test]
fn a_child_that_is_given_an_agent_counts_as_joined() {
    let text = "import os, sys; os.fork(); sys.stdin.read()";
    let run = Run::far(system_python())
        .arguments(["-c", text])
        .cache_mib(64)
        .start();
    poll_until("there are two agents", PATIENCE, || {
        tasks_with(&run, "legato-agent").len() == 2
    });
    expect_joined_and_served(run, 1, 0);
}

#[test]
fn a_low_limit_of_descriptors_is_the_programs_own() {
    let text = "ulimit -S -n 5; exec \"$0\" -c 'print(1)'";
    let run = script(text).arguments([system_python()]);
    let run = run.finish().expect_code(0);
    expect_quiet(&run, "1\n");
    assert_eq!(run.stats.unwrap()["processes"].as_array().unwrap().len(), 2);
}

/// Without CAP_SYS_RESOURCE nobody may have more descriptors than that, the agent included.
#[test]
fn a_child_whose_agent_cannot_start_runs_without_one() {
    let run = script("ulimit -n 6; /bin/echo child; echo after");
    let run = run.finish().expect_code(0);
    assert_eq!(run.output(), "child\nafter\n");
    if may_raise_limits() {
        expect_quiet(&run, "child\nafter\n");
    } else {
        expect_one_remark(&run, "echo (", "WHAT: REASON; raise RLIMIT_NOFILE");
    }
}

#[test]
fn what_the_program_executes_later_runs_without_an_agent_too() {
    let run = script("ulimit -n 6; exec /bin/echo executed");
    let run = run.finish().expect_code(0);
    assert_eq!(run.output(), "executed\n");
    if !may_raise_limits() {
        expect_one_remark(&run, "echo (", "WHAT: REASON; raise RLIMIT_NOFILE");
    }
}

/// An object of Valgrind's is loaded into all that runs under it.
#[test]
fn valgrind_is_said_not_to_be_for_far_memory() {
    let object = test_directory().join("vgpreload_test.so");
    let mut compiler = Command::new(system_program("cc"));
    compiler.args(["-shared", "-x", "c", "/dev/null", "-o"]);
    assert!(compiler.arg(&object).status().unwrap().success());
    let text = "LD_PRELOAD=\"$0:$LD_PRELOAD\" /bin/echo child; echo after";
    let run = script(text).arguments([object]).finish().expect_code(0);
    assert_eq!(run.output(), "child\nafter\n");
    expect_one_remark(&run, "echo (", "Valgrind runs it");
}

#[test]
fn legato_run_inside_legato_run_is_refused() {
    let run = script("\"$0\" run -- echo never; echo $?").arguments([legato()]);
    let run = run.finish().expect_code(0);
    assert_eq!(run.output(), "125\n");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    run.expect_told("already inside");
    let run = Run::far(legato())
        .arguments(["run", "--", "echo", "never"])
        .finish()
        .expect_code(125);
    assert_eq!(run.output(), "");
}

/// Around the moment when the tree is looked at, children execute another program. The agent that
/// this brings and whatever was about to enter the child get along.
#[test]
fn children_that_execute_a_program_while_they_are_looked_at() {
    let text = "exec 9<> <(:); for round in 1 2 3 4 5; do
        for delay in 02 03 04 05 06 07 08 09 10 12; do
            (read -t 0.$delay -u 9; exec /bin/echo done) &
            (read -t 0.$delay -u 9; exec /bin/echo done) &
        done; wait
    done";
    let run = script(text).memory_mib(256).finish().expect_code(0);
    expect_quiet(&run, &"done\n".repeat(100));
}

#[test]
fn children_that_end_at_once_are_no_accident() {
    for _ in 0..20 {
        let run = script("(sleep 0.3; echo a) & (sleep 0.3; echo a); wait");
        expect_quiet(&run.finish().expect_code(0), "a\na\n");
    }
}

/// Children that run a program, that end without one, and that write into a pipe, beside another run whose
/// pages come and go all the time: none fails, and nobody says anything.
#[test]
fn children_of_a_shell_beside_a_busy_run() {
    let mut busy = Run::far(test_program("scan"))
        .arguments(["--bytes", "128MiB", "--order", "random"])
        .arguments(["--rounds", "1000000", "--write", "50"])
        .cache_mib(32)
        .memory_mib(512)
        .start();
    let text = r#"for i in $(seq "$0"); do
        /bin/true || echo "true: $?"
        (exit 3); status=$?; [ $status = 3 ] || echo "exit: $status"
        said=$(echo $i) || echo "echo: $?"; [ "$said" = $i ] || echo "said: $said"
    done; echo done"#;
    let run = script(text).arguments([sized("1000", "50")]).finish();
    expect_quiet(&run.expect_code(0), "done\n");
    assert!(busy.is_running(), "{}", busy.finish().stderr);
}

/// The parent needs more than there is. Its forked child, which the same agent serves, must not be
/// left waiting for its pages.
#[test]
fn a_family_ends_together_when_far_memory_is_full() {
    let program = "
import os, sys, time
data = bytearray(os.urandom(24 << 20))
if os.fork() == 0:
    while True:
        sum(data[::4096])
time.sleep(1)
more = []
while True:
    more.append(os.urandom(1 << 20))
";
    let run = Run::far(system_python())
        .arguments(["-c", program])
        .cache_mib(16)
        .memory_mib(64)
        .finish();
    assert_eq!(run.code(), Some(128 + 9), "{}", run.stderr);
    run.expect_told("PROG (PID) was killed: far memory is full");
}
