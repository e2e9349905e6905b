//! The conformance suite on a pair of software RoCE NICs in two network namespaces, with a link
//! between them that is narrow, or wide, or loses frames.
//!
//! Each test runs itself once more in a namespace of its own (`unshare -rn`).

use crate::netns::{HOSTS, Link, in_namespace, leave};
use crate::rules_beside::rules_beside;
use crate::world::{Network, RoceWorld};
use legato_base::Duration;
use legato_verbs::Address;
use legato_verbs::conformance::{Report, Rule, Violation, rules};
use std::net::SocketAddr;
use std::rc::Rc;

/// More times that a rule may fail because the last word of a side was lost.
const CHANCES: u32 = 3;

#[derive(Clone, Copy)]
struct Kind {
    is_datagram: bool,
    ipv6: bool,
    mtu: u32,
    lost_per_mille: u32,
    /// Longer IP packets get lost.
    swallows_above: u32,
}

const PLAIN: Kind = Kind {
    is_datagram: true,
    ipv6: false,
    mtu: 1500,
    lost_per_mille: 0,
    swallows_above: u32::MAX,
};

impl Kind {
    /// A link of this thread's own.
    fn network(self) -> Network {
        leave();
        let link = Link::new(self.mtu);
        let [left, right] = HOSTS[usize::from(self.ipv6)]
            .map(|host| SocketAddr::new(host.parse().unwrap(), legato_verbs::ROCE_PORT));
        let (bound, quiet) = match self.lost_per_mille {
            0 => (6, 150),
            // One of connection management that is lost costs 250 ms, several times over; the last word
            // of a side, all that the other one waits for an answer (`ROCE_RETRIES`), which is 34 s.
            _ => (60, 900),
        };
        if self.lost_per_mille > 0 {
            link.lose(self.lost_per_mille);
        }
        if self.swallows_above < self.mtu {
            link.swallow_longer(self.swallows_above);
        }
        Network {
            listen: match self.is_datagram {
                true => Address::Roce,
                false => Address::RoceTcp,
            },
            left,
            right,
            link: Some(Rc::new(link)),
            bound: Duration::from_secs(bound),
            quiet: Duration::from_millis(quiet),
            cycles: 10,
            loses: self.lost_per_mille > 0,
        }
    }

    fn run(self) -> Report {
        rules_beside(|_| {
            let network = self.network();
            move |rule| self.check(rule, &network)
        })
    }

    /// A message that says why a connection ends is sent once, and nobody is there any more to say
    /// it again: a NAK (IB spec 9.7.5.1.2), REJ of who has given up (IB spec 12.9.8.4). If the link
    /// loses it, the other side finds only that nobody answers; such a rule gets another chance.
    fn was_last_word(self, rule: &str, violation: &Violation) -> bool {
        let unheard = violation.got.contains("Err(RetryExceeded)")
            || rule == "connections: a peer that went away cannot be accepted"
                && violation.expected == "UnknownHandle";
        self.lost_per_mille > 0 && self.is_datagram && unheard
    }

    fn check(self, rule: &Rule, network: &Network) -> Result<(), Violation> {
        for _ in 0..CHANCES {
            match (rule.check)(&mut RoceWorld::new(network.clone())) {
                Err(violation) if self.was_last_word(rule.name, &violation) => {
                    println!("unheard: {}: {}", rule.name, violation.what);
                }
                result => return result,
            }
        }
        (rule.check)(&mut RoceWorld::new(network.clone()))
    }
}

fn keeps_every_rule(name: &str, kind: Kind) {
    in_namespace(name, || {
        let report = kind.run();
        println!("{report}");
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.passed.len(), rules().len());
    });
}

macro_rules! networks {
    ($($name:ident: $kind:expr;)*) => {
        $(
            #[test]
            fn $name() {
                keeps_every_rule(concat!("networks::", stringify!($name)), $kind);
            }
        )*
    };
}

networks! {
    udp_frames_of_1500: PLAIN;
    udp_frames_of_9000: Kind { mtu: 9000, ..PLAIN };
    udp_ipv6_frames_of_1500: Kind { ipv6: true, ..PLAIN };
    udp_ipv6_frames_of_9000: Kind { ipv6: true, mtu: 9000, ..PLAIN };
    udp_frames_of_9000_that_a_switch_swallows: Kind { mtu: 9000, swallows_above: 1500, ..PLAIN };
    udp_ipv6_frames_of_9000_that_a_switch_swallows: Kind { ipv6: true, mtu: 9000, swallows_above: 1500, ..PLAIN };
    stream: Kind { is_datagram: false, ..PLAIN };
    stream_ipv6: Kind { is_datagram: false, ipv6: true, ..PLAIN };
    udp_one_of_1000_is_lost: Kind { lost_per_mille: 1, ..PLAIN };
    udp_one_of_100_is_lost: Kind { lost_per_mille: 10, ..PLAIN };
    udp_one_of_10_is_lost: Kind { lost_per_mille: 100, ..PLAIN };
    stream_one_of_100_is_lost: Kind { is_datagram: false, lost_per_mille: 10, ..PLAIN };
}
