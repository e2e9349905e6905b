//! How a software RoCE NIC shares a link with TCP, and what loss costs it, in network namespaces of
//! its own (`unshare -rn`):
//!
//!     cargo run --release -p legato-providers --example roce_share [share | loss]
#![allow(
    clippy::unwrap_used,
    reason = "an example that fails has nothing to print"
)]

mod flows;
#[path = "../../tests/netns/mod.rs"]
mod netns;
mod runs;

use flows::Verb;
use runs::{Plan, Rates};
use std::process::Command;
use std::time::Duration;

const INSIDE: &str = "LEGATO_EXAMPLE_NAMESPACE";

const PLAN: Plan = Plan {
    mtu: 1500,
    shaped: Some((200, 256 << 10)),
    lost_per_mille: 0,
    verb: Verb::Write,
    warm_up: Duration::from_secs(2),
    time: Duration::from_secs(6),
};

fn told(name: &str, rates: &Rates) {
    println!(
        "{name:32} RoCE {:7.1} Mbit/s, TCP {:7.1} Mbit/s",
        rates.roce, rates.tcp
    );
    if let (Some(seen), true) = (rates.seen, std::env::var_os("VERBOSE").is_some()) {
        println!(
            "    near {:?}\n    far {:?}\n    {:?}",
            seen.near, seen.far, seen.path
        );
    }
}

fn share() {
    for verb in [Verb::Write, Verb::Read] {
        for algorithm in ["cubic", "reno", "bbr"] {
            let plan = Plan { verb, ..PLAN };
            let name = format!("{verb:?} beside {algorithm}");
            told(&name, &plan.run(true, Some(algorithm)));
        }
        told(
            &format!("{verb:?} alone"),
            &Plan { verb, ..PLAN }.run(true, None),
        );
    }
    told("cubic alone", &PLAN.run(false, Some("cubic")));
}

fn loss() {
    for mtu in [1500, 9000] {
        for lost_per_mille in [0, 1, 10] {
            let plan = Plan {
                mtu,
                lost_per_mille,
                shaped: None,
                warm_up: Duration::from_secs(1),
                time: Duration::from_secs(3),
                ..PLAN
            };
            let tcp = plan.run(false, Some("cubic")).tcp;
            for verb in [Verb::Write, Verb::Read] {
                let rates = Plan { verb, ..plan }.run(true, None);
                let lost = f64::from(lost_per_mille) / 10.0;
                let name = format!("{verb:?}, MTU {mtu}, {lost} % lost");
                told(&name, &Rates { tcp, ..rates });
            }
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os(INSIDE).is_none() {
        let status = Command::new("unshare")
            .arg("-rn")
            .arg(std::env::current_exe().unwrap())
            .args(arguments)
            .env(INSIDE, "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    match arguments.first().map(String::as_str) {
        Some("share") => share(),
        Some("loss") => loss(),
        _ => {
            share();
            loss();
        }
    }
}
