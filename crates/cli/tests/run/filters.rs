//! Programs that are executed behind filters of system calls, or that may not make code writable: as service managers
//! and sandboxes start them.

use crate::harness::{Run, compiled_c, expect_pattern, test_program};
use std::path::PathBuf;

/// Executes a program under what the first argument says.
const EXECUTES: &str = r#"
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define KILLED(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), \
                       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
int main(int count, char **arguments) {
    if (!strcmp(arguments[1], "no-new-code")) {
        if (prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0)) return 9;
    } else {
        /* What no ordinary program calls, and an agent does. */
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            KILLED(SYS_userfaultfd), KILLED(SYS_ptrace), KILLED(SYS_kcmp), KILLED(434 /* pidfd_open */),
            KILLED(SYS_memfd_create), KILLED(SYS_seccomp), KILLED(SYS_socket),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
            BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 9;
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 9;
    }
    execvp(arguments[2], arguments + 2);
    return 9;
}
"#;

fn executes() -> PathBuf {
    compiled_c("cc", &[], EXECUTES)
}

/// Lost: the agent in it was killed for the first of its calls, and the program with it, without a word.
fn expect_named(program: &str) {
    let mut run = Run::far(executes())
        .arguments(["kills".as_ref(), test_program(program).as_os_str()])
        .arguments(["--bytes", "16MiB"])
        .start();
    run.wait_for_output("ready");
    run.wait_for_message("runs without far memory");
    run.write(b"\n");
    let run = run.finish().expect_code(0);
    run.expect_told("it has filtered its system calls");
    assert_eq!(run.stat("processes_local"), 1);
}

#[test]
fn a_program_behind_a_filter_that_kills_runs_without_far_memory() {
    expect_named("hold");
}

/// So is all that it forks and executes.
#[test]
fn a_shell_behind_a_filter_of_its_own_is_left_alone() {
    let command = "echo one; read line; (echo two)";
    let mut run = Run::far(executes())
        .arguments(["kills", "bash", "-c", command])
        // Without it bash asks for the user's shell, at nscd's socket if there is one.
        .environment("SHELL", "/bin/sh")
        .start();
    run.wait_for_output("one\n");
    run.wait_for_message("runs without far memory");
    run.write(b"\n");
    // The subshell is forked by clone(2) without CLONE_THREAD.
    let run = run.finish();
    assert_eq!(run.output(), "one\n");
    run.expect_told("it has filtered its system calls");
}

#[test]
fn a_program_that_may_not_make_new_code_has_far_memory() {
    for program in ["pattern", "pattern_static"] {
        let run = Run::far(executes())
            .arguments(["no-new-code".as_ref(), test_program(program).as_os_str()]);
        expect_pattern(run, "200", "13");
    }
}
