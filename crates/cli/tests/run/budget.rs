//! One budget for all processes of a run.

use crate::harness::{
    Cgroup, Finished, MIB, Node, PATIENCE, Process, Run, conclusive, poll_until, test_program,
};
use crate::limit::{self, expect_limited};
use std::cell::Cell;

/// Runs every line at once, and waits for all of them.
fn at_once(lines: &[String]) -> String {
    let started: String = lines
        .iter()
        .map(|line| format!("{line} & all=\"$all $!\"; "))
        .collect();
    format!("{started} for one in $all; do wait $one || exit; done")
}

fn fill(arguments: &str) -> String {
    format!("{} {arguments}", test_program("fill").display())
}

/// A number of the statistics of each process with this command.
#[track_caller]
fn of_each(run: &Finished, command: &str, name: &str) -> Vec<u64> {
    let stats = run.stats.as_ref().expect("--stats wrote a file");
    let processes = stats["processes"].as_array().unwrap();
    let such = processes
        .iter()
        .filter(|process| process["command"] == command);
    such.map(|process| process[name].as_u64().unwrap())
        .collect()
}

#[test]
fn processes_of_one_run_share_one_limit() {
    let lines = at_once(&vec![fill("--bytes 128MiB --rounds 2"); 3]);
    let right = "fill: 32768 pages, 0 wrong\n".repeat(3);
    let run = || Run::far("sh").arguments(["-c", &lines]).memory_mib(1024);
    // The sum over all programs, their agents' memory included.
    let run = expect_limited(64, 0, run, |run| {
        assert_eq!(run.output(), right, "{}", run.stderr);
    });
    let peak = run.stat("local_bytes_peak");
    assert!(peak > 32 * MIB, "the budget is used: {peak} bytes");
    for evicted in of_each(&run, "fill", "pages_evicted") {
        assert!(evicted > 0, "everyone had to give way: {:?}", run.stats);
    }
}

#[test]
fn what_a_process_had_is_shared_out_when_it_ends() {
    let hold = test_program("hold");
    let script = format!(
        "{} {} --bytes 128MiB --again; wait",
        vec![fill("--bytes 96MiB --rounds 2 &"); 2].join(" "),
        hold.display()
    );
    let mut run = Run::far("sh")
        .arguments(["-c", &script])
        .cache_mib(64)
        .memory_mib(1024)
        .start();
    run.wait_for_output("ready");
    let done = "fill: 24576 pages, 0 wrong\n";
    poll_until("both are done", PATIENCE, || {
        run.output_so_far().matches(done).count() == 2
    });
    // The shell's command has these words too.
    let program = hold.display().to_string();
    let is_last = |process: &Process| process.command().starts_with(&program);
    let last = run.processes().into_iter().find(is_last).unwrap();
    let right = "hold: 32768 right, 0 lost, 0 wrong\n";
    let mut rounds = 0;
    poll_until("48 MiB of 64 MiB are the last one's", PATIENCE, || {
        run.write(b"go on\n");
        rounds += 1;
        poll_until("it has read everything", PATIENCE, || {
            run.output_so_far().matches(right).count() == rounds
        });
        last.resident().is_some_and(|it| it.anonymous > 48 * MIB)
    });
    let run = run.finish().expect_code(0).expect_far_pages();
    let share = of_each(&run, "hold", "share_bytes_current");
    assert!(share[0] > 48 * MIB, "{share:?} of 64 MiB for the last one");
}

/// A process whose memory cannot leave gets what it needs, and the other what is left.
#[test]
fn a_process_that_cannot_do_with_its_part_is_not_ended() {
    let hold = test_program("hold");
    let filler = fill("--bytes 128MiB --rounds 2");
    let script = format!("{filler} & {} --bytes 40MiB --lock; wait", hold.display());
    let mut run = Run::far("sh")
        .arguments(["-c", &script])
        .cache_mib(64)
        .memory_mib(512)
        .start();
    run.wait_for_output("ready");
    run.wait_for_output("fill: 32768 pages, 0 wrong");
    run.write(b"go on\n");
    let run = run.finish().expect_code(0).expect_far_pages();
    let right = "hold: 10240 right, 0 lost, 0 wrong\n";
    assert!(run.output().ends_with(right), "{}", run.output());
}

