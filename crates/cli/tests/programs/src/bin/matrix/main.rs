//! Every kind of mapping, and what can be done to it, by whom: thousands of small cases. Each prints what the kernel
//! says and what is in memory afterwards; wherever the pages are, that must be the same.
//!
//!     matrix --seed 1 --first 0 --count 192 [--bytes 64MiB] [--flip-bit]
//!
//! --bytes is how much other memory is used between what is done to a case's pages, to push
//! them out. --flip-bit changes a bit that no case has changed, to see that it shows. A case is its seed and its number: it is the same whichever others run beside it.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call and the structures it takes belong together"
)]

mod actor;
mod calls;
mod case;
mod contents;
mod kind;
mod operation;
mod probe;

use actor::{Actor, Stage};
use case::{Case, Means, SLOT_PAGES, reserve};
use core::fmt::Write as _;
use legato_base::{Bytes, PAGE_SIZE};
use legato_test_programs::{Arena, Options, end_at_a_panic};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

/// Cases whose pages leave together.
const BATCH: u64 = 96;
/// Where the slots begin: below everything that the kernel places by itself.
const SLOTS: usize = 1 << 36;

fn main() -> ExitCode {
    end_at_a_panic();
    probe::install_handler();
    let options = Options::parse(
        &["--seed", "--first", "--count", "--bytes"],
        &["--flip-bit"],
    );
    let first = options.number("--first", 0);
    let mut matrix = Matrix::new(
        options.number("--seed", 1),
        options.pages("--bytes", Bytes::mib(64)),
        options.flag("--flip-bit"),
    );
    let end = first + options.number("--count", BATCH);
    for begin in (first..end).step_by(BATCH as usize) {
        let text = matrix.batch(begin..end.min(begin + BATCH));
        let mut output = std::io::stdout();
        if output.write_all(text.as_bytes()).is_err() || output.flush().is_err() {
            return ExitCode::from(1);
        }
    }
    ExitCode::SUCCESS
}

struct Matrix {
    seed: u64,
    flips_bits: bool,
    /// Other memory.
    filler: Arena,
    stage: Stage,
    file: OwnedFd,
    /// Slots that nothing is in.
    vacant: Vec<usize>,
    /// The next that has never been used.
    next: usize,
}

impl Matrix {
    fn new(seed: u64, pages: u64, flips_bits: bool) -> Self {
        Self {
            seed,
            flips_bits,
            filler: Arena::new(pages).expect("memory"),
            stage: Stage::new(),
            file: kind::memfd().expect("a file in memory"),
            vacant: Vec::new(),
            next: SLOTS,
        }
    }

    fn slot(&mut self) -> usize {
        self.vacant.pop().unwrap_or_else(|| {
            let slot = self.next;
            self.next += SLOT_PAGES * PAGE_SIZE;
            reserve(slot, SLOT_PAGES).expect("address space");
            slot
        })
    }

    /// Uses so much other memory that nothing else stays.
    fn press(&self) {
        let all = self.filler.pages();
        self.filler
            .advise(0, all, libc::MADV_DONTNEED)
            .expect("MADV_DONTNEED");
        for page in 0..all {
            self.filler.words(page)[0].store(page + 1, core::sync::atomic::Ordering::Relaxed);
        }
    }

    fn batch(&mut self, numbers: core::ops::Range<u64>) -> String {
        let mut made = Vec::new();
        let mut text = String::new();
        for number in numbers {
            let slot = self.slot();
            let (case, is_made) = Case::new(number, self.seed, slot);
            match is_made {
                true => made.push((slot, case)),
                false => {
                    let _ = writeln!(text, "{}", case.text);
                    self.vacate(slot, case);
                }
            }
        }
        for (_, case) in &mut made {
            for _ in 0..case.random.below(3) {
                self.act(Actor::Main, case);
            }
        }
        self.press();
        for (_, case) in &mut made {
            for _ in 0..=case.random.below(4) {
                let actor = Actor::any(&mut case.random);
                self.act(actor, case);
            }
        }
        for (_, case) in &mut made {
            note(case, "then", |case| case.look());
            note(case, "store", Case::store_all);
        }
        self.press();
        for (_, case) in &mut made {
            if self.flips_bits {
                case.flip_bit();
            }
            note(case, "later", |case| case.look());
            case.open();
            note(case, "open", |case| case.look());
        }
        for (slot, case) in made {
            let _ = writeln!(text, "{}", case.text);
            self.vacate(slot, case);
        }
        text
    }

    fn act(&self, actor: Actor, case: &mut Case) {
        let operation = actor.choose(case);
        let means = Means {
            file: &self.file,
            process: std::process::id() as i32,
        };
        let said = self.stage.play(actor, case, &operation, &means);
        let _ = write!(case.text, "\n  {actor:?}: {said}");
    }

    fn vacate(&mut self, slot: usize, case: Case) {
        if case.remove() {
            self.vacant.push(slot);
        }
    }
}

fn note(case: &mut Case, what: &str, say: impl FnOnce(&mut Case) -> String) {
    let said = say(case);
    let _ = write!(case.text, "\n  {what}:{said}");
}
