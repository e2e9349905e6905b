//! Every message of docs/troubleshooting.md is told by the real binary, or it is said here why not.

use crate::harness::messages::{self, expect_refused};
use crate::harness::{Node, Run, compiled_c, legato, system_python, test_directory};
use crate::masks::unprivileged;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket};
use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;

/// How rows begin that no test of this binary tells, and why.
const NOT_TRIED: [(&str, &[&str]); 5] = [
    (
        "it takes a defect of Legato, or memory that changes by itself",
        &[
            "the agent inside this legato is damaged",
            "the agent's object is damaged",
            "the agent's object does not know",
            "the agent's entry ended by signal",
            "no system call instruction",
            "memory node ADDR has not ended in order",
            "an agent has lost its NIC",
            "the NIC has not let go",
            "the thread of the NIC has ended",
            "PROG (PID) was killed: the page at PLACE was dropped",
            "PROG (PID) was killed: the mapping of the page",
            "PROG (PID) was killed: Legato's frame",
            "PROG (PID) was killed: the agent failed",
            "PROG (PID): process N, which it has forked",
            "left behind: ",
            "shared memory cannot be used",
            "the process that is read from could",
            "the process that is read from does",
            "a read failed",
            "a read took bytes",
            "page N does not hold",
            "the two sides do not connect",
            "the two sides do not reach",
            "an operation was refused",
            "an operation failed",
            "a reply was refused",
            "seed N, PLACE",
            "replay with",
            "NAME is known to fail",
            "the node cannot watch",
            "memory node ADDR: REASON; something is wrong",
        ],
    ),
    (
        "it takes another kernel, other rights or a device",
        &[
            "this kernel has no userfaultfd",
            "this kernel does not report",
            "this kernel has guard pages",
            "the system does not let legato into it",
            "cannot open a NIC",
            "cannot connect an agent to the NIC",
            "the RDMA device there is not used",
            "PROG (PID) was killed: which memory a forked child",
            "PROG (PID) was killed: its NIC has not let go",
            "secret file FILE: it belongs to another user",
            "memory node ADDR: REASON; the node is another",
        ],
    ),
    (
        "somebody has to break the protocol, or come in at the one moment: tried in the crates of the fabric, the \
         providers and the pager",
        &[
            "memory node ADDR: REASON (secret file FILE)",
            "memory node ADDR refuses this client",
            "cannot start the program: it was killed",
            "cannot start the program: another process",
            "refused a peer, because too many",
            "refused a peer that did not confirm",
            "refused a wrong confirmation",
            "refused a stream that is none",
            "refused damaged packets",
            "refused malformed packets",
            "refused packets of strangers",
            "PROG (PID): a process that it has forked was killed",
            "PROG (PID) was killed: the mapping at PLACE",
            "PROG (PID) was killed: memory was moved",
            "PROG (PID) was killed: a thread forked",
            "32-bit programs cannot run",
            "none of its threads",
            "its legato run is gone",
            "UDP port 4791 of this machine",
            "refused a peer of another protocol",
            "the legato run that started this program is gone",
        ],
    ),
    (
        "it takes long: it is told after ten seconds, or of a node that has no memory left",
        &[
            "N of N seeds",
            "TIME: WHAT, SIZE of SIZE local",
            "a request waits too long",
            "refused memory to a client",
            "PROG (PID) was killed: its memory nodes have room",
            "PROG (PID) was killed: all of its memory nodes",
        ],
    ),
    (
        "who cannot load the agent is not seen to do without",
        &[
            "the program has ended without ever attaching",
            "no process attached",
        ],
    ),
];

#[test]
fn every_message_is_tried_or_it_is_said_why_not() {
    messages::expect_all_tried(NOT_TRIED.iter().flat_map(|(_, rows)| *rows).copied());
}

fn legato_with(line: &str) -> Command {
    let mut command = Command::new(legato());
    command.args(line.split(' '));
    command
}

