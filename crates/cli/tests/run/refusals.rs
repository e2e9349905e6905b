//! What cannot work is refused with one clear line, before anything is started.

use crate::harness::{Finished, Run, legato, test_directory};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One line on standard error that holds `word`, and no sign of the program.
#[track_caller]
fn expect_refusal(run: Run, code: i32, word: &str) -> Finished {
    let run = run.finish().expect_code(code);
    assert_eq!(run.output(), "");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(run.stderr.contains(word), "no '{word}' in: {}", run.stderr);
    run
}

fn echo() -> Run {
    Run::far("echo").arguments(["started"])
}

#[test]
fn no_such_program() {
    expect_refusal(
        Run::far("legato-no-such-program"),
        127,
        "legato-no-such-program",
    );
    expect_refusal(Run::far("/no/such/program"), 127, "/no/such/program");
}

#[test]
fn not_executable() {
    let file = test_directory().join("data");
    fs::write(&file, "data").unwrap();
    expect_refusal(Run::far(&file), 126, "data");
    expect_refusal(Run::far("/"), 126, "/");
}

#[test]
fn a_cache_below_the_minimum() {
    expect_refusal(echo().option("--cache", "64KiB"), 125, "cache");
}

#[test]
fn sizes_that_are_none() {
    for option in ["--cache", "--far"] {
        expect_refusal(echo().option(option, "plenty"), 125, option);
    }
}

/// It is not the program, whatever comes after it.
#[test]
fn an_option_that_is_none() {
    expect_refusal(echo().option("--cahce", "64MiB"), 125, "--cahce");
}

#[test]
fn a_log_that_cannot_be_selected() {
    let level = "LEGATO_LOG=legato=loud";
    let node = Command::new(legato())
        .args(["node", "--memory", "16MiB", "--listen"])
        .arg("shm:@legato-test-loud")
        .env("LEGATO_LOG", "legato=loud")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&node.stderr);
    assert_eq!(node.status.code(), Some(2), "{said}");
    assert!(said.lines().count() == 1 && said.contains(level), "{said}");

    let run = echo().environment("LEGATO_LOG", "legato=loud").finish();
    assert_eq!(run.expect_code(125).output(), "");
}

#[test]
fn an_address_that_is_none() {
    expect_refusal(echo().option("--nodes", "nonsense"), 125, "nonsense");
}

#[test]
fn an_address_where_nobody_listens() {
    let address = "shm:@legato-test-nobody";
    expect_refusal(echo().option("--nodes", address), 125, address);
}

#[test]
fn an_address_where_something_else_listens() {
    let path = test_directory().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let address = format!("shm:{}", path.display());
    expect_refusal(echo().option("--nodes", &address), 125, &address);
}

/// Without the capability and without access to /dev/userfaultfd.
#[test]
fn no_right_to_userfaultfd() {
    let allowed = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    assert_eq!(
        allowed.unwrap_or_default().trim(),
        "0",
        "this machine grants userfaultfd to everybody"
    );
    let directory = tempdir_for_all();
    let copy = directory.join("legato");
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
    fs::remove_dir_all(&directory).unwrap();
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
    for way in ["root", "/dev/userfaultfd", "vm.unprivileged_userfaultfd"] {
        assert!(run.stderr.contains(way), "no '{way}' in: {}", run.stderr);
    }
}

/// A directory that every user may enter, unlike the build directory.
fn tempdir_for_all() -> PathBuf {
    let directory = Path::new("/tmp").join(format!("rights-test-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    directory
}
