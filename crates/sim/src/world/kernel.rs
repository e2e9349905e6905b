//! A model of the Linux side of the pager: what userfaultfd, MOVE and the program's mappings do,
//! with their refusals.

use super::config::{Attaching, Registering};
use super::content::page_of;
use super::defect::Defect;
use super::frames::SimFrames;
use super::physical::{Page, PhysicalMemory};
use super::processor::Processor;
use super::space::Space;
use super::transfer::{LOCKED_EVERY, one_by_one};
use legato_base::{Duration, PAGE_SIZE, PageNumber, Random, Time};
use legato_pager::{
    Charge, Departure, EvictError, FillError, FrameIndex, Incoming, Kernel, PageRange, SpaceId,
    SpacePage,
};
use std::collections::{BTreeMap, BTreeSet};

/// A child that pages cannot leave yet is attached in one of so many turns of the agent.
const ATTACHED_EVERY: u64 = 40;

/// Resident pages that are looked at in one go.
const LOOKED_AT: usize = 64;

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
    pub(super) last_space: u32,
    pub(super) memory: PhysicalMemory,
    pub(super) defect: Option<Defect>,
    /// Whatever is read counts as done then.
    pub(super) follows_at_once: bool,
    pub(super) attaching: Attaching,
    pub(super) registering: Registering,
    /// What was registered last is not reported in the same turn.
    pub(super) is_late: bool,
    /// Nothing happens by chance: no page is locked for a moment, and every page can be moved.
    pub(super) steady: bool,
    /// Pages moved, copied and cleared since the agent's time was last counted.
    pub(super) pages_handled: u64,
    /// How often the agent has looked for memory to take charge of.
    pub(super) looks: u64,
    /// Frames that got new memory.
    pub(super) frames_given: u64,
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
            frames_given: 0,
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

    /// Sooner or later pages can leave a child whose faults the pager serves.
    fn attach_children(&mut self) {
        let now = self.now;
        for space in self.spaces.values_mut() {
            let is_ready = space.known && !space.is_changing(now) && !space.ended;
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

    fn move_out_runs(&mut self, runs: &mut [Departure]) {
        Departure::one_by_one(runs, |run| {
            let (moved, result) = self.move_out(run.page, run.frame, run.count);
            let place = self.space_mut(run.page.space());
            let first = run.page.page().0;
            let mut left = first..first + u64::from(moved);
            let are_registered = left.all(|page| place.registered.contains(&page));
            // Where to ask costs a system call, nobody asks.
            assert!(are_registered || !run.filled, "left unregistered: {run:?}");
            (moved, result)
        });
    }

    fn move_in(
        &mut self,
        frame: FrameIndex,
        page: SpacePage,
        count: u32,
    ) -> (u32, Result<(), FillError>) {
        one_by_one(frame, page, count, |frame, page| {
            self.move_one_in(frame, page)
        })
    }

    fn copy_in(
        &mut self,
        frame: FrameIndex,
        page: SpacePage,
        count: u32,
    ) -> (u32, Result<(), FillError>) {
        one_by_one(frame, page, count, |frame, page| {
            self.copy_one_in(frame, page)
        })
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
            self.frames_given += 1;
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
        if self.defect == Some(Defect::LossesForgotten) {
            self.fill(page, page_of(0));
            return Ok(());
        }
        let spread = u64::from(self.defect == Some(Defect::LossesSpread));
        let place = self.space_mut(page.space());
        let last = page.page().0 + spread;
        let missing = (page.page().0..=last).filter(|page| !place.present.contains_key(page));
        place.poisoned.extend(missing);
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

    fn register_more(&mut self, pages: u64, into: &mut Vec<Charge>) -> Duration {
        self.register(pages, into);
        Duration::ZERO
    }

    fn finish_registering(&mut self, into: &mut Vec<Charge>) {
        self.say_registered(into);
    }

    fn is_registered(&self, page: SpacePage) -> bool {
        let place = self.spaces.get(&page.space());
        place.is_some_and(|space| space.in_charge.contains(page.page()))
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
        self.spaces.contains_key(&space) && !self.has_ended(space)
    }

    fn close_space(&mut self, space: SpaceId) {
        self.spaces.remove(&space);
    }
}
