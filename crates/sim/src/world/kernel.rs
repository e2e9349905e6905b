//! A model of the Linux side of the pager: what userfaultfd, MOVE and the program's mappings do,
//! with their refusals.

use super::config::{Attaching, Registering};
use super::defect::Defect;
use super::frames::SimFrames;
use super::physical::{Page, PhysicalMemory};
use super::processor::Processor;
use super::space::{Access, Space};
use legato_base::{Duration, PAGE_SIZE, PageNumber, Random, Time};
use legato_pager::order::Message;
use legato_pager::{
    Charge, EvictError, FillError, FrameIndex, FrameMemory, Incoming, Kernel, PageRange, SpaceId,
    SpacePage,
};
use std::collections::{BTreeMap, BTreeSet};

/// One move in so many is refused for a moment: another CPU has the page locked.
const LOCKED_EVERY: u64 = 64;
/// A child that pages cannot leave yet is attached in one of so many turns of the agent.
const ATTACHED_EVERY: u64 = 40;
/// One page in so many cannot be moved in, only copied: userfaultfd refuses some mappings.
const COPY_ONLY_EVERY: u64 = 61;
/// One child in so many is never attached.
const UNATTACHABLE_EVERY: u64 = 5;
/// One access in so many to a page that may be dropped finds it dropped.
const DROPPED_EVERY: u64 = 3;

/// Resident pages that are looked at in one go.
const LOOKED_AT: usize = 64;
/// One write in so many to a page that MADV_FREE left is faster than the agent.
const WRITTEN_UNSEEN_EVERY: u64 = 8;

/// The machine that the program and its forked children run on.
#[derive(Debug)]
pub struct SimKernel {
    pub(super) frames: SimFrames,
    pub(super) spaces: BTreeMap<SpaceId, Space>,
    /// Pages whose waiting threads may try again.
    pub(super) woken: Vec<(SpaceId, PageRange)>,
    /// Pages that MADV_FREE left and that were written since the last read.
    pub(super) written: Vec<SpacePage>,
    pub(super) random: Random,
    /// When the agent or a thread does what it does.
    pub(super) now: Time,
    /// How long the next change waits to be announced, if a test says so.
    pub(super) next_delay: Option<Duration>,
    processor: Processor,
    last_space: u32,
    memory: PhysicalMemory,
    pub(super) defect: Option<Defect>,
    /// Whatever is read counts as done then.
    pub(super) follows_at_once: bool,
    attaching: Attaching,
    pub(super) registering: Registering,
    /// What was registered last is not reported in the same turn.
    pub(super) is_late: bool,
    /// Nothing happens by chance: no page is locked for a moment, and every page can be moved.
    pub(super) steady: bool,
    /// Pages moved, copied and cleared since the agent's time was last counted.
    pub(super) pages_handled: u64,
    /// How often the agent has looked for memory to take charge of.
    pub(super) looks: u64,
    /// How often locked memory was to leave.
    pub(super) locked_tries: u64,
}

impl SimKernel {
    pub fn new(frames: SimFrames, random: Random, defect: Option<Defect>) -> Self {
        let own = Space {
            attached: true,
            known: true,
            ..Space::default()
        };
        Self {
            memory: own.memory.clone(),
            frames,
            spaces: BTreeMap::from([(SpaceId::OWN, own)]),
            woken: Vec::new(),
            written: Vec::new(),
            random,
            now: Time::ZERO,
            next_delay: None,
            processor: Processor::default(),
            last_space: 0,
            defect,
            follows_at_once: defect == Some(Defect::ReadAsDone),
            attaching: Attaching::ByChance,
            registering: Registering::ByChance,
            is_late: false,
            steady: false,
            pages_handled: 0,
            looks: 0,
            locked_tries: 0,
        }
    }

    #[must_use]
    pub(super) const fn with_attaching(mut self, attaching: Attaching) -> Self {
        self.attaching = attaching;
        self
    }

