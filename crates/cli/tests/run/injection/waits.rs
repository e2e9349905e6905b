//! A thread that waits in epoll_wait(2) is told EINTR for anything that wakes it; one that an agent
//! was not brought in by must not learn of that either.

use super::{DEADLINE, end, inject_agent};
use crate::harness::{poll_until, test_program};
use legato_pager::uffd::injection::InjectionError;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of epoll_wait, as /proc/PID/syscall has it.
const EPOLL_WAIT: &str = "232 ";

/// `blocked epoll`, as soon as its first thread waits.
fn in_epoll(options: &[&str]) -> Child {
    let program = Command::new(test_program("blocked"))
        .arg("epoll")
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    poll_until("the program waits", DEADLINE, || {
        let call = fs::read_to_string(format!("/proc/{}/syscall", program.id()));
        call.unwrap().starts_with(EPOLL_WAIT)
    });
    program
}

#[track_caller]
fn expect_undisturbed(mut program: Child) {
    let mut output = String::new();
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    program
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut output)
        .unwrap();
    end(program);
    assert!(output.ends_with("epoll: 0 wrong []\n"), "{output}");
}

#[test]
fn a_program_with_a_filter_is_refused_and_goes_on_waiting() {
    let program = in_epoll(&["filtered"]);
    let result = inject_agent(Pid::from_child(&program), "legato-nobody");
    assert_eq!(result, Err(InjectionError::Filtered));
    expect_undisturbed(program);
}

/// Longer than a thread that does not stop is waited for (`THREAD_STOP`).
const STARVED: Duration = Duration::from_millis(150);

/// The first thread is awake, but others have its processor: it does stop, only later.
#[test]
fn a_thread_that_gets_no_processor_is_waited_for() {
    let program = in_epoll(&[]);
    let pid = Pid::from_child(&program);
    let allowed = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&processor| allowed.is_set(processor));
    let mut processor = CpuSet::new();
    processor.set(first.unwrap());
    // Both are of that thread alone.
    sched_setaffinity(Some(pid), &processor).unwrap();
    setpriority_process(Some(pid), 19).unwrap();
    let is_over = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                sched_setaffinity(None, &processor).unwrap();
                while !is_over.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let injection = scope.spawn(|| inject_agent(pid, "legato-nobody"));
        poll_until("the first thread is traced", DEADLINE, || {
            let status = fs::read_to_string(format!("/proc/{}/status", program.id())).unwrap();
            injection.is_finished() || !status.contains("TracerPid:\t0\n")
        });
        let begin = Instant::now();
        while begin.elapsed() < STARVED {
            std::hint::spin_loop();
        }
        is_over.store(true, Relaxed);
        injection.join().unwrap()
    });
    assert_eq!(result, Err(InjectionError::AgentRefused));
    expect_undisturbed(program);
}
