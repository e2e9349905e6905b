//! A software RoCE NIC and TCP on one link, in network namespaces, by the wall clock: bounds are
//! generous, because the processors are shared too. `legato-transport` has the same in virtual time.
//!
//! Each test runs itself once more in a namespace of its own (`unshare -rn`).

#[path = "../../examples/roce_share/flows.rs"]
mod flows;
#[path = "../../examples/roce_share/runs.rs"]
mod runs;

use crate::netns::in_namespace;
use flows::Verb;
use runs::Plan;
use std::time::Duration;

/// A queue of 5 ms.
const PLAN: Plan = Plan {
    mtu: 1500,
    shaped: Some((200, 128 << 10)),
    lost_per_mille: 0,
    verb: Verb::Write,
    warm_up: Duration::from_millis(1500),
    time: Duration::from_secs(4),
};
/// Runs of which one must be within the bounds: whose first packets fill the queue is chance, and the
/// two need some seconds to become equal.
const CHANCES: u32 = 2;

/// Neither gets less than a tenth of what both get, and the link is used.
fn share(name: &str, verb: Verb) {
    in_namespace(name, || {
        let is_fair = |_| {
            let rates = Plan { verb, ..PLAN }.run(true, Some("cubic"));
            println!("{rates:?}");
            let sum = rates.roce + rates.tcp;
            sum > 100.0 && rates.roce.min(rates.tcp) > sum / 10.0
        };
        assert!((0..CHANCES).any(is_fair));
    });
}

#[test]
fn writes_share_a_link_with_cubic() {
    share("share::writes_share_a_link_with_cubic", Verb::Write);
}

#[test]
fn reads_share_a_link_with_cubic() {
    share("share::reads_share_a_link_with_cubic", Verb::Read);
}

/// One frame of a hundred is lost, and RoCE, which sends all behind it again, still carries at least
/// half of what TCP does.
#[test]
fn one_of_100_lost_does_not_make_it_collapse() {
    in_namespace("share::one_of_100_lost_does_not_make_it_collapse", || {
        let plan = Plan {
            shaped: None,
            lost_per_mille: 10,
            warm_up: Duration::from_millis(500),
            time: Duration::from_millis(1500),
            ..PLAN
        };
        let tcp = plan.run(false, Some("cubic")).tcp;
        for verb in [Verb::Write, Verb::Read] {
            let rates = Plan { verb, ..plan }.run(true, None);
            println!("TCP {tcp}, {rates:?}");
            assert!(rates.roce > tcp / 2.0);
            let counters = rates.seen.unwrap().near;
            assert!(counters.losses > 0);
        }
    });
}
