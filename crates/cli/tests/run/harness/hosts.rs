//! Two hosts joined by a cable: network namespaces of this machine, and a veth between them.

use super::node::{Node, status_of};
use super::{PATIENCE, Run, legato, poll_until, started_by};
use rustix::fd::AsFd as _;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsStr;
use std::process::{Child, ChildStdin, Command, Stdio};

/// A namespace lasts as long as the process that waits in it for the end of its standard input.
#[derive(Debug)]
pub(crate) struct Host {
    holder: Child,
    _stdin: ChildStdin,
    pub(crate) address: &'static str,
}

/// Memory is served on the first, and used on the second.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) server: Host,
    pub(crate) client: Host,
}

const SERVER: &str = "10.77.1.1";
const CLIENT: &str = "10.77.1.2";

impl Hosts {
    /// Joined by a link of this MTU, in bytes.
    pub(crate) fn joined(mtu: u32) -> Self {
        let hosts = Self {
            server: Host::new(SERVER),
            client: Host::new(CLIENT),
        };
        let other = format!("/proc/{}/ns/net", hosts.client.pid());
        hosts.server.ip(&[
            "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", &other,
        ]);
        for host in [&hosts.server, &hosts.client] {
            host.ip(&[
                "address",
                "add",
                &format!("{}/24", host.address),
                "dev",
                "cable",
            ]);
            host.ip(&["link", "set", "cable", "mtu", &mtu.to_string(), "up"]);
            host.ip(&["link", "set", "lo", "up"]);
        }
        hosts
    }

    /// They have no addresses but those of their link, fe80::1 and fe80::2, as on a cable between two machines
    /// without any configuration.
    pub(crate) fn leave_addresses_of_the_link(&self) {
        for (host, address) in [(&self.server, "fe80::1/64"), (&self.client, "fe80::2/64")] {
            host.ip(&["address", "flush", "dev", "cable", "scope", "global"]);
            // Otherwise it may be used only after it was asked for all over the link for a second.
            host.ip(&["address", "add", address, "dev", "cable", "nodad"]);
        }
    }

    /// Nothing gets from one to the other, and neither host is told: all frames get TC_ACT_STOLEN
    /// (tc-bpf(8)).
    pub(crate) fn cut_cable(&self) {
        self.filter("ingress", "1,6 0 0 4");
        self.filter("egress", "1,6 0 0 4");
    }

    pub(crate) fn mend_cable(&self) {
        self.server
            .run("tc", &["qdisc", "del", "dev", "cable", "clsact"]);
    }

    /// What comes to the server over UDP is lost from now on, as in networks that let only TCP pass: a
    /// classic BPF program, in which packets of IPv4 (SKF_AD_PROTOCOL) with protocol 17 (SKF_NET_OFF + 9)
    /// get TC_ACT_SHOT (tc-bpf(8)).
    pub(crate) fn lose_datagrams(&self) {
        let program =
            "6,40 0 0 4294963200,21 0 3 2048,48 0 0 4293918729,21 0 1 17,6 0 0 2,6 0 0 4294967295";
        self.filter("ingress", program);
    }

    fn filter(&self, hook: &str, program: &str) {
        // There may be one already, with a filter for the other direction.
        let disc = ["qdisc", "replace", "dev", "cable", "clsact"];
        let filter = [
            "filter", "add", "dev", "cable", hook, "bpf", "da", "bytecode", program,
        ];
        for arguments in [&disc[..], &filter] {
            self.server.run("tc", arguments);
        }
    }

    /// The node there has its memory back as soon as the program has ended.
    #[track_caller]
    pub(crate) fn expect_nothing_left(&self, address: &str) {
        poll_until("the node is empty", PATIENCE, || {
            let status = self.client.status_of(address);
            status["used_bytes"] == 0 && status["clients"] == 0
        });
    }
}

impl Host {
    fn new(address: &'static str) -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("unshare(1) is part of util-linux");
        let stdin = holder.stdin.take().unwrap();
        let host = Self {
            holder,
            _stdin: stdin,
            address,
        };
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        poll_until("a network namespace", PATIENCE, || {
            let path = format!("/proc/{}/ns/net", host.pid());
            std::fs::read_link(path).is_ok_and(|other| other != own)
        });
        host
    }

    /// For a thread that goes there.
    pub(crate) fn namespace(&self) -> Namespace {
        let path = format!("/proc/{}/ns/net", self.pid());
        Namespace(std::fs::File::open(path).unwrap())
    }

    fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// The arguments of nsenter(1) that start a program on this host.
    pub(crate) fn enter(&self) -> Vec<String> {
        let target = self.pid().to_string();
        ["nsenter", "--target", &target, "--net", "--"]
            .map(str::to_owned)
            .to_vec()
    }

    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        started_by(&self.enter(), program)
    }

    pub(crate) fn set_link_down(&self) {
        self.ip(&["link", "set", "cable", "down"]);
    }

    pub(crate) fn set_link_up(&self) {
        self.ip(&["link", "set", "cable", "up"]);
    }

    fn ip(&self, arguments: &[&str]) {
        self.run("ip", arguments);
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = self.command(program).args(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {output:?}"
        );
    }

    /// A memory node at an address of this host.
    pub(crate) fn node(&self, memory: &str, address: &str) -> Node {
        Node::start_by(self.command(legato()), memory, address)
    }

    /// What a node says of itself when it is asked from this host.
    pub(crate) fn status_of(&self, address: &str) -> serde_json::Value {
        status_of(self.command(legato()), address)
    }
}

/// A node on the first of two hosts, and programs on the second that have their memory there.
#[derive(Debug)]
pub(crate) struct World {
    /// Ends before its host does.
    node: Node,
    pub(crate) hosts: Hosts,
    pub(crate) address: String,
}

impl World {
    /// The node has an address of the first host, with what follows that.
    pub(crate) fn new(mtu: u32, service: &str, memory: &str) -> Self {
        let hosts = Hosts::joined(mtu);
        let address = format!("roce://{}{service}", hosts.server.address);
        let node = hosts.server.node(memory, &address);
        Self {
            node,
            hosts,
            address,
        }
    }

    pub(crate) fn run(&self, program: impl AsRef<OsStr>) -> Run {
        Run::far(program)
            .option("--nodes", &self.address)
            .on(&self.hosts.client)
    }

    /// What the node has given to its clients.
    pub(crate) fn used_bytes(&self) -> u64 {
        let status = self.hosts.client.status_of(&self.address);
        status["used_bytes"].as_u64().unwrap()
    }

    /// The programs have ended: the node is empty, and can go.
    #[track_caller]
    pub(crate) fn expect_clean_end(self) {
        self.hosts.expect_nothing_left(&self.address);
        assert!(self.node.terminate().success());
    }
}

/// A host's network.
#[derive(Debug)]
pub(crate) struct Namespace(std::fs::File);

impl Namespace {
    /// The calling thread opens its sockets here from now on.
    pub(crate) fn enter(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
