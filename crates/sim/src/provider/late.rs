//! A device that writes into buffers which it has given back.

use super::environment::{Environment, Local};
use super::hardware::Hardware;
use super::nic::Nic;
use super::trace::Kind;
use legato_base::{Duration, Time};
use legato_verbs::{AccessFlags, QueuePair, ScatterGatherEntry, WorkRequestId};
use std::collections::{BTreeMap, VecDeque};

/// Buffers that are the device's, and those that are not any more.
#[derive(Debug, Default)]
pub(super) struct Late {
    lent: BTreeMap<QueuePair, VecDeque<Lent>>,
    returned: BTreeMap<u64, Returned>,
    next: u64,
}

#[derive(Debug)]
struct Lent {
    wr_id: WorkRequestId,
    entries: Vec<ScatterGatherEntry>,
}

#[derive(Debug)]
struct Returned {
    entries: Vec<ScatterGatherEntry>,
    until: Time,
}

/// Junk of one write.
const JUNK_MAX: u32 = 64;

impl Late {
    pub(super) fn lend(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WorkRequestId,
        entries: &[ScatterGatherEntry],
    ) {
        let entries = entries.to_vec();
        let lent = self.lent.entry(queue_pair).or_default();
        lent.push_back(Lent { wr_id, entries });
    }

    /// The request's buffers, which are its poster's from now on.
    pub(super) fn take(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WorkRequestId,
    ) -> Option<Vec<ScatterGatherEntry>> {
        let lent = self.lent.get_mut(&queue_pair)?;
        let found = lent.iter().position(|it| it.wr_id == wr_id)?;
        Some(lent.remove(found)?.entries)
    }

    /// The same for all requests of a queue pair.
    pub(super) fn take_all(&mut self, queue_pair: QueuePair) -> Vec<Vec<ScatterGatherEntry>> {
        let lent = self.lent.remove(&queue_pair).unwrap_or_default();
        lent.into_iter().map(|it| it.entries).collect()
    }
}

impl Hardware {
    /// The request of these buffers was given back.
    pub(super) fn note_late(
        &mut self,
        environment: &mut Environment,
        entries: Vec<ScatterGatherEntry>,
    ) {
        let Some(habit) = self.personality.late_writes else {
            return;
        };
        let number = self.late.next;
        self.late.next += 1;
        let until = environment.now + habit.lasts;
        self.late
            .returned
            .insert(number, Returned { entries, until });
        self.schedule_late(environment, number, habit.interval);
    }

    fn schedule_late(&mut self, environment: &mut Environment, number: u64, interval: Duration) {
        let later = 1 + self.random.below(interval.as_nanos().max(1));
        let at = environment.now + Duration::from_nanos(later);
        environment.schedule_at(at, self.machine, Local::LateWrite { number });
    }

    /// Without power it writes nothing more, whatever its habits.
    pub(super) fn lose_power(&mut self) {
        self.personality.late_writes = None;
        self.late.returned.clear();
    }
}

impl Nic {
    /// Writes, unless the region is gone or the time is over.
    pub(super) fn write_late(&mut self, environment: &mut Environment, number: u64) {
        let hardware = &mut self.hardware;
        let (Some(habit), Some(late)) = (
            hardware.personality.late_writes,
            hardware.late.returned.get(&number),
        ) else {
            return;
        };
        if environment.now > late.until {
            hardware.late.returned.remove(&number);
            return;
        }
        let writes = environment.places[hardware.place].link_is_up || !habit.stops_with_link;
        let entries = late.entries.clone();
        let mut left = false;
        for entry in entries {
            if !self.adapter.has_region(entry.local_key) {
                continue;
            }
            left = true;
            let part = hardware.random.below(u64::from(entry.length).max(1));
            let length = (entry.length - part as u32).min(JUNK_MAX);
            let piece = ScatterGatherEntry {
                address: entry.address.wrapping_add(part),
                length,
                ..entry
            };
            let place = self.adapter.local_place(&piece, AccessFlags::LOCAL_WRITE);
            if let Some((region, offset)) = place
                && writes
            {
                let random = &mut hardware.random;
                hardware.memory.scribble(region, offset, length, random);
                let (now, place) = (environment.now, hardware.place);
                environment.trace.at(now, Kind::LateWrite, place);
            }
        }
        if left {
            hardware.schedule_late(environment, number, habit.interval);
        } else {
            hardware.late.returned.remove(&number);
        }
    }
}
