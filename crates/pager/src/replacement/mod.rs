//! Which resident page leaves next.
//!
//! A pager in user space sees faults, never hits: so a policy learns from what comes in, what
//! comes back, and how soon.

mod fifo;
mod scan_resistant;

pub use fifo::Fifo;
pub use scan_resistant::ScanResistant;

use crate::SpacePage;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt::Debug;

/// A page in a policy's queue. The page may leave the queue's knowledge (unmapped, evicted) and
/// come back: then its stamp differs and the old place in the queue is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    pub page: SpacePage,
    pub stamp: u32,
}

/// A replacement policy.
pub trait Replacement: Debug {
    /// A page became resident.
    fn inserted(&mut self, queued: Queued);

    /// A page came back from the victim list: it was evicted while in use.
    fn returned(&mut self, queued: Queued) {
        self.inserted(queued);
    }

    /// A page is fetched again, `distance` evictions after its own.
    fn refaulted(&mut self, page: SpacePage, distance: u32);

    /// Chooses up to `count` pages to evict, best first. `valid` says whether a place in the
    /// queue still stands for a resident page.
    fn choose(
        &mut self,
        count: usize,
        valid: &mut dyn FnMut(Queued) -> bool,
        into: &mut Vec<Queued>,
    );

    /// All places in the queue, for audits.
    fn places(&self) -> &VecDeque<Queued>;
}

/// Pops valid entries from the old end.
fn pop_oldest(
    queue: &mut VecDeque<Queued>,
    valid: &mut dyn FnMut(Queued) -> bool,
) -> Option<Queued> {
    while let Some(queued) = queue.pop_front() {
        if valid(queued) {
            return Some(queued);
        }
    }
    None
}

#[cfg(test)]
mod tests;
