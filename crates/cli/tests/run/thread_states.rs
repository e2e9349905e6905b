//! A task that Legato puts into a process takes nothing of a thread's state that could end it or keep it from
//! running, and gives a borrowed thread all of its state back.

use crate::harness::{Finished, PATIENCE, Process, Run, compiled_c, is_soak, poll_until, static_c};
use std::path::{Path, PathBuf};

const SOURCE: &str = include_str!("thread_states.c");
const CACHE_MIB: u64 = 8;
/// More than the cache.
const USED_MIB: &str = "10";

/// The states in which something once went wrong, or would where Legato did nothing about them.
const TRIED: &str = "tsc,user-dispatch,floating-point,read-implies-exec,deadline,slack";
/// All other states but those in which an executed program cannot have an agent, or does not run at all.
const OTHERS: &str = "none,cpuid,gs-base,tagged-addresses,shadow-stack,idle,batch,fifo,round-robin,fifo-not-inherited,\
     nice,bound,bound-fifo,limit-processes,limit-signals,limit-locked,limit-real-time,limit-processor,limit-messages,\
     limit-core,limit-stack,not-random,page-zero,old-linux,linux32,blocked,pending,ignored,ignored-children,\
     other-stack,no-new-privileges,keep-capabilities,not-dumpable,death-signal,io-flusher,store-bypass,\
     indirect-branches,flush-cache,no-huge-pages,no-new-code,merged,machine-checks,no-counters,own-core,futexes,\
     timer-ids,name,subreaper,alignment,backwards";

fn dynamic() -> PathBuf {
    compiled_c("cc", &[], SOURCE)
}

fn in_states(program: &Path, how: &str, states: &str) -> Finished {
    let arguments = [how, states, USED_MIB];
    let plain = Run::plain(program).arguments(arguments).finish();
    let far = Run::far(program)
        .arguments(arguments)
        .environment("WAIT", "1")
        .cache_mib(CACHE_MIB)
        .memory_mib(256)
        .finish()
        .expect_code(0);
    assert_eq!(far.output(), plain.expect_code(0).output());
    far
}

fn chosen() -> String {
    if is_soak() {
        format!("{TRIED},{OTHERS}")
    } else {
        TRIED.to_owned()
    }
}

/// The state lasts over execve(2), and the agent of the new program begins with it.
#[test]
fn agents_of_programs_in_every_state() {
    let states = chosen();
    // The dynamic loader itself does not run in this one.
    in_states(&dynamic(), "exec", states.trim_start_matches("tsc,")).expect_far_pages();
}

#[test]
fn agents_of_static_programs_in_every_state() {
    in_states(&static_c("cc", SOURCE), "exec", &chosen());
}

/// Killed, or without a task: children in three of these states, and all of static programs.
#[test]
fn forked_children_in_every_state() {
    for program in [dynamic(), static_c("cc", SOURCE)] {
        in_states(&program, "fork", &chosen());
    }
}

/// Killed, where the kernel merges pages of the same content (KSM) and the program wants all of its memory
/// merged: "nothing can leave", because merged pages do not move into frames and out of them.
#[test]
fn the_agents_own_memory_is_not_merged() {
    let program = r#"
#include <stdio.h>
#include <sys/prctl.h>
int main(void) {
    if (prctl(67 /* PR_SET_MEMORY_MERGE */, 1, 0, 0, 0)) return 2;
    puts("merged");
    fflush(stdout);
    return getchar() != '\n';
}
"#;
    let mut run = Run::far(compiled_c("cc", &[], program)).start();
    run.wait_for_output("merged");
    let program = run.processes().into_iter().find(Process::is_program);
    let smaps = format!("/proc/{}/smaps", program.unwrap().pid);
    let flags = |wanted: &str| {
        let smaps = std::fs::read_to_string(&smaps).unwrap();
        let flags = smaps
            .lines()
            .filter_map(|line| line.strip_prefix("VmFlags:"));
        // What is not inherited by forked children is the agent's.
        let own = flags.filter(|flags| flags.contains(" dc ") && flags.contains(wanted));
        own.count()
    };
    assert!(flags(" wr ") > 0, "nothing is the agent's");
    poll_until("mergeable no more", PATIENCE, || flags(" mg") == 0);
    run.write(b"\n");
    run.finish().expect_code(0);
}

/// The limit that keeps an agent from starting is named.
#[test]
fn an_agent_without_files_says_which_limit_it_is() {
    let run = Run::far(dynamic())
        .arguments(["exec", "limit-file-size", USED_MIB])
        .finish()
        .expect_code(0);
    // With CAP_SYS_RESOURCE it needs none.
    if !run.stderr.is_empty() {
        run.expect_told("WHAT: REASON; raise RLIMIT_FSIZE (ulimit -f)");
    }
}
