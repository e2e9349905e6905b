//! What Linux promises about memory, one named case for each promise, each on pages that are far
//! away when they are used.
//!
//! `semantics --case NAME,... [--bytes SIZE] [--expect-evicted] [--seconds N] [--rounds N]`
//!
//! Each case runs in a process of its own, so that one may close its descriptors, lose its rights
//! or die and harm no other. It fills memory, pushes it out by using --bytes of other memory, does
//! what it is named after, and compares results and contents with what Linux gives. With
//! --expect-evicted a case fails if its pages did not leave; without, nothing is pushed out and the
//! case shows what plain Linux does. One line for each case: `NAME: ok`, or why not.

mod access;
mod driver;
mod existence;
mod files;
mod forked;
mod forks;
mod ground;
mod kinds;
mod outside;
mod overlaid;
mod process;
mod protection;
mod ranges;
mod rights;
mod ring;
mod rounds;
mod sharers;
mod signals;
mod spawn;
mod storm;
mod structures;
mod threads;
mod transfers;
mod words;

use ground::{Case, Ground};
use legato_base::Bytes;
use legato_test_programs::{Options, end_at_a_panic};
use std::process::ExitCode;

/// All cases by name. Those at the end are parts of other cases, or run long.
fn cases() -> Vec<(&'static str, Case)> {
    [
        access::CASES,
        transfers::CASES,
        files::CASES,
        existence::CASES,
        ring::CASES,
        words::CASES,
        structures::CASES,
        outside::CASES,
        signals::CASES,
        protection::CASES,
        kinds::CASES,
        ranges::CASES,
        forks::CASES,
        spawn::CASES,
        sharers::CASES,
        overlaid::CASES,
        process::CASES,
        threads::CASES,
        rights::CASES,
        rounds::CASES,
        storm::CASES,
    ]
    .concat()
}

fn main() -> ExitCode {
    end_at_a_panic();
    let names = ["--case", "--bytes", "--seconds", "--rounds"];
    let options = Options::parse(&names, &["--expect-evicted", "--alone"]);
    let all = cases();
    let Some(chosen) = options.text("--case") else {
        all.iter().for_each(|(name, _)| println!("{name}"));
        return ExitCode::SUCCESS;
    };
    if !options.flag("--alone") {
        return driver::run(chosen);
    }
    let Some((name, case)) = all.iter().find(|(name, _)| *name == chosen) else {
        eprintln!("semantics: no case '{chosen}'");
        return ExitCode::from(2);
    };
    let ground = Ground::new(
        options.pages("--bytes", Bytes::mib(64)),
        options.flag("--expect-evicted"),
        options.number("--seconds", 5),
        options.number("--rounds", 100),
    );
    match ground.and_then(|ground| case(&ground)) {
        Ok(outcome) => {
            ground::report(name, &outcome);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{name}: {failure}");
            ExitCode::from(1)
        }
    }
}
