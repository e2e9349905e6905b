//! Programs that root starts and that become another user have far memory, and get nothing that is not theirs.

use crate::harness::{
    EnterableDirectory, PATIENCE, Run, poll_until, sized, system_python, test_program,
};
use rustix::process::{Signal, kill_process};
use std::path::Path;
use std::process::Command;

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// Fills, checks, forks and drops memory as that user.
fn expect_far_memory(program: &str, become_nobody: &[&str]) {
    let directory = EnterableDirectory::new();
    let copy = directory.0.join(program);
    std::fs::copy(test_program(program), &copy).unwrap();
    let phases = "touch,calls,discard,remap,unmap,protect,heap,fork";
    let run = Run::far("setpriv")
        .arguments(become_nobody)
        .arguments([copy.as_os_str()])
        .arguments(["--bytes", sized("256MiB", "32MiB")])
        .arguments(["--operations", sized("30000", "1500")])
        .arguments(["--seed", "67", "--phase", phases])
        .cache_mib(sized(64, 12))
        .memory_mib(sized(1024, 512))
        .finish()
        .expect_code(0)
        .expect_far_pages();
    assert!(run.output().ends_with(" 0 wrong\n"), "{}", run.output());
    assert_eq!(run.stderr, "");
    assert_eq!(run.stat("processes_local"), 0);
}

// P-103
/// Lost: the loader could not read the agent, the supervisor sent it away, and the kernel gave it no userfaultfd.
#[test]
fn a_program_that_has_become_another_user_has_far_memory() {
    expect_far_memory("pattern", &NOBODY);
}

#[test]
fn a_static_program_that_has_become_another_user_has_far_memory() {
    expect_far_memory("pattern_static", &NOBODY);
}

/// As a sandbox leaves it.
#[test]
fn a_program_without_any_capability_has_far_memory() {
    let bounded = ["--bounding-set=-all", "--no-new-privs"];
    expect_far_memory("pattern", &[&NOBODY[..], &bounded].concat());
}

/// What it tries is not answered, and its node's socket is not its own to use.
const INTRUDER: &str = r#"
import os, socket, sys
control = sys.argv[1] if len(sys.argv) > 1 else os.environ["LEGATO_CONTROL"]
directory = os.path.dirname(control)
def attempt(what, act):
    try: print(what, act())
    except OSError as error: print(what, type(error).__name__)
def connect(path):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(path)
    peer.settimeout(60)
    return peer.recv(64)
attempt("list", lambda: os.listdir(directory))
attempt("node", lambda: connect(directory + "/node-0"))
attempt("write", lambda: open(directory + "/legato-agent.so", "r+b"))
attempt("make", lambda: open(directory + "/more", "wb"))
if len(sys.argv) > 1: attempt("control", lambda: connect(control))
"#;

// P-103
#[test]
fn another_user_of_a_run_gets_neither_its_directory_nor_its_nodes() {
    let python = system_python();
    let run = Run::far("setpriv")
        .arguments(NOBODY)
        .arguments([python.as_os_str(), "-c".as_ref(), INTRUDER.as_ref()])
        .finish()
        .expect_code(0);
    let refused = ["list", "node", "write", "make"].map(|what| format!("{what} PermissionError\n"));
    assert_eq!(run.output(), refused.concat());
}

/// Who is not of the run is sent away without a word, whoever may connect.
#[test]
fn another_user_outside_of_a_run_is_sent_away() {
    let run = Run::far("sh").arguments(["-c", "echo $LEGATO_CONTROL; exec sleep 1000"]);
    let run = run.start();
    run.wait_for_output("control\n");
    let control = run.output_so_far();
    let mut stranger = Command::new("setpriv");
    stranger.args(NOBODY).arg(system_python());
    let output = output_of(stranger.args(["-c", INTRUDER, control.trim()]));
    let refused = ["list", "node", "write", "make"].map(|what| format!("{what} PermissionError\n"));
    assert_eq!(output, refused.concat() + "control b''\n");
    kill_process(run.pid(), Signal::TERM).unwrap();
    let run = run.finish();
    assert_eq!(run.stderr, "");
    poll_until("the directory is gone", PATIENCE, || {
        !Path::new(control.trim()).exists()
    });
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}
