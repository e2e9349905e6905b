//! A model of the Linux side of the pager: what userfaultfd, MOVE and the program's mappings do,
//! with their refusals.

use super::defect::Defect;
use super::frames::SimFrames;
use super::space::{Access, Messages, Space};
use legato_base::{PAGE_SIZE, PageNumber, Random};
use legato_pager::{
    EvictError, FillError, FrameIndex, FrameMemory, Kernel, PageRange, SpaceEvent, SpaceId,
};
use std::collections::BTreeMap;

/// Pages of a mapping that is registered at a time.
const REGISTERED_AT_A_TIME: u64 = 512;
/// One move in so many is refused for a moment: another CPU has the page locked.
const LOCKED_EVERY: u64 = 64;
/// One page in so many cannot be moved in, only copied: userfaultfd refuses some mappings.
const COPY_ONLY_EVERY: u64 = 61;

/// The machine that the program and its forked children run on.
#[derive(Debug)]
pub struct SimKernel {
    pub(super) frames: SimFrames,
    pub(super) spaces: BTreeMap<SpaceId, Space>,
    /// Pages whose waiting threads may try again.
    pub(super) woken: Vec<(SpaceId, u64)>,
    random: Random,
    last_space: u32,
    defect: Option<Defect>,
    /// Pages moved, copied and cleared since the agent's time was last counted.
    pub(super) pages_handled: u64,
}

impl SimKernel {
    pub fn new(frames: SimFrames, random: Random, defect: Option<Defect>) -> Self {
        Self {
            frames,
            spaces: BTreeMap::from([(SpaceId::OWN, Space::default())]),
            woken: Vec::new(),
            random,
            last_space: 0,
            defect,
            pages_handled: 0,
        }
    }

    pub(super) fn space_mut(&mut self, space: SpaceId) -> &mut Space {
        self.spaces
            .get_mut(&space)
            .expect("a running thread has an address space")
    }

    pub(super) fn touch(&mut self, space: SpaceId, page: u64) -> Access {
        self.space_mut(space).touch(page)
    }

    /// `madvise(MADV_DONTNEED)`, first half. Returns the event to wait for, if there is one; only
    /// then is the content dropped.
    pub(super) fn announce_removal(&mut self, space: SpaceId, range: PageRange) -> Option<u64> {
        let place = self.space_mut(space);
        let registered =
            (range.start.0..range.end().0).any(|page| place.registered.contains(&page));
        registered.then(|| place.report(SpaceEvent::Removed { space, range }))
    }

    pub(super) fn unmap(&mut self, space: SpaceId, range: PageRange) -> Option<u64> {
        let place = self.space_mut(space);
        place
            .unmap(range)
            .then(|| place.report(SpaceEvent::Removed { space, range }))
    }

    pub(super) fn remap(
        &mut self,
        space: SpaceId,
        from: PageRange,
        to: PageNumber,
        grow: u64,
    ) -> Option<u64> {
        let place = self.space_mut(space);
        place
            .remap(from, to.0, grow)
            .then(|| place.report(SpaceEvent::Remapped { space, from, to }))
    }

    pub(super) fn fork(&mut self, parent: SpaceId) -> (SpaceId, Option<u64>) {
        self.last_space += 1;
        let child = SpaceId(self.last_space);
        let place = self.space_mut(parent);
        let copy = place.copy();
        let event = (!copy.registered.is_empty())
            .then(|| place.report(SpaceEvent::Forked { parent, child }));
        self.spaces.insert(child, copy);
        (child, event)
    }

    /// The space's process ends.
    pub(super) fn end(&mut self, space: SpaceId) {
        let place = self.space_mut(space);
        place.ended = true;
        place.events.clear();
        place.faults.clear();
        place.present.clear();
        if place.registered.is_empty() {
            self.spaces.remove(&space);
        }
    }

