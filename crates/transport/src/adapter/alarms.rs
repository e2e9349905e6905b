//! What an adapter wants to be woken for.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use legato_base::Time;
use legato_verbs::QueuePair;

/// Something that the adapter does at a time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// A queue pair is looked at: requests were posted.
    Doorbell(QueuePair),
    /// A queue pair's packets are sent again, or asked about again.
    QueuePairTimer(QueuePair),
    ConnectionManager,
}

/// Alarms that are set, for a user without a timer of its own: those of one time in the order in
/// which they were set.
#[derive(Debug, Default)]
pub struct Alarms {
    /// With a number that counts up.
    waiting: BinaryHeap<Reverse<(Time, u64, Alarm)>>,
    set: u64,
}

impl Alarms {
    pub fn set(&mut self, at: Time, alarm: Alarm) {
        self.waiting.push(Reverse((at, self.set, alarm)));
        self.set += 1;
    }

    /// When the next is due; [`Time::NEVER`] if none is set.
    pub fn next_deadline(&self) -> Time {
        let first = self.waiting.peek();
        first.map_or(Time::NEVER, |Reverse((at, ..))| *at)
    }

    /// Takes the next that is due.
    pub fn take_due(&mut self, now: Time) -> Option<Alarm> {
        if self.next_deadline() > now {
            return None;
        }
        self.waiting.pop().map(|Reverse((.., alarm))| alarm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_come_by_time_and_then_as_they_were_set() {
        let bell = |index| {
            Alarm::Doorbell(QueuePair {
                index,
                generation: 1,
            })
        };
        let mut alarms = Alarms::default();
        assert_eq!(alarms.next_deadline(), Time::NEVER);
        alarms.set(Time::from_nanos(2), bell(1));
        alarms.set(Time::from_nanos(1), bell(2));
        alarms.set(Time::from_nanos(2), bell(3));
        assert_eq!(alarms.next_deadline(), Time::from_nanos(1));
        assert_eq!(alarms.take_due(Time::ZERO), None);
        let due: alloc::vec::Vec<_> =
            core::iter::from_fn(|| alarms.take_due(Time::from_nanos(2))).collect();
        assert_eq!(due, [bell(2), bell(1), bell(3)]);
        assert_eq!(alarms.next_deadline(), Time::NEVER);
    }
}