    #[must_use]
    pub(super) const fn with_registering(mut self, registering: Registering) -> Self {
        self.registering = registering;
        self
    }

    #[must_use]
    pub(super) const fn steady(mut self) -> Self {
        self.steady = true;
        self
    }

    /// Whatever is read counts as done then.
    #[must_use]
    pub(super) const fn following_at_once(mut self) -> Self {
        self.follows_at_once = true;
        self
    }

    pub(super) fn happens(&mut self, every: u64) -> bool {
        !self.steady && self.random.ratio(1, every)
    }

    /// A thread runs.
    pub(super) fn run(&mut self, now: Time) {
        self.now = now;
        self.processor.run(now, &mut self.random);
    }

    /// When the agent is woken because a thread runs.
    pub(super) const fn alarm_at(&self) -> Time {
        self.processor.alarm_at()
    }

    /// From now on pages can leave the space.
    pub(super) fn attach(&mut self, space: SpaceId) {
        self.space_mut(space).attached = true;
    }

    pub(super) fn space_mut(&mut self, space: SpaceId) -> &mut Space {
        self.spaces
            .get_mut(&space)
            .expect("a running thread has an address space")
    }

    pub(super) fn touch(&mut self, space: SpaceId, page: u64) -> Access {
        self.drop_lazy(space, page);
        self.space_mut(space).touch(page)
    }

    /// The kernel drops a page that it may drop, or leaves it.
    fn drop_lazy(&mut self, space: SpaceId, page: u64) {
        if self.space_mut(space).lazy.contains(&page) && self.happens(DROPPED_EVERY) {
            let range = PageRange::new(PageNumber(page), 1);
            self.space_mut(space).zap(range);
        }
    }

    /// `mmap` of fresh memory, over whatever is there.
    pub(super) fn map(&mut self, space: SpaceId, range: PageRange) -> Option<u64> {
        let event = self.unmap(space, range);
        self.space_mut(space).map(range);
        event
    }

    /// `madvise(MADV_DONTNEED)` or `MADV_FREE`, first half. Returns the event to wait for, if there
    /// is one; only then is the content dropped.
    pub(super) fn announce_removal(&mut self, space: SpaceId, range: PageRange) -> Option<u64> {
        let place = self.space_mut(space);
        place.announced_since(range);
        place.is_watched(range).then(|| {
            let unmapped = false;
            let event = self.announce(space, [Message::Removed { range, unmapped }]);
            self.space_mut(space).begin_dropping(event, range);
            event
        })
    }

    pub(super) fn unmap(&mut self, space: SpaceId, range: PageRange) -> Option<u64> {
        let unmapped = true;
        self.space_mut(space)
            .unmap(range)
            .then(|| self.announce(space, [Message::Removed { range, unmapped }]))
    }

    pub(super) fn remap(
        &mut self,
        space: SpaceId,
        from: PageRange,
        to: PageNumber,
        grow: u64,
    ) -> Option<u64> {
        // What is at the new place goes first, with an event of its own.
        let target = PageRange::new(to, from.count + grow);
        let unmapped = |range| Message::Removed {
            range,
            unmapped: true,
        };
        let place = self.space_mut(space);
        let mut messages = Vec::from_iter(place.unmap(target).then(|| unmapped(target)));
        let is_watched = place.remap(from, to.0, grow);
        if is_watched {
            // Moving a mapping ends with unmapping the old one, which is reported as well.
            let kept = false;
            messages.push(Message::Remapped { from, to, kept });
            messages.push(unmapped(from));
        }
        (!messages.is_empty()).then(|| self.announce(space, messages))
    }

