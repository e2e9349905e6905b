//! Agents that get into processes that run already.

mod waits;

use crate::harness::{Finished, Node, PATIENCE, Run, Running, poll_until, sized, test_program};
use legato_pager::uffd::injection::{Entry, InjectionError, Object, Parameters, Target, inject};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

static OBJECT: &[u8] = include_bytes!(env!("LEGATO_AGENT_OBJECT"));
const DEADLINE: Duration = PATIENCE;

fn inject_agent(pid: Pid, control: &str) -> Result<(), InjectionError> {
    let object = Object::parse(OBJECT).unwrap();
    let parameters = Parameters::new(Entry::Agent, control.as_bytes(), b"", 0).unwrap();
    let target = Target::of(pid)?;
    // A thread of its own is what a tracer should be.
    std::thread::spawn(move || inject(target, &object, &parameters))
        .join()
        .unwrap()
}

/// The name of the socket of the supervisor above a process.
fn control_of(pid: i32) -> String {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let mut variables = environment.split(|&byte| byte == 0);
    let value = variables.find_map(|text| text.strip_prefix(b"LEGATO_CONTROL="));
    String::from_utf8(value.unwrap().to_vec()).unwrap()
}

/// Programs that wait, one after the other, without an agent. `shell` runs sh.
fn blocked_programs(shell: Run, kinds: &str, rounds: usize) -> Running {
    let script = "program=$1; kinds=$2; rounds=$3
        for round in $(seq $rounds); do for kind in $kinds; do
            LD_PRELOAD= $program $kind || exit 9
        done; done";
    let run = shell.arguments(["-c", script, "sh"]);
    run.arguments([test_program("blocked").as_os_str()])
        .arguments([kinds, &rounds.to_string()])
        .cache_mib(64)
        .memory_mib(256)
        .start()
}

/// The program that waits now, once all of its threads do.
fn waiting_program(run: &mut Running, after: Option<i32>) -> i32 {
    let mut found = None;
    poll_until("a program waits", DEADLINE, || {
        assert!(run.is_running(), "they have ended: {}", run.said());
        let processes = run.processes();
        let program = processes.iter().find(|process| {
            let name = fs::read_to_string(format!("/proc/{}/comm", process.pid));
            let is_one = name.is_ok_and(|name| name == "blocked\n") && Some(process.pid) != after;
            // Its agent has its name for a moment, and a lower number where these begin anew.
            is_one && process.is_program()
        });
        let Some(program) = program else {
            return false;
        };
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", program.pid)) else {
            return false;
        };
        found = Some(program.pid);
        threads.count() == 10
    });
    found.unwrap()
}

/// Whether any thread has a tracer.
fn is_traced(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    threads.flatten().any(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        let tracer = status
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"));
        tracer.is_some_and(|tracer| tracer.trim() != "0")
    })
}

const KINDS: &str = "read sleep futex timed-futex epoll poll receive semaphore compute";

/// 200 fresh processes, of whose first threads each is in another kind of call, get an agent; no
/// call ends otherwise than it would have. The supervisor looks for such processes too: the few
/// that it finds first have theirs from it.
#[test]
fn an_agent_does_not_disturb_calls_that_wait() {
    let rounds = sized(23, 4);
    let kinds = KINDS.split(' ').count();
    let mut run = blocked_programs(Run::far("sh"), KINDS, rounds);
    let mut last = None;
    let mut injected = 0;
    for _ in 0..rounds * kinds {
        let pid = waiting_program(&mut run, last);
        let control = control_of(pid);
        let process = Pid::from_raw(pid).unwrap();
        let mut given = inject_agent(process, &control);
        // The supervisor is at it in this very moment.
        while given == Err(InjectionError::TracedByAnother) {
            poll_until("the supervisor is done", PATIENCE, || !is_traced(pid));
            given = inject_agent(process, &control);
        }
        match given {
            Ok(()) => injected += 1,
            Err(error) => assert_eq!(error, InjectionError::AgentRefused),
        }
        expect_no_descriptor_of_ours(pid);
        run.write(b"\n");
        last = Some(pid);
    }
    let run = run.finish().expect_code(0);
    let right = run
        .output()
        .lines()
        .filter(|line| line.ends_with(": 0 wrong []"))
        .count();
    assert_eq!(right, rounds * kinds, "{}", run.output());
    assert!(injected > rounds * kinds / 2, "{injected} by the test");
    expect_processes(&run, rounds * kinds);
}

/// What the program has open, by number.
fn descriptors(pid: i32) -> BTreeMap<OsString, PathBuf> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    all.filter_map(|entry| Some((entry.file_name(), fs::read_link(entry.path()).ok()?)))
        .collect()
}

/// Nothing of the agent is the program's. (What the program itself opens it may still be opening.)
#[track_caller]
fn expect_no_descriptor_of_ours(pid: i32) {
    const OURS: [&str; 5] = ["userfaultfd", "legato", "pidfd", "/proc/", "memfd:"];
    for (number, target) in descriptors(pid) {
        let target = target.to_string_lossy().into_owned();
        let is_ours = OURS.iter().any(|part| target.contains(part));
        assert!(!is_ours, "{number:?} is {target}");
    }
}

#[track_caller]
fn expect_processes(run: &Finished, count: usize) {
    let processes = run.stats.as_ref().unwrap()["processes"].as_array().unwrap();
    assert!(processes.len() >= count, "{} of {count}", processes.len());
}

