//! The conformance suite on a pair of software RoCE NICs, over real sockets.

use crate::rules_beside::{cycles, rules_beside};
use crate::world::{Network, RoceWorld};
use legato_base::Duration;
use legato_verbs::Address;
use legato_verbs::conformance::{Rule, rules};
use std::net::{Ipv4Addr, SocketAddr};

/// `net` tells the tests apart that may run at the same time.
fn keeps_every_rule(listen: fn(SocketAddr) -> Address, net: u8) {
    let report = rules_beside(|place| {
        let at = |host| {
            let host = Ipv4Addr::new(127, net, place as u8, host);
            SocketAddr::from((host, legato_verbs::ROCE_PORT))
        };
        let network = Network {
            listen,
            left: at(1),
            right: at(2),
            link: None,
            // Retries for half a second, and connections that nobody answers.
            bound: Duration::from_secs(6),
            // Unless it was lost and is sent again.
            quiet: Duration::from_millis(150),
            cycles: cycles(),
            loses: false,
        };
        move |rule: &Rule| (rule.check)(&mut RoceWorld::new(network.clone()))
    });
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.passed.len(), rules().len());
}

#[test]
fn over_a_stream_between_two_addresses_of_one_machine() {
    keeps_every_rule(Address::RoceTcp, 4);
}

#[test]
fn over_udp_between_two_addresses_of_one_machine() {
    keeps_every_rule(Address::Roce, 5);
}
