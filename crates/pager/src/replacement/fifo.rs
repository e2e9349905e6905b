//! First in, first out.

use super::{Queued, Replacement, pop_oldest};
use crate::SpacePage;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Evicts what came in first. With the victim list behind it a page that is still in use comes
/// back without a fetch and queues again: FIFO with reinsertion, which is CLOCK.
#[derive(Debug, Default)]
pub struct Fifo {
    queue: VecDeque<Queued>,
}

impl Replacement for Fifo {
    fn inserted(&mut self, queued: Queued) {
        self.queue.push_back(queued);
    }

    fn refaulted(&mut self, _page: SpacePage, _distance: u32) {}

    fn choose(
        &mut self,
        count: usize,
        valid: &mut dyn FnMut(Queued) -> bool,
        into: &mut Vec<Queued>,
    ) {
        for _ in 0..count {
            let Some(queued) = pop_oldest(&mut self.queue, valid) else {
                return;
            };
            into.push(queued);
        }
    }

    fn places(&self) -> &VecDeque<Queued> {
        &self.queue
    }
}