    pub(super) fn fork(&mut self, parent: SpaceId) -> (SpaceId, Option<u64>) {
        self.last_space += 1;
        let child = SpaceId(self.last_space);
        let place = self.space_mut(parent);
        let mut copy = place.copy();
        let event = (!copy.registered.is_empty())
            .then(|| self.announce(parent, [Message::Forked { child }]));
        copy.unattachable = self.attaching == Attaching::ByHand || self.happens(UNATTACHABLE_EVERY);
        self.spaces.insert(child, copy);
        (child, event)
    }

    /// The space's process ends.
    pub(super) fn end(&mut self, space: SpaceId) {
        let place = self.space_mut(space);
        place.ended = true;
        place.announcements.clear();
        place.faults.clear();
        place.present.clear();
        // Of what was never registered the pager does not know.
        if place.registered.is_empty() && space != SpaceId::OWN {
            self.spaces.remove(&space);
        }
    }

    /// `fork` fails because its process was killed: what was made of the child goes (`copy_process` in
    /// kernel/fork.c, `userfaultfd_event_wait_completion` in fs/userfaultfd.c). Only a pager that has
    /// read of it knows of the child.
    pub(super) fn end_unborn(&mut self, parent: SpaceId, child: SpaceId, event: u64) {
        if self.is_read(parent, event) {
            self.end(child);
        } else {
            self.spaces.remove(&child);
        }
    }

    /// True if the space's process has ended and the pager has not taken note of it.
    pub(super) fn has_ended(&self, space: SpaceId) -> bool {
        self.spaces.get(&space).is_some_and(|space| space.ended)
    }

    /// True if the pager has read the event, or the space is gone with all its events.
    pub(super) fn is_read(&self, space: SpaceId, event: u64) -> bool {
        self.spaces
            .get(&space)
            .is_none_or(|space| space.announcements.is_over(event))
    }

    /// The program writes to a page that MADV_FREE left. Mostly the agent sees it: it protects such
    /// pages where it is in charge, but a thread may be faster.
    pub(super) fn report_written(&mut self, page: SpacePage) {
        if !self.is_registered(page) {
            return;
        }
        if self.happens(WRITTEN_UNSEEN_EVERY) {
            let strays = &mut self.space_mut(page.space()).strays;
            strays.insert(page.page().0);
        } else {
            self.written.push(page);
        }
    }

    /// Sooner or later pages can leave a child whose faults the pager serves.
    fn attach_children(&mut self) {
        for space in self.spaces.values_mut() {
            let is_ready = space.known && !space.is_changing() && !space.ended;
            if is_ready
                && !space.attached
                && !space.unattachable
                && self.random.ratio(1, ATTACHED_EVERY)
            {
                space.attached = true;
            }
        }
    }

    /// True if pages can leave every space.
    pub(super) fn all_attached(&self) -> bool {
        self.spaces.values().all(|space| space.attached)
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
        let own = self.spaces.get(&SpaceId::OWN);
        own.is_some_and(|space| space.present.contains_key(&page.0))
    }

    /// Local pages of all spaces and the frames.
    pub(super) fn resident(&self) -> u64 {
        self.frames.backed() + self.memory.pages()
    }

    /// True if the address space refuses moves now.
    fn refuses(&mut self, space: SpaceId) -> bool {
        let changing = self.spaces.get(&space).is_some_and(Space::is_changing);
        changing || self.happens(LOCKED_EVERY)
    }

    /// Why a page cannot be filled, if it cannot.
    fn fillable(&mut self, page: SpacePage) -> Result<(), FillError> {
        let (space, page) = (page.space(), page.page());
        if self.spaces.get(&space).is_none_or(|space| space.ended) {
            return Err(FillError::SpaceGone);
        }
        if self.refuses(space) {
            return Err(FillError::Again);
        }
        let place = self.space_mut(space);
        if !place.registered.contains(&page.0) {
            Err(FillError::Gone)
        } else if place.present.contains_key(&page.0) {
            Err(FillError::Present)
        } else {
            Ok(())
        }
    }

