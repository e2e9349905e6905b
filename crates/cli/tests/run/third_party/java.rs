//! The Java virtual machine, whose collectors move objects, with each collector whose heap is
//! anonymous memory. (That of ZGC is a shared mapping, which stays local.)

use super::{same_output_within_the_limit, source};
use crate::harness::{sized, system_program, test_directory};
use std::process::Command;

#[test]
fn java_with_the_serial_collector() {
    the_same_map(&["-Xmx256m", "-XX:+UseSerialGC"]);
}

#[test]
fn java_with_the_parallel_collector() {
    the_same_map(&["-Xmx256m", "-XX:+UseParallelGC"]);
}

#[test]
fn java_with_the_g1_collector() {
    the_same_map(&["-Xmx256m", "-XX:+UseG1GC"]);
}

#[test]
fn java_with_the_heap_it_chooses() {
    the_same_map(&[]);
}

fn the_same_map(options: &[&str]) {
    let classes = test_directory();
    let status = Command::new(system_program("javac"))
        .arg("-d")
        .arg(&classes)
        .arg(source("MapWork.java"))
        .status()
        .unwrap();
    assert!(status.success(), "MapWork.java does not compile");
    same_output_within_the_limit(system_program("java"), 32, |run| {
        run.arguments(options)
            .arguments(["-cp".as_ref(), classes.as_os_str()])
            .arguments(["MapWork", sized("800000", "250000")])
    });
    std::fs::remove_dir_all(&classes).unwrap();
}
