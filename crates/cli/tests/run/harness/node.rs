//! A memory node that the test controls.

use super::capture::Capture;
use super::process::Process;
use super::{PATIENCE, legato, messages, poll_until};
use rustix::process::Signal;
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Names the file of the secret.
pub(crate) const SECRET_VARIABLE: &str = "LEGATO_SECRET_FILE";

#[derive(Debug)]
pub(crate) struct Node {
    child: Child,
    log: Capture,
    pub(crate) address: String,
}

impl Node {
    pub(crate) fn start(memory: &str) -> Self {
        Self::start_at(memory, &Self::unused_address())
    }

    pub(crate) fn unused_address() -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        format!("shm:@legato-test-{}-{number}", std::process::id())
    }

    /// An address of the loopback interface that nobody else has.
    pub(crate) fn unused_host() -> Ipv4Addr {
        static NEXT: AtomicU32 = AtomicU32::new(0x7F40);
        let network = NEXT.fetch_add(1, Relaxed) << 16;
        Ipv4Addr::from(network | std::process::id() & 0xFFFF)
    }

    /// A node at an address that was another one's.
    pub(crate) fn start_at(memory: &str, address: &str) -> Self {
        Self::start_by(Command::new(legato()), memory, address)
    }

    /// A node that has said that it listens; `legato` starts the binary. Without a secret it is told that
    /// anybody may use it.
    pub(crate) fn start_by(mut legato: Command, memory: &str, address: &str) -> Self {
        let has_secret = legato.get_envs().any(|(name, _)| name == SECRET_VARIABLE);
        legato.arg("node");
        if !has_secret {
            legato.arg("--insecure");
        }
        let mut child = legato
            .args(["--json", "--memory", memory])
            .args(["--listen", address])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a node starts");
        let stdout = child.stdout.take().unwrap();
        let node = Self {
            log: Capture::of(child.stderr.take().unwrap()),
            child,
            address: address.to_owned(),
        };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert!(
            line.contains("memory_bytes"),
            "the node says: {line}{}",
            node.log()
        );
        node
    }

    pub(crate) fn process(&self) -> Process {
        Process::find(self.child.id() as i32).expect("the node runs")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(process) = Process::find(self.child.id() as i32) {
            process.signal(signal);
        }
    }

    /// What it has said so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.bytes()).into_owned()
    }

    /// Until its log has the message whose row begins so.
    pub(crate) fn wait_for_log(&self, row: &str) {
        poll_until(row, PATIENCE, || messages::is_told(&self.log(), row));
    }

    /// SIGKILL, and gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, as an administrator ends a daemon.
    pub(crate) fn terminate(mut self) -> std::process::ExitStatus {
        self.signal(Signal::TERM);
        poll_until("the node ends", PATIENCE, || {
            self.child.try_wait().unwrap().is_some()
        });
        self.child.wait().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        eprint!("{log}");
        if !std::thread::panicking() {
            messages::expect_known(&log);
        }
    }
}

/// What `legato node status --json` says; `legato` starts the binary.
pub(crate) fn status_of(mut legato: Command, address: &str) -> serde_json::Value {
    legato.args(["node", "status", "--json", "--node", address]);
    let output = legato.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}
