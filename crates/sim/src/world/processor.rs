//! The processor time of the simulated program, and who waits for it to grow.

use legato_base::{Duration, Random, Time};

/// The alarm goes off at the processor's next tick. Between two of them memory grows by less than a
/// headroom, as it does between two measurements.
const TICK: u64 = 100_000;
/// What a step of a thread costs.
const STEP: Duration = Duration::from_nanos(500);

#[derive(Debug, Default)]
pub(super) struct Processor {
    spent: Duration,
    alarm: Alarm,
}

#[derive(Clone, Copy, Debug, Default)]
enum Alarm {
    #[default]
    Off,
    Set,
    GoesOff {
        at: Time,
    },
}

impl Processor {
    pub(super) const fn spent(&self) -> Duration {
        self.spent
    }

    pub(super) const fn set_alarm(&mut self, wanted: bool) {
        self.alarm = if wanted { Alarm::Set } else { Alarm::Off };
    }

    /// A thread runs.
    pub(super) fn run(&mut self, now: Time, random: &mut Random) {
        self.spent = self.spent + STEP;
        if let Alarm::Set = self.alarm {
            let at = now + Duration::from_nanos(random.below(TICK));
            self.alarm = Alarm::GoesOff { at };
        }
    }

    /// When whoever waits is woken.
    pub(super) const fn alarm_at(&self) -> Time {
        match self.alarm {
            Alarm::GoesOff { at } => at,
            Alarm::Off | Alarm::Set => Time::NEVER,
        }
    }
}
