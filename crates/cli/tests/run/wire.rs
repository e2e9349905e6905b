//! Far memory on another host: two network namespaces, a memory node in one and the program in the other.

use crate::harness::{
    Hosts, PATIENCE, Run, legato, messages, poll_until, python, sized, system_program, test_program,
};
use crate::redis::stores_and_gives_back;
use std::path::Path;
use std::process::Command;
use std::thread::{self, Scope};
use std::time::Duration;

/// As many links have it.
const MTU: u32 = 1500;
/// Of data centres.
const JUMBO_MTU: u32 = 9000;

/// What keeps two hosts apart.
#[derive(Clone, Copy)]
enum Outage {
    Cable,
    /// An interface is set down, which ends all connections on its host.
    ClientLink,
    ServerLink,
}

impl Outage {
    /// It lasts for 2 s from now on, while everything else goes on.
    fn begin<'scope>(self, scope: &'scope Scope<'scope, '_>, hosts: &'scope Hosts) {
        match self {
            Self::Cable => hosts.cut_cable(),
            Self::ClientLink => hosts.client.set_link_down(),
            Self::ServerLink => hosts.server.set_link_down(),
        }
        scope.spawn(move || {
            // What happens meanwhile is that nothing arrives: there is nothing else to wait for.
            thread::sleep(Duration::from_secs(2));
            match self {
                Self::Cable => hosts.mend_cable(),
                Self::ClientLink => hosts.client.set_link_up(),
                Self::ServerLink => hosts.server.set_link_up(),
            }
        });
    }
}

fn wait_for_far_bytes(hosts: &Hosts, address: &str, least: u64) {
    poll_until("pages are far", PATIENCE, || {
        hosts.client.status_of(address)["used_bytes"].as_u64() > Some(least)
    });
}

/// With the node's link down for a while.
#[test]
fn numpy_gives_the_same_results_over_udp() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/python/array_work.py");
    let start = |run: Run| {
        run.arguments([&script])
            .environment("OPENBLAS_NUM_THREADS", "2")
            .start()
    };
    let hosts = Hosts::joined(JUMBO_MTU);
    let address = format!("roce://{}", hosts.server.address);
    let node = hosts.server.node("2GiB", &address);
    let plain = start(Run::plain(python())).finish().expect_code(0);
    let far = Run::far(python()).cache_mib(96).option("--nodes", &address);
    let running = start(far.on(&hosts.client));
    wait_for_far_bytes(&hosts, &address, 96 << 20);
    let far = thread::scope(|scope| {
        Outage::ServerLink.begin(scope, &hosts);
        running.finish().expect_code(0)
    });
    assert_eq!(far.output(), plain.output());
    assert_eq!(far.expect_far_pages().stat("pages_lost"), 0);
    hosts.expect_nothing_left(&address);
    assert!(node.terminate().success());
}

/// With the program's link down while a third of it is stored anew.
#[test]
fn redis_gives_back_what_was_stored_over_udp() {
    let hosts = Hosts::joined(MTU);
    let address = format!("roce://{}:4800", hosts.server.address);
    let node = hosts.server.node("1GiB", &address);
    let server = Run::far(system_program("redis-server")).option("--nodes", &address);
    let server = server.on(&hosts.client);
    thread::scope(|scope| {
        stores_and_gives_back(server, sized(24, 8), || {
            Outage::ClientLink.begin(scope, &hosts);
        });
    });
    hosts.expect_nothing_left(&address);
    assert!(node.terminate().success());
}

/// A program with two threads has what it wrote, after most of it was at a node.
fn keeps_its_pattern(hosts: &Hosts, address: &str) {
    let run = Run::far(test_program("fill"))
        .arguments(["--bytes", sized("192MiB", "32MiB")])
        .arguments(["--threads", "2", "--rounds", "2"])
        .arguments(["--within", sized("64MiB", "12MiB")])
        .cache_mib(sized(64, 12))
        .option("--nodes", address)
        .on(&hosts.client);
    run.finish().expect_code(0).expect_far_pages();
}

#[test]
fn a_program_keeps_its_pattern_over_a_stream() {
    let hosts = Hosts::joined(MTU);
    let address = format!("roce+tcp://{}:4800", hosts.server.address);
    let node = hosts.server.node("512MiB", &address);
    keeps_its_pattern(&hosts, &address);
    hosts.expect_nothing_left(&address);
    assert!(node.terminate().success());
}

