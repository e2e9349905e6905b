//! Which memory the pager is in charge of.

use super::refused::Refused;
use super::space::Space;
use super::survey::Survey;
use super::{Foreign, LinuxKernel};
use crate::RangeSet;
use crate::uffd::Userfaultfd;
use crate::uffd::agent::now;
use crate::uffd::eligible::{MappingReader, Region, RegionReader, mapping_of_file};
use crate::uffd::residency::Residency;
use crate::{Charge, EvictError, PageRange, SpaceId};
use alloc::vec::Vec;
use legato_base::PAGE_SHIFT;
use rustix::io::Errno;
use rustix::mm::Advice;

/// What looking for more in an address space takes.
struct Look<'a> {
    id: SpaceId,
    context: &'a Userfaultfd,
    residency: &'a Residency,
    charged: &'a RangeSet,
    refused: &'a mut Refused,
    foreign: &'a mut Foreign,
    protectable: bool,
    /// The ranges that have been registered since the mappings were read.
    registered: RangeSet,
}

impl LinuxKernel {
    pub(super) fn take_charge(&mut self, pages: u64, into: &mut Vec<Charge>) {
        if self.is_unsettled() {
            return;
        }
        if self.own.ranges.charged.is_empty() && self.own.survey.is_none() {
            self.own.order.expect_events(now());
        }
        for id in self.ids() {
            let found: usize = into.iter().map(|charge| charge.resident.len()).sum();
            let Some(missing) = pages.checked_sub(found as u64).filter(|&pages| pages > 0) else {
                return;
            };
            let is_due = |space: &Space| !space.closed && space.survey.is_none();
            if self.space(id).is_some_and(is_due) {
                self.look_around(id, missing);
            }
            self.finish_survey(id, into);
        }
    }

    /// Registers what there is more in a space.
    fn look_around(&mut self, id: SpaceId, pages: u64) {
        let protectable = self.features.can_protect();
        let mut found = Vec::new();
        let (space, residency, agents);
        if id == SpaceId::OWN {
            (space, residency) = (&mut self.own, &self.residency);
            agents = [self.layout.range(), self.object].to_vec();
        } else if let Some(child) = self.children.get_mut(&id)
            && let Some(hand) = &child.hand
        {
            (space, residency) = (&mut child.space, &hand.residency);
            // The agent's object came along with the fork, for nobody's use; its reservation did
            // not.
            let [area, object] = hand.mappings();
            agents = [area, object, self.object].to_vec();
        } else {
            return;
        }
        let look = Look {
            id,
            context: &space.context,
            residency,
            charged: &space.ranges.charged,
            refused: &mut space.refused,
            foreign: &mut self.foreign,
            protectable,
            registered: RangeSet::new(),
        };
        look.look_around(&agents, pages, &mut found);
        if !found.is_empty() {
            space.survey = Some(Survey::new(found));
        }
    }
}

impl LinuxKernel {
    /// The first pages of a range that are registered indeed. If there are none, that is an error.
    ///
    /// The program goes on while the agent takes charge, so a mapping may have come where another
    /// was when the agent looked. What leaves it would read zeros. If it is registered now and then
    /// is replaced, that is announced, and nothing is moved until the announcement is read.
    pub(super) fn still_registered(
        &mut self,
        space: SpaceId,
        range: PageRange,
    ) -> Result<PageRange, EvictError> {
        let Some(space) = self.space_mut(space) else {
            return Err(EvictError::Fixed);
        };
        let context = &space.context;
        let is_registered = |range| context.is_registered(range).map_err(|_| EvictError::Again);
        if is_registered(range)? {
            return Ok(range);
        }
        // Perhaps it is in several mappings.
        let mut count = 0;
        while count < range.count && is_registered(PageRange::new(range.start.plus(count), 1))? {
            count += 1;
        }
        if count == 0 {
            space.ranges.forget(PageRange::new(range.start, 1));
            return Err(EvictError::Fixed);
        }
        Ok(PageRange::new(range.start, count))
    }
}

