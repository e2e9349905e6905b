//! Touches filled memory in one order and says what a touch took.
//!
//! `scan --bytes SIZE --order seq|random [--rounds N] [--write PERCENT] [--seed N] [--no-final]
//! [--warm]`: every round touches each page once, in the order of addresses or shuffled anew. A touch
//! reads the whole page and compares it, which costs about 0.3 us of its own. At the end every page is
//! verified once more, unless --no-final says that the touches were enough. With --warm one round more
//! comes first, which is not counted; then it says "ready" and waits for a line.

use legato_base::{Bytes, Random};
use legato_test_programs::{Arena, Options, end_at_a_panic};
use std::io;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    end_at_a_panic();
    let names = ["--bytes", "--order", "--rounds", "--write", "--seed"];
    let options = Options::parse(&names, &["--no-final", "--warm"]);
    let pages = options.pages("--bytes", Bytes::mib(256));
    let rounds = options.number("--rounds", 1);
    let write_percent = options.number("--write", 0);
    let mut random = Random::from_seed(options.number("--seed", 1));
    let order = options.text("--order").unwrap_or("seq");
    let arena = match Arena::new(pages) {
        Ok(arena) if ["seq", "random"].contains(&order) => arena,
        Ok(_) => {
            eprintln!("scan: no order '{order}'");
            return ExitCode::from(2);
        }
        Err(error) => {
            eprintln!("scan: {error}");
            return ExitCode::from(2);
        }
    };
    let mut versions = vec![1_u32; pages as usize];
    for page in 0..pages {
        arena.fill(page, 1);
    }
    let mut wrong = 0_u64;
    let mut verify = |page: u64, version: u32| {
        if let Err(what) = arena.check(page, version) {
            wrong += 1;
            eprintln!("scan: {what}");
        }
    };
    let mut order_of_pages: Vec<u32> = (0..pages as u32).collect();
    let mut begin = Instant::now();
    let warm = u64::from(options.flag("--warm"));
    for round in 0..rounds + warm {
        if warm > 0 && round == warm {
            println!("ready");
            let _ = io::stdin().read_line(&mut String::new());
            begin = Instant::now();
        }
        if order == "random" {
            shuffle(&mut order_of_pages, &mut random);
        }
        for &page in &order_of_pages {
            let version = &mut versions[page as usize];
            verify(u64::from(page), *version);
            if random.ratio(write_percent, 100) {
                *version += 1;
                arena.fill(u64::from(page), *version);
            }
        }
    }
    let elapsed = begin.elapsed();
    if !options.flag("--no-final") {
        (0..pages).for_each(|page| verify(page, versions[page as usize]));
    }
    let touches = pages * rounds;
    let touch_ns = elapsed.as_nanos() / u128::from(touches.max(1));
    println!("scan: {touches} touches, {touch_ns} ns per touch, {wrong} wrong");
    ExitCode::from(u8::from(wrong > 0))
}

/// Fisher and Yates: every order is as likely.
fn shuffle(pages: &mut [u32], random: &mut Random) {
    for last in (1..pages.len()).rev() {
        pages.swap(last, random.below(last as u64 + 1) as usize);
    }
}