#[test]
fn a_command_line_that_cannot_be_obeyed() {
    let many: Vec<_> = (0..17).map(|number| format!("shm:@{number}")).collect();
    let many = format!("run --nodes {} echo started", many.join(","));
    for (line, code, row) in [
        (many.as_str(), 125, "N memory nodes were given"),
        (
            "run --nodes shm:@a,shm:@a echo started",
            125,
            "memory node ADDR was given twice",
        ),
        (
            "run --far 100000TiB echo started",
            125,
            "OPTION SIZE is more than",
        ),
        (
            "node --memory 100000TiB --listen shm:@legato-test-huge",
            2,
            "OPTION SIZE is more than",
        ),
        (
            "sim --seed 1 --scenario memory --personality rxe",
            2,
            "the scenario NAME has no personalities",
        ),
        (
            "sim --seed 1 --scenario memory --only act.1",
            2,
            "the scenario NAME has no list",
        ),
        (
            "sim --seed 1 --scenario scribbler --personality rxe",
            2,
            "the scenario NAME has only",
        ),
        ("allow-users --group no,such", 2, "there is no group NAME"),
        ("bench read --size 0", 2, "--size must be"),
        ("bench touch --bytes 1 --order seq", 2, "--bytes is less"),
        (
            "node --memory 16MiB --listen roce://0.0.0.0",
            2,
            "memory node ADDR: that is no address",
        ),
        (
            "node status --node verbs://192.0.2.1",
            2,
            "memory node ADDR: REASON; this machine cannot",
        ),
        (
            "secret new /no/such/directory/secret",
            2,
            "WHAT: REASON; check the path",
        ),
        (
            "run --stats /no/such/directory/stats echo started",
            125,
            "WHAT: REASON; check the path",
        ),
        (
            "run --stats /tmp echo started",
            125,
            "WHAT: REASON; check the path",
        ),
    ] {
        expect_refused(&mut legato_with(line), code, row);
    }
}

#[test]
fn an_address_that_is_another_ones() {
    let node = Node::start("16MiB");
    let line = format!("node --memory 16MiB --listen {}", node.address);
    expect_refused(&mut legato_with(&line), 2, "memory node ADDR cannot listen");
}

/// It takes connections and says what no node says.
#[test]
fn an_address_where_something_else_answers() {
    let path = test_directory().join("socket");
    let other = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&other, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&other, 1).unwrap();
    let answers = std::thread::spawn(move || {
        let peer = rustix::net::accept(&other).unwrap();
        rustix::io::write(&peer, b"220 ready\r\n").unwrap();
    });
    let line = format!("node status --node shm:{}", path.display());
    expect_refused(
        &mut legato_with(&line),
        2,
        "memory node ADDR: REASON; it may be no node",
    );
    answers.join().unwrap();
}

#[test]
fn a_step_that_the_system_refuses() {
    let socket = test_directory().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let mut run = legato_with("run --stats");
    run.arg(&socket).args(["echo", "started"]);
    expect_refused(&mut run, 125, "WHAT: REASON; the system refused it");
    let run = unprivileged(&["secret", "new", "/secret"]).expect_code(2);
    run.expect_told("WHAT: REASON; this user may not");
    // Its agent takes the descriptors that the program has, without the right to more.
    let limited = |limit: &str| {
        let mut shell = Command::new("sh");
        let script = format!("ulimit {limit}; exec \"$0\" run --quiet echo started");
        shell.arg("-c").arg(script).arg(legato());
        shell
    };
    expect_refused(
        &mut limited("-n 8"),
        125,
        "WHAT: REASON; raise RLIMIT_NOFILE",
    );
    // It ended by SIGXFSZ, without a word.
    let directory =
        "no directory for the run can be made where programs can load the agent from it";
    expect_refused(&mut limited("-f 8"), 125, directory);
    let mut node = limited("-v 4000000");
    expect_refused(&mut node, 125, "WHAT: REASON; this machine");
}

