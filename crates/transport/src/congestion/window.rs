//! How many packets may be under way: after Swift (Kumar et al., SIGCOMM 2020), with what it needs
//! beside TCP and without hardware timestamps. `docs/congestion.md` says it in prose.

use super::shortest::Shortest;
use legato_base::{Duration, Time};

/// Parts of a packet that a window is counted in.
const UNIT: u64 = 1 << 10;
/// The delay that is steered to: Swift's target with a fabric's base in it. It is the queue of 125 KB
/// at 1 Gbit/s, and more than a thread that is awake takes to answer. One for all, however many share
/// a link, so that those who come later and never see the queue empty have no advantage.
pub const TARGET: u64 = 1_000_000;
/// So much more has a window that is as small as it gets, and one in between has its part of it (flow
/// scaling, Swift, 3.5): of two that share a queue the smaller one then sees less of an excess, grows
/// when the larger one shrinks, and they become equal.
const TARGET_SPREAD: u64 = 1_000_000;
/// Packets from which on there is nothing more.
const SPREAD_UP_TO: u64 = 256;
/// A path whose own round trip is long gets an eighth of it more than that.
const TARGET_SHARE: u64 = 8;
/// After so many round trips with less than half of the target in a row a window grows by one packet
/// more in each, and after as many by another one (TIMELY, Mittal et al., SIGCOMM 2015, 4.3: "HAI").
const CALM_STEP: u32 = 5;
/// Packets by which it grows at most.
const STEP_MAX: u64 = 16;
/// Samples of which the shortest counts.
const STANDING: usize = 8;
/// Packets that may always be under way: with fewer a lost one has nobody behind it to tell.
pub const FLOOR: u32 = 4;
/// Bytes under way at the beginning: what one system call sends (`UDP_SEGMENT`).
pub const INITIAL_BYTES: u32 = 1 << 16;
/// Bytes under way at most.
pub const MOST_BYTES: u32 = 1 << 20;
/// Swift's beta: how hard a delay above the target cuts, in tenths; at most by half a round trip.
const BETA_TENTHS: u64 = 8;
/// Round trips with the smallest window and still above the target: the queue is somebody else's.
const FLOORED_MAX: u32 = 4;
/// What a window that competes grows by in a round trip: 0.53 packets, which with cuts to 0.7 takes as
/// much as Reno does (RFC 9438, 4.3).
const COMPETE_STEP: u64 = UNIT * 9 / 17;
/// How long the delay is then nothing to go by, before it is looked whether that is still so.
const COMPETE: Duration = Duration::from_millis(2000);
/// Lost packets of all, in 65536ths, above which a loss is a full queue whatever the delay: 2.5 %.
const LOSSY: u32 = 1638;
/// DCTCP's and DCQCN's g (RFC 8257; Zhu et al., SIGCOMM 2015), as a divisor.
const GAIN: u64 = 16;

/// A congestion window.
#[derive(Clone, Debug)]
pub struct Window {
    size: u64,
    initial: u64,
    most: u64,
    mode: Mode,
    shortest: Shortest,
    /// The last samples, newest first; zero where there is none yet.
    latest: [u64; STANDING],
    smoothed: u64,
    /// It has kept something from being sent in this round trip.
    was_full: bool,
    /// The most that was under way in this round trip.
    peak: u32,
    /// When the round trip ends for which the window was set last.
    round_until: Time,
    /// Losses and marks up to here are of what was sent before the last cut.
    cut_until: Time,
    loss: u32,
    /// How many of the round trips had marks, in 65536ths (alpha of DCQCN).
    alpha: u64,
    marked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Doubles with each round trip, until the first sign of a queue.
    Start,
    /// Steers to the target. `floored` round trips in a row were above it with the smallest window,
    /// `calm` ones far below it.
    Delay { floored: u32, calm: u32 },
    /// The queue is full of others' packets: additive increase, and a cut for each loss, as TCP.
    Compete { until: Time, doubling: bool },
    /// Steers to the target for a moment: would the queue be empty without its own packets?
    Look { saved: u64, floored: u32 },
}

impl Mode {
    const STEER: Self = Self::Delay {
        floored: 0,
        calm: 0,
    };
}