/// The first one's memory cannot leave either, and it is content. The two are more than there is.
#[test]
fn a_process_is_not_ended_because_another_cannot_give_up_its_part() {
    let hold = test_program("hold").display().to_string();
    let script = format!(
        "exec 9<> <(:); {hold} --bytes 30MiB --lock <&9 & read line; {hold} --bytes 40MiB --lock; \
         status=$?; echo go on >&9; wait $! && exit $status"
    );
    let mut run = Run::far("bash")
        .arguments(["-c", &script])
        .cache_mib(64)
        .memory_mib(256)
        .start();
    run.wait_for_output("ready");
    run.write(b"the next one\n");
    poll_until("both are there", PATIENCE, || {
        run.output_so_far().matches("ready").count() == 2
    });
    run.wait_for_message("more than --cache 64 MiB");
    let run = run.finish().expect_code(0);
    for right in ["hold: 7680 right,", "hold: 10240 right,"] {
        assert!(run.output().contains(right), "{}", run.output());
    }
}

/// Small processes cost little: fifty of them leave most of the budget to the one that needs it.
#[test]
fn small_processes_leave_the_budget_to_the_big_one() {
    let small = "i=0; while [ $i -lt 50 ]; do sleep 60 & i=$((i+1)); done";
    let big = fill("--bytes 128MiB --rounds 2");
    let script = format!("{small}; {big}; status=$?; kill $(jobs -p); exit $status");
    let run = Run::far("bash")
        .arguments(["-c", &script])
        .cache_mib(128)
        .memory_mib(512)
        .finish()
        .expect_code(0);
    assert_eq!(run.output(), "fill: 32768 pages, 0 wrong\n");
    let small = of_each(&run, "sleep", "cache_bytes_peak");
    assert_eq!(small.len(), 50, "{:?}", run.stats);
    // An agent that comes by ptrace, because the program did not get a processor to bring it within a second,
    // has its text in memory of its own, 1.05 MiB, and data.
    let stats = run.stats.as_ref().unwrap()["processes"].as_array().unwrap();
    let injected = stats.iter().filter(|process| process["injected"] == true);
    let injected = injected.count() as u64 * 3 * MIB / 2;
    assert!(small.iter().sum::<u64>() < 50 * MIB + injected, "{small:?}");
    let share = of_each(&run, "fill", "share_bytes_peak");
    // Divided evenly it would be 3 MiB.
    assert!(share[0] + injected >= 56 * MIB, "{share:?} of 128 MiB");
}

#[test]
fn too_many_processes_for_the_budget_are_mentioned_once_and_run() {
    let script = "i=0; while [ $i -lt 12 ]; do sleep 1 & i=$((i+1)); done; wait; echo done";
    let run = Run::far("sh")
        .arguments(["-c", script])
        .cache_mib(8)
        .memory_mib(64)
        .finish()
        .expect_code(0);
    assert_eq!(run.output(), "done\n");
    let mentions = run.stderr.matches("more than --cache 8 MiB").count();
    assert_eq!(mentions, 1, "{}", run.stderr);
    run.expect_told("N processes need");
}

/// The hard limit is the stated one: the cache, 5 % of it for tables, and 16 MiB. The node is
/// outside: on one machine its memory stands for another machine's.
#[test]
fn m59_a_hard_limit_a_little_above_the_cache_is_never_hit() {
    let limit = limit::stated(64 * MIB);
    let group = match Cgroup::limited_to(limit) {
        Ok(group) => group,
        Err(reason) => {
            eprintln!("skipped, for want of a memory control group: {reason}");
            return;
        }
    };
    let node = Node::start("1GiB");
    let scan = test_program("scan").display().to_string();
    let lines = at_once(&[
        fill("--bytes 128MiB --rounds 2"),
        fill("--bytes 128MiB --threads 2"),
        format!("{scan} --bytes 96MiB --order random --rounds 2 --write 50"),
    ]);
    let before = Cell::new(0);
    let run = || {
        before.set(group.limit_hits());
        let run = Run::far("sh")
            .arguments(["-c", &lines])
            .at(&[&node])
            .cache_mib(64)
            .inside(&group)
            .finish()
            .expect_code(0)
            .expect_far_pages();
        let output = run.output();
        assert_eq!(output.matches(" 0 wrong\n").count(), 3, "{output}");
        run
    };
    conclusive(run, |_| match group.limit_hits() - before.get() {
        0 => Ok(()),
        hits => Err(format!("{hits} hits of the limit of {} KiB", limit / 1024)),
    });
    let peak = group.peak().unwrap_or(limit);
    assert!(peak > 48 * MIB, "only {} KiB were charged", peak / 1024);
}
