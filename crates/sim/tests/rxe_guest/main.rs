//! The kernel's own software NIC, `rdma_rxe`, runs the probes in an emulated guest, and gives the
//! lines that were recorded; the simulated one gives the same lines. `docs/testing.md` says how;
//! `LINES.md` here says what the lines mean.
#![allow(
    clippy::unwrap_used,
    reason = "a step that fails is the test's failure"
)]

mod compare;
mod guest;
mod sim;

use compare::{Deviations, Races, Trace, compare};

const REFERENCE: &str = include_str!("rxe-6.12.txt");
const RACES: &str = include_str!("races.txt");
const LINUX_6_1: &str = include_str!("deviations-linux-6.1.txt");

#[test]
fn the_kernel_gives_the_recorded_lines() {
    let Some(lines) = guest::lines() else {
        return;
    };
    let found = Trace::parse(&lines).unwrap();
    let kernel = found.kernel.clone().unwrap_or_default();
    let deviations = if kernel.starts_with("6.1.") {
        Deviations::parse(LINUX_6_1).unwrap()
    } else {
        Deviations::none()
    };
    let reference = Trace::parse(REFERENCE).unwrap();
    let wrong = compare(
        &reference,
        &found,
        &Races::parse(RACES).unwrap(),
        &deviations,
    );
    assert!(
        wrong.is_empty(),
        "{} differences of Linux {kernel} from {:?}:\n{}",
        wrong.len(),
        reference.kernel,
        wrong.join("\n")
    );
    println!("Linux {kernel}: {} lines", found.len());
}

/// The tables are right by themselves, also where no guest runs.
#[test]
fn the_recorded_lines_and_the_races_fit() {
    let reference = Trace::parse(REFERENCE).unwrap();
    let wrong = compare(
        &reference,
        &reference,
        &Races::parse(RACES).unwrap(),
        &Deviations::none(),
    );
    assert!(wrong.is_empty(), "{wrong:?}");
    Deviations::parse(LINUX_6_1).unwrap();
}
