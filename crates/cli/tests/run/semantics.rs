//! What Linux promises about memory, on pages that are far away: the cases of the program
//! `semantics`, each once on local memory and once under `legato run`, with the same results.

use crate::harness::{
    Finished, MIB, Node, PATIENCE, Process, Run, Running, legato, poll_until, sized, status_of,
    test_program,
};
use crate::killed::{agent_of, holding};
use crate::limit;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Other memory that the cases use to push their pages out: twice the cache.
const CASE_BYTES: &str = "32MiB";
const CACHE_MIB: u64 = 16;

fn cases(names: &[&str]) -> Run {
    Run::far(test_program("semantics"))
        .arguments(["--case", &names.join(","), "--bytes", CASE_BYTES])
        .arguments(["--expect-evicted"])
        .cache_mib(CACHE_MIB)
        .memory_mib(768)
}

/// The cases pass on far memory, and say the same as on local memory.
#[track_caller]
fn holds(names: &[&str]) -> Finished {
    let plain = Run::plain(test_program("semantics"))
        .arguments(["--case", &names.join(","), "--bytes", CASE_BYTES])
        .finish()
        .expect_code(0);
    // Each case has seen that its pages had left; the victim list may have had them all.
    let far = cases(names).finish().expect_code(0);
    assert!(far.stat("pages_evicted") > 0 && far.stat("pages_lost") == 0);
    assert_eq!(far.output(), plain.output());
    for line in far
        .output()
        .lines()
        .filter(|line| line.contains(": skipped"))
    {
        eprintln!("{line}");
    }
    far
}

/// Each of its forked children takes most of a MiB that cannot leave.
fn storm(case: &str, seconds: &str) {
    cases(&[case])
        .arguments(["--seconds", seconds])
        .cache_mib(64)
        .memory_mib(1024)
        .finish()
        .expect_code(0)
        .expect_far_pages();
}

#[test]
fn m11_thirty_two_threads_fault_write_unmap_and_fork() {
    storm("storm", sized("5", "2"));
}

/// The kernel announces moves late, and hands their old places out again at once.
#[test]
fn m11_thirty_two_threads_move_their_memory() {
    storm("storm-of-moves", sized("5", "2"));
}

/// A mapping may come and go, and another come at its place, between two looks at the mappings.
#[test]
fn m11_four_threads_map_and_unmap_while_one_faults() {
    let run = || {
        cases(&["maps-beside-faults"])
            .arguments(["--rounds", sized("20", "2")])
            .watched_closely()
            .finish()
            .expect_code(0)
            .expect_far_pages()
    };
    limit::expect_within(CACHE_MIB * MIB, run);
}

/// Lost: programs, to pages that were dropped after their place was taken by others, or seemed to be.
#[test]
fn m11_sixteen_threads_put_new_memory_over_what_is_leaving() {
    for mask in ["", "move"] {
        cases(&["overlaid"])
            .arguments(["--rounds", sized("300", "12")])
            .environment("LEGATO_MASK_FEATURES", mask)
            .finish()
            .expect_code(0)
            .expect_far_pages();
    }
}

#[test]
#[ignore = "takes ten minutes"]
fn m11_for_ten_minutes() {
    // Less than the harness's deadline each.
    for _ in 0..4 {
        storm("storm", "150");
    }
}

#[test]
fn m12_loads_and_stores_of_every_width() {
    holds(&[
        "every-width",
        "atomic-operations",
        "string-instructions",
        "one-page-many-threads",
    ]);
}

#[test]
fn m12_system_calls_on_evicted_pages() {
    holds(&["system-calls-copy", "socket-messages", "random-bytes"]);
}

#[test]
fn m12_structures_of_system_calls_on_evicted_pages() {
    holds(&[
        "paths",
        "signal-structures",
        "timers",
        "descriptor-structures",
        "names",
        "bad-addresses",
    ]);
}