impl Window {
    pub fn new(mtu: u32) -> Self {
        let packets = |bytes: u32| u64::from((bytes / mtu.max(1)).max(FLOOR)) * UNIT;
        Self {
            size: packets(INITIAL_BYTES),
            initial: packets(INITIAL_BYTES),
            most: packets(MOST_BYTES),
            mode: Mode::Start,
            shortest: Shortest::default(),
            latest: [0; STANDING],
            smoothed: 0,
            was_full: false,
            peak: 0,
            round_until: Time::ZERO,
            cut_until: Time::ZERO,
            loss: 0,
            alpha: 1 << 16,
            marked: false,
        }
    }

    pub const fn packets(&self) -> u32 {
        (self.size / UNIT) as u32
    }

    /// Smoothed round trip; zero before the first sample.
    pub const fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.smoothed)
    }

    /// Is all that is under way acknowledged by growing faster than by a packet each round trip?
    pub const fn is_starting(&self) -> bool {
        matches!(
            self.mode,
            Mode::Start | Mode::Compete { doubling: true, .. }
        )
    }

    /// Does it take the delay for that of others?
    pub const fn competes(&self) -> bool {
        matches!(self.mode, Mode::Compete { .. } | Mode::Look { .. })
    }

    /// So much is under way.
    pub const fn used(&mut self, packets: u32) {
        if packets > self.peak {
            self.peak = packets;
        }
    }

    /// More would have been sent.
    pub const fn full(&mut self) {
        self.was_full = true;
    }

    /// The delay that was there all the time: a queue is, and a process that waits for its turn delays
    /// one round trip or two (Arun and Balakrishnan, Copa, NSDI 2018, 2.1: "standing RTT").
    fn standing(&self) -> u64 {
        self.latest.iter().copied().min().unwrap_or(0)
    }

    fn target(&self) -> u64 {
        let base = self.shortest.settled();
        TARGET.max(base.saturating_add(base / TARGET_SHARE)) + self.spread()
    }

    /// In proportion to 1 / sqrt(window), from 0 to [`TARGET_SPREAD`].
    fn spread(&self) -> u64 {
        const ONE: u64 = 1 << 20;
        const LEAST: u64 = ONE / SPREAD_UP_TO.isqrt();
        const MOST: u64 = ONE / (FLOOR as u64).isqrt();
        // sqrt(UNIT) = 32.
        let inverse = ONE * UNIT.isqrt() / self.size.isqrt().max(1);
        TARGET_SPREAD * inverse.clamp(LEAST, MOST).saturating_sub(LEAST) / (MOST - LEAST)
    }

    /// Packets have arrived.
    pub const fn delivered(&mut self, packets: u32) {
        let mut left = if packets < 512 { packets } else { 512 };
        while left > 0 && self.loss > 0 {
            self.loss -= self.loss.div_ceil(256);
            left -= 1;
        }
    }

    /// The round trip of a packet that was sent once.
    pub fn sample(&mut self, now: Time, time: Duration) {
        let nanos = time.as_nanos().max(1);
        self.shortest.sample(now, nanos);
        self.latest.rotate_right(1);
        self.latest[0] = nanos;
        self.smoothed = match self.smoothed {
            0 => nanos,
            old => old - old / 8 + nanos / 8,
        };
        if now < self.round_until {
            return;
        }
        self.round_until = now + time;
        let was_full = core::mem::take(&mut self.was_full);
        if !core::mem::take(&mut self.marked) {
            self.alpha -= self.alpha / GAIN;
        }
        // A delay is no matter of a window that is hardly used.
        let is_used = core::mem::take(&mut self.peak) >= self.packets() / 2;
        let is_above = self.standing() > self.target();
        if was_full || is_used && is_above {
            self.adjust(now);
        }
    }

    /// Sets the window for the next round trip.
    fn adjust(&mut self, now: Time) {
        let delay = self.standing();
        let target = self.target();
        let is_above = delay > target;
        self.mode = match self.mode {
            Mode::Start
                if self.latest[0].min(self.latest[1])
                    > u64::midpoint(self.shortest.get(), target) =>
            {
                Mode::STEER
            }
            Mode::Start => {
                self.size *= 2;
                Mode::Start
            }
            Mode::Delay { floored, .. } if is_above => match self.cut_to(delay, target, floored) {
                FLOORED_MAX.. => self.compete(now, true),
                floored => Mode::Delay { floored, calm: 0 },
            },
            Mode::Delay { calm, .. } => {
                self.size += UNIT * u64::from(1 + calm / CALM_STEP).min(STEP_MAX);
                let is_calm = self.latest[0] < target / 2;
                Mode::Delay {
                    floored: 0,
                    calm: if is_calm { calm.saturating_add(1) } else { 0 },
                }
            }
            Mode::Look { .. } if !is_above => Mode::STEER,
            // All samples, as it takes all to come here.
            Mode::Compete { .. } if self.latest.iter().all(|&delay| delay <= target) => Mode::STEER,
            Mode::Compete { until, .. } if until <= now => Mode::Look {
                saved: self.size,
                floored: 0,
            },
            Mode::Compete { until, doubling } => {
                self.size += if doubling { self.size } else { COMPETE_STEP };
                Mode::Compete {
                    until,
                    doubling: doubling && self.size < self.initial,
                }
            }
            Mode::Look { saved, floored } => match self.cut_to(delay, target, floored) {
                FLOORED_MAX.. => {
                    self.size = saved;
                    self.compete(now, false)
                }
                floored => Mode::Look { saved, floored },
            },
        };
        self.keep_bounds();
    }

    fn compete(&self, now: Time, doubling: bool) -> Mode {
        Mode::Compete {
            until: now + COMPETE,
            doubling,
        }
    }

    /// Cuts for a delay above the target (Swift, algorithm 1). Says how often in a row it was as
    /// small as it gets.
    fn cut_to(&mut self, delay: u64, target: u64, floored: u32) -> u32 {
        if self.size <= u64::from(FLOOR) * UNIT {
            return floored + 1;
        }
        let excess = (delay - target) as u128 * u128::from(self.size);
        let cut = excess * u128::from(BETA_TENTHS) / (10 * u128::from(delay.max(1)));
        self.size -= (cut as u64).min(self.size / 2);
        0
    }

    /// A packet was lost. Where the queue is short and few are lost, it was no queue that lost it, and
    /// the cut is small: one that makes 1 % of loss cost nothing as long as some forty packets fill
    /// the path (AI/MD: sqrt(2 / (p * cut))).
    /// Says whether a full queue did it, which has led to a cut just now.
    pub fn lost(&mut self, now: Time) -> bool {
        self.loss += (65_536 - self.loss.min(65_536)) / 256;
        if now < self.cut_until {
            return false;
        }
        let base = self.shortest.get();
        let was_queued = self.latest[0] > u64::midpoint(base, self.target());
        let is_congestion = was_queued || self.competes() || self.loss > LOSSY;
        // As CUBIC (RFC 9438, 4.6), which it is to share with.
        let cut = if is_congestion {
            self.size / 10 * 3
        } else {
            self.size / 16
        };
        self.cut(now, cut);
        is_congestion
    }

    /// The path says that there is a queue (RFC 3168; a notification of RoCEv2 annex A17.9.3).
    pub fn marked(&mut self, now: Time) {
        self.marked = true;
        if now < self.cut_until {
            return;
        }
        self.alpha += (65_536 - self.alpha.min(65_536)) / GAIN;
        self.cut(now, self.size / 2 * self.alpha.min(65_536) / 65_536);
    }

    /// Nothing was answered for long.
    pub fn timed_out(&mut self, now: Time) {
        if self.peak >= self.packets() / 2 {
            self.cut(now, self.size / 2);
        }
    }

    /// Once in a round trip.
    fn cut(&mut self, now: Time, by: u64) {
        self.size -= by.min(self.size);
        self.cut_until = now + Duration::from_nanos(self.smoothed);
        self.round_until = self.round_until.max(self.cut_until);
        self.mode = match self.mode {
            Mode::Start | Mode::Delay { .. } => Mode::STEER,
            Mode::Compete { until, .. } => Mode::Compete {
                until,
                doubling: false,
            },
            look @ Mode::Look { .. } => look,
        };
        self.keep_bounds();
    }

    fn keep_bounds(&mut self) {
        self.size = self.size.clamp(u64::from(FLOOR) * UNIT, self.most);
    }
}
