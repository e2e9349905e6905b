//! Processes of a run that have no far memory: each is named once, with the reason, and counted, or ends the run.

use crate::harness::{Process, Run, legato, static_c, test_directory};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// Filters its system calls, which keeps agents out, starts two more of its kind, and waits.
const FILTERED: &str = r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **arguments) {
    struct sock_filter allow = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    struct sock_fprog filter = {1, &allow};
    if (count == 1) {
        for (int child = 0; child < 2; child++)
            if (!fork()) execl("/proc/self/exe", "filtered", "child", NULL);
        while (wait(NULL) > 0) {}
        return 0;
    }
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    /* One is the agent's, as far as Legato can know. */
    for (int filters = 0; filters < 2; filters++)
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 2;
    puts("filtered");
    fflush(stdout);
    return getchar() == EOF;
}
"#;

fn filtered() -> PathBuf {
    static_c("cc", FILTERED)
}

/// Unnamed before: what was less than 16 MiB, and whoever was refused.
#[test]
fn processes_without_far_memory_are_named_once_and_counted() {
    let mut run = Run::far(filtered()).with_summary().start();
    run.wait_for_output("filtered\nfiltered\n");
    run.wait_for_message("runs without far memory");
    let pid = run.pid().as_raw_pid();
    let listed = || {
        let output = Command::new(legato()).args(["ps", "--json"]).output();
        let runs: Vec<Value> = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let own = runs.into_iter().find(|run| run["pid"] == pid);
        own.unwrap()["processes_local"].as_u64()
    };
    crate::harness::poll_until("both are counted", crate::harness::PATIENCE, || {
        listed() == Some(2)
    });
    run.write(b"\n\n");
    let run = run.finish().expect_code(0);
    run.expect_told("PROG (PID) runs without");
    run.expect_told("it has filtered");
    let named = run
        .stderr
        .lines()
        .filter(|line| line.contains("runs without"));
    assert_eq!(named.count(), 1, "{}", run.stderr);
    assert!(
        run.stderr.contains("; 2 processes without far memory;"),
        "{}",
        run.stderr
    );
    assert_eq!(run.stat("processes_local"), 2);
    let stats = run.stats.as_ref().unwrap();
    let reasons = stats["local"].as_array().unwrap().iter();
    let reasons: Vec<&str> = reasons.map(|one| one["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons.len(), 2, "{stats}");
    assert!(reasons.iter().all(|reason| reason.contains("seccomp")));
}

/// It sees no file that its agent needs.
#[test]
fn a_program_with_another_root_is_named() {
    let program = static_c(
        "cc",
        "#include <unistd.h>\nint main(void) { return pause(); }",
    );
    let root = test_directory();
    std::fs::copy(program, root.join("waits")).unwrap();
    let run = Run::far("chroot").arguments([root.as_os_str(), "/waits".as_ref()]);
    let run = run.start();
    run.wait_for_message("runs without far memory");
    kill_process(run.pid(), Signal::TERM).unwrap();
    let run = run.finish();
    let killed = 128 + Signal::TERM.as_raw();
    assert_eq!(run.code(), Some(killed), "{}", run.stderr);
    run.expect_told("its agent could not reach");
}

#[test]
fn a_process_without_far_memory_ends_a_strict_run() {
    let run = Run::far(filtered()).option("--strict", "").start();
    run.wait_for_message("the run ends");
    let processes: Vec<Process> = run.processes();
    let run = run.finish().expect_code(125);
    assert_eq!(run.stderr.lines().count(), 2, "{}", run.stderr);
    run.expect_told("PROG (PID) runs without");
    run.expect_told("it has filtered");
    run.expect_told("the run ends, because");
    assert!(processes.iter().all(|process| !process.is_alive()));
}
