//! Asks the kernel to let idle processors poll instead of halting, while the program's faults make that
//! worth it and as long as a trial has shown that it helps.
//!
//! The thread that faults leaves its processor idle until its page is there. A processor that has halted
//! is woken by an interrupt, which in a virtual machine costs both sides an exit: 10 us of the 20 that a
//! fault takes there. One that polls is woken by a store. The request is the CPU latency of the kernel's
//! PM QoS (Documentation/power/pm_qos_interface.rst): it is in force while the descriptor is open, for all
//! processors of the machine, which is why it is held only while it pays.

use crate::IdlePollLog;
use core::mem::replace;
use legato_base::{Duration, Time};
use rustix::fd::OwnedFd;

/// From so many faults a second on. The gain is about 10 us for each: a tenth at this pace.
const FAULTS_WORTH: u64 = 10_000;
/// How often faults are counted.
const WINDOW: Duration = Duration::from_millis(20);
/// Whoever gets that much less processor than it asks for measures something else.
const WINDOW_MAX: Duration = Duration::from_millis(60);
/// With the request, when it is tried.
const TRIAL_WINDOWS: u32 = 2;
/// Without it, when it is looked whether it still pays.
const CHECK_WINDOWS: u32 = 3;
/// So much more faults a second are a gain, in percent.
const GAIN_PERCENT: u128 = 115;
/// So long a gain is believed, and twice as long each time that it was found to be still there.
const BELIEVED: Duration = Duration::from_millis(1_000);
const BELIEVED_MAX: Duration = Duration::from_millis(10_000);
/// So long the next trial waits after one without a gain, and twice as long after each further one.
const REST: Duration = Duration::from_millis(1_000);
const REST_MAX: Duration = Duration::from_millis(60_000);
/// A program that has become slower is tried again before that, but not sooner than this.
const REST_MIN: Duration = Duration::from_millis(250);

/// CPU latencies in us, as the kernel's interface has them (in its own byte order, and there is no agent but on
/// x86-64): none is tolerated, and its default.
const LATENCY_NONE: i32 = 0;
const LATENCY_ANY: i32 = 2_000_000_000;

/// The request, and whether it is made.
#[derive(Debug)]
pub(super) struct IdlePoll {
    /// None: the supervisor may not, or is not to.
    request: Option<OwnedFd>,
    judge: Judge,
    is_held: bool,
    held_since: Time,
    log: IdlePollLog,
}

impl IdlePoll {
    pub(super) fn new() -> Self {
        Self {
            request: None,
            judge: Judge::new(),
            is_held: false,
            held_since: Time::ZERO,
            log: IdlePollLog::default(),
        }
    }

    /// What the supervisor has opened for this agent.
    pub(super) fn grant(&mut self, request: OwnedFd) {
        self.request = Some(request);
    }

    /// When faults are to be counted next, if the agent is awake then.
    pub(super) fn due(&self) -> Time {
        match self.request {
            Some(_) => self.judge.next_at,
            None => Time::NEVER,
        }
    }

    /// When the agent must be awake: whoever holds the request does not sleep over its end.
    pub(super) fn wake_at(&self) -> Time {
        if self.is_held {
            self.judge.next_at
        } else {
            Time::NEVER
        }
    }

    /// The program has had so many `faults` by now.
    pub(super) fn tick(&mut self, now: Time, faults: u64) {
        let is_wanted = self.judge.tick(now, faults, &mut self.log);
        let Some(request) = &self.request else { return };
        if is_wanted == self.is_held {
            return;
        }
        let latency = if is_wanted { LATENCY_NONE } else { LATENCY_ANY };
        let is_heard = rustix::io::write(request, &latency.to_le_bytes()).is_ok();
        if !is_heard {
            // The kernel takes four bytes at any time. Closing takes back what was asked for.
            self.request = None;
        }
        if replace(&mut self.is_held, is_wanted && is_heard) {
            self.log.held = self.log.held + now.since(self.held_since);
        }
        self.held_since = now;
    }

    /// What was done with it until `now`.
    pub(super) fn log(&self, now: Time) -> IdlePollLog {
        let mut log = self.log;
        if self.is_held {
            log.held = log.held + now.since(self.held_since);
        }
        log
    }
}

/// Decides by the faults that there were, and nothing else.
///
/// A trial compares with the time just before it, not with and without in turn: a processor that has begun to
/// poll may go on without the request until it is idle for long (`haltpoll_select`, Linux
/// drivers/cpuidle/governors/haltpoll.c). So a program that becomes faster by itself meanwhile is mistaken for a
/// gain; the check, when the gain was believed for a while, puts that right.
#[derive(Debug)]
struct Judge {
    state: State,
    /// A gain is believed until then,
    believed_until: Time,
    /// and the next one for so long.
    believe: Duration,
    /// There is no trial until then,
    rests_until: Time,
    /// and so long after the next one without a gain.
    rest: Duration,
    tried_at: Time,
    /// With what the last trial or check found no gain.
    known: Pace,
    /// Of the current window: its beginning, and the faults until then.
    since: Time,
    faults: u64,
    next_at: Time,
}