#[test]
fn m12_futexes_on_evicted_pages() {
    holds(&["futex-compares", "futex-wakes", "futex-requeues"]);
}

#[test]
fn m12_threads_end_though_their_stacks_left() {
    holds(&["joins-see-the-end"]);
}

/// Without rseq the kernel does not touch the page at every switch to the thread.
#[test]
fn m12_threads_end_without_rseq_though_their_stacks_left() {
    cases(&["joins-see-the-end"])
        .environment("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .finish()
        .expect_code(0)
        .expect_far_pages();
}

#[test]
fn m12_another_process_reads_and_writes_evicted_pages() {
    holds(&["process-vm-from-outside"]);
}

/// The kernel does not wait for a page there (`get_user_pages_remote` without a lock to give up):
/// never other bytes, but an error.
#[test]
fn m12_proc_mem_and_ptrace_say_eio_for_evicted_pages() {
    for case in ["proc-mem-from-outside", "ptrace-from-outside"] {
        let run = cases(&[case]).finish().expect_code(1);
        assert!(
            run.output().contains("Input/output error"),
            "{}",
            run.output()
        );
    }
}

/// Lost: an allocator that clears the pages which the kernel names handed out others' data.
#[test]
fn m12_the_kernel_says_of_far_pages_that_they_exist() {
    holds(&[
        "far-pages-exist",
        "recycled-slots",
        "pages-of-zeros-exist",
        "existence-survives-changes",
        "existence-in-children",
    ]);
}

/// Lost: the content of far pages, of a mapping that was announced as unmapped and stayed.
#[test]
fn m18_an_unmapping_that_the_kernel_refuses_takes_nothing() {
    holds(&[
        "seal-that-refuses-an-unmapping",
        "limit-that-refuses-a-mapping",
    ]);
}

/// Lost: a thread, which waited without end for a page of what its locked memory had grown by.
#[test]
fn m20_locked_memory_that_grows_while_it_moves() {
    holds(&["remap-moves-locked"]);
}

/// P-101. Lost: both nodes, and all that they had, when the agent could not map what they granted.
#[test]
fn m15_as_many_mappings_as_there_may_be() {
    let name = "all-mappings-taken";
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let run = cases(&[name])
        .mappings(most.trim().parse().unwrap())
        .finish()
        .expect_code(0);
    assert_eq!(run.output(), format!("{name}: ok\n"));
    assert_eq!(run.stat("pages_lost"), 0);
    run.expect_far_pages();
}

/// Lost: time without end, over pages that are sealed and can only be read; and programs, to memory that may be
/// dropped.
#[test]
fn m15_memory_that_cannot_leave_as_other_does() {
    holds(&["sealed-pages", "sealed-pages-to-read", "droppable-pages"]);
}

/// Zeros in place of data are nowhere: what may be evicted is not in the dump.
#[test]
fn m12_a_core_dump_has_no_zeros_for_evicted_pages() {
    // The agent of the process that dumps is killed by the kernel with it, and its counters too.
    let run = cases(&["core-dump"]).finish().expect_code(0);
    assert_eq!(run.output(), "core-dump: ok\n");
}

#[test]
fn m13_signal_stacks_on_evicted_pages() {
    holds(&[
        "alternate-stack",
        "nested-signals",
        "normal-stack",
        "thread-stacks",
        "handler-jumps-out",
        "handler-uses-far-pages",
    ]);
}

#[test]
fn m14_parent_child_and_grandchild_see_their_own_writes_only() {
    holds(&["fork-own-writes", "fork-changes-mappings"]);
}

#[test]
fn m14_a_page_that_parent_and_child_evict_becomes_two() {
    holds(&["fork-both-evict"]);
}

/// Lost: an agent that populated a page itself, which had just been moved away; and a minute, when a hand
/// outlived its child.
#[test]
fn m14_what_a_child_shares_moves_away_while_it_is_evicted() {
    cases(&["fork-moves-shared"])
        .arguments(["--rounds", sized("1000", "20")])
        .finish()
        .expect_code(0)
        .expect_far_pages();
}

#[test]
fn m14_a_child_outlives_its_parent() {
    holds(&["fork-outlives", "daemon"]);
}

#[test]
fn m14_what_is_not_on_fork_is_not_there() {
    holds(&["not-on-fork"]);
}

#[test]
fn m14_what_is_wiped_on_fork_is_zeros() {
    holds(&["wipe-on-fork"]);
}

#[test]
fn m14_a_child_may_write_more_than_the_cache() {
    holds(&["fork-more-than-the-cache"]);
}

/// The limit is the family's.
#[test]
fn m14_parent_and_child_together_stay_within_the_limit() {
    let run = || cases(&["fork-more-than-the-cache"]);
    limit::expect_limited(CACHE_MIB, 0, run, |_| {});
}

#[test]
fn m14_many_short_lived_children() {
    holds(&["fork-many"]);
}

#[test]
fn m15_vfork_spawn_and_exec_from_evicted_pages() {
    holds(&[
        "vfork-shares-memory",
        "posix-spawn",
        "exec-with-far-arguments",
        "exec-that-fails",
    ]);
}

/// Lost: what was far read zeros in processes that share a program's memory and outlive it.
#[test]
fn m15_who_shares_memory_is_served_beyond_the_end_of_its_maker() {
    holds(&[
        "sharer-of-an-ended-program",
        "sharer-of-a-program-that-executes",
        "sharer-of-an-ended-child",
        "vfork-child-of-a-killed-program",
    ]);
}

/// Which combinations there are depends on the seed; what the kernel refuses is refused as without
/// far memory.
#[test]
fn m15_tasks_of_every_kind_that_clone_makes_are_served() {
    let (rounds, seed) = (sized("3000", "60"), sized("11", "5"));
    let start = |run: Run| {
        run.arguments([
            "--case",
            "clone-flags",
            "--rounds",
            rounds,
            "--seconds",
            seed,
        ])
        .arguments(["--bytes", CASE_BYTES])
    };
    let program = || test_program("semantics");
    let plain = start(Run::plain(program())).finish().expect_code(0);
    let far = start(Run::far(program()))
        .arguments(["--expect-evicted"])
        .cache_mib(CACHE_MIB)
        .memory_mib(768);
    let far = far.finish().expect_code(0);
    // Each task has seen that its pages had left; the victim list may have had them all.
    assert!(far.stat("pages_evicted") > 0 && far.stat("pages_lost") == 0);
    assert_eq!(far.output(), plain.output());
}

/// Four images with 24 MiB far, one after another, and nodes that hold three of them: an image may
/// still be given back while the next one begins.
#[test]
fn m15_the_old_images_pages_are_freed() {
    let run = cases(&["exec-again"]).memory_mib(84).finish();
    let run = run.expect_code(0).expect_far_pages();
    assert_eq!(run.output(), "exec-again: ok\n");
}

#[test]
fn m16_remapped_ranges() {
    holds(&[
        "remap-grows-in-place",
        "remap-moves",
        "remap-fixed-over-far",
        "remap-leaves-the-old",
        "remap-a-part",
        "remap-shrinks",
        "remap-without-size",
    ]);
}

#[test]
fn m17_discarded_pages_are_zeros() {
    holds(&["discard", "remove"]);
}

#[test]
fn m17_freed_pages_are_the_old_or_zeros() {
    holds(&["free"]);
}

#[test]
fn m18_ranges_replaced_with_fetches_and_write_backs_in_flight() {
    holds(&["mapped-over", "unmapped-in-flight", "discarded-in-flight"]);
}

#[test]
fn m20_guard_pages_are_refused() {
    holds(&["guard-pages"]);
}

/// What a node has.
fn used_bytes(node: &Node) -> u64 {
    let status = status_of(Command::new(legato()), &node.address);
    let used = status.get("used_bytes").and_then(Value::as_u64);
    used.unwrap_or_else(|| panic!("no used_bytes in {status}"))
}

/// Memory that a node has given out or may give out: it grows and shrinks with what is far, at
/// its own pace.
const REGION: &str = "legato-region";
/// The supervisor's, however many children there were.
const SUPERVISOR_DESCRIPTORS_MAX: usize = 64;
/// At what is open, before it counts as lasting.
const LOOKS: u32 = 20;

/// Descriptors of the agents of the run, and last of the node but for its memory.
fn descriptors(run: &Running, node: &Node) -> Vec<usize> {
    let agents = run.processes().into_iter().filter(Process::leads_a_session);
    let mut counts: Vec<usize> = agents.map(|agent| agent.descriptors()).collect();
    counts.sort_unstable();
    counts.push(node.process().descriptors_without(REGION));
    counts
}

/// The same without those that are open for a moment: the agent reads files in /proc.
fn lasting_descriptors(run: &Running, node: &Node) -> Vec<usize> {
    let mut least = descriptors(run, node);
    for _ in 0..LOOKS {
        std::thread::sleep(Duration::from_millis(2));
        for (least, now) in least.iter_mut().zip(descriptors(run, node)) {
            *least = (*least).min(now);
        }
    }
    least
}

/// Runs a case that waits twice, and compares what is held at both times.
fn returns_to_where_it_began(case: &str, rounds: &str, (bytes, cache_mib): (&str, u64)) {
    let node = Node::start("1GiB");
    let idle = node.process().descriptors();
    let mut run = Run::far(test_program("semantics"))
        .arguments([
            "--case", case, "--alone", "--bytes", bytes, "--rounds", rounds,
        ])
        .arguments(["--expect-evicted"])
        .at(&[&node])
        .cache_mib(cache_mib)
        .start();
    run.wait_for_output("ready\n");
    let before = lasting_descriptors(&run, &node);
    let used_before = used_bytes(&node);
    run.write(b"go\n");
    run.wait_for_output("ready\nready\n");
    // Whoever has ended is noticed a moment later.
    poll_until(
        "the descriptors are those of the beginning",
        PATIENCE,
        || descriptors(&run, &node) == before,
    );
    let supervisor = Process::find(run.pid().as_raw_pid()).unwrap();
    let held = supervisor.descriptors();
    assert!(held <= SUPERVISOR_DESCRIPTORS_MAX, "{held} descriptors");
    // What the program holds is the same at both times, but for what happens to be local, and for the
    // pages that it pushes others out with. The rounds use many times that.
    let slack = 4 * cache_mib * MIB;
    let used = used_bytes(&node);
    assert!(
        used <= used_before + slack,
        "{used_before} bytes far before, {used} after"
    );
    run.write(b"go\n");
    run.finish().expect_code(0);
    poll_until("the node is empty", PATIENCE, || used_bytes(&node) == 0);
    poll_until("the node is as before", PATIENCE, || {
        node.process().descriptors() == idle
    });
}

#[test]
fn m19_a_thousand_rounds_of_growing_and_shrinking() {
    let size = (CASE_BYTES, CACHE_MIB);
    returns_to_where_it_began("part-rounds-then-waits", "1000", size);
}

#[test]
fn m19_ten_thousand_children() {
    let (rounds, size) = (sized("10000", "800"), children_size());
    returns_to_where_it_began("part-forks-then-waits", rounds, size);
}

#[test]
fn m19_ten_thousand_children_of_which_eight_are_alive() {
    let (rounds, size) = (sized("10000", "400"), children_size());
    returns_to_where_it_began("part-crowds-then-waits", rounds, size);
}

/// Bytes that children read, and MiB of cache.
pub(crate) fn children_size() -> (&'static str, u64) {
    sized(("256MiB", 64), (CASE_BYTES, CACHE_MIB))
}

#[test]
fn m20_locked_populated_and_protected_pages() {
    holds(&[
        "lock",
        "lock-on-fault",
        "lock-all-on-fault",
        "populate",
        "protect-and-repair",
        "protected-pages-leave",
        "generated-code",
    ]);
}

/// Lost: the program. Nothing of it was taken charge of while it was protected, so nothing could leave.
#[test]
fn m20_memory_that_is_read_only_when_it_is_found_leaves() {
    for mask in ["", "move"] {
        cases(&["protected-as-soon-as-written"])
            .environment("LEGATO_MASK_FEATURES", mask)
            .finish()
            .expect_code(0)
            .expect_far_pages();
    }
}

/// With ENOMEM, at once, on far memory.
#[test]
fn m20_locking_all_memory_is_answered() {
    // How many pages come back before it is asked depends on what is prefetched.
    let run = cases(&["lock-all"]).finish().expect_code(0);
    assert_eq!(run.output(), "lock-all: ok\n");
}

#[test]
fn m21_devices_and_program_see_the_same_bytes() {
    holds(&["direct-io", "direct-io-in-flight", "registered-buffers"]);
}

/// Where pages cannot be moved nobody knows which of them a device has: none leaves, and who needs more
/// than there is ends, before a page is taken from a device.
#[test]
fn m21_without_move_registered_buffers_stay_whatever_it_costs() {
    let run = cases(&["registered-buffers"])
        .environment("LEGATO_MASK_FEATURES", "move")
        .finish();
    if run.output().contains(": skipped") {
        eprintln!("{}", run.output());
        return;
    }
    let run = run.expect_code(1);
    assert_eq!(run.output(), "registered-buffers: signal: 9 (SIGKILL); \n");
    run.expect_told("PROG (PID) was killed: nothing that is");
}

#[test]
fn m21_pages_that_a_pipe_holds() {
    holds(&["pipe-holds-pages"]);
}

#[test]
fn m21_pages_that_were_given_to_a_pipe() {
    holds(&["pipe-is-given-pages"]);
}

#[test]
fn m23_ranges_that_ask_for_huge_pages() {
    holds(&["huge-pages"]);
}

#[test]
fn m25_descriptors_signals_and_the_end() {
    holds(&[
        "close-all-descriptors",
        "block-all-signals",
        "children-are-the-programs",
        "end-by-another-thread",
        "stack-grows",
        "heap-end-moves",
        "fixed-addresses",
    ]);
}

#[test]
fn m25_the_first_thread_ends_and_the_others_go_on() {
    holds(&["main-thread-ends"]);
}

#[test]
fn m25_rights_that_are_given_up() {
    holds(&[
        "system-call-filter",
        "limits",
        "not-dumpable",
        "another-user",
        "another-root-directory",
        "no-proc",
    ]);
}

/// Its range stays its own and local, which is said once; everything else goes far.
#[test]
fn m25_a_program_with_a_userfaultfd_of_its_own() {
    let run = holds(&["own-userfaultfd"]);
    run.expect_told("PROG (PID): part of the program's memory");
    let lines = run
        .stderr
        .lines()
        .filter(|line| line.contains("userfaultfd"));
    assert_eq!(lines.count(), 1, "{}", run.stderr);
}

/// What the agent uses is not in what it moves: no page of its stack, heap or code lies in memory
/// that a userfaultfd is registered for, but for the places that pages pass through.
#[test]
fn m27_an_agent_uses_no_far_memory() {
    let mut run = holding();
    let agent = agent_of(&run);
    for _ in 0..50 {
        let stack = agent.stack_pointer();
        let Some(stack) = stack else { continue };
        let flags = agent.flags_of_mapping(stack).expect("its stack is mapped");
        assert!(
            !flags.contains(" um"),
            "the agent's stack is far memory: {flags}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    run.write(b"go\n");
    run.finish().expect_code(0);
}
