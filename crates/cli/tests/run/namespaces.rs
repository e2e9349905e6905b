//! Programs in namespaces of their own have far memory.

use crate::harness::{EnterableDirectory, Run, compiled_c, expect_pattern, test_program};
use std::path::PathBuf;

/// Fills, checks, forks and drops memory there.
#[track_caller]
fn expect_far_memory(enter: &[&str]) {
    let run = Run::far(enter[0])
        .arguments(&enter[1..])
        .arguments([test_program("pattern").as_os_str()]);
    let run = expect_pattern(run, "200", "7");
    assert_eq!(run.stderr, "");
    assert_eq!(run.stat("processes_local"), 0);
}

/// Lost: the memory nodes took a peer without a number for no peer at all.
#[test]
fn in_a_pid_namespace() {
    expect_far_memory(&["unshare", "--pid", "--fork", "--mount-proc"]);
}

/// Whatever it looks up by a number there is another process.
#[test]
fn in_a_pid_namespace_with_the_proc_of_another() {
    expect_far_memory(&["unshare", "--pid", "--fork"]);
}

/// Lost: the supervisor had its name in a network namespace.
#[test]
fn in_a_network_namespace() {
    expect_far_memory(&["unshare", "--net"]);
}

/// It has no right outside of it, and is everybody inside.
#[test]
fn in_a_user_namespace_and_all_others() {
    let all = "--map-root-user --mount --net --ipc --uts --cgroup --pid --fork --mount-proc";
    let words: Vec<&str> = ["unshare", "--user"]
        .into_iter()
        .chain(all.split(' '))
        .collect();
    expect_far_memory(&words);
}

#[test]
fn in_a_user_namespace_where_it_is_nobody() {
    expect_far_memory(&["unshare", "--user"]);
}

#[test]
fn in_a_time_namespace() {
    expect_far_memory(&["unshare", "--time", "--fork"]);
}

/// Without the right to a /proc of its own.
#[test]
fn without_a_proc_of_its_own_it_runs_without() {
    let directory = EnterableDirectory::new();
    let copy = directory.0.join("hold");
    std::fs::copy(test_program("hold"), &copy).unwrap();
    let run = Run::far("setpriv")
        .arguments(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arguments(["unshare", "--user", "--pid", "--fork"])
        .arguments([copy.as_os_str()])
        .arguments(["--bytes", "16MiB"])
        .start();
    run.wait_for_message("runs without far memory");
    let run = run.finish().expect_code(0);
    run.expect_told("its /proc is not that");
}

/// Forks twice, each child with memory of its own, and waits for all there are: as the first process of a pid
/// namespace, or as a subreaper.
const WAITS_FOR_ALL: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
enum { SIZE = 24 << 20 };
static size_t wrong_in(unsigned char *memory) {
    size_t wrong = 0;
    for (size_t at = 0; at < SIZE; at += 4096) wrong += memory[at] != (unsigned char)(at / 4096 + 1);
    return wrong;
}
int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "subreaper")) {
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        return execl("/proc/self/exe", arguments[0], NULL);
    }
    unsigned char *memory = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t at = 0; at < SIZE; at += 4096) memory[at] = at / 4096 + 1;
    pid_t children[2];
    for (int child = 0; child < 2; child++) {
        children[child] = fork();
        if (children[child]) continue;
        if (child) execlp("sh", "sh", "-c", "exit 0", NULL);
        _exit(wrong_in(memory) != 0);
    }
    int status, failed = 0, ended = 0;
    pid_t pid;
    while ((pid = wait(&status)) > 0 || errno == EINTR) {
        /* Orphans come here too. */
        if (pid != children[0] && pid != children[1]) continue;
        ended++;
        failed |= status;
    }
    printf("%s, %d ended, failed %x, %zu wrong\n", strerror(errno), ended, failed, wrong_in(memory));
    return 0;
}
"#;

fn waits_for_all() -> PathBuf {
    compiled_c("cc", &[], WAITS_FOR_ALL)
}

#[track_caller]
fn expect_own_children_alone(run: Run) {
    let run = run.cache_mib(12).memory_mib(256);
    let run = run.finish().expect_code(0).expect_far_pages();
    assert_eq!(
        run.output(),
        "No child processes, 2 ended, failed 0, 0 wrong\n"
    );
    assert_eq!(run.stderr, "");
}

/// Lost: its own agent had come back to it as its child, and it waited for ever.
#[test]
fn the_first_process_of_a_pid_namespace_waits_for_its_own_children_alone() {
    let run = Run::far("unshare").arguments(["--pid", "--fork", "--mount-proc"]);
    expect_own_children_alone(run.arguments([waits_for_all().as_os_str()]));
}

#[test]
fn a_subreaper_waits_for_its_own_children_alone() {
    expect_own_children_alone(Run::far(waits_for_all()).arguments(["subreaper"]));
}
