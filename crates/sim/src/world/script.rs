//! Driving a world by hand, for scenarios.

use super::failure::{Failure, FailureKind};
use super::program::{Operation, Outcome, State};
use super::report::Report;
use super::state::World;
use crate::fault::{CompletionEffect, Effect, Frequency, Link, PacketEffect, Rule, Scope, Span};
use legato_base::{Bytes, Duration, PAGE_SIZE, PageNumber};
use legato_pager::PageRange;
use legato_transport::WorkQueue;

impl World {
    /// Does one thing and waits for its end.
    ///
    /// # Errors
    /// If a check fails.
    pub fn perform(&mut self, thread: usize, operation: Operation) -> Result<Outcome, Failure> {
        self.begin(thread, operation);
        self.wait_for(thread)
    }

    /// Waits until the thread has ended what it does.
    ///
    /// # Errors
    /// If a check fails.
    pub fn wait_for(&mut self, thread: usize) -> Result<Outcome, Failure> {
        self.run_until(|world| !world.is_busy(thread))?;
        Ok(self.take_outcome(thread).unwrap_or(Outcome::Done))
    }

    /// True until the thread has ended what it does.
    pub fn is_busy(&self, thread: usize) -> bool {
        !matches!(self.thread_states()[thread].1, State::Idle | State::Ended)
    }

    /// Maps `count` fresh pages from `start` on.
    ///
    /// # Errors
    /// If a check fails.
    pub fn map(&mut self, start: u64, count: u64) -> Result<PageRange, Failure> {
        let range = PageRange::new(PageNumber(start), count);
        self.perform(0, Operation::Map(range))?;
        Ok(range)
    }

    /// Writes `value(page)` to every page of a range.
    ///
    /// # Errors
    /// If a check fails.
    pub fn write_all(
        &mut self,
        range: PageRange,
        value: impl Fn(u64) -> u64,
    ) -> Result<(), Failure> {
        for page in range.start.0..range.end().0 {
            self.perform(0, Operation::Write(PageNumber(page), value(page)))?;
        }
        Ok(())
    }

    /// Reads every page of a range; the model says what they must hold.
    ///
    /// # Errors
    /// If a check fails.
    pub fn read_all(&mut self, thread: usize, range: PageRange) -> Result<(), Failure> {
        for page in range.start.0..range.end().0 {
            self.perform(thread, Operation::Read(PageNumber(page)))?;
        }
        Ok(())
    }

    /// Lets time pass.
    ///
    /// # Errors
    /// If a check fails.
    pub fn pass(&mut self, time: Duration) -> Result<(), Failure> {
        let end = self.now() + time;
        self.run_until(|world| world.now() >= end)
    }

    /// Does something, and lets everything else go on when it is done and not announced yet: its thread
    /// gets no processor for so long.
    ///
    /// # Errors
    /// If a check fails.
    pub fn begin_late(
        &mut self,
        thread: usize,
        operation: Operation,
        late: Duration,
    ) -> Result<(), Failure> {
        self.pager.kernel_mut().next_delay = Some(late);
        self.begin(thread, operation);
        let is_done = |world: &Self| {
            let state = world.thread_states()[thread].1;
            !matches!(state, State::Running { .. } | State::Faulted { .. })
        };
        self.run_until(is_done)
    }

    /// The address space comes to rest: see [`Registering::ByHand`](super::Registering::ByHand).
    pub fn end_registering(&mut self) {
        self.pager.kernel_mut().end_registering();
    }

    /// Pages may be lost from here on.
    pub const fn allow_lost_pages(&mut self) {
        self.pages_may_be_lost = true;
    }

    /// For a while the program's NIC says so much later what has become of what it sends and reads.
    pub fn delay_completions(&mut self, by: Duration, lasts: Duration) {
        let delayed = Effect::Completion {
            of: Some(WorkQueue::Send),
            effect: CompletionEffect::Delay(Span::exactly(by)),
        };
        let (from, until) = (self.now(), self.now() + lasts);
        let rule = Rule::new(Frequency::Always, delayed).between(from, until);
        let program = self.network.machine_number("program");
        let scope = program.map_or(Scope::All, Scope::Machine);
        self.network.faults(|faults| faults.add(rule.within(scope)));
    }

    /// For a while nothing that a node sends arrives.
    pub fn lose_what_is_sent_by(&mut self, node: usize, lasts: Duration) {
        self.lose_packets(node, lasts, [false, true]);
    }

    /// For a while packets to a node are lost, or packets from it.
    pub(super) fn lose_packets(&mut self, node: usize, lasts: Duration, [to, from]: [bool; 2]) {
        let (begin, end) = (self.now(), self.now() + lasts);
        let number = |name| self.network.machine_number(name);
        let machines = number("program").zip(number(&self.nodes[node].name));
        let Some((program, node)) = machines else {
            unreachable!("invariant: both have a NIC");
        };
        for (is_lost, from, to) in [(to, program, node), (from, node, program)] {
            if is_lost {
                let lost = Effect::Packet(PacketEffect::Drop);
                let rule = Rule::new(Frequency::Always, lost).between(begin, end);
                let rule = rule.within(Scope::Link(Link { from, to }));
                self.network.faults(|faults| faults.add(rule));
            }
        }
    }

    /// Another share of the run's local memory: see [`legato_pager::Pager::set_limit`].
    pub fn set_limit(&mut self, limit: Bytes) {
        self.pager.set_limit(limit);
    }

    /// True if the page is present in the program's own memory.
    pub fn is_present(&self, page: PageNumber) -> bool {
        self.pager().kernel().is_present(page)
    }

    /// The program's end: everything must be unmapped by now and all threads idle. Checks that
    /// nothing is left over.
    ///
    /// # Errors
    /// If something is.
    pub fn finish(mut self) -> Result<Report, Failure> {
        // Longer than the pager takes to notice that children have ended.
        self.pass(Duration::from_millis(300))?;
        let leak = |what, count| match count {
            0 => Ok(()),
            count => Err(FailureKind::Leak { what, count }),
        };
        let counters = self.counters();
        let fabric = self.fabric_counters();
        let in_flight = fabric.operations_started - fabric.operations_quiesced;
        let resident = self.pager().kernel().resident();
        let counted = counters.cache_bytes_current / PAGE_SIZE as u64;
        let checks = [
            ("miscounted local pages", resident.abs_diff(counted)),
            ("far pages", counters.far_pages_current),
            ("operations in flight", in_flight),
            ("frames in use", u64::from(self.pager().frames_used())),
            ("forked children", self.pager().children() as u64),
        ];
        for (what, count) in checks {
            leak(what, count).map_err(|kind| self.failure(kind))?;
        }
        self.shut_down()?;
        leak("bytes at memory nodes", self.node_bytes_used()).map_err(|kind| self.failure(kind))?;
        Ok(self.report())
    }
}
