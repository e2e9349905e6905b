//! Signals are the program's.

use crate::harness::{Node, Run, test_program};
use rustix::process::{Signal, kill_process, kill_process_group};

const TRAP: &str = "trap 'echo caught; exit 5' TERM INT HUP; echo ready; read line; echo read";

fn trapped(signal: Signal) {
    let run = Run::far("sh")
        .arguments(["-c", TRAP])
        .cache_mib(64)
        .memory_mib(64)
        .start();
    run.wait_for_output("ready");
    kill_process(run.pid(), signal).unwrap();
    run.wait_for_output("caught");
    assert_eq!(run.finish().expect_code(5).output(), "ready\ncaught\n");
}

#[test]
fn sigterm_reaches_the_program() {
    trapped(Signal::TERM);
}

#[test]
fn sigint_reaches_the_program() {
    trapped(Signal::INT);
}

#[test]
fn sighup_reaches_the_program() {
    trapped(Signal::HUP);
}

#[test]
fn sigterm_ends_a_program_with_far_pages() {
    let run = Run::far(test_program("hold"))
        .arguments(["--bytes", "128MiB"])
        .cache_mib(64)
        .memory_mib(256)
        .start();
    run.wait_for_far_pages(64);
    kill_process(run.pid(), Signal::TERM).unwrap();
    let run = run.finish();
    assert_eq!(run.code(), Some(128 + 15), "{}", run.stderr);
}

/// As a terminal does it: to every process of the group, supervisor and nodes included.
#[test]
fn an_interrupt_of_the_whole_group_is_the_programs_to_handle() {
    let arguments = [
        "-c",
        // Twice caught is right too, also later: to legato a signal to the group looks like one to itself.
        "trap 'echo caught' INT; echo ready; until read line; do :; done; echo $line; exit 4",
    ];
    let mut run = Run::far("sh")
        .arguments(arguments)
        .cache_mib(64)
        .memory_mib(64)
        .start();
    run.wait_for_output("ready");
    kill_process_group(run.pid(), Signal::INT).unwrap();
    run.wait_for_output("caught");
    run.write(b"here\nhere\nhere\n");
    let run = run.finish().expect_code(4);
    assert_eq!(run.output().replace("caught\n", ""), "ready\nhere\n");
}

#[test]
fn a_node_ends_well_on_sigterm() {
    let status = Node::start("64MiB").terminate();
    assert!(status.success(), "{status}");
}
