//! Programs whose agents reach their nodes through the supervisor, as they do where a node is at an RDMA
//! device. A test switch has them do so with software RoCE, which needs no device.

use crate::harness::{
    PATIENCE, Process, Run, Running, World, is_soak, poll_until, sized, system_program,
    test_program,
};
use crate::redis::stores_and_gives_back;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs;

/// Of data centres.
const MTU: u32 = 9000;
/// The test switch.
const PROXY: (&str, &str) = ("LEGATO_PROXY", "1");
/// The thread that has the NIC.
const THREAD: &str = "legato-nic\n";

fn proxied(world: &World, program: impl AsRef<OsStr>) -> Run {
    world.run(program).environment(PROXY.0, PROXY.1)
}

/// The supervisor has the NIC, and no agent has a socket of its own to the network.
#[track_caller]
fn expect_proxy(run: &Running) {
    let names = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", run.pid().as_raw_pid()));
        let tasks = tasks.unwrap().flatten();
        tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
    };
    poll_until("the thread of the NIC", PATIENCE, || {
        names().any(|name| name == THREAD)
    });
}

/// A program that does not end, at a moment at which pages of it are far.
fn with_far_pages(world: &World) -> Running {
    let run = proxied(world, test_program("fill"))
        .arguments(["--bytes", "128MiB", "--threads", "2", "--rounds", "1000"])
        .cache_mib(48)
        .start();
    expect_proxy(&run);
    poll_until("pages are far", PATIENCE, || world.used_bytes() > 32 << 20);
    run
}

#[test]
fn the_pattern_program_has_its_pages_at_second_hand() {
    let world = World::new(MTU, "", "1GiB");
    // In the gate what needs the nodes in another way: reading, writing, and sharing what is there.
    let phases = sized(
        "touch,calls,discard,remap,unmap,protect,heap,fork,busy-fork",
        "touch,discard,busy-fork",
    );
    let run = proxied(&world, test_program("pattern"))
        .arguments(["--bytes", sized("64MiB", "20MiB")])
        .arguments(["--operations", sized("400", "20")])
        .arguments(["--seed", "11", "--phase", phases])
        .cache_mib(sized(24, 12))
        .start();
    expect_proxy(&run);
    let run = run.finish().expect_code(0).expect_far_pages();
    assert!(run.output().ends_with(" 0 wrong\n"), "{}", run.output());
    world.expect_clean_end();
}

#[test]
fn redis_gives_back_what_was_stored_at_second_hand() {
    let world = World::new(MTU, "", "1GiB");
    stores_and_gives_back(
        proxied(&world, system_program("redis-server")),
        sized(24, 8),
        || {},
    );
    world.expect_clean_end();
}

/// Three processes at a time, each with an agent and so a proxy of its own.
#[test]
fn every_process_of_a_tree_has_a_proxy_of_its_own() {
    let world = World::new(MTU, "", "1GiB");
    let fill = test_program("fill");
    let bytes = sized("64MiB", "16MiB");
    let one = format!("{} --bytes {bytes} --threads 1 --rounds 2", fill.display());
    let script =
        format!("{one} & first=$!; {one} & second=$!; {one} && wait $first && wait $second");
    let run = proxied(&world, "sh")
        .arguments(["-c", &script])
        .cache_mib(sized(48, 18));
    let run = run.start();
    expect_proxy(&run);
    run.finish().expect_code(0).expect_far_pages();
    world.expect_clean_end();
}

/// Its agent dies with it, or sees that it is gone: either way the node gets its memory back, and the
/// NIC everything.
#[test]
fn a_program_that_is_killed_gives_its_memory_back() {
    let world = World::new(MTU, "", "512MiB");
    let run = with_far_pages(&world);
    let programs = run.processes().into_iter().filter(Process::is_program);
    programs.for_each(|program| program.signal(Signal::KILL));
    let run = run.finish();
    assert_eq!(
        run.code(),
        Some(128 + Signal::KILL.as_raw()),
        "{}",
        run.stderr
    );
    world.expect_clean_end();
}

/// With the supervisor goes the NIC: no page comes any more, and a program that needs one ends.
#[test]
fn a_program_whose_supervisor_is_killed_does_not_hang() {
    let world = World::new(MTU, "", "512MiB");
    let run = with_far_pages(&world);
    let programs: Vec<Process> = run
        .processes()
        .into_iter()
        .filter(Process::is_program)
        .collect();
    assert!(!programs.is_empty());
    rustix::process::kill_process(run.pid(), Signal::KILL).unwrap();
    poll_until("the program has ended", PATIENCE, || {
        !programs.iter().any(Process::is_alive)
    });
    // Nothing tells the node that the NIC is gone: it gives the memory back after 34 s of silence.
    if is_soak() {
        world.expect_clean_end();
    }
}
