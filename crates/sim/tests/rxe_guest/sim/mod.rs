//! The probes on the simulated NIC: what each step is, `LINES.md` says, and the C program.

mod ends;
mod knock;
mod lines;
mod local;
mod messages;
mod operations;
mod queues;
mod remote;
mod rig;
mod shared;
mod states;

use crate::compare::{Deviations, Races, Trace, compare};
use legato_sim::provider::Personality;
use rig::Rig;
use std::path::Path;

/// The lines that a NIC of this kind gives.
fn lines(personality: Personality) -> String {
    let mut rig = Rig::new(personality);
    for probe in [
        messages::order,
        messages::nobody,
        messages::no_receive,
        messages::too_long,
        remote::refused,
        remote::partial,
        queues::slots,
        queues::overrun,
        shared::shared,
        ends::ends,
        local::local,
        states::states,
        operations::operations,
    ] {
        probe(&mut rig);
    }
    rig.text
}

#[test]
fn the_rxe_personality_gives_the_lines_of_the_kernel() {
    let text = lines(Personality::RXE);
    let found = Trace::parse(&text).unwrap();
    let wrong = compare(
        &Trace::parse(crate::REFERENCE).unwrap(),
        &found,
        &Races::parse(crate::RACES).unwrap(),
        &Deviations::parse(include_str!("../deviations-sim.txt")).unwrap(),
    );
    assert!(
        wrong.is_empty(),
        "{} differences of the simulated rxe from the kernel's:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    println!("the simulated rxe: {} lines", found.len());
}

/// What the other devices print was read line by line when it was recorded. With `LEGATO_RECORD=1`
/// it is recorded anew.
fn is_as_recorded(personality: Personality) {
    let name = format!("tests/rxe_guest/{}.txt", personality.name);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let found = lines(personality);
    if std::env::var("LEGATO_RECORD").is_ok_and(|value| value == "1") {
        let about = format!(
            "# What the simulator's {} prints for the probes, recorded with\n\
             # LEGATO_RECORD=1 cargo test --release -p legato-sim --test rxe_guest lines_of\n",
            personality.name
        );
        std::fs::write(&path, about + &found).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap();
    let wrong = compare(
        &Trace::parse(&recorded).unwrap(),
        &Trace::parse(&found).unwrap(),
        &Races::parse("").unwrap(),
        &Deviations::none(),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_lines_of_ideal_are_as_recorded() {
    is_as_recorded(Personality::IDEAL);
}

#[test]
fn the_lines_of_mlx5_are_as_recorded() {
    is_as_recorded(Personality::MLX5);
}
