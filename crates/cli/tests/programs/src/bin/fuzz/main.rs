//! Random memory calls, forks and accesses by several threads and processes, checked against a model
//! of what Linux makes of every byte. Everything follows from the seed and nothing from time, so two
//! runs print the same, wherever the memory is.
//!
//!     fuzz --seed 1 --steps 600 --threads 4 --processes 4 --bytes 64MiB
//!          [--only-thread N] [--skip OPERATION,...] [--flip-bit]
//!
//! Exit status 70: something was not as Linux has it, which standard error tells.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a call and the structures it takes belong together"
)]

mod advice;
mod calls;
mod content;
mod family;
mod heap;
mod kernel_side;
mod mapping;
mod operation;
mod process;
mod shared;
mod space;
mod transfer;
mod worker;

use content::{file_stamp, render_stamp};
use legato_base::{Bytes, PAGE_SIZE};
use legato_test_programs::{Options, end_at_a_panic};
use operation::Operation;
use process::{FILE_PAGES, Process};
use std::os::fd::IntoRawFd;
use worker::{Failure, Settings};

const VALUES: [&str; 7] = [
    "--seed",
    "--steps",
    "--threads",
    "--processes",
    "--bytes",
    "--only-thread",
    "--skip",
];

fn main() {
    end_at_a_panic();
    let options = Options::parse(&VALUES, &["--flip-bit"]);
    match run(&options) {
        Ok(report) => print!("{report}"),
        Err(failure) => family::die(&failure),
    }
}

fn run(options: &Options) -> Result<String, Failure> {
    kernel_side::install_handler().map_err(|errno| Failure(format!("sigaction: errno {errno}")))?;
    let skipped = options
        .text("--skip")
        .unwrap_or("")
        .split(',')
        .filter(|name| !name.is_empty());
    let settings = Settings {
        seed: options.number("--seed", 1),
        steps: options.number("--steps", 600) as u32,
        threads: options.number("--threads", 4).clamp(1, 64) as usize,
        only_thread: options
            .text("--only-thread")
            .and_then(|number| number.parse().ok()),
        skipped: skipped.map(operation).collect::<Result<_, _>>()?,
        pages: options.pages("--bytes", Bytes(64 << 20)) as usize,
        file: stamped_file().map_err(|error| Failure(format!("the file: {error}")))?,
        has_guards: has_guards(),
        flips_bit: options.flag("--flip-bit"),
    };
    Process::first(&settings, options.number("--processes", 4))?.live()
}

fn operation(name: &str) -> Result<Operation, Failure> {
    Operation::named(name).ok_or_else(|| Failure(format!("no operation is named {name}")))
}

/// A file without a name, each page of which holds its stamp.
fn stamped_file() -> std::io::Result<libc::c_int> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    let mut file = options.open(std::env::temp_dir())?;
    let mut page = [0; PAGE_SIZE];
    for index in 0..FILE_PAGES {
        render_stamp(file_stamp(index), 0, &mut page);
        file.write_all(&page)?;
    }
    Ok(file.into_raw_fd())
}

fn has_guards() -> bool {
    let found = calls::map(
        0,
        PAGE_SIZE,
        calls::READ_WRITE,
        calls::PRIVATE,
        calls::NO_FILE,
        0,
    );
    let Ok(address) = found else {
        return false;
    };
    let installed = calls::advise(address, PAGE_SIZE, advice::MADV_GUARD_INSTALL);
    let _ = calls::unmap(address, PAGE_SIZE);
    installed.is_ok()
}