    /// True if the pager has read the event, or the space is gone with all its events.
    pub(super) fn is_read(&self, space: SpaceId, event: u64) -> bool {
        self.spaces
            .get(&space)
            .is_none_or(|space| space.events_read >= event)
    }

    pub(super) fn has_messages(&self) -> bool {
        self.spaces
            .values()
            .any(|space| !space.events.is_empty() || !space.faults.is_empty())
    }

    /// Reads what waits. A read gives faults before events, so events may stay unread for a while.
    pub(super) fn read(&mut self) -> Messages {
        let mut messages = Messages::default();
        for (&id, space) in &mut self.spaces {
            let faults_only = !space.faults.is_empty() && self.random.ratio(1, 4);
            messages
                .faults
                .extend(space.faults.drain(..).map(|page| (id, page)));
            if faults_only {
                continue;
            }
            for event in space.events.drain(..) {
                space.events_read += 1;
                let ignored = self.defect == Some(Defect::RemovalsIgnored)
                    && matches!(event, SpaceEvent::Removed { .. });
                if !ignored {
                    messages.events.push(event);
                }
            }
        }
        messages
    }

    /// The mappings of a space.
    pub(super) fn mappings(&self, space: SpaceId) -> Vec<PageRange> {
        self.spaces
            .get(&space)
            .map(Space::mappings)
            .unwrap_or_default()
    }

    /// True if the page is present in the program.
    pub fn is_present(&self, page: PageNumber) -> bool {
        self.spaces[&SpaceId::OWN].present.contains_key(&page.0)
    }

    /// Local pages of the program and the frames.
    pub(super) fn resident(&self) -> u64 {
        self.frames.backed() + self.spaces[&SpaceId::OWN].present.len() as u64
    }

    /// True if the address space refuses moves now.
    fn refuses(&mut self, space: SpaceId) -> bool {
        let changing = self.spaces.get(&space).is_some_and(Space::is_changing);
        changing || self.random.ratio(1, LOCKED_EVERY)
    }

    /// Why a page cannot be filled, if it cannot.
    fn fillable(&mut self, space: SpaceId, page: PageNumber) -> Result<(), FillError> {
        if self.spaces.get(&space).is_none_or(|space| space.ended) {
            return Err(FillError::SpaceGone);
        }
        if self.refuses(space) {
            return Err(FillError::Again);
        }
        let place = self.space_mut(space);
        if !place.registered.contains(&page.0) {
            Err(FillError::Gone)
        } else if place.present.contains_key(&page.0) || place.poisoned.contains(&page.0) {
            Err(FillError::Present)
        } else {
            Ok(())
        }
    }

    fn fill(&mut self, space: SpaceId, page: PageNumber, content: Box<[u8; PAGE_SIZE]>) {
        self.pages_handled += 1;
        self.space_mut(space).present.insert(page.0, content);
        self.wake(space, page);
    }

    fn move_one_in(&mut self, frame: FrameIndex, page: PageNumber) -> Result<(), FillError> {
        self.fillable(SpaceId::OWN, page)?;
        if page.0.is_multiple_of(COPY_ONLY_EVERY) {
            return Err(FillError::CopyOnly);
        }
        let content = self.frames.take(frame.0);
        self.fill(SpaceId::OWN, page, content);
        Ok(())
    }

    fn move_one_out(&mut self, page: PageNumber, frame: FrameIndex) -> Result<(), EvictError> {
        if self.refuses(SpaceId::OWN) {
            return Err(EvictError::Again);
        }
        let torn = self.defect == Some(Defect::PagesTorn);
        let place = self.space_mut(SpaceId::OWN);
        if place.pinned.contains(&page.0) {
            return Err(EvictError::Pinned);
        }
        if !place.registered.contains(&page.0) {
            return Err(EvictError::Fixed);
        }
        let mut content = place.present.remove(&page.0).ok_or(EvictError::Absent)?;
        if torn && page.0.is_multiple_of(97) {
            content[PAGE_SIZE - 1] ^= 1;
        }
        self.frames.put(frame.0, &content);
        self.pages_handled += 1;
        Ok(())
    }
}