    /// As [`Self::fillable`]: copying replaces poison, and nothing else does.
    fn fillable_unless_poisoned(&mut self, page: SpacePage) -> Result<(), FillError> {
        self.fillable(page)?;
        let poisoned = &self.space_mut(page.space()).poisoned;
        if poisoned.contains(&page.page().0) {
            Err(FillError::Present)
        } else {
            Ok(())
        }
    }

    fn fill(&mut self, page: SpacePage, content: Box<[u8; PAGE_SIZE]>) {
        self.pages_handled += 1;
        let content = self.memory.page(content);
        let place = self.space_mut(page.space());
        place.poisoned.remove(&page.page().0);
        place.present.insert(page.page().0, content);
        self.wake(page);
    }

    fn move_one_in(&mut self, frame: FrameIndex, page: SpacePage) -> Result<(), FillError> {
        if page.space() != SpaceId::OWN {
            return self.copy_in(frame, page);
        }
        self.fillable(page)?;
        let locked = self.space_mut(page.space()).locked.contains(&page.page().0);
        if locked || !self.steady && page.page().0.is_multiple_of(COPY_ONLY_EVERY) {
            return Err(FillError::CopyOnly);
        }
        self.fillable_unless_poisoned(page)?;
        let content = self.frames.take(frame.0);
        self.fill(page, content);
        Ok(())
    }

