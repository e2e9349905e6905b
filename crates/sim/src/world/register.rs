//! The pager takes charge of memory: at once, or later where the address space is changing.

use super::config::Registering;
use super::kernel::SimKernel;
use super::space::{Space, runs};
use legato_base::{PageNumber, Time};
use legato_pager::{Charge, PageRange, SpaceId};

/// Pages of a mapping that is registered at a time.
const REGISTERED_AT_A_TIME: u64 = 512;
/// What is found in one look of so many is reported later.
const LATE_EVERY: u64 = 4;

impl SimKernel {
    /// Registers memory, until so many resident pages were found.
    pub(super) fn register(&mut self, pages: u64, into: &mut Vec<Charge>) {
        self.looks += 1;
        self.is_late |= self.registering == Registering::ByHand || self.happens(LATE_EVERY);
        let (mut found, now) = (0, self.now);
        for place in self.spaces.values_mut() {
            if found >= pages {
                break;
            }
            if place.attached && !place.ended && place.is_followed(now) {
                found += place.register(pages - found);
            }
        }
        self.say_registered(into);
    }

    /// From now on what was registered is reported.
    pub(super) fn end_registering(&mut self) {
        self.registering = Registering::ByChance;
        self.is_late = false;
    }

    /// Reports what is registered and was not reported yet, unless it is too early.
    pub(super) fn say_registered(&mut self, into: &mut Vec<Charge>) {
        if self.is_late {
            return;
        }
        let now = self.now;
        for (&space, place) in &mut self.spaces {
            if place.is_followed(now) && !place.ended {
                place.say_found(space, now, into);
            }
        }
    }
}

impl Space {
    /// As [`SimKernel::register`]; returns how many resident pages were found.
    fn register(&mut self, pages: u64) -> u64 {
        let mut found = 0;
        for range in self.unregistered() {
            for page in range.start.0..range.end().0 {
                let is_dropped = self.dropped.remove(&page);
                let is_resident = self.present.contains_key(&page) && !is_dropped;
                if is_dropped && self.present.contains_key(&page) {
                    self.strays.insert(page);
                }
                found += u64::from(is_resident);
                self.registered.insert(page);
                self.found.insert(page, is_resident);
            }
            if found >= pages {
                break;
            }
        }
        found
    }

    /// A range will be dropped: what of it is present now says nothing.
    pub(super) fn announced_since(&mut self, range: PageRange) {
        let found = self.found.range_mut(range.start.0..range.end().0);
        found.for_each(|(_, is_resident)| *is_resident = false);
        let pages = range.start.0..range.end().0;
        let unknown = self.registered.range(pages);
        self.dropped
            .extend(unknown.filter(|page| !self.charged.contains(page)));
    }

    fn say_found(&mut self, space: SpaceId, now: Time, into: &mut Vec<Charge>) {
        let found = core::mem::take(&mut self.found);
        if self.armed.is_empty() && !found.is_empty() {
            self.order.expect_events(now);
        }
        self.charged.extend(found.keys());
        for range in runs(found.keys(), u64::MAX) {
            self.armed.insert(range);
            self.in_charge.insert(range);
            let pages = found.range(range.start.0..range.end().0);
            let resident = pages.filter(|&(_, &is_resident)| is_resident);
            into.push(Charge {
                space,
                range,
                resident: resident.map(|(&page, _)| PageNumber(page)).collect(),
            });
        }
    }

    /// Runs of mapped pages that the pager neither is in charge of nor will be, each of a limited length.
    fn unregistered(&self) -> Vec<PageRange> {
        let rest = self.mapped.difference(&self.charged);
        let rest = rest.filter(|page| !self.found.contains_key(page));
        runs(rest, REGISTERED_AT_A_TIME)
    }
}
