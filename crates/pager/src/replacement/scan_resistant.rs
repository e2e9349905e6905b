//! FIFO that notices loops.
//!
//! A loop over more than the cache misses every time under FIFO and LRU; keeping the first part
//! and cycling the rest through a small window misses only the rest. A loop shows itself: every
//! page comes back, always after the same number of evictions. But so it does as long as the queue has
//! not been through once, because much in it is used no more: it is a loop over more than the cache only
//! if it goes on then. Once seen, the policy evicts the newest pages instead of the oldest. Whether the
//! kept part is still wanted cannot be seen either (hits are invisible), so every sixteenth victim is
//! taken from it as a probe: when probes stop coming back, the hot set has moved and the policy returns
//! to FIFO. It also does when what it evicts comes back sooner than the loop would bring it.

use super::{Queued, Replacement, pop_oldest};
use crate::SpacePage;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Refaults judged at a time.
const WINDOW: u32 = 256;
/// Of a window, those that must be at the usual distance to call it a loop.
const LOOP_SHARE: u32 = 224;
/// And to go on calling it one.
const STILL_LOOP_SHARE: u32 = 128;
/// One victim in this many is a probe.
const PROBE_EVERY: u32 = 16;
/// The newest pages, which are being used or were prefetched just now, stay.
const NEWEST_KEPT: usize = 96;
/// Probes judged at a time.
const PROBES_JUDGED: u32 = 32;

#[derive(Debug)]
enum Mode {
    Oldest {
        /// Chosen since it began.
        victims: usize,
    },
    /// Loop of `distance` evictions per round.
    Newest {
        distance: u32,
        victims: u32,
        probes: Probes,
    },
}

impl Mode {
    const OLDEST: Self = Self::Oldest { victims: 0 };
}

/// Pages of the kept part that were evicted to see whether they come back.
#[derive(Debug, Default)]
struct Probes {
    waiting: BTreeMap<SpacePage, u32>,
    order: VecDeque<(SpacePage, u32)>,
    returned: u32,
    lost: u32,
}

/// The policy of the module's description.
#[derive(Debug)]
pub struct ScanResistant {
    queue: VecDeque<Queued>,
    mode: Mode,
    /// Evictions so far.
    clock: u32,
    /// Smoothed distance of refaults (1/8 of each new one).
    usual_distance: u32,
    seen: u32,
    at_usual_distance: u32,
}

impl Default for ScanResistant {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            mode: Mode::OLDEST,
            clock: 0,
            usual_distance: 0,
            seen: 0,
            at_usual_distance: 0,
        }
    }
}

impl ScanResistant {
    /// A page came back after so many evictions.
    fn judge_loop(&mut self, distance: u32) {
        let usual = self.usual_distance;
        self.usual_distance = usual - usual / 8 + distance / 8;
        self.count(distance.abs_diff(usual) <= usual / 8);
    }

    fn count(&mut self, at_usual_distance: bool) {
        self.seen += 1;
        self.at_usual_distance += u32::from(at_usual_distance);
        if self.seen < WINDOW {
            return;
        }
        match self.mode {
            Mode::Oldest { victims } if victims < self.queue.len() => {}
            Mode::Oldest { .. } if self.at_usual_distance >= LOOP_SHARE => {
                self.mode = Mode::Newest {
                    distance: self.usual_distance,
                    victims: 0,
                    probes: Probes::default(),
                };
            }
            Mode::Newest { .. } if self.at_usual_distance < STILL_LOOP_SHARE => {
                self.mode = Mode::OLDEST;
            }
            Mode::Oldest { .. } | Mode::Newest { .. } => {}
        }
        self.seen = 0;
        self.at_usual_distance = 0;
    }

    fn choose_one(&mut self, valid: &mut dyn FnMut(Queued) -> bool) -> Option<Queued> {
        self.clock = self.clock.wrapping_add(1);
        let (distance, victims, probes) = match &mut self.mode {
            Mode::Oldest { victims } => {
                *victims += 1;
                return pop_oldest(&mut self.queue, valid);
            }
            Mode::Newest {
                distance,
                victims,
                probes,
            } => (*distance, victims, probes),
        };
        *victims += 1;
        probes.expire(self.clock, distance.saturating_mul(3));
        if probes.judged_cold() {
            self.mode = Mode::OLDEST;
            return pop_oldest(&mut self.queue, valid);
        }
        if *victims % PROBE_EVERY == 0 {
            let probe = pop_oldest(&mut self.queue, valid)?;
            probes.sent(probe.page, self.clock);
            return Some(probe);
        }
        pop_newest(&mut self.queue, valid).or_else(|| pop_oldest(&mut self.queue, valid))
    }
}

impl Replacement for ScanResistant {
    fn inserted(&mut self, queued: Queued) {
        self.queue.push_back(queued);
    }

    /// In use, so it joins the part that is kept. (At the new end it would be the next to leave
    /// again, and again.)
    fn returned(&mut self, queued: Queued) {
        match &mut self.mode {
            Mode::Oldest { .. } => self.queue.push_back(queued),
            Mode::Newest { probes, .. } => {
                self.queue.push_front(queued);
                // A probe shows that the kept part is used. Anything else is back too soon for the loop.
                if !probes.came_back(queued.page) {
                    self.count(false);
                }
            }
        }
    }

    fn refaulted(&mut self, page: SpacePage, distance: u32) {
        if let Mode::Newest { probes, .. } = &mut self.mode {
            probes.came_back(page);
        }
        self.judge_loop(distance);
    }

    fn choose(
        &mut self,
        count: usize,
        valid: &mut dyn FnMut(Queued) -> bool,
        into: &mut Vec<Queued>,
    ) {
        for _ in 0..count {
            let Some(queued) = self.choose_one(valid) else {
                return;
            };
            into.push(queued);
        }
    }

    fn places(&self) -> &VecDeque<Queued> {
        &self.queue
    }
}

/// Takes the newest entry behind those that are kept for being in use.
fn pop_newest(
    queue: &mut VecDeque<Queued>,
    valid: &mut dyn FnMut(Queued) -> bool,
) -> Option<Queued> {
    while queue.len() > NEWEST_KEPT {
        let queued = queue.remove(queue.len() - 1 - NEWEST_KEPT)?;
        if valid(queued) {
            return Some(queued);
        }
    }
    None
}

impl Probes {
    fn sent(&mut self, page: SpacePage, clock: u32) {
        self.waiting.insert(page, clock);
        self.order.push_back((page, clock));
    }

    /// True if it was one.
    fn came_back(&mut self, page: SpacePage) -> bool {
        let was_sent = self.waiting.remove(&page).is_some();
        self.returned += u32::from(was_sent);
        was_sent
    }

    fn expire(&mut self, clock: u32, age_max: u32) {
        while let Some(&(page, sent)) = self.order.front() {
            let known = self.waiting.get(&page) == Some(&sent);
            if known && clock.wrapping_sub(sent) <= age_max {
                return;
            }
            self.order.pop_front();
            if known {
                self.waiting.remove(&page);
                self.lost += 1;
            }
        }
    }

    /// True once most of enough probes were not missed.
    fn judged_cold(&mut self) -> bool {
        if self.returned + self.lost < PROBES_JUDGED {
            return false;
        }
        let cold = self.lost > self.returned;
        self.returned = 0;
        self.lost = 0;
        cold
    }
}
