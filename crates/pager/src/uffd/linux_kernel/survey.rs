//! Memory that was found while the address space was changing.
//!
//! `/proc/PID/maps` shows the address space as it is; what the pager knows is as it was before the events
//! that it has not accepted yet. To take charge at once of what a move has brought would have the pager
//! know of it twice, and the move would seem to go where something is. So what was found waits for a
//! moment at which no event is missing. What came or went meanwhile is left out: if it is there, it is
//! found again. Of what was dropped meanwhile no page counts as resident: `madvise` drops a moment after
//! its event was read, and nothing says when.

use super::LinuxKernel;
use super::register::unregistered;
use crate::RangeSet;
use crate::uffd::message::Message;
use crate::{Charge, PageRange, SpaceId};
use alloc::vec::Vec;
use legato_base::PageNumber;

/// What was found in one space.
#[derive(Debug)]
pub(super) struct Survey {
    found: Vec<Charge>,
    /// What events have since told of as come or gone.
    changed: RangeSet,
    /// There was a moment at which no event was missing.
    settled: bool,
}

impl Survey {
    pub(super) const fn new(found: Vec<Charge>) -> Self {
        Self {
            found,
            changed: RangeSet::new(),
            settled: false,
        }
    }

    /// Messages were read.
    pub(super) fn follow(&mut self, messages: &[Message]) {
        let places = |message: &Message| [message.vacated(), message.arrival()];
        let changed = messages.iter().flat_map(places).flatten();
        changed.for_each(|range| self.changed.insert(range));
    }

    /// No event is missing.
    pub(super) const fn settle(&mut self) {
        self.settled = true;
    }

    /// What is not registered counts as gone.
    pub(super) fn leave_out(&mut self, absent: &RangeSet) {
        absent.ranges().for_each(|range| self.changed.insert(range));
    }

    /// What is still as it was found. `dropped` is what was announced as dropped, where the kernel may not
    /// have done so yet.
    pub(super) fn unchanged(self, dropped: &RangeSet) -> Vec<Charge> {
        let changed = self.changed;
        let parts = |charge: Charge| {
            let parts = changed.missing_from(charge.range).into_iter();
            let Charge {
                space, resident, ..
            } = charge;
            parts
                .map(|range| {
                    let stays =
                        |page: &PageNumber| range.contains(*page) && !dropped.contains(*page);
                    let resident = resident.iter().copied().filter(stays).collect();
                    Charge {
                        space,
                        range,
                        resident,
                    }
                })
                .collect::<Vec<_>>()
        };
        self.found.into_iter().flat_map(parts).collect()
    }
}

impl LinuxKernel {
    /// As [`Self::finish_survey`], in every space.
    pub(super) fn finish_surveys(&mut self, into: &mut Vec<Charge>) {
        let is_due = self.spaces().any(|space| space.survey.is_some());
        if !is_due || self.is_unsettled() {
            return;
        }
        for id in self.ids() {
            self.finish_survey(id, into);
        }
    }

    /// Takes charge of what was found in a space and is still there, if no event is missing. All that was
    /// read must have been accepted.
    pub(super) fn finish_survey(&mut self, id: SpaceId, into: &mut Vec<Charge>) {
        let Some(space) = self.space(id) else {
            return;
        };
        let Some(survey) = &space.survey else {
            return;
        };
        if !survey.settled && space.context.is_changing() {
            return;
        }
        // A child without one is about to be closed.
        let absent = self.residency_of(id).map(|residency| {
            let ranges = survey.found.iter().map(|charge| charge.range);
            unregistered(&space.context, residency, ranges)
        });
        if matches!(absent, Some(Err(_))) {
            return;
        }
        let Some(space) = self.space_mut(id) else {
            return;
        };
        let (Some(mut survey), Some(Ok(absent))) = (space.survey.take(), absent) else {
            return;
        };
        survey.leave_out(&absent);
        let charges = survey.unchanged(space.ranges.dropped());
        let dropped = charges.iter().map(|charge| space.ranges.hold(charge.range));
        let dropped: Vec<PageRange> = dropped.flatten().collect();
        // In case that they are there and stay (MADV_FREE).
        let watched = dropped.into_iter().map(|range| (id, range));
        self.unwatched.extend(watched);
        into.extend(charges);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranges::Ranges;
    use super::*;
    use alloc::vec;

    fn range(start: u64, count: u64) -> PageRange {
        PageRange::new(PageNumber(start), count)
    }

    fn charge(start: u64, count: u64, resident: &[u64]) -> Charge {
        Charge {
            space: SpaceId::OWN,
            range: range(start, count),
            resident: resident.iter().copied().map(PageNumber).collect(),
        }
    }

    /// A move was announced after the maps had shown it.
    #[test]
    fn what_an_event_tells_of_is_not_taken_charge_of() {
        let found = vec![charge(10, 10, &[10, 13, 19]), charge(30, 4, &[31])];
        let mut survey = Survey::new(found);
        survey.follow(&[
            Message::Remapped {
                from: range(40, 4),
                to: PageNumber(12),
                kept: false,
            },
            Message::Removed {
                range: range(30, 4),
                unmapped: true,
            },
        ]);
        let expected = [charge(10, 2, &[10]), charge(16, 4, &[19])];
        assert_eq!(survey.unchanged(&RangeSet::new()), expected);
    }

    /// The thread that drops them got no CPU since its announcement was read.
    #[test]
    fn pages_that_are_being_dropped_are_not_taken_for_resident() {
        let survey = Survey::new(vec![charge(10, 10, &[10, 13, 19])]);
        let mut ranges = Ranges::default();
        ranges.follow(&Message::Removed {
            range: range(12, 4),
            unmapped: false,
        });
        let unchanged = survey.unchanged(ranges.dropped());
        assert_eq!(unchanged, [charge(10, 10, &[10, 19])]);
    }
}
