//! The words of a mailbox, and how its users wait: by futex.

pub(super) use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};

use crate::uffd::Layout;
use rustix::event::Timespec;
use rustix::thread::futex;

/// Ranges in one piece of work: at the least each is a page.
pub(super) const RANGES_MAX: usize = Layout::bounce_pages() as usize;

/// Sleeps as long as the word has a value, at most; the caller looks again.
pub(super) fn wait(word: &AtomicU32, value: u32, patience: Option<&Timespec>) {
    // EINTR, EAGAIN and ETIMEDOUT are all answered by looking.
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, patience);
}

pub(super) fn wake(word: &AtomicU32) {
    // Fails only for a bad address.
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}
