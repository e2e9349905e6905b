//! What the test programs share: memory that is mapped by hand, a pattern that tells every page
//! and version apart, and options; and those programs that are linked in more than one way.
//!
//! These programs stand for any program, so they know nothing of Legato and make the raw memory
//! calls that programs make; that is why `unsafe` is allowed here.

mod arena;
pub mod fill;
mod filter;
mod options;
mod page;
pub mod pattern;

pub use arena::{Arena, CallError, check_call};
pub use filter::{decide, filter_system_calls};
pub use options::Options;
pub use page::{Found, WORDS, Wrong, check_page, fill_page};

/// From here on a panic in any thread ends the program with SIGABRT: the others may wait for that thread.
pub fn end_at_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}
