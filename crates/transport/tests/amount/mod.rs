//! How long the fuzzers run: a moment in the ordinary tests, as long as asked for by
//! `scripts/fuzz-transport`.

use std::env::var;

/// Executions: `LEGATO_FUZZ_EXECUTIONS`, or the default.
pub(crate) fn executions(default: u64) -> u64 {
    number("LEGATO_FUZZ_EXECUTIONS").unwrap_or(default)
}

/// Where the seeds begin: `LEGATO_FUZZ_SEED`, or 0.
pub(crate) fn first_seed() -> u64 {
    number("LEGATO_FUZZ_SEED").unwrap_or(0)
}

fn number(name: &str) -> Option<u64> {
    let text = var(name).ok()?;
    let parsed = text.parse();
    Some(parsed.unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Says now and then how far it is, when asked to run long.
pub(crate) fn report(done: u64, of: u64, what: &str) {
    if number("LEGATO_FUZZ_EXECUTIONS").is_some() && of >= 10 && done.is_multiple_of(of / 10) {
        eprintln!("{what}: {done} of {of}");
    }
}

/// Says how to do it again, if a test fails meanwhile.
pub(crate) struct Replay(pub(crate) u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it fails with LEGATO_FUZZ_SEED={}", self.0);
        }
    }
}