/// Lost: an interface had no name, and a number of an interface was forgotten on the way.
#[test]
fn hosts_that_have_addresses_of_their_link_alone_reach_each_other() {
    let hosts = Hosts::joined(MTU);
    hosts.leave_addresses_of_the_link();
    for address in ["roce://[fe80::1%cable]", "roce+tcp://[fe80::1%cable]:4800"] {
        let node = hosts.server.node("512MiB", address);
        keeps_its_pattern(&hosts, address);
        hosts.expect_nothing_left(address);
        assert!(node.terminate().success());
    }
}

/// Without a scheme a node is there for both, and whoever uses it takes UDP if that gets through.
#[test]
fn an_address_without_a_scheme_is_reached_over_udp_and_else_over_tcp() {
    let hosts = Hosts::joined(MTU);
    let address = format!("{}:4800", hosts.server.address);
    let node = hosts.server.node("512MiB", &address);
    for loses_datagrams in [false, true] {
        if loses_datagrams {
            hosts.lose_datagrams();
        }
        let status = hosts.client.status_of(&address);
        let expected = if loses_datagrams { "roce+tcp" } else { "roce" };
        assert_eq!(status["address"], format!("{expected}://{address}"));
        keeps_its_pattern(&hosts, &address);
        let run = Run::far("true").option("--nodes", &address);
        let run = run.with_summary().on(&hosts.client).finish().expect_code(0);
        let told = messages::is_told(&run.stderr, "memory node ADDR: no answer over UDP");
        assert_eq!(told, loses_datagrams, "{}", run.stderr);
        hosts.expect_nothing_left(&address);
    }
    assert!(node.terminate().success());
}

/// What one interface gives is missing at the other: it is one node.
#[test]
fn a_node_listens_at_several_addresses() {
    let hosts = Hosts::joined(MTU);
    let host = hosts.server.address;
    let addresses = [format!("roce://{host}"), format!("roce+tcp://{host}:4800")];
    let node = hosts.server.node("512MiB", &addresses.join(","));
    let mut running = addresses.each_ref().map(|address| {
        let run = Run::far(test_program("hold"))
            .arguments(["--bytes", "96MiB"])
            .cache_mib(32)
            .option("--nodes", address)
            .on(&hosts.client)
            .start();
        run.wait_for_far_pages(32);
        run
    });
    for address in &addresses {
        let status = hosts.client.status_of(address);
        assert_eq!(status["clients"], 2, "{address}: {status}");
        assert!(status["used_bytes"].as_u64() > Some(128 << 20), "{status}");
    }
    running.iter_mut().for_each(|run| run.write(b"\n"));
    for run in running {
        run.finish().expect_code(0).expect_far_pages();
    }
    addresses
        .iter()
        .for_each(|it| hosts.expect_nothing_left(it));
    assert!(node.terminate().success());
}

/// A node that is there over TCP alone says so at once, and one that is not there is nobody's.
#[test]
fn an_address_without_a_scheme_fails_with_what_both_ways_say() {
    let hosts = Hosts::joined(MTU);
    let address = format!("{}:4800", hosts.server.address);
    let mut ask = hosts.client.command(legato());
    ask.args(["node", "status", "--json", "--node", &address]);
    let told =
        messages::expect_refused(&mut ask, 2, "memory node ADDR: REASON; it does not answer");
    assert!(
        told.contains("over UDP") && told.contains("over TCP"),
        "{told}"
    );
    let stream = format!("roce+tcp://{address}");
    let node = hosts.server.node("64MiB", &stream);
    let found = ask.output().unwrap();
    assert!(found.status.success(), "{found:?}");
    assert!(String::from_utf8_lossy(&found.stdout).contains(&stream));
    assert!(node.terminate().success());
}

/// Pages come and go, and nothing is lost but time.
fn an_outage_costs_no_data(outage: Outage) {
    let hosts = Hosts::joined(MTU);
    let address = format!("roce://{}", hosts.server.address);
    let node = hosts.server.node("512MiB", &address);
    let running = Run::far(test_program("fill"))
        .arguments(["--bytes", sized("192MiB", "32MiB")])
        .arguments(["--threads", "2", "--rounds", "4"])
        .arguments(["--within", sized("64MiB", "12MiB")])
        .cache_mib(sized(64, 12))
        .option("--nodes", &address)
        .on(&hosts.client)
        .start();
    wait_for_far_bytes(&hosts, &address, sized(64, 12) << 20);
    let run = thread::scope(|scope| {
        outage.begin(scope, &hosts);
        running.finish().expect_code(0).expect_far_pages()
    });
    assert_eq!(run.stat("pages_lost"), 0);
    hosts.expect_nothing_left(&address);
    assert!(node.terminate().success());
}

