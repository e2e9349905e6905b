//! Nodes as RDMA devices are reached: by a service, from UDP port 4791 of one machine to that of the other.
//! The node here is one of software, which answers devices and software alike; `rdma` has a device.

use crate::harness::{
    PATIENCE, Process, Run, World, legato, messages, poll_until, sized, test_program,
};
use rustix::process::Signal;

/// Of data centres.
const MTU: u32 = 9000;

fn fill(mib: u32, rounds: u32) -> String {
    let fill = test_program("fill");
    format!(
        "{} --bytes {mib}MiB --threads 1 --rounds {rounds}",
        fill.display()
    )
}

/// Three programs at a time, and the children of one that forks: all have the one port.
#[test]
fn a_tree_of_processes_shares_the_port() {
    let world = World::new(MTU, "/7000", "1GiB");
    let one = fill(sized(64, 20), 2);
    let forks = format!(
        "{} --bytes {} --operations {} --seed 7 --phase calls,fork,busy-fork",
        test_program("pattern").display(),
        sized("32MiB", "12MiB"),
        sized(200, 20)
    );
    let script = format!(
        "{one} & first=$!; {one} & second=$!; {forks} && wait $first && wait $second && echo all"
    );
    let run = world.run("sh").arguments(["-c", &script]);
    let run = run.cache_mib(sized(48, 24)).finish();
    let run = run.expect_code(0).expect_far_pages();
    assert!(run.output().contains(" 0 wrong\n"), "{}", run.output());
    assert!(run.output().ends_with("all\n"), "{}", run.output());
    world.expect_clean_end();
}

/// What one program leaves behind harms no other that has the same NIC.
#[test]
fn a_program_that_is_killed_takes_nothing_from_the_others() {
    let world = World::new(MTU, "/7000", "1GiB");
    let script = format!(
        "{} & doomed=$!; {} && wait $doomed; echo doomed $?",
        fill(64, 100_000),
        fill(64, sized(6, 2))
    );
    let run = world.run("sh").arguments(["-c", &script]).cache_mib(48);
    let run = run.with_summary().start();
    // The shell's command has these words too.
    let program = test_program("fill").display().to_string();
    let is_doomed = |process: &Process| {
        let command = process.command();
        command.starts_with(&program) && command.contains("100000")
    };
    poll_until("both programs run", PATIENCE, || {
        run.processes().iter().any(is_doomed)
    });
    let doomed = run.processes().into_iter().find(is_doomed).unwrap();
    let is_large = || doomed.resident().is_some_and(|it| it.anonymous > 8 << 20);
    poll_until("it has memory", PATIENCE, is_large);
    doomed.signal(Signal::KILL);
    let run = run.finish().expect_code(0).expect_far_pages();
    assert!(run.output().contains("doomed 137\n"), "{}", run.output());
    world.expect_clean_end();
}

/// Who asks for a UDP port where only a device answers is told where that is.
#[test]
fn a_service_is_found_that_was_asked_for_as_a_port() {
    let world = World::new(MTU, "/7000", "512MiB");
    for asked in ["roce://", ""] {
        let asked = format!("{asked}{}:7000", world.hosts.server.address);
        let status = world.hosts.client.status_of(&asked);
        assert_eq!(status["address"], world.address, "asked for {asked}");
    }
    let asked = format!("roce://{}:7000", world.hosts.server.address);
    let run = Run::far(test_program("fill"))
        .arguments(["--bytes", sized("96MiB", "32MiB")])
        .arguments(["--threads", "2", "--rounds", "2"])
        .arguments(["--within", sized("32MiB", "12MiB")])
        .cache_mib(sized(32, 12))
        .option("--nodes", &asked)
        .on(&world.hosts.client);
    run.finish().expect_code(0).expect_far_pages();
    world.expect_clean_end();
}

/// An address has one such port, and the second run is told who can have it.
#[test]
fn two_runs_at_a_time_do_not_reach_devices() {
    let world = World::new(MTU, "/7000", "512MiB");
    let first = world.run(test_program("hold")).cache_mib(48);
    let mut first = first.arguments(["--bytes", "16MiB"]).start();
    first.wait_for_output("ready");
    let at_a_port = format!("roce://{}:7000", world.hosts.server.address);
    for (asked, row) in [
        (&world.address, "memory node ADDR: UDP port 4791"),
        (&at_a_port, "memory node ADDR: REASON; only one process"),
    ] {
        let mut second = world.hosts.client.command(legato());
        second.args(["run", "--nodes", asked, "--", "true"]);
        let told = messages::expect_refused(&mut second, 125, row);
        assert!(told.contains("4791") && told.contains("in use"), "{told}");
    }
    first.write(b"\n");
    first.finish().expect_code(0);
    world.expect_clean_end();
}