#[test]
fn a_secret_is_not_overwritten() {
    let file = test_directory().join("secret");
    fs::write(&file, "mine").unwrap();
    let mut new = legato_with("secret new");
    expect_refused(new.arg(&file), 2, "FILE: the file exists already");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

/// It hears of nobody who would let it go on.
#[test]
fn a_launcher_without_its_run() {
    let name = format!("legato-test-launch-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let ends = std::thread::spawn(move || drop::<UnixStream>(listener.accept().unwrap().0));
    let line = format!("launch --socket {name} --control a --preload b --program /bin/true true");
    expect_refused(&mut legato_with(&line), 2, "WHAT: REASON; see docs");
    ends.join().unwrap();
}

fn executable(name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    let path = test_directory().join(name);
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn a_program_that_cannot_have_an_agent() {
    const MACHINE: usize = 18;
    const AARCH64: u8 = 183;
    let own = fs::read("/bin/true").unwrap();
    let mut foreign = own.clone();
    foreign[MACHINE] = AARCH64;
    // As long as a header of 32 bits (elf(5)), of an executable (2) for the 386 (3) in version 1.
    let mut small = [&b"\x7fELF\x01\x01\x01"[..], &[0; 45]].concat();
    (small[16], small[MACHINE], small[20]) = (2, 3, 1);
    for (program, code, row) in [
        (
            executable("garbage", b"\x01\x02\x03", 0o755),
            126,
            "PROG: neither a program",
        ),
        (
            executable("small", &small, 0o755),
            125,
            "PROG: 32-bit programs",
        ),
        (
            executable("foreign", &foreign, 0o755),
            125,
            "PROG: built for another",
        ),
        (
            executable("privileged", &own, 0o4755),
            125,
            "PROG: it changes user",
        ),
    ] {
        expect_refused(legato_with("run").arg(&program), code, row);
    }
}

/// It is traced before it is executed: no agent can have come by then.
const TRACED: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
static char memory[32 << 20];
int main(int count, char **words) {
    if (count > 1) {
        memset(memory, 1, sizeof(memory));
        return read(0, memory, 1);
    }
    pid_t child = fork();
    if (child == 0) {
        while (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
            usleep(1000);
        unsetenv("LD_PRELOAD");
        execl(words[0], words[0], "traced", NULL);
    }
    int status;
    while (waitpid(child, &status, 0) == child && !WIFEXITED(status))
        ptrace(PTRACE_CONT, child, 0, 0);
    return WEXITSTATUS(status);
}
"#;

#[test]
fn a_program_that_another_one_traces_keeps_its_memory() {
    let run = Run::far(compiled_c("cc", &[], TRACED))
        .cache_mib(64)
        .start();
    run.wait_for_message("runs without far memory");
    let run = run.finish().expect_code(0);
    run.expect_told("PROG (PID) runs without");
    run.expect_told("another process traces it");
}

/// It may not connect, and so it says it itself.
#[test]
fn a_program_that_may_not_reach_its_run_says_so() {
    let inner = "setpriv --reuid=65534 --clear-groups sh -c 'echo inside; exit 3'";
    let outer = format!("chmod 0 $LEGATO_CONTROL; {inner}; echo $?");
    let run = Run::far("sh").arguments(["-c", &outer]);
    let run = run.cache_mib(64).finish().expect_code(0);
    assert_eq!(run.output(), "inside\n3\n");
    run.expect_told("a program runs without far memory");
    run.expect_told("the agent cannot be started");
}

/// Nothing there can be loaded.
#[test]
fn a_machine_without_a_place_for_the_directory_of_a_run_is_told_so() {
    // This binary may lie in one of them.
    let script = "exec 9<\"$1\"; shift; \
                  for place in /run /dev/shm /tmp; do mount -t tmpfs -o noexec none $place; done; \
                  exec /proc/self/fd/9 \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(legato())
        .args(["run", "--", "true"])
        .env_remove("XDG_RUNTIME_DIR");
    expect_refused(&mut command, 125, "no directory for the run");
}

/// Where process ids are those of others.
#[test]
fn a_run_whose_proc_is_that_of_another_pid_namespace_is_told_so() {
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork"])
        .arg(legato())
        .args(["run", "--", "true"]);
    expect_refused(&mut command, 125, "/proc is not that");
}

/// Its words are those of no agent.
#[test]
fn a_stranger_at_the_socket_of_a_run_is_sent_away() {
    let run = Run::far("sh").arguments(["-c", "echo $LEGATO_CONTROL; read line"]);
    let run = run.cache_mib(64).start();
    run.wait_for_output("\n");
    let name = run.output_so_far();
    let address = SocketAddrUnix::new(name.trim()).unwrap();
    let stranger = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&stranger, &address).unwrap();
    rustix::io::write(&stranger, b"hello").unwrap();
    run.wait_for_message("was sent away");
    let run = run.finish();
    run.expect_told("a process that is no agent");
    assert_eq!(run.code(), Some(1), "{}", run.stderr);
}

#[test]
fn a_process_that_is_left_behind_is_waited_for() {
    let run = Run::far("sh").arguments(["-c", "exec 3<&0; cat <&3 & exit 3"]);
    let run = run.cache_mib(64).start();
    run.wait_for_message("waiting for");
    let run = run.finish().expect_code(3);
    run.expect_told("waiting for WHAT that still");
}

#[test]
fn a_forked_child_on_a_kernel_that_cannot_move_pages() {
    let text = "import os, sys; a = bytearray(b'x') * (48 << 20)
if os.fork() == 0: sys.stdin.read(); os._exit(0)
os.wait()";
    let run = Run::far(system_python()).arguments(["-c", text]);
    let run = run.environment("LEGATO_MASK_FEATURES", "move");
    let run = run.cache_mib(16).memory_mib(256).start();
    run.wait_for_message("stays local");
    let run = run.finish().expect_code(0);
    run.expect_told("PROG (PID): memory of a forked child");
}
