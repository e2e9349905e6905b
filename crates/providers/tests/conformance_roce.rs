//! The conformance suite on a pair of software RoCE NICs, over real sockets.
#![allow(
    clippy::unwrap_used,
    reason = "test helpers outside of #[test] functions"
)]

mod netns;
mod roce_world;

use legato_base::Duration;
use legato_verbs::Address;
use legato_verbs::conformance::run;
use roce_world::{Network, RoceWorld};
use std::net::SocketAddr;

fn keeps_every_rule(listen: fn(SocketAddr) -> Address, left: &str, right: &str) {
    let network = Network {
        listen,
        left: left.parse().unwrap(),
        right: right.parse().unwrap(),
        link: None,
        // Retries for half a second, and connections that nobody answers.
        bound: Duration::from_secs(6),
        // Unless it was lost and is sent again.
        quiet: Duration::from_millis(150),
        cycles: 100,
        loses: false,
    };
    let report = run(&mut || Box::new(RoceWorld::new(network.clone())));
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert!(!report.passed.is_empty());
}

#[test]
fn over_a_stream_between_two_addresses_of_one_machine() {
    keeps_every_rule(Address::RoceTcp, "127.0.0.4:4791", "127.0.0.5:4791");
}

#[test]
fn over_udp_between_two_addresses_of_one_machine() {
    keeps_every_rule(Address::Roce, "127.0.0.2:4791", "127.0.0.3:4791");
}
