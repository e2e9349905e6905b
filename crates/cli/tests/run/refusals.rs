//! What cannot work is refused with one clear line, before anything is started.

use crate::harness::{EnterableDirectory, Finished, Run, legato, messages, test_directory};
use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Command;

/// One line on standard error, of the row that begins so and with `word` in it, and no sign of the program.
#[track_caller]
fn expect_refusal(run: Run, code: i32, row: &str, word: &str) {
    let run = run.finish().expect_code(code);
    assert_eq!(run.output(), "");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    run.expect_told(row);
    assert!(run.stderr.contains(word), "no '{word}' in: {}", run.stderr);
}

fn echo() -> Run {
    Run::far("echo").arguments(["started"])
}

#[test]
fn no_such_program() {
    for program in ["legato-no-such-program", "/no/such/program"] {
        expect_refusal(Run::far(program), 127, "PROG: no such program", program);
    }
}

#[test]
fn not_executable() {
    let file = test_directory().join("data");
    fs::write(&file, "data").unwrap();
    expect_refusal(Run::far(&file), 126, "PROG: not executable", "data");
    expect_refusal(Run::far("/"), 126, "PROG: not executable", "/");
}

#[test]
fn a_cache_below_the_minimum() {
    let run = echo().option("--cache", "64KiB");
    expect_refusal(run, 125, "--cache SIZE is less", "64 KiB");
}

#[test]
fn sizes_that_are_none() {
    for option in ["--cache", "--far"] {
        let run = echo().option(option, "plenty");
        expect_refusal(run, 125, "TEXT; see --help", option);
    }
}

/// It is not the program, whatever comes after it.
#[test]
fn an_option_that_is_none() {
    let run = echo().option("--cahce", "64MiB");
    expect_refusal(run, 125, "OPTION is not an option", "--cahce");
}

#[test]
fn a_log_that_cannot_be_selected() {
    let level = "LEGATO_LOG=legato=loud";
    let mut node = Command::new(legato());
    node.args(["node", "--memory", "16MiB", "--listen"])
        .arg("shm:@legato-test-loud")
        .env("LEGATO_LOG", "legato=loud");
    let said = messages::expect_refused(&mut node, 2, "LEGATO_LOG=TEXT");
    assert!(said.contains(level), "{said}");

    let run = echo().environment("LEGATO_LOG", "legato=loud").finish();
    run.expect_told("a memory node did not start");
    assert_eq!(run.expect_code(125).output(), "");
}

#[test]
fn an_address_that_is_none() {
    let run = echo().option("--nodes", "nonsense");
    expect_refusal(run, 125, "TEXT; see --help", "nonsense");
}

#[test]
fn an_address_where_nobody_listens() {
    let address = "shm:@legato-test-nobody";
    let run = echo().option("--nodes", address);
    expect_refusal(run, 125, "memory node ADDR: REASON; nobody", address);
}

#[test]
fn an_address_where_something_else_listens() {
    let path = test_directory().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let address = format!("shm:{}", path.display());
    let run = echo().option("--nodes", &address);
    expect_refusal(
        run,
        125,
        "memory node ADDR: REASON; it may be no node",
        &address,
    );
}

/// P-29: without the capability and without access to /dev/userfaultfd.
#[test]
fn no_right_to_userfaultfd() {
    let allowed = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    assert_eq!(
        allowed.unwrap_or_default().trim(),
        "0",
        "this machine grants userfaultfd to everybody"
    );
    let directory = EnterableDirectory::new();
    let copy = directory.0.join("legato");
    fs::copy(legato(), &copy).unwrap();
    let run = Run::plain("setpriv")
        .arguments([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--bounding-set=-all",
        ])
        .arguments([copy.as_os_str()])
        .arguments(["run", "--cache", "64MiB", "--", "echo", "started"])
        .finish();
    expect_no_right(&run);
}

fn expect_no_right(run: &Finished) {
    assert_eq!(
        (run.code(), run.output()),
        (Some(125), String::new()),
        "{}",
        run.stderr
    );
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    run.expect_told("no right to a userfaultfd");
}
