//! Fills memory with patterns and checks every byte of it against a model, while it does what
//! programs do with memory.
//!
//! `pattern --bytes SIZE [--threads N] [--operations N] [--seed N] [--phase NAME,...]`
//!
//! Ends with status 0 only if everything matched; says on standard error what did not.

mod calls;
mod fork;
mod heap;
mod ranges;
mod touch;
mod world;

use crate::{Options, end_at_a_panic};
use legato_base::Bytes;
use std::process::ExitCode;
use world::{Failure, World};

const CANARY: &str = "canary";

type Phase = fn(&World) -> Result<(), Failure>;

/// In the order in which they run. Only `touch` is bounded by --operations; the others are small.
/// The last one damages memory, to show that the check sees it; it runs only when asked for.
const PHASES: [(&str, Phase); 10] = [
    ("touch", touch::run),
    ("calls", calls::run),
    ("discard", ranges::discard),
    ("remap", ranges::remap),
    ("unmap", ranges::unmap),
    ("protect", ranges::protect),
    ("heap", heap::run),
    ("fork", fork::run),
    ("busy-fork", fork::run_busy),
    (CANARY, touch::damage),
];

pub fn main() -> ExitCode {
    end_at_a_panic();
    let names = ["--bytes", "--threads", "--operations", "--seed", "--phase"];
    let options = Options::parse(&names, &[]);
    let mut chosen: Vec<&str> = match options.text("--phase") {
        Some(list) => list.split(',').collect(),
        None => PHASES
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| *name != CANARY)
            .collect(),
    };
    let world = World::new(
        options.pages("--bytes", Bytes::mib(512)),
        options.number("--threads", 4),
        options.number("--operations", 20_000),
        options.number("--seed", 1),
    );
    let world = match world {
        Ok(world) => world,
        Err(error) => return end("start", &error),
    };
    for (name, phase) in PHASES {
        if !chosen.contains(&name) {
            continue;
        }
        chosen.retain(|other| *other != name);
        if let Err(error) = phase(&world) {
            return end(name, &error);
        }
        if let Err(error) = world.verify_all() {
            return end(&format!("after {name}"), &error);
        }
    }
    if let Some(unknown) = chosen.first() {
        eprintln!("pattern: no phase '{unknown}'");
        return ExitCode::from(2);
    }
    let operations = world.operations_done();
    println!(
        "pattern: {} pages, {operations} operations, 0 wrong",
        world.arena.pages()
    );
    ExitCode::SUCCESS
}

fn end(phase: &str, failure: &Failure) -> ExitCode {
    eprintln!("pattern: {phase}: {failure}");
    ExitCode::from(1)
}
