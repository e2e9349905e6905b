//! What happens next: threads, nodes, wires and the agent, one point in time after the other, each followed
//! by the checks.

use super::failure::{Failure, FailureKind};
use super::program::{Operation, Outcome, State, Step, step};
use super::state::{THREAD_PACE, Thread, World};
use legato_base::{Duration, Time};
use legato_pager::SpacePage;

/// How long after all of it became reachable local memory may be over its limit, and again if by then it
/// has become less by so many pages. The slowest wire takes no more than 25 pages in a millisecond.
const REACHED: Duration = Duration::from_millis(100);
const FALLS: u64 = 128;
/// Points in time between two comparisons of counts with what they count.
const COUNTED_EVERY: u64 = 251;
/// The same of looks into the slots of nodes.
const SLOTS_READ_EVERY: u64 = 16 * COUNTED_EVERY;
/// Without one finished operation of the program for so long, it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

impl World {
    /// Lets the world go on until `done` says so.
    ///
    /// # Errors
    /// If a check fails, or nothing happens any more.
    pub fn run_until(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        self.progress_at = self.now();
        while !done(self) {
            self.advance()?;
        }
        Ok(())
    }

    /// Lets everything happen that happens at the next point in time.
    pub(super) fn advance(&mut self) -> Result<(), Failure> {
        let now = self.next_time();
        if now == Time::NEVER {
            return Err(self.failure(FailureKind::Stuck("no event is left")));
        }
        if now.since(self.progress_at) > PATIENCE {
            return Err(self.failure(FailureKind::Stuck(self.what_waits())));
        }
        self.network.advance_to(now);
        for node in &mut self.nodes {
            node.turn_if_due(now);
        }
        for index in 0..self.threads.len() {
            self.step_thread(index, now)
                .map_err(|kind| self.config.failure(now, kind))?;
        }
        if self.agent_due() <= now {
            self.turn_agent(now)
                .map_err(|kind| self.config.failure(now, kind))?;
        }
        self.check_counts()?;
        self.check_limit(now)
    }

    /// What a forked child writes before its pages can leave is beyond the pager's reach, and
    /// takes a moment to bring down afterwards.
    fn check_limit(&mut self, now: Time) -> Result<(), Failure> {
        let resident = self.pager.kernel().resident();
        if !self.pager.kernel().all_attached() {
            self.begin_to_fall(now, resident);
        }
        if now < self.reachable_at {
            return Ok(());
        }
        if resident > self.limit && resident + FALLS <= self.falls_from {
            self.begin_to_fall(now, resident);
            return Ok(());
        }
        self.resident_peak = self.resident_peak.max(resident);
        if resident > self.limit {
            let kind = FailureKind::OverLimit {
                resident,
                limit: self.limit,
            };
            return Err(self.failure(kind));
        }
        Ok(())
    }

    fn begin_to_fall(&mut self, now: Time, resident: u64) {
        self.reachable_at = now + REACHED;
        self.falls_from = resident;
    }

    /// Counts are compared with what they count, now and then.
    fn check_counts(&mut self) -> Result<(), Failure> {
        self.checked += 1;
        if !self.checked.is_multiple_of(COUNTED_EVERY) {
            return Ok(());
        }
        if let Some(what) = self.pager.miscounted() {
            return Err(self.failure(FailureKind::Miscounted(what)));
        }
        self.check_care().map_err(|kind| self.failure(kind))?;
        if self.checked.is_multiple_of(SLOTS_READ_EVERY) {
            self.check_slots().map_err(|kind| self.failure(kind))?;
        }
        Ok(())
    }

    /// True if no process is left.
    pub(super) fn has_ended(&self) -> bool {
        let mut threads = self.threads.iter();
        threads.all(|thread| thread.state == State::Ended)
    }

    fn what_waits(&self) -> &'static str {
        let waits = |wanted: fn(&State) -> bool| self.threads.iter().any(|t| wanted(&t.state));
        if waits(|state| matches!(state, State::Faulted { .. })) {
            "a thread waits for a page"
        } else if waits(|state| matches!(state, State::Announced { .. })) {
            "a thread waits for its event to be read"
        } else {
            "no thread waits, and what was expected does not come"
        }
    }

    fn next_time(&self) -> Time {
        let now = self.now();
        let threads = self.threads.iter().map(|thread| self.thread_due(thread));
        let nodes = self.nodes.iter().map(|node| node.due(now));
        let network = self.network.next_event_time().unwrap_or(Time::NEVER);
        threads
            .chain(nodes)
            .fold(network.min(self.agent_due()), Time::min)
            .min(self.trouble_at)
            .max(now)
    }

    fn thread_due(&self, thread: &Thread) -> Time {
        match thread.state {
            State::Running { .. } => thread.at,
            State::Announced { event, .. } if self.pager.kernel().is_read(thread.space, event) => {
                thread.at.max(thread.starved_until)
            }
            _ => Time::NEVER,
        }
    }

    fn step_thread(&mut self, index: usize, now: Time) -> Result<(), FailureKind> {
        let Thread { space, state, .. } = self.threads[index];
        if self.thread_due(&self.threads[index]) > now {
            return Ok(());
        }
        self.pager.kernel_mut().run(now);
        match step(self.pager.kernel_mut(), &mut self.model, space, state)? {
            Step::Exits => self.kill_process(space),
            Step::Waits(state) => {
                self.threads[index].state = state;
                // `madvise` goes on a moment after its event was read.
                let pause = Duration::from_nanos(self.random.below(THREAD_PACE));
                self.threads[index].at = now + pause;
            }
            Step::Finished(outcome) => self.finish_operation(index, outcome, now)?,
        }
        Ok(())
    }

    fn finish_operation(
        &mut self,
        index: usize,
        outcome: Outcome,
        now: Time,
    ) -> Result<(), FailureKind> {
        self.progress_at = now;
        let state = std::mem::replace(&mut self.threads[index].state, State::Idle);
        self.threads[index].outcome = Some(outcome);
        self.history.word(now.as_nanos());
        self.history.word(index as u64);
        match outcome {
            Outcome::Value(value) => {
                self.accesses += 1;
                self.history.word(value);
            }
            Outcome::Done => {
                self.accesses += u64::from(matches!(
                    state,
                    State::Running {
                        operation: Operation::Write(..),
                        ..
                    }
                ))
            }
            Outcome::Invalid => {}
            Outcome::Child(child) => {
                self.forks += 1;
                self.add_thread(child);
            }
            Outcome::BusError => {
                self.bus_errors += 1;
                let State::Running { operation, .. } = state else {
                    return Ok(());
                };
                let (Operation::Read(page) | Operation::Write(page, _)) = operation else {
                    return Err(FailureKind::Stuck(
                        "an operation without a page gave SIGBUS",
                    ));
                };
                let page = SpacePage::new(self.threads[index].space, page);
                if !self.may_be_lost(page) {
                    return Err(FailureKind::BusError { page: page.page() });
                }
            }
        }
        Ok(())
    }
}