#[test]
fn a_cable_that_is_out_for_two_seconds_costs_no_data() {
    an_outage_costs_no_data(Outage::Cable);
}

// P-56
#[test]
fn v_39_a_programs_link_that_is_down_for_two_seconds_costs_no_data() {
    an_outage_costs_no_data(Outage::ClientLink);
}

// P-56
#[test]
fn v_39_a_nodes_link_that_is_down_for_two_seconds_costs_no_data() {
    an_outage_costs_no_data(Outage::ServerLink);
}

/// One that does not come back is found to be this machine's, before the node counts as silent.
// P-56
#[test]
fn v_39_a_link_that_stays_down_is_named() {
    let hosts = Hosts::joined(MTU);
    let address = format!("roce://{}", hosts.server.address);
    let node = hosts.server.node("256MiB", &address);
    let mut running = Run::far(test_program("hold"))
        .arguments(["--bytes", "32MiB"])
        .cache_mib(12)
        .option("--nodes", &address)
        .on(&hosts.client)
        .start();
    running.wait_for_far_pages(12);
    hosts.client.set_link_down();
    running.write(b"go\n");
    let run = running.finish();
    assert_eq!(run.code(), Some(128 + 7), "{}", run.stderr);
    run.expect_told(
        "memory node ADDR is lost: REASON; N pages of PROG (PID) had their only copy there,",
    );
    let why = "this machine does not have the connection's address any more";
    assert!(run.stderr.contains(why), "{}", run.stderr);
    hosts.client.set_link_up();
    hosts.expect_nothing_left(&address);
    assert!(node.terminate().success());
}

#[test]
fn a_node_that_others_can_reach_must_be_told_to_serve_them() {
    for (address, row) in [
        ("roce://192.0.2.1", "memory node ADDR: other machines"),
        (
            "roce+tcp://[2001:db8::1]:4791",
            "memory node ADDR: other machines",
        ),
        ("verbs://192.0.2.1", "memory node ADDR: other machines"),
        ("verbs://mlx5_0/1", "memory node ADDR: other machines"),
        ("192.0.2.1:4791", "memory node ADDR: other machines"),
        ("roce://0.0.0.0", "memory node ADDR: that is no address"),
        ("verbs://0.0.0.0", "memory node ADDR: that is no address"),
    ] {
        let mut node = Command::new(legato());
        node.args(["node", "--memory", "16MiB", "--listen", address]);
        messages::expect_refused(&mut node, 2, row);
    }
}

#[test]
fn the_devices_of_a_host_are_told() {
    let hosts = Hosts::joined(MTU);
    let told = || -> serde_json::Value {
        let mut devices = hosts.server.command(legato());
        let output = devices.args(["net", "devices", "--json"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let place = format!("roce://{}:4791", hosts.server.address);
        let mut devices = all["devices"].as_array().unwrap().iter();
        devices
            .find(|device| device["address"] == place)
            .unwrap()
            .clone()
    };
    assert_eq!(told()["usable"], true);
    assert_eq!(told()["interface"], "cable");
    let text = || told()["text"].as_str().unwrap().to_owned();
    assert!(!text().contains("in use"), "{}", text());
    let place = format!("roce://{}", hosts.server.address);
    let node = hosts.server.node("16MiB", &place);
    let another = format!("another node listens at {place}:4792");
    assert!(text().contains(&another), "{}", text());
    assert!(node.terminate().success());
    hosts.server.set_link_down();
    poll_until("the interface is seen to be down", PATIENCE, || {
        told()["usable"] == false && text().contains("no link")
    });
}

#[test]
fn an_address_where_nobody_is_says_so_at_once() {
    let mut run = Command::new(legato());
    run.args(["node", "status", "--node", "roce://127.0.0.1:4899"]);
    let told = messages::expect_refused(&mut run, 2, "memory node ADDR: REASON; nobody");
    assert!(told.contains("nobody answers"), "{told}");
}