impl Look<'_> {
    /// Registers more until so many resident pages are found.
    fn look_around(mut self, own: &[PageRange], pages: u64, into: &mut Vec<Charge>) {
        self.refused.forget_old(now());
        if let Some(regions) = self.regions(own) {
            self.register_more(regions, own, pages, into);
        }
    }

    /// The regions that there are now, without the agent's own. None if they cannot be read.
    fn regions(&self, own: &[PageRange]) -> Option<Vec<Region>> {
        let mut reader = RegionReader::new(own);
        self.residency.for_each_line(|line| reader.line(line))?;
        Some(reader.finish())
    }

    fn register_more(
        &mut self,
        regions: Vec<Region>,
        own: &[PageRange],
        pages: u64,
        into: &mut Vec<Charge>,
    ) {
        let mut found = 0;
        for region in regions {
            if found >= pages {
                break;
            }
            let missing: Vec<PageRange> = region
                .eligible
                .iter()
                .flat_map(|&range| self.charged.missing_from(range))
                .flat_map(|part| self.refused.missing_from(part))
                .collect();
            if missing.is_empty() {
                continue;
            }
            if self.register(region.range).is_err() {
                // One mapping spoils it for all, or all of it has gone.
                found += self.register_each(&region, own, &missing, into);
                continue;
            }
            found += self.registered(region.range, missing, into);
        }
        self.leave_files();
    }

    /// Takes out of the registration what has come from a file, or is shared, since the mappings were read. It
    /// never leaves; and what is missing there may be for the kernel alone to fill (a private mapping of
    /// /dev/zero, pages past the end of a file).
    fn leave_files(&mut self) {
        let registered = core::mem::take(&mut self.registered);
        if registered.is_empty() {
            return;
        }
        let mut files: Vec<PageRange> = Vec::new();
        // Where it cannot be read the process has ended.
        let _ = self.residency.for_each_line(|line| {
            let mapping = mapping_of_file(line);
            files.extend(
                mapping
                    .into_iter()
                    .flat_map(|it| registered.common_with(it)),
            );
        });
        for part in files {
            let (start, length) = (part.start.address(), part.count << PAGE_SHIFT);
            // Where it was not registered that changes nothing, or is refused.
            // SAFETY: the pager has not been in charge of it for a moment, and nothing of it has left.
            let _ = unsafe { self.context.unregister(start, length) };
        }
    }

    /// Returns how many resident pages that has brought.
    fn register_each(
        &mut self,
        region: &Region,
        own: &[PageRange],
        missing: &[PageRange],
        into: &mut Vec<Charge>,
    ) -> u64 {
        let (mut found, gone) = self.register_parts(region, missing, into);
        // What has become of it shows when one looks again. What refuses then refuses indeed.
        if !gone.is_empty()
            && let Some(regions) = self.regions(own)
        {
            for region in regions {
                let (more, refusing) = self.register_parts(&region, &gone, into);
                found += more;
                self.refuse(refusing);
            }
        }
        found
    }

    /// Registers mapping by mapping what is missing of a region. Returns how many resident pages that
    /// has brought, and what may have been unmapped since the text was read.
    fn register_parts(
        &mut self,
        region: &Region,
        missing: &[PageRange],
        into: &mut Vec<Charge>,
    ) -> (u64, Vec<PageRange>) {
        let (mut found, mut gone) = (0, Vec::new());
        for part in region.parts() {
            let missing: Vec<PageRange> = missing
                .iter()
                .filter_map(|missing| missing.common(part))
                .collect();
            if missing.is_empty() {
                continue;
            }
            match self.register(part) {
                Ok(()) => found += self.registered(part, missing, into),
                // Somebody else's userfaultfd.
                Err(Errno::BUSY) => {
                    self.foreign.note();
                    self.refuse(missing);
                }
                Err(_) => gone.extend(missing),
            }
        }
        (found, gone)
    }

    fn refuse(&mut self, ranges: Vec<PageRange>) {
        for range in ranges {
            self.refused.insert(range);
        }
    }

    fn register(&self, range: PageRange) -> Result<(), Errno> {
        let (start, length) = (range.start.address(), range.count << PAGE_SHIFT);
        // SAFETY: the pager answers the faults: with zeros for what was never touched, and with the
        // content that it moved out itself.
        unsafe { self.context.register(start, length, self.protectable) }
    }

    /// A range is registered now, of which these parts were missing. What had gone before is not, nor what
    /// has come since: see `unregistered`. What has gone since announces it.
    /// Returns how many resident pages that has brought.
    fn registered(
        &mut self,
        range: PageRange,
        missing: Vec<PageRange>,
        into: &mut Vec<Charge>,
    ) -> u64 {
        self.registered.insert(range);
        if self.id == SpaceId::OWN {
            leave_out_of_dumps(range);
        }
        let found = |part| self.found(part, into);
        missing.into_iter().map(found).sum()
    }

    /// Returns how many resident pages that has brought.
    fn found(&self, range: PageRange, into: &mut Vec<Charge>) -> u64 {
        // After registering: from here on every page that becomes resident is known.
        let resident = self.residency.pages_in(range).unwrap_or_default();
        let found = resident.len() as u64;
        into.push(Charge {
            space: self.id,
            range,
            resident,
        });
        found
    }
}

/// The kernel writes a missing page into a core dump as zeros, without asking for it
/// (`handle_userfault` refuses while a dump is written). A debugger is better told that there is
/// nothing. Forked children inherit it.
fn leave_out_of_dumps(range: PageRange) {
    let (start, length) = (range.start.address(), range.count << PAGE_SHIFT);
    // SAFETY: changes no content. If it fails, zeros it is.
    let _ = unsafe { rustix::mm::madvise(start as *mut _, length as usize, Advice::LinuxDontDump) };
}

/// What of the ranges is not registered. A mapping may go, and another come, between the reading of
/// the maps and the registration: nothing tells of that, and what was taken for registered would
/// never be looked at again.
///
/// # Errors
/// EAGAIN while the address space is changing.
pub(super) fn unregistered(
    context: &Userfaultfd,
    residency: &Residency,
    ranges: impl Iterator<Item = PageRange>,
) -> Result<RangeSet, Errno> {
    let mut mappings: Option<Vec<PageRange>> = None;
    let mut absent = RangeSet::new();
    for range in ranges {
        if context.is_registered(range)? {
            continue;
        }
        // Perhaps it is in several mappings.
        let mappings = mappings.get_or_insert_with(|| {
            let mut reader = MappingReader::new(&[]);
            let mut found = Vec::new();
            let taken = residency
                .for_each_line(|line| reader.eligible(line, |mapping| found.push(mapping)));
            taken.map_or_else(Vec::new, |()| found)
        });
        absent.insert(range);
        let first = mappings.partition_point(|mapping| mapping.end() <= range.start);
        for part in mappings[first..]
            .iter()
            .map_while(|&mapping| range.common(mapping))
        {
            if context.is_registered(part)? {
                absent.remove(part);
            }
        }
    }
    Ok(absent)
}

#[cfg(test)]
mod tests;