impl Kernel for SimKernel {
    type Frames = SimFrames;

    fn frames(&self) -> &SimFrames {
        &self.frames
    }

    fn frames_mut(&mut self) -> &mut SimFrames {
        &mut self.frames
    }

    fn move_out(
        &mut self,
        page: PageNumber,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>) {
        for moved in 0..count {
            let to = FrameIndex(frame.0 + moved);
            if let Err(error) = self.move_one_out(page.plus(u64::from(moved)), to) {
                return (moved, Err(error));
            }
        }
        (count, Ok(()))
    }

    fn move_in(
        &mut self,
        frame: FrameIndex,
        page: PageNumber,
        count: u32,
    ) -> (u32, Result<(), FillError>) {
        for moved in 0..count {
            let from = FrameIndex(frame.0 + moved);
            if let Err(error) = self.move_one_in(from, page.plus(u64::from(moved))) {
                return (moved, Err(error));
            }
        }
        (count, Ok(()))
    }

    fn copy_in(
        &mut self,
        space: SpaceId,
        frame: FrameIndex,
        page: PageNumber,
    ) -> Result<(), FillError> {
        self.fillable(space, page)?;
        let content = self.frames.page(frame, |content| Box::new(*content));
        self.fill(space, page, content);
        Ok(())
    }

    fn zero_in(&mut self, space: SpaceId, page: PageNumber) -> Result<(), FillError> {
        self.fillable(space, page)?;
        self.fill(space, page, Box::new([0; PAGE_SIZE]));
        Ok(())
    }

    fn add_frames(&mut self, frame: FrameIndex, count: u32) -> u32 {
        for added in 0..count {
            if self.refuses(SpaceId::OWN) {
                return added;
            }
            self.frames.put(frame.0 + added, &[0; PAGE_SIZE]);
            self.pages_handled += 1;
        }
        count
    }

    fn drop_frames(&mut self, frame: FrameIndex, count: u32) -> u32 {
        for dropped in 0..count {
            if self.random.ratio(1, LOCKED_EVERY) {
                return dropped;
            }
            self.frames.take(frame.0 + dropped);
        }
        count
    }

    fn wake(&mut self, space: SpaceId, page: PageNumber) {
        if let Some(place) = self.spaces.get_mut(&space) {
            place.wake(page.0);
            self.woken.push((space, page.0));
        }
    }

    fn poison(&mut self, space: SpaceId, page: PageNumber) -> Result<(), FillError> {
        self.fillable(space, page)?;
        self.space_mut(space).poisoned.insert(page.0);
        self.wake(space, page);
        Ok(())
    }

    fn resident_pages(&mut self) -> u64 {
        self.resident()
    }

    fn register_more(&mut self, pages: u64, into: &mut Vec<(PageRange, Vec<PageNumber>)>) {
        let place = self.space_mut(SpaceId::OWN);
        let mut found = 0;
        for range in place.unregistered(REGISTERED_AT_A_TIME) {
            let pages_of = range.start.0..range.end().0;
            place.registered.extend(pages_of.clone());
            let resident: Vec<PageNumber> = place
                .present
                .range(pages_of)
                .map(|(&page, _)| PageNumber(page))
                .collect();
            found += resident.len() as u64;
            into.push((range, resident));
            if found >= pages {
                return;
            }
        }
    }

    fn is_registered(&self, page: PageNumber) -> bool {
        self.spaces[&SpaceId::OWN].registered.contains(&page.0)
    }

    fn space_alive(&mut self, space: SpaceId) -> bool {
        self.spaces.get(&space).is_some_and(|space| !space.ended)
    }

    fn close_space(&mut self, space: SpaceId) {
        self.spaces.remove(&space);
    }
}