    fn move_one_out(&mut self, page: SpacePage, frame: FrameIndex) -> Result<(), EvictError> {
        if self.refuses(page.space()) {
            return Err(EvictError::Again);
        }
        let torn = self.defect == Some(Defect::PagesTorn);
        let space = page.space();
        self.drop_lazy(space, page.page().0);
        let place = self.space_mut(space);
        let page = page.page();
        if place.locked.contains(&page.0) {
            return Err(EvictError::Locked { more: 0 });
        }
        if place.poisoned.contains(&page.0) {
            return Err(EvictError::Fixed);
        }
        if place.pinned.contains(&page.0) && place.present.contains_key(&page.0) {
            return Err(EvictError::Pinned);
        }
        let shared = place.present.remove(&page.0).ok_or(EvictError::Absent)?;
        place.lazy.remove(&page.0);
        let mut content = *shared.bytes();
        if torn && page.0.is_multiple_of(97) {
            content[PAGE_SIZE - 1] ^= 1;
        }
        self.frames.put(frame.0, &content);
        if space == SpaceId::OWN {
            self.frames.mark_foreign(frame.0);
        }
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

    fn read(&mut self) -> Incoming {
        let mut incoming = Incoming {
            written: std::mem::take(&mut self.written),
            ..Incoming::default()
        };
        self.is_late &= self.registering == Registering::ByHand;
        self.attach_children();
        // A thread that writes to a protected page waits until that is read: what it does then comes later.
        if incoming.written.is_empty() {
            self.read_messages(&mut incoming);
        }
        incoming
    }

    fn has_backlog(&self) -> bool {
        false
    }

    fn can_evict(&self, space: SpaceId) -> bool {
        self.spaces
            .get(&space)
            .is_some_and(|space| space.attached && !space.ended)
    }

    fn moves_memory(&self, space: SpaceId) -> bool {
        space == SpaceId::OWN
    }

    fn move_out(
        &mut self,
        page: SpacePage,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>) {
        for moved in 0..count {
            let to = FrameIndex(frame.0 + moved);
            let from = page.plus(u64::from(moved));
            match self.move_one_out(from, to) {
                Ok(()) => {}
                Err(EvictError::Locked { .. }) => {
                    self.locked_tries += 1;
                    let locked = &self.space_mut(page.space()).locked;
                    let pages = (1..count - moved).map(|step| from.plus(u64::from(step)).page());
                    let more = pages.take_while(|page| locked.contains(&page.0)).count() as u32;
                    return (moved, Err(EvictError::Locked { more }));
                }
                Err(error) => return (moved, Err(error)),
            }
        }
        (count, Ok(()))
    }

    fn move_in(
        &mut self,
        frame: FrameIndex,
        page: SpacePage,
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

    fn copy_in(&mut self, frame: FrameIndex, page: SpacePage) -> Result<(), FillError> {
        self.fillable(page)?;
        let content = self.frames.page(frame, |content| Box::new(*content));
        self.fill(page, content);
        Ok(())
    }

    fn zero_in(&mut self, page: SpacePage) -> Result<(), FillError> {
        self.fillable_unless_poisoned(page)?;
        self.fill(page, Box::new([0; PAGE_SIZE]));
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
            if self.happens(LOCKED_EVERY) {
                return dropped;
            }
            self.frames.take(frame.0 + dropped);
        }
        count
    }

    fn wake_range(&mut self, space: SpaceId, range: PageRange) {
        if let Some(place) = self.spaces.get_mut(&space) {
            place.wake(range);
            self.woken.push((space, range));
        }
    }

    fn poison(&mut self, page: SpacePage) -> Result<(), FillError> {
        self.fillable_unless_poisoned(page)?;
        let place = self.space_mut(page.space());
        place.poisoned.insert(page.page().0);
        self.wake(page);
        Ok(())
    }

    /// What only children have that pages cannot leave yet is not known to the agent.
    fn resident_pages(&mut self) -> u64 {
        if self.all_attached() {
            return self.resident();
        }
        let known = self.spaces.values().filter(|space| space.attached);
        let pages: BTreeSet<usize> = known
            .flat_map(|space| space.present.values())
            .map(Page::identity)
            .collect();
        self.frames.backed() + pages.len() as u64
    }

    /// As on Linux: each process has a clock of its own.
    fn processor_time(&self) -> Option<Duration> {
        let mut spaces = self.spaces.iter();
        let is_alone = matches!(spaces.next(), Some((&SpaceId::OWN, own)) if !own.ended);
        (is_alone && spaces.next().is_none()).then(|| self.processor.spent())
    }

    fn wake_when_run(&mut self, wanted: bool) -> bool {
        self.processor.set_alarm(wanted);
        true
    }

    fn register_more(&mut self, pages: u64, into: &mut Vec<Charge>) {
        self.register(pages, into);
    }

    fn finish_registering(&mut self, into: &mut Vec<Charge>) {
        self.say_registered(into);
    }

    fn is_registered(&self, page: SpacePage) -> bool {
        let number = page.page().0;
        let place = self.spaces.get(&page.space());
        place.is_some_and(|space| match page.space() {
            SpaceId::OWN => space.armed.contains(page.page()),
            _ => space.charged.contains(&number),
        })
    }

    fn note_dropping(&mut self, space: SpaceId) {
        self.spaces.get_mut(&space).map(Space::note_dropping);
    }

    fn has_dropped_all(&mut self, space: SpaceId) -> bool {
        let is_forgotten = self.defect == Some(Defect::DroppingForgotten);
        let place = self.spaces.get_mut(&space);
        place.is_some_and(|place| place.has_dropped_all() || is_forgotten)
    }

    fn residents_from(
        &mut self,
        space: SpaceId,
        from: PageNumber,
        into: &mut Vec<PageNumber>,
    ) -> Option<PageNumber> {
        let place = self.spaces.get(&space)?;
        let present = place.present.range(from.0..).map(|(&page, _)| page);
        let charged = present.filter(|page| place.charged.contains(page));
        let before = into.len();
        into.extend(charged.take(LOOKED_AT).map(PageNumber));
        into[before..].last().map(|last| last.plus(1))
    }

    fn space_alive(&mut self, space: SpaceId) -> bool {
        self.spaces.get(&space).is_some_and(|space| !space.ended)
    }

    fn close_space(&mut self, space: SpaceId) {
        self.spaces.remove(&space);
    }
}