/// The paces are those with the request or without it, as the names say.
#[derive(Clone, Copy, Debug)]
enum State {
    Watching,
    Trying {
        without: Pace,
        with: Pace,
        over: u32,
    },
    Holding,
    Checking {
        with: Pace,
        over: u32,
    },
}

/// What one window, or several, have shown.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    faults: u64,
    elapsed: Duration,
}

impl Pace {
    fn and(self, other: Self) -> Self {
        Self {
            faults: self.faults + other.faults,
            elapsed: self.elapsed + other.elapsed,
        }
    }

    /// Is it at least so many percent of the other?
    fn is_percent_of(self, percent: u128, other: Self) -> bool {
        let own = u128::from(self.faults) * u128::from(other.elapsed.as_nanos());
        let others = u128::from(other.faults) * u128::from(self.elapsed.as_nanos());
        own * 100 >= others * percent
    }

    /// So much faster that it is a gain.
    fn gains_on(self, other: Self) -> bool {
        self.faults > 0 && self.is_percent_of(GAIN_PERCENT, other)
    }

    fn is_worth(self) -> bool {
        let worth = Self {
            faults: FAULTS_WORTH,
            elapsed: Duration::from_secs(1),
        };
        self.elapsed <= WINDOW_MAX && self.is_percent_of(100, worth)
    }
}

impl Judge {
    const fn new() -> Self {
        Self {
            state: State::Watching,
            believed_until: Time::ZERO,
            believe: BELIEVED,
            rests_until: Time::ZERO,
            rest: REST,
            tried_at: Time::ZERO,
            known: Pace {
                faults: 0,
                elapsed: Duration::ZERO,
            },
            since: Time::ZERO,
            faults: 0,
            next_at: Time::ZERO,
        }
    }

    /// True if the request is to be held from now on.
    fn tick(&mut self, now: Time, faults: u64, log: &mut IdlePollLog) -> bool {
        let pace = Pace {
            faults: faults.saturating_sub(replace(&mut self.faults, faults)),
            elapsed: now.since(replace(&mut self.since, now)),
        };
        self.state = if pace.is_worth() {
            self.next(pace, now, log)
        } else {
            State::Watching
        };
        self.next_at = now + WINDOW;
        matches!(self.state, State::Trying { .. } | State::Holding)
    }

    fn next(&mut self, pace: Pace, now: Time, log: &mut IdlePollLog) -> State {
        match self.state {
            State::Watching if now < self.believed_until => State::Holding,
            State::Watching if self.rests(pace, now) => State::Watching,
            State::Watching => {
                self.tried_at = now;
                State::Trying {
                    without: pace,
                    with: Pace::default(),
                    over: 0,
                }
            }
            State::Trying {
                without,
                with,
                over,
            } => {
                let (with, over) = (with.and(pace), over + 1);
                if over < TRIAL_WINDOWS {
                    return State::Trying {
                        without,
                        with,
                        over,
                    };
                }
                self.conclude(with.gains_on(without), with, now, log)
            }
            State::Holding if now < self.believed_until => State::Holding,
            State::Holding => State::Checking {
                with: pace,
                over: 0,
            },
            State::Checking { with, .. } if with.gains_on(pace) => {
                self.believe = (self.believe + self.believe).min(BELIEVED_MAX);
                self.conclude(true, with, now, log)
            }
            State::Checking { with, over } if over + 1 < CHECK_WINDOWS => State::Checking {
                with,
                over: over + 1,
            },
            State::Checking { with, .. } => {
                self.believe = BELIEVED;
                self.conclude(false, with, now, log)
            }
        }
    }

    fn rests(&self, pace: Pace, now: Time) -> bool {
        let is_slower = self.known.gains_on(pace) && now.since(self.tried_at) >= REST_MIN;
        now < self.rests_until && !is_slower
    }

    fn conclude(&mut self, gains: bool, with: Pace, now: Time, log: &mut IdlePollLog) -> State {
        log.trials += 1;
        if gains {
            log.trials_won += 1;
            self.rest = REST;
            self.believed_until = now + self.believe;
            return State::Holding;
        }
        self.known = with;
        self.rests_until = now + self.rest;
        self.rest = (self.rest + self.rest).min(REST_MAX);
        State::Watching
    }
}

#[cfg(test)]
mod tests;
