//! A memory node on an RDMA device, which another kernel has: in a guest that is joined with this machine
//! by a link (`docs/testing.md` says how it is made). The program runs on this side.

use crate::harness::{Run, legato, system_program};
use crate::redis::stores_and_gives_back;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Of `scripts/rdma-guest`: this machine lacks something.
const UNAVAILABLE: i32 = 77;
/// Where the guest's shell comes to.
const SHELL: &str = "10.77.0.1:7000";
/// This side of the link, and where the node is.
const TAP: &str = "tap0";
const NODE: &str = "10.77.0.2";
/// The guest's processor is emulated, and this machine may be busy.
const PATIENCE: Duration = Duration::from_secs(240);

/// Boots the guest once and runs all other tests of this file beside it, one after the other.
#[test]
fn beside_a_guest() {
    let is_set = |name| std::env::var(name).is_ok_and(|value| value == "1");
    if is_set("LEGATO_SKIP_GUEST") {
        return skip("LEGATO_SKIP_GUEST is set");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/rdma-guest/beside");
    let output = Command::new(script)
        .arg("--add")
        .arg(legato())
        .arg(std::env::current_exe().unwrap())
        .args(["rdma::", "--ignored", "--test-threads=1", "--nocapture"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(UNAVAILABLE) {
        let reason = errors.lines().last().unwrap_or("no reason given");
        assert!(!is_set("LEGATO_REQUIRE_GUEST"), "{reason}");
        return skip(reason);
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && !lines.contains(" 0 passed"),
        "beside the guest: {}\n{errors}{lines}",
        output.status
    );
}

/// Not with `println!`, which the test runner keeps to itself when a test passes.
fn skip(reason: &str) {
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED, no RDMA device to serve at: {reason}"
    );
}

/// The shell of the guest.
struct Guest {
    stream: TcpStream,
    coming: Receiver<String>,
}

impl Guest {
    fn new() -> Self {
        let listener = TcpListener::bind(SHELL).expect("on the link, as beside_a_guest runs it");
        let (accepted, stream) = channel();
        std::thread::spawn(move || accepted.send(listener.accept().unwrap().0));
        let stream = stream.recv_timeout(PATIENCE).expect("the guest comes up");
        let (read, coming) = channel();
        let reader = BufReader::new(stream.try_clone().unwrap());
        // It ends with the connection.
        std::thread::spawn(move || {
            let lines = reader.lines().map_while(Result::ok);
            lines.map(|line| read.send(line)).all(|sent| sent.is_ok())
        });
        let mut guest = Self { stream, coming };
        guest.say("exec 2>&1");
        guest
    }

    fn say(&mut self, line: &str) {
        self.stream
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    fn await_line(&mut self, begin: &str) -> String {
        loop {
            let line = self.coming.recv_timeout(PATIENCE);
            let line = line.expect("the guest says something");
            println!("  guest: {line}");
            if line.starts_with(begin) {
                return line;
            }
        }
    }

    /// Starts a memory node on the guest's device.
    fn serve(&mut self, memory: &str) {
        self.say(&format!(
            "./legato node --memory {memory} --listen verbs://{NODE} --insecure --json & node=$!"
        ));
        self.await_line("{\"address\"");
    }

    /// What the node has given away. It is asked over there: here the run has the port of devices.
    fn used_bytes(&mut self) -> u64 {
        self.say(&format!(
            "./legato node status --json --node verbs://{NODE}"
        ));
        let line = self.await_line("  \"used_bytes\": ");
        let number = line.rsplit(' ').next().unwrap();
        number.trim_end_matches(',').parse().unwrap()
    }

    fn await_used_bytes(&mut self, what: &str, fits: impl Fn(u64) -> bool) {
        let begun = Instant::now();
        while !fits(self.used_bytes()) {
            assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        }
    }

    /// Ends it as an administrator does. It has given back every object of the device.
    fn end_node(&mut self) {
        self.say("kill $node; wait $node; echo node status $?");
        assert_eq!(self.await_line("node status "), "node status 0");
        // Only the kernel's own queue pair of connection management is left.
        self.say("until rdma res show | grep -q ' qp 1 '; do sleep 0.1; done; echo nothing left");
        self.await_line("nothing left");
    }
}

impl Drop for Guest {
    /// The shell ends, and the guest asks for the next.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().unwrap();
    assert!(status.success(), "ip {arguments:?}");
}

/// Redis over software RoCE here, its memory behind the kernel's RDMA device there. In the middle the
/// link is down for 2 s.
#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn redis_has_its_memory_behind_an_rdma_device() {
    let mut guest = Guest::new();
    guest.serve("128MiB");
    let server = Run::far(system_program("redis-server"));
    let server = server.option("--nodes", &format!("roce://{NODE}"));
    let cutter = std::thread::spawn(move || {
        guest.await_used_bytes("pages are far", |bytes| bytes > 8 << 20);
        ip(&["link", "set", TAP, "down"]);
        // What happens meanwhile is that nothing arrives: there is nothing else to wait for.
        std::thread::sleep(Duration::from_secs(2));
        ip(&["link", "set", TAP, "up"]);
        guest
    });
    stores_and_gives_back(server, 8, || {});
    let mut guest = cutter.join().unwrap();
    guest.await_used_bytes("the node is empty", |bytes| bytes == 0);
    guest.end_node();
}
