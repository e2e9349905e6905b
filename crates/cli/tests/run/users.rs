//! Programs that root starts and that become another user have far memory, and get nothing that is not theirs.

use crate::harness::messages::{expect_known, expect_refused};
use crate::harness::{
    EnterableDirectory, PATIENCE, Run, expect_pattern, legato, poll_until, system_python,
    test_program,
};
use rustix::process::{Signal, kill_process};
use std::path::Path;
use std::process::{Command, Stdio};

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// Fills, checks, forks and drops memory as that user.
fn expect_far_memory(program: &str, become_nobody: &[&str]) {
    let directory = EnterableDirectory::new();
    let copy = directory.0.join(program);
    std::fs::copy(test_program(program), &copy).unwrap();
    let run = Run::far("setpriv")
        .arguments(become_nobody)
        .arguments([copy.as_os_str()]);
    let run = expect_pattern(run, "200", "67");
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

/// Whatever it tries is not answered, and its node's socket is not its own to use.
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
attempt("write", lambda: open(directory + "/legato-agent-before-libasan.so", "r+b"))
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

/// A machine for itself, as far as it matters here: a device that is root's alone, and nothing installed. What is
/// done there is gone with the shell that does it.
const MACHINE: &str = r#"
set -e
mount -t tmpfs none /usr/local
mknod "$1/device" c 10 257
chmod 600 "$1/device"
mount --bind "$1/device" /dev/userfaultfd
as() { number=$1; shift; setpriv --reuid=$number --regid=$number --clear-groups "$@"; }
far() { as $1 "$2/legato" run --quiet --cache 12MiB --far 256MiB -- "$2/pattern" --bytes 24MiB --operations 500 --seed 3 \
    --phase touch,calls,fork || echo "status $?"; }
told() { as $1 "$2/legato" doctor --no-bench | grep -E '^(ok|warning|cannot) +userfaultfd' || true; }
"#;

/// Returns all that the script says, on both outputs.
fn on_a_machine(script: &str) -> String {
    let directory = EnterableDirectory::new();
    let helper = Path::new(env!("CARGO_BIN_EXE_legato-uffd"));
    for program in [legato(), helper, &test_program("pattern")] {
        std::fs::copy(program, directory.0.join(program.file_name().unwrap())).unwrap();
    }
    let script = format!("{MACHINE}\nexec 2>&1\n{script}");
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "sh", "-c", &script, "sh"]);
    let output = output_of(shell.arg(&directory.0));
    expect_known(&output);
    output
}

/// Told before: that access to the device is enough, which it is not for events of forks.
#[test]
fn an_ordinary_user_has_no_far_memory_until_root_has_allowed_it() {
    let output = on_a_machine(
        r#"
        far 65534 "$1"
        chmod 666 /dev/userfaultfd
        far 65534 "$1"
        told 65534 "$1"
        as 65534 "$1/legato" allow-users || echo "status $?"
        "#,
    );
    let refused = "no right to a userfaultfd that tells of forks";
    assert_eq!(output.matches(refused).count(), 3, "{output}");
    assert_eq!(output.matches("status 125").count(), 2, "{output}");
    assert!(output.contains("but not with events of forks"), "{output}");
    assert!(output.contains("only root can allow others"), "{output}");
    assert!(output.contains("status 2"), "{output}");
}

#[test]
fn an_ordinary_user_has_far_memory_once_root_has_allowed_it_and_until_root_takes_it_back() {
    let output = on_a_machine(
        r#"
        "$1/legato" allow-users
        told 65534 "$1"
        far 65534 "$1"
        "$1/legato" allow-users --undo
        far 65534 "$1"
        "#,
    );
    assert!(output.contains("every user may run programs"), "{output}");
    assert!(output.contains("with events of forks\n"), "{output}");
    assert!(output.contains("legato-uffd is installed"), "{output}");
    assert_eq!(output.matches(" 0 wrong\n").count(), 1, "{output}");
    assert!(output.contains("only root may run programs"), "{output}");
    assert!(output.ends_with("status 125\n"), "{output}");
}

#[test]
fn a_group_may_be_allowed_it_alone() {
    let output = on_a_machine(
        r#"
        "$1/legato" allow-users --group nobodies || echo "status $?"
        "$1/legato" allow-users --group daemon
        stat -c '%A %U %G' /usr/local/libexec/legato-uffd /dev/userfaultfd
        far 1 "$1"
        far 65534 "$1"
        "#,
    );
    assert!(output.contains("there is no group nobodies"), "{output}");
    assert!(
        output.contains("-rwxr-x--- root daemon\ncrw-rw---- root daemon\n"),
        "{output}"
    );
    assert_eq!(output.matches(" 0 wrong\n").count(), 1, "{output}");
    assert!(output.ends_with("status 125\n"), "{output}");
}

/// A legato alone, and the helper without one.
#[test]
fn the_helper_belongs_to_a_legato() {
    let directory = EnterableDirectory::new();
    let copy = directory.0.join("legato");
    std::fs::copy(legato(), &copy).unwrap();
    let row = "FILE: there is no legato-uffd";
    expect_refused(Command::new(copy).arg("allow-users"), 2, row);
    let mut helper = Command::new(env!("CARGO_BIN_EXE_legato-uffd"));
    expect_refused(helper.stdin(Stdio::null()), 2, "legato-uffd is started by");
}

/// It serves its caller's own userfaultfds alone, for what Legato uses.
#[test]
fn the_helper_does_nothing_for_strangers() {
    const ASK: &str = r#"
import array, fcntl, os, socket, struct, subprocess, sys
def ask(descriptors, features=0x4e, version=b"LGu1"):
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    helper = subprocess.Popen([sys.argv[1]], stdin=far, stderr=subprocess.DEVNULL)
    far.close()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    near.sendmsg([version + struct.pack("<Q", features)], rights)
    answer = near.recv(64)
    return struct.unpack("<I", answer[4:])[0] if answer else "status %d" % helper.wait()
new = lambda: fcntl.ioctl(device, 0xAA00, os.O_CLOEXEC)
device = os.open("/dev/userfaultfd", os.O_RDWR)
of_root = new()
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
print("own", ask([new()]))
print("root's", ask([of_root]))
print("another file", ask([os.open("/dev/null", os.O_RDWR)]))
print("unused features", ask([new()], 1 << 5))
print("none", ask([]))
print("two", ask([new(), new()]))
print("another version", ask([new()], version=b"LGu0"))
"#;
    let directory = EnterableDirectory::new();
    std::fs::write(directory.0.join("ask.py"), ASK).unwrap();
    let script = format!(
        "\"$1/legato\" allow-users > /dev/null; {} {} /usr/local/libexec/legato-uffd",
        system_python().display(),
        directory.0.join("ask.py").display()
    );
    let expected = "own 0\nroot's 1\nanother file 9\nunused features 22\nnone status 2\ntwo status 2\n\
                    another version status 2\n";
    assert_eq!(on_a_machine(&script), expected);
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}
