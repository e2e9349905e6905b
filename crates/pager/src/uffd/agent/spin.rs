//! Whether the agent looks on for a while when it has nothing to do, or sleeps at once.
//!
//! What comes while it looks is served without a wake-up, which costs 10 to 20 us. What does not come
//! costs the processor that long, and the program too if that is the one it runs on. Which of both it is,
//! the last times tell.

use crate::SpinLog;
use core::mem::replace;
use legato_base::{Duration, Time};

/// How long the agent looks on: the next fault of a busy program comes within about that time.
const SPIN: Duration = Duration::from_micros(30);
/// A sleep that something ends so soon would have been none. The wake-up is part of it.
const SHORT_SLEEP: Duration = Duration::from_micros(50);
/// Looking on is given up when it was in vain so many times more often than not, lately.
const CREDIT_MAX: u32 = 16;
/// And with so much credit it begins.
const CREDIT_OF_TRIAL: u32 = 8;
/// After so many more short sleeps than others it is tried again,
const TRIAL_AFTER: u32 = 16;
/// and twice as many after each trial in vain: on a processor that both must share, the program runs only
/// while the agent sleeps, and does so for a short time only.
const TRIAL_AFTER_MAX: u32 = 4096;

/// What the agent does, and what that has taught.
#[derive(Debug)]
pub(super) struct Spin {
    phase: Phase,
    habit: Habit,
    trial_after: u32,
    log: SpinLog,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Working,
    Looking {
        since: Time,
    },
    /// It has looked on before.
    Sleeping,
    SleepingAtOnce {
        since: Time,
    },
}

/// What it does when there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    Look { credit: u32, is_trial: bool },
    Sleep { short_sleeps: u32 },
}

impl Default for Spin {
    fn default() -> Self {
        Self {
            phase: Phase::Working,
            habit: Habit::Look {
                credit: CREDIT_MAX,
                is_trial: false,
            },
            trial_after: TRIAL_AFTER,
            log: SpinLog::default(),
        }
    }
}

impl Spin {
    /// The agent has looked at everything, and `worked` if there was something to do. True if it is to
    /// sleep now.
    pub(super) fn sleeps(&mut self, worked: bool, now: Time) -> bool {
        if worked {
            match replace(&mut self.phase, Phase::Working) {
                Phase::Looking { .. } => {
                    self.log.won += 1;
                    self.has_looked(true);
                }
                Phase::SleepingAtOnce { since } => self.has_slept(now.since(since)),
                Phase::Working | Phase::Sleeping => {}
            }
            return false;
        }
        match (self.phase, self.habit) {
            (Phase::Working, Habit::Look { .. }) => {
                self.log.spins += 1;
                self.phase = Phase::Looking { since: now };
            }
            (Phase::Working, Habit::Sleep { .. }) => {
                self.log.sleeps_at_once += 1;
                self.phase = Phase::SleepingAtOnce { since: now };
            }
            (Phase::Looking { since }, _) if now.since(since) > SPIN => {
                self.phase = Phase::Sleeping;
                self.has_looked(false);
            }
            _ => {}
        }
        matches!(self.phase, Phase::Sleeping | Phase::SleepingAtOnce { .. })
    }

    pub(super) const fn log(&self) -> SpinLog {
        self.log
    }

    fn has_looked(&mut self, was_worth_it: bool) {
        let Habit::Look { credit, is_trial } = &mut self.habit else {
            return;
        };
        if was_worth_it {
            *credit = (*credit + 1).min(CREDIT_MAX);
            if *credit == CREDIT_MAX {
                *is_trial = false;
                self.trial_after = TRIAL_AFTER;
            }
            return;
        }
        *credit -= 1;
        if *credit == 0 {
            if *is_trial {
                self.trial_after = (self.trial_after * 2).min(TRIAL_AFTER_MAX);
            }
            self.habit = Habit::Sleep { short_sleeps: 0 };
        }
    }

