//! A debugger at a program whose memory is far.

use super::source;
use crate::harness::{Run, Running, system_program, test_directory};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn gdb_reads_and_changes_evicted_memory() {
    let directory = test_directory();
    let program = debuggee(&directory);
    let run = Run::far(&program)
        .arguments(["64"])
        .cache_mib(16)
        .memory_mib(1024)
        .start();
    run.wait_for_output("ready");
    let calls = calls_functions(&program);
    let said = if calls {
        gdb(
            &run,
            &[
                "backtrace",
                "fetch words[1000]",
                "print words[1000] == word(1000)",
                "print wrong_words()",
                "fetch words[count / 2]",
                "set var words[count / 2] = 0xabcdef",
            ],
        )
    } else {
        gdb(&run, &["backtrace"])
    };
    // The five calls, innermost first; the frames above main are the C library's.
    for frame in [
        "wait_for_debugger (depth=0)",
        "wait_for_debugger (depth=3)",
        "main (argc=2",
    ] {
        assert!(said.contains(frame), "no '{frame}' in {said}");
    }
    let done = run.finish().expect_code(0).expect_far_pages();
    if calls {
        assert!(
            said.contains("$1 = 1\n") && said.contains("$2 = 0\n"),
            "{said}"
        );
        assert!(
            done.output().ends_with("wrong 1, changed to abcdef\n"),
            "{}",
            done.output()
        );
    } else {
        assert!(
            done.output().contains("wrong 0, changed"),
            "{}",
            done.output()
        );
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn gdb_runs_a_program_on_far_memory() {
    let directory = test_directory();
    let program = debuggee(&directory);
    let calls = calls_functions(&program);
    let done = Run::far(system_program("gdb"))
        .arguments([
            "-batch",
            "-nx",
            "-ex",
            "break wait_for_debugger",
            "-ex",
            "run",
        ])
        .arguments(["-ex", "backtrace", "-ex", "print wrong_words()"])
        .arguments(["-ex", "delete", "-ex", "continue", "--args"])
        .arguments([program.as_os_str(), "64".as_ref()])
        .cache_mib(16)
        .memory_mib(1024)
        .finish()
        .expect_code(0)
        .expect_far_pages();
    let said = done.output();
    let printed = calls.then_some("$1 = 0\n");
    let others = ["wrong 0, changed", "main (argc=2", "exited normally"];
    for part in others.into_iter().chain(printed) {
        assert!(said.contains(part), "no '{part}' in {said}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

fn debuggee(directory: &Path) -> PathBuf {
    let program = directory.join("debuggee");
    let status = Command::new(system_program("gcc"))
        .args(["-g", "-O0", "-o"])
        .args([&program, &source("debuggee.c")])
        .status()
        .unwrap();
    assert!(status.success(), "debuggee.c does not compile");
    program
}

/// Whether gdb can call functions of a program on this machine, on local memory. gdb 13 cannot where
/// the processor has AMX, whose registers it does not know ("Couldn't write extended state status").
fn calls_functions(program: &Path) -> bool {
    let tried = Run::plain(system_program("gdb"))
        .arguments(["-batch", "-nx", "-ex", "break wait_for_debugger"])
        .arguments(["-ex", "run", "-ex", "print wrong_words()", "--args"])
        .arguments([program.as_os_str(), "1".as_ref()])
        .finish();
    let calls = tried.output().contains("$1 = 0\n");
    if !calls {
        let why = &tried.stderr;
        assert!(why.contains("extended state status"), "{why}");
        eprintln!("skipped: functions called by gdb, which cannot on this processor: {why}");
    }
    calls
}

/// Attaches gdb, runs the commands and detaches.
fn gdb(run: &Running, commands: &[&str]) -> String {
    let pid = run.number_after("pid ");
    let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/gdb-far-memory.py");
    let debugger = Run::plain(system_program("gdb"))
        .arguments(["-batch", "-nx", "-p", &pid.to_string(), "-x"])
        .arguments([&fetch])
        .arguments(commands.iter().flat_map(|command| ["-ex", command]))
        .arguments(["-ex", "detach"]);
    debugger.finish().expect_code(0).output()
}
