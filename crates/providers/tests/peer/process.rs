//! This test program, started once more as the peer.

use legato_verbs::Address;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Where the peer listens.
pub(crate) const CHILD_ADDRESS: &str = "LEGATO_TEST_PEER_ADDRESS";
/// What it says when it does.
pub(crate) const READY: &str = "the peer listens";

/// A child, killed when the test ends however it ends. Its output stays open: the test harness
/// in it fails when it cannot print.
pub(crate) struct Process(pub(crate) Child, pub(crate) Option<BufReader<ChildStdout>>);

impl Process {
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops the process, and returns when it stands still.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let status = format!("/proc/{}/stat", self.0.id());
        loop {
            let line = std::fs::read_to_string(&status).unwrap();
            // After the name in parentheses; T is stopped (proc_pid_stat(5)).
            if line.rsplit(')').next().unwrap().starts_with(" T") {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a test of this program, by its name with modules: the peer's program.
pub(crate) fn start(test: &str, address: &Address) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD_ADDRESS, address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.by_ref().lines().map_while(Result::ok);
    let ready = lines.any(|line| line.contains(READY));
    let process = Process(child, Some(output));
    assert!(ready, "the child ended before it listened");
    process
}
