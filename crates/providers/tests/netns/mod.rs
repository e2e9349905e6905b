//! Two network namespaces, joined by a virtual Ethernet link.
#![allow(dead_code, reason = "each test uses its part")]

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::process::{Command, Stdio};

const INSIDE: &str = "LEGATO_TEST_NAMESPACE";
/// Hosts of the near and of the far end.
pub(crate) const HOSTS: [[&str; 2]; 2] = [["10.9.0.1", "10.9.0.2"], ["fd00:9::1", "fd00:9::2"]];

/// Runs the test `name`, with its modules, in a namespace (`unshare -rn`, which needs no right); there,
/// `body`.
pub(crate) fn in_namespace(name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let refused = Command::new("unshare").args(["-rn", "true"]).status();
    if !refused.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there are no network namespaces here (unshare -rn true)");
        return;
    }
    let again = Command::new("unshare")
        .arg("-rn")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&again.stdout);
    print!("{output}");
    assert!(again.status.success());
    assert!(output.contains("1 passed"), "no test {name}");
}

/// This thread goes to a new namespace of its own. The user namespace is the test's.
pub(crate) fn leave() {
    // SAFETY: the thread alone gets another network; no descriptor is shared differently.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
}

pub(crate) fn ip(arguments: &str) {
    tool("ip", arguments);
}

pub(crate) fn tool(name: &str, arguments: &str) {
    let status = Command::new(name).args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "{name} {arguments}");
}

fn own_namespace() -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    open("/proc/thread-self/ns/net", flags, Mode::empty()).unwrap()
}

/// The link `va` in the namespace of the thread that made it, and `vb` in another one.
#[derive(Debug)]
pub(crate) struct Link {
    near: OwnedFd,
    far: OwnedFd,
}

impl Link {
    pub(crate) fn new(mtu: u32) -> Self {
        let elsewhere = std::thread::spawn(|| {
            leave();
            own_namespace()
        });
        let link = Self {
            near: own_namespace(),
            far: elsewhere.join().unwrap(),
        };
        ip("link set lo up");
        ip(&format!(
            "link add va mtu {mtu} type veth peer name vb mtu {mtu}"
        ));
        let (process, number) = (std::process::id(), link.far.as_raw_fd());
        ip(&format!("link set vb netns /proc/{process}/fd/{number}"));
        end_up("va", 0);
        link.far(|| end_up("vb", 1));
        link
    }

    /// Runs `body` at the far end. Sockets stay where they were made.
    pub(crate) fn far<T>(&self, body: impl FnOnce() -> T) -> T {
        self.enter(true);
        let result = body();
        self.enter(false);
        result
    }

    /// Brings this thread to one of the ends.
    pub(crate) fn enter(&self, far: bool) {
        let end = if far { &self.far } else { &self.near };
        move_into_link_name_space(end.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// From now on frames that carry IP packets longer than this are lost, in both directions, as at a switch with
    /// a smaller MTU.
    pub(crate) fn swallow_longer(&self, bytes: u32) {
        let swallow = |link: &str| {
            tool("tc", &format!("qdisc add dev {link} clsact"));
            filter_longer(link, bytes);
        };
        swallow("va");
        self.far(|| swallow("vb"));
    }

    /// From now on each frame is lost with this probability, in both directions.
    pub(crate) fn lose(&self, per_mille: u32) {
        Loss::incoming("va", per_mille);
        self.far(|| Loss::incoming("vb", per_mille));
    }
}

fn end_up(link: &str, end: usize) {
    let [ip4, ip6] = HOSTS.map(|ends| ends[end]);
    ip(&format!("addr add {ip4}/24 dev {link}"));
    ip(&format!("-6 addr add {ip6}/64 dev {link} nodad"));
    // Segmented before the link, where a capture sees it and each frame is lost alone.
    ip(&format!("link set {link} gso_max_segs 1"));
    ip(&format!("link set {link} up"));
}

/// Frames of an interface that are lost: netem is not in every kernel, so a classic BPF program
/// drops them.
#[derive(Debug)]
pub(crate) struct Loss {
    link: String,
}

impl Loss {
    /// From now on each frame that comes in is lost with this probability.
    pub(crate) fn incoming(link: &str, per_mille: u32) -> Self {
        tool("tc", &format!("qdisc add dev {link} clsact"));
        filter(link, "ingress", TC_ACT_SHOT, per_mille);
        let link = link.to_owned();
        Self { link }
    }

    /// And each that goes out. TC_ACT_SHOT would be told to the sender, whose frame was then not lost
    /// on the way; TC_ACT_STOLEN says nothing.
    pub(crate) fn both_ways(link: &str, per_mille: u32) -> Self {
        let loss = Self::incoming(link, per_mille);
        filter(link, "egress", TC_ACT_STOLEN, per_mille);
        loss
    }

    /// How many of those that came in were lost.
    pub(crate) fn end(self) -> u64 {
        let arguments = ["-s", "qdisc", "show", "dev", &self.link, "clsact"];
        let shown = Command::new("tc").args(arguments).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        tool("tc", &format!("qdisc del dev {} clsact", self.link));
        let (_, lost) = shown.split_once("dropped ").unwrap();
        let digits = lost.find(|c: char| !c.is_ascii_digit()).unwrap();
        lost[..digits].parse().unwrap()
    }
}

/// What the program says of a frame (`include/uapi/linux/pkt_cls.h`).
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_STOLEN: u32 = 4;

/// The program loads the protocol (SKF_AD_PROTOCOL) and lets ARP pass, because after three lost
/// answers the kernel says that there is no such host. Then it loads a random word (SKF_AD_RANDOM),
/// and returns `action` if it is below the threshold (tc-bpf(8)).
fn filter(link: &str, hook: &str, action: u32, per_mille: u32) {
    let threshold = u64::from(per_mille) * (1 << 32) / 1000;
    let program = format!(
        "6,40 0 0 4294963200,21 3 0 2054,32 0 0 4294963256,53 1 0 {threshold},6 0 0 {action},6 0 0 4294967295"
    );
    add_filter(link, hook, &program);
}

/// The program loads the length of the frame, with its header of 14 bytes.
fn filter_longer(link: &str, bytes: u32) {
    let longest = bytes + 14;
    let program = format!("4,128 0 0 0,37 0 1 {longest},6 0 0 {TC_ACT_SHOT},6 0 0 4294967295");
    add_filter(link, "ingress", &program);
}

fn add_filter(link: &str, hook: &str, program: &str) {
    let filter = format!("filter add dev {link} {hook} bpf da bytecode");
    let mut arguments: Vec<&str> = filter.split(' ').collect();
    arguments.push(program);
    let status = Command::new("tc").args(arguments).status();
    assert!(status.unwrap().success(), "tc {filter} {program}");
}