/// The supervisor it is to talk to is not there: everything is as before. Nor is any other: it
/// would bring an agent of its own into a program that has been there for a second without one.
#[test]
fn an_agent_that_fails_leaves_no_trace() {
    let mut run = blocked_programs(Run::plain("sh"), KINDS, 1);
    let mut last = None;
    for _ in KINDS.split(' ') {
        let pid = waiting_program(&mut run, last);
        let traces = || {
            let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
            // Not what is blocked: the first thread may still be making others.
            let status = read("status");
            let lines = status.lines().filter(|line| {
                ["SigP", "SigI", "SigC", "Shd", "Tracer", "Threads"]
                    .iter()
                    .any(|name| line.starts_with(name))
            });
            let status: Vec<String> = lines.map(str::to_owned).collect();
            // Where things are, and what they allow; allocators grow meanwhile.
            let code: Vec<String> = read("maps")
                .lines()
                .filter(|line| line.contains(" r-xp ") || line.contains("legato"))
                .map(str::to_owned)
                .collect();
            (status, code)
        };
        let before = traces();
        let result = inject_agent(Pid::from_raw(pid).unwrap(), "legato-nobody");
        assert_eq!(result, Err(InjectionError::AgentRefused));
        assert_eq!(traces(), before);
        run.write(b"\n");
        last = Some(pid);
    }
    let run = run.finish().expect_code(0);
    assert_eq!(
        run.output().matches(" 0 wrong []").count(),
        KINDS.split(' ').count()
    );
}

/// A static child that fills its memory gets its agent in the middle of that: the supervisor finds
/// it.
#[test]
fn a_busy_static_program_gets_an_agent_and_keeps_its_content() {
    let fill = test_program("fill_static");
    let run = Run::far("sh")
        .arguments(["-c", "LD_PRELOAD= \"$0\" \"$@\" & wait $!"])
        .arguments([fill.as_os_str()])
        .arguments(["--bytes", "192MiB", "--threads", "3", "--rounds", "6"])
        .cache_mib(64)
        .memory_mib(768)
        .finish()
        .expect_code(0)
        .expect_far_pages();
    assert_eq!(run.output(), "fill: 49152 pages, 0 wrong\n");
    expect_processes(&run, 2);
}

/// Both nodes are gone when the agent of a static child starts: the child goes on without
/// one. Nothing of its memory may have left by then, although it has more than it is to have.
#[test]
fn an_agent_that_misses_its_nodes_leaves_the_memory_as_it_was() {
    let mut nodes = [Node::start("512MiB"), Node::start("512MiB")];
    let fill = test_program("fill_static");
    let script = "echo begun; read go; LD_PRELOAD= \"$0\" \"$@\" & wait $!";
    let mut run = Run::far("sh")
        .arguments(["-c", script])
        .arguments([fill.as_os_str()])
        .arguments(["--bytes", "192MiB", "--threads", "3", "--rounds", "6"])
        .cache_mib(16)
        .at(&nodes.each_ref())
        .start();
    run.wait_for_output("begun");
    nodes.iter_mut().for_each(Node::kill);
    run.write(b"go\n");
    let run = run.finish().expect_code(0);
    assert_eq!(run.output(), "begun\nfill: 49152 pages, 0 wrong\n");
    let says = |line: &str| line.contains("runs without far memory") && line.contains("fill");
    assert!(run.stderr.lines().any(says), "{}", run.stderr);
    run.expect_told("PROG (PID) runs without");
    run.expect_told("memory node ADDR cannot be reached");
}

fn sleeper() -> Child {
    Command::new("sleep")
        .arg("600")
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn refusals_name_their_reason() {
    let child = sleeper();
    let pid = Pid::from_child(&child);
    let debugger = Command::new("gdb")
        .args(["--quiet", "--nx", "--pid", &pid.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let tracer = format!("TracerPid:\t{}\n", debugger.id());
    poll_until("the debugger is there", DEADLINE, || {
        fs::read_to_string(format!("/proc/{pid}/status"))
            .unwrap()
            .contains(&tracer)
    });
    assert_eq!(
        inject_agent(pid, "legato-nobody"),
        Err(InjectionError::TracedByAnother)
    );
    end(debugger);
    end(child);
    assert_eq!(
        inject_agent(pid, "legato-nobody"),
        Err(InjectionError::Gone)
    );
}

/// Stopped is not in the way, and stays. SIGSTOP cannot be blocked: the second one is delivered
/// while the thread is borrowed.
#[test]
fn a_process_that_is_stopped_twice_stays_stopped() {
    let child = sleeper();
    let pid = Pid::from_child(&child);
    let is_stopped = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.contains("State:\tT (stopped)")
    };
    kill_process(pid, Signal::STOP).unwrap();
    poll_until("it is stopped", DEADLINE, is_stopped);
    kill_process(pid, Signal::STOP).unwrap();
    assert_eq!(
        inject_agent(pid, "legato-nobody"),
        Err(InjectionError::AgentRefused)
    );
    poll_until("it is stopped again", DEADLINE, is_stopped);
    kill_process(pid, Signal::CONT).unwrap();
    poll_until("it goes on", DEADLINE, || !is_stopped());
    end(child);
}
