//! One address space: the program's, or a forked child's.

use super::accept::{Batch, Order};
use super::dropped::Dropping;
use super::gather::Gathering;
use super::grown::Growing;
use super::ranges::Ranges;
use super::refused::Refused;
use super::survey::Survey;
use super::thread_blocks::ThreadBlocks;
use super::waits::Waits;
use crate::uffd::Userfaultfd;
use crate::uffd::fault_count::FaultCount;
use crate::uffd::message::Message;
use alloc::vec::Vec;
use legato_base::Time;
use rustix::io::Errno;

/// What is known of an address space.
#[derive(Debug)]
pub(in crate::uffd) struct Space {
    pub(in crate::uffd) context: Userfaultfd,
    fault_count: FaultCount,
    /// Nobody uses it any more.
    pub(super) closed: bool,
    pub(super) ranges: Ranges,
    pub(super) refused: Refused,
    pub(super) thread_blocks: ThreadBlocks,
    /// What was read.
    pub(super) order: Order,
    pub(super) waits: Waits,
    /// What is to be read when it is all there.
    pub(super) gathering: Option<Gathering>,
    /// New parts of mappings that the kernel is populating before it has announced their moves.
    pub(super) growing: Growing,
    /// What was found and is not in the pager's charge yet.
    pub(super) survey: Option<Survey>,
    /// Who may have been dropping something when that was last noted.
    pub(super) dropping: Option<Dropping>,
}

impl Space {
    pub(super) fn new(context: Userfaultfd, ranges: Ranges) -> Self {
        Self {
            context,
            fault_count: FaultCount::default(),
            closed: false,
            ranges,
            refused: Refused::default(),
            thread_blocks: ThreadBlocks::default(),
            order: Order::default(),
            waits: Waits::default(),
            gathering: None,
            growing: Growing::default(),
            survey: None,
            dropping: None,
        }
    }

    /// Faults that wait to be read.
    pub(super) fn waiting_faults(&self) -> usize {
        self.fault_count.read(&self.context)
    }

    /// Reads faults alone, if any wait. The kernel hands them out before anything else, and nobody is
    /// let go on by that.
    pub(super) fn read_faults(&self, into: &mut Vec<Message>) -> Result<(), Errno> {
        match self.waiting_faults() {
            0 => Ok(()),
            faults => self.context.read(faults, into),
        }
    }

    /// Takes messages that were read at once.
    pub(super) fn receive(&mut self, batch: Batch, now: Time) {
        if batch.messages.is_empty() {
            return;
        }
        if let Some(survey) = &mut self.survey {
            survey.follow(&batch.messages);
        }
        self.growing.follow(&batch.messages);
        self.order.receive(batch, now);
    }

    /// Pages came or went, so no event is missing.
    pub(super) fn note_settled(&mut self) {
        self.order.settle();
        self.settle_survey();
    }

    pub(super) const fn settle_survey(&mut self) {
        if let Some(survey) = &mut self.survey {
            survey.settle();
        }
    }

    /// Nobody uses it any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.ranges = Ranges::default();
        self.order = Order::default();
        self.gathering = None;
        self.survey = None;
        self.dropping = None;
    }
}
