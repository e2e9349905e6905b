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
use crate::{Charge, SpaceId};
use alloc::vec::Vec;
use legato_base::PageNumber;

/// What was found in one space.
#[derive(Debug)]
pub(super) struct Survey {
    found: Vec<Charge>,
    /// What events have since told of as come or gone.
    changed: RangeSet,
    /// And as dropped.
    dropped: RangeSet,
    /// There was a moment at which no event was missing.
    settled: bool,
}

impl Survey {
    /// `dropped` is what was announced as dropped before, where the kernel may not have done so yet.
    pub(super) const fn new(found: Vec<Charge>, dropped: RangeSet) -> Self {
        Self {
            found,
            changed: RangeSet::new(),
            dropped,
            settled: false,
        }
    }

    /// A message was read.
    fn follow(&mut self, message: &Message) {
        if let Message::Removed {
            range,
            unmapped: false,
        } = *message
        {
            self.dropped.insert(range);
        }
        [message.vacated(), message.arrival()]
            .into_iter()
            .flatten()
            .for_each(|range| self.changed.insert(range));
    }

    /// What is not registered counts as gone.
    pub(super) fn leave_out(&mut self, absent: &RangeSet) {
        absent.ranges().for_each(|range| self.changed.insert(range));
    }

    /// What is still as it was found.
    pub(super) fn unchanged(self) -> Vec<Charge> {
        let (changed, dropped) = (self.changed, self.dropped);
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
    /// What was found in a space must follow what was read.
    pub(super) fn follow_survey(&mut self, space: SpaceId, messages: &[Message]) {
        if let Some(survey) = self.surveys.get_mut(&space) {
            messages.iter().for_each(|message| survey.follow(message));
        }
    }

    /// No event is missing of a space.
    pub(super) fn settle_survey(&mut self, space: SpaceId) {
        if let Some(survey) = self.surveys.get_mut(&space) {
            survey.settled = true;
        }
    }

    /// As [`Self::finish_survey`], in every space.
    pub(super) fn finish_surveys(&mut self, into: &mut Vec<Charge>) {
        if self.surveys.is_empty() || self.is_unsettled() {
            return;
        }
        let spaces: Vec<SpaceId> = self.surveys.keys().copied().collect();
        for space in spaces {
            self.finish_survey(space, into);
        }
    }

    /// Takes charge of what was found in a space and is still there, if no event is missing. All that was
    /// read must have been accepted.
    pub(super) fn finish_survey(&mut self, space: SpaceId, into: &mut Vec<Charge>) {
        let Some(survey) = self.surveys.get(&space) else {
            return;
        };
        if !survey.settled && self.space_is_changing(space) {
            return;
        }
        let (Some(context), Some(residency)) = (self.space(space), self.residency_of(space)) else {
            // The child has ended.
            self.surveys.remove(&space);
            return;
        };
        let ranges = survey.found.iter().map(|charge| charge.range);
        let Ok(absent) = unregistered(context, residency, ranges) else {
            return;
        };
        let Some(mut survey) = self.surveys.remove(&space) else {
            return;
        };
        survey.leave_out(&absent);
        for charge in survey.unchanged() {
            self.hold(&charge);
            into.push(charge);
        }
    }

    fn hold(&mut self, charge: &Charge) {
        if charge.space == SpaceId::OWN {
            self.registered.insert(charge.range);
        } else if let Some(child) = self.children.get_mut(&charge.space) {
            let dropped = child.ranges.hold(charge.range);
            // In case that they are there and stay (MADV_FREE).
            let watched = dropped.into_iter().map(|range| (charge.space, range));
            self.unwatched.extend(watched);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PageRange;
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
        let mut survey = Survey::new(
            vec![charge(10, 10, &[10, 13, 19]), charge(30, 4, &[31])],
            RangeSet::new(),
        );
        survey.follow(&Message::Remapped {
            from: range(40, 4),
            to: PageNumber(12),
            kept: false,
        });
        survey.follow(&Message::Removed {
            range: range(30, 4),
            unmapped: true,
        });
        let expected = [charge(10, 2, &[10]), charge(16, 4, &[19])];
        assert_eq!(survey.unchanged(), expected);
    }

    /// The thread that drops them got no CPU since its announcement was read.
    #[test]
    fn pages_that_are_being_dropped_are_not_taken_for_resident() {
        let mut survey = Survey::new(vec![charge(10, 10, &[10, 13, 19])], RangeSet::new());
        survey.follow(&Message::Removed {
            range: range(12, 4),
            unmapped: false,
        });
        assert_eq!(survey.unchanged(), [charge(10, 10, &[10, 19])]);
    }
}