    fn has_slept(&mut self, time: Duration) {
        let Habit::Sleep { short_sleeps } = &mut self.habit else {
            return;
        };
        *short_sleeps = if time <= SHORT_SLEEP {
            *short_sleeps + 1
        } else {
            short_sleeps.saturating_sub(1)
        };
        if *short_sleeps == self.trial_after {
            self.habit = Habit::Look {
                credit: CREDIT_OF_TRIAL,
                is_trial: true,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_micros(1);
    const WAKE_UP: Duration = Duration::from_micros(10);

    /// An agent, and a program that wants something so long after it was served.
    struct Scene {
        spin: Spin,
        now: Time,
        /// Both have one processor: the program runs only while the agent sleeps.
        is_alone: bool,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                spin: Spin::default(),
                now: Time::ZERO,
                is_alone: false,
            }
        }

        fn serve(&mut self, times: u64, pause: Duration) {
            for _ in 0..times {
                assert!(!self.spin.sleeps(true, self.now));
                let mut due = self.now + pause;
                while self.now < due && !self.spin.sleeps(false, self.now) {
                    self.now = self.now + LOOK;
                    if self.is_alone {
                        due = due + LOOK;
                    }
                }
                if self.now < due {
                    self.now = due + WAKE_UP;
                }
            }
        }

        /// How often it looked on, in vain, and not at all.
        fn since(&self, before: SpinLog) -> [u64; 3] {
            let log = self.spin.log();
            let spins = log.spins - before.spins;
            let in_vain = spins - (log.won - before.won);
            [spins, in_vain, log.sleeps_at_once - before.sleeps_at_once]
        }
    }

    const SOON: Duration = Duration::from_micros(10);
    const LATE: Duration = Duration::from_micros(200);

    #[test]
    fn it_looks_on_while_something_comes() {
        let mut scene = Scene::new();
        scene.serve(1000, SOON);
        assert_eq!(scene.since(SpinLog::default()), [1000, 1, 0]);
    }

    #[test]
    fn it_sleeps_at_once_when_nothing_comes_in_time() {
        let mut scene = Scene::new();
        scene.serve(1000, LATE);
        assert_eq!(scene.since(SpinLog::default()), [16, 16, 984]);
    }

    #[test]
    fn it_looks_on_again_when_sleeps_become_short() {
        let mut scene = Scene::new();
        scene.serve(1000, LATE);
        let before = scene.spin.log();
        scene.serve(1000, SOON);
        assert_eq!(scene.since(before), [984, 1, 16]);
    }

    #[test]
    fn it_looks_on_as_long_as_every_other_time_is_worth_it() {
        let mut scene = Scene::new();
        for _ in 0..500 {
            scene.serve(1, SOON);
            scene.serve(1, LATE);
        }
        assert_eq!(scene.since(SpinLog::default())[2], 0);
        for _ in 0..500 {
            scene.serve(1, SOON);
            scene.serve(2, LATE);
        }
        assert!(scene.since(SpinLog::default())[2] > 1400);
    }

    #[test]
    fn on_one_processor_trials_become_rare() {
        let mut scene = Scene::new();
        scene.is_alone = true;
        scene.serve(20_000, SOON);
        let [spins, in_vain, _] = scene.since(SpinLog::default());
        assert_eq!(spins, in_vain);
        assert!(spins < 120, "{spins}");
        scene.is_alone = false;
        let before = scene.spin.log();
        scene.serve(10_000, SOON);
        assert!(scene.since(before)[2] < 5_000);
    }

    #[test]
    fn whoever_wakes_for_nothing_sleeps_on() {
        let mut spin = Spin::default();
        let mut now = Time::ZERO;
        assert!(!spin.sleeps(true, now));
        for _ in 0..40 {
            now = now + LOOK;
            spin.sleeps(false, now);
        }
        for _ in 0..100 {
            now = now + SPIN;
            assert!(spin.sleeps(false, now));
        }
        assert_eq!(spin.log().spins, 1);
    }
}
