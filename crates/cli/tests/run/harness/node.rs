//! A memory node that the test controls.

use super::process::Process;
use super::sampler::unix_sockets;
use super::{legato, poll_until};
use rustix::process::Signal;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Node {
    child: Child,
    pub(crate) address: String,
}

impl Node {
    pub(crate) fn start(memory: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "@legato-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Relaxed)
        );
        let address = format!("shm:{name}");
        let child = Command::new(legato())
            .args(["node", "--memory", memory, "--listen", &address])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("a node starts");
        let mut node = Self { child, address };
        poll_until("the node listens", Duration::from_secs(30), || {
            let ended = node.child.try_wait().unwrap();
            assert!(ended.is_none(), "the node ended: {ended:?}");
            unix_sockets().iter().any(|(_, socket)| *socket == name)
        });
        node
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(process) = Process::find(self.child.id() as i32) {
            process.signal(signal);
        }
    }

    /// SIGKILL, and gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, as an administrator ends a daemon.
    pub(crate) fn terminate(mut self) -> std::process::ExitStatus {
        self.signal(Signal::TERM);
        poll_until("the node ends", Duration::from_secs(30), || {
            self.child.try_wait().unwrap().is_some()
        });
        self.child.wait().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
