//! The agent of the simulated program: reads what its kernel says, and lets the pager work.

use super::failure::FailureKind;
use super::kernel::SimKernel;
use super::program::State;
use super::state::{THREAD_PACE, World};
use legato_base::{Duration, PageNumber, Time};
use legato_pager::{Kernel, Pager, PagerEvent, PagerFabric, SpaceId};

/// What the agent's turn costs, and what each fault and each page adds (measured orders of
/// magnitude: a system call, an ioctl, 0.2 us a page of a batched MOVE).
const TURN_COST: Duration = Duration::from_nanos(500);
const FAULT_COST: u64 = 700;
const PAGE_COST: u64 = 200;
/// How often a busy agent looks again when nothing tells it to.
const SPIN: Duration = Duration::from_micros(20);
/// The agent sleeps no longer than this.
const SLEEP_MAX: Duration = Duration::from_millis(250);

/// Pages that were brought before they were asked for.
fn pages_ahead(pager: &mut Pager<SimKernel>) -> u64 {
    let counters = &pager.stats().counters;
    counters.pages_prefetched + counters.pages_zero_filled_ahead
}

impl World {
    /// When the agent does something next.
    pub(super) fn agent_due(&self) -> Time {
        let (now, kernel) = (self.now(), self.pager.kernel());
        let woken = self.provider.has_work() || kernel.has_messages(now);
        let wanted = match woken {
            true => Time::ZERO,
            false => self
                .agent_at
                .min(kernel.alarm_at())
                .min(kernel.announced_at(now)),
        };
        wanted.max(self.agent_free_at)
    }

    /// The agent's loop body is that of a real program; what it costs is made up.
    pub(super) fn turn_agent(&mut self, now: Time) -> Result<(), FailureKind> {
        self.agent_turns += 1;
        self.pager.kernel_mut().set_now(now);
        self.pager.hear_of_connections();
        let incoming = self.pager.kernel_mut().read();
        let mut cost = TURN_COST + Duration::from_nanos(FAULT_COST * incoming.faults.len() as u64);
        let copies = self.copies_before(&incoming, now);
        let before = pages_ahead(&mut self.pager);
        let mut net = PagerFabric {
            fabric: &mut self.fabric,
            provider: &mut self.provider,
            now,
        };
        let round = self.pager.round(incoming, &mut net, || now);
        let ahead = pages_ahead(&mut self.pager) - before;
        self.most_ahead = self.most_ahead.max(ahead);
        if self.pager.kernel().has_ended(SpaceId::OWN) {
            self.pager.close_own_space();
        }
        self.starved |= self.pager.usage().starving;
        let pages = std::mem::take(&mut self.pager.kernel_mut().pages_handled);
        cost = cost + Duration::from_nanos(PAGE_COST * pages);
        self.agent_free_at = now + cost;
        let later = if round.worked {
            Duration::ZERO
        } else if self.pager.is_busy() {
            SPIN
        } else {
            SLEEP_MAX
        };
        self.pager_deadline = round.deadline;
        self.agent_at = round.deadline.min(self.agent_free_at + later);
        self.wake_threads(self.agent_free_at);
        while let Some(event) = self.pager.poll_event() {
            match event {
                PagerEvent::Ready => self.ready = true,
                PagerEvent::NodeLost { .. } | PagerEvent::PageRejected { .. }
                    if self.pages_may_be_lost => {}
                PagerEvent::NodeLost { node, .. } => self.note_given_up(node, now)?,
                event => return Err(FailureKind::GaveUp(event)),
            }
        }
        self.check_losses(copies)
    }

    /// Threads whose pages are there go on when the agent is done.
    fn wake_threads(&mut self, at: Time) {
        let woken = std::mem::take(&mut self.pager.kernel_mut().woken);
        for thread in &mut self.threads {
            if let State::Faulted {
                operation,
                page,
                since,
            } = thread.state
                && woken.iter().any(|&(space, range)| {
                    space == thread.space && range.contains(PageNumber(page))
                })
            {
                thread.state = State::Running { operation, since };
                thread.at = at + Duration::from_nanos(self.random.below(THREAD_PACE));
                self.fault_ns.record(at.since(since).as_nanos());
            }
        }
    }
}
