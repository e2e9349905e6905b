//! Touches fresh memory as fast as it can and keeps it, then verifies all of it.
//!
//! `fill --bytes SIZE [--threads N] [--check-zero] [--rounds N] [--anew] [--within SIZE]`: with --check-zero every
//! page is read before it is written, and must be zeros; with --anew each round has memory of its own, and
//! gives it back; with --within it goes on after its first writing when no more than that of it is in memory.

use crate::{Arena, Options, end_at_a_panic};
use legato_base::Bytes;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Whoever takes pages out of memory needs no longer for it.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn main() -> ExitCode {
    end_at_a_panic();
    let options = Options::parse(
        &["--bytes", "--threads", "--rounds", "--within"],
        &["--check-zero", "--anew"],
    );
    let pages = options.pages("--bytes", Bytes::mib(256));
    let threads = options.number("--threads", 1);
    let rounds = options.number("--rounds", 1);
    let check_zero = options.flag("--check-zero");
    let anew = options.flag("--anew");
    let within = options.text("--within").is_some();
    let within = within.then(|| options.pages("--within", Bytes(0)));
    let mut wrong = 0;
    let together = if anew { 1 } else { rounds.max(1) };
    for first in (1..=rounds).step_by(together as usize) {
        let arena = match Arena::new(pages) {
            Ok(arena) => arena,
            Err(error) => {
                eprintln!("fill: {error}");
                return ExitCode::from(2);
            }
        };
        wrong += fill(&arena, threads, first..first + together, check_zero, within);
    }
    println!("fill: {pages} pages, {wrong} wrong");
    ExitCode::from(u8::from(wrong > 0))
}

/// Writes and checks all pages once for each round. Returns how many were wrong.
fn fill(
    arena: &Arena,
    threads: u64,
    rounds: Range<u64>,
    check_zero: bool,
    mut within: Option<u64>,
) -> u64 {
    let pages = arena.pages();
    let share = |thread: u64| pages * thread / threads..pages * (thread + 1) / threads;
    let each = |work: &(dyn Fn(u64) -> u64 + Sync)| -> u64 {
        std::thread::scope(|scope| {
            let run = |thread| scope.spawn(move || share(thread).map(work).sum::<u64>());
            let running: Vec<_> = (0..threads).map(run).collect();
            running
                .into_iter()
                .map(|thread| thread.join().expect("a worker ends"))
                .sum()
        })
    };
    let mut wrong = 0;
    if check_zero {
        wrong += each(&|page| u64::from(arena.check(page, 0).is_err()));
    }
    for round in rounds {
        // One word is enough to make a page and leaves the rest of the time to the touching.
        let mark = |page: u64| (page << 8) | (round & 0xff);
        each(&|page| {
            arena.words(page)[0].store(mark(page), Relaxed);
            0
        });
        if let Some(pages) = within.take() {
            wait_until_within(pages);
        }
        wrong += each(&|page| {
            let (first, rest) = (&arena.words(page)[0], &arena.words(page)[1..]);
            let right = first.load(Relaxed) == mark(page)
                && rest.iter().all(|word| word.load(Relaxed) == 0);
            u64::from(!right)
        });
    }
    wrong
}

/// What was written may be ahead of whoever takes it out of memory.
fn wait_until_within(pages: u64) {
    let begin = Instant::now();
    while Bytes::kib(anonymous_kib()) > Bytes::pages(pages) {
        assert!(begin.elapsed() < PATIENCE, "it stays in memory");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn anonymous_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.expect("Linux has said so since 4.5")
}
