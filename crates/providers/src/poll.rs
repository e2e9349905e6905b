//! How glue waits for a provider.

use alloc::vec::Vec;
use rustix::fd::BorrowedFd;

/// A provider that stands on descriptors, so that glue can sleep in `ppoll(2)`.
///
/// The order that loses no wake-up: `progress`; poll completions and events until there are
/// none; `set_sleeping(true)`; if it returned true, ppoll the descriptors for `POLLIN`, no longer
/// than until the deadline that `progress` returned; `set_sleeping(false)`; again from the start.
pub trait Pollable {
    /// Adds the descriptors to wait on. They stay the same for the provider's life.
    fn descriptors<'a>(&'a self, into: &mut Vec<BorrowedFd<'a>>);
}
