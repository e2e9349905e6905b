//! [`Kernel`] on Linux.

mod accept;
mod child;
mod child_ranges;
mod close;
mod dropped;
mod events;
mod fork;
mod frames;
mod gather;
mod newborn;
mod own;
mod refused;
mod register;
mod resident;
mod survey;
mod thread_blocks;

use super::context::OpenError;
use super::dropper::{Dropper, StartTask};
use super::features::Features;
use super::frame_memory::LinuxFrames;
use super::hand::remote::{Applicant, Hand};
use super::message::Message;
use super::processor_clock::ProcessorClock;
use super::residency::Residency;
use super::transfer::surely;
use super::{Layout, Userfaultfd};
use crate::{
    Charge, Departure, EvictError, FillError, FrameIndex, Incoming, Kernel, PageRange, RangeSet,
    SpaceId, SpacePage,
};
use accept::Order;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use child::Child;
use dropped::Dropping;
use gather::Gathering;
use legato_base::{Duration, PAGE_SIZE, PageNumber};
use legato_verbs::MemoryRegion;
use refused::Refused;
use resident::Shared;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::process::Pid;
use survey::Survey;
use thread_blocks::{ThreadBlocks, leave_before};

/// The program's address space, and its forked children's.
#[derive(Debug)]
pub(super) struct LinuxKernel {
    pub(super) layout: Layout,
    pub(super) features: Features,
    pub(super) program: i32,
    processor_clock: Option<ProcessorClock>,
    /// The agent's code and data, whose zero-initialised part looks like the program's memory.
    object: PageRange,
    pub(super) own: Userfaultfd,
    trash: Userfaultfd,
    pub(super) frames: LinuxFrames,
    pub(super) residency: Residency,
    registered: RangeSet,
    refused: Refused,
    thread_blocks: ThreadBlocks,
    children: BTreeMap<SpaceId, Child>,
    order: BTreeMap<SpaceId, Order>,
    /// Spaces whose events are not read yet.
    gathering: BTreeMap<SpaceId, Gathering>,
    /// What was found and is not in the pager's charge yet.
    surveys: BTreeMap<SpaceId, Survey>,
    /// Spaces of which it was asked whether all is dropped.
    dropping: BTreeMap<SpaceId, Dropping>,
    /// Hands whose child is yet to be found.
    applicants: Vec<Applicant>,
    /// Children that were ended and not reported yet.
    killed: Vec<Pid>,
    shared: Shared,
    /// The program is gone.
    own_closed: bool,
    last_space: u32,
    /// Starts the task that drops pages. It is started when it is first needed.
    start_task: StartTask,
    pub(super) dropper: Option<Dropper>,
    /// Messages that were read in the middle of something else.
    pub(super) backlog: Vec<(SpaceId, Message)>,
    /// Pages whose write protection could not be ended yet, and somebody waits.
    protected: Vec<(SpaceId, PageNumber)>,
    /// Ranges that are being dropped, whose pages are to be watched.
    unwatched: Vec<(SpaceId, PageRange)>,
    /// Memory that may have been dropped without being the agent's to drop.
    pub(super) damaged: Option<PageNumber>,
    /// Somebody touches a lost page, and the kernel has no way to say so.
    lost_touched: Option<SpacePage>,
    /// The program forked, and what its child does not get could not be read.
    unreadable: bool,
    /// A child could not be asked what it has inherited.
    unclear_fork: bool,
    foreign: Foreign,
}

/// Does part of the program's memory belong to a userfaultfd of its own?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Foreign {
    #[default]
    Unseen,
    Seen,
    Said,
}

impl Foreign {
    /// A range is registered with somebody else's userfaultfd.
    fn note(&mut self) {
        if *self == Self::Unseen {
            *self = Self::Seen;
        }
    }
}

/// What the kernel is made of.
#[derive(Debug)]
pub(super) struct Mechanism {
    pub(super) layout: Layout,
    pub(super) features: Features,
    pub(super) program: i32,
    pub(super) object: PageRange,
    pub(super) own: Userfaultfd,
    pub(super) trash: Userfaultfd,
    pub(super) start_task: StartTask,
}

impl LinuxKernel {
    pub(super) fn new(
        Mechanism {
            layout,
            features,
            program,
            object,
            own,
            trash,
            start_task,
        }: Mechanism,
        pages: MemoryRegion,
        headers: MemoryRegion,
    ) -> Result<Self, OpenError> {
        let residency = Residency::open(None, !features.mask.pagemap_scan)
            .map_err(|e| OpenError::System(e.raw_os_error()))?;
        Ok(Self {
            layout,
            features,
            program,
            processor_clock: Pid::from_raw(program).map(ProcessorClock::new),
            object,
            own,
            trash,
            frames: LinuxFrames::new(layout, pages, headers),
            residency,
            registered: RangeSet::default(),
            refused: Refused::default(),
            thread_blocks: ThreadBlocks::default(),
            children: BTreeMap::new(),
            order: BTreeMap::new(),
            gathering: BTreeMap::new(),
            surveys: BTreeMap::new(),
            dropping: BTreeMap::new(),
            applicants: Vec::new(),
            killed: Vec::new(),
            shared: Shared::default(),
            own_closed: false,
            last_space: 0,
            start_task,
            dropper: None,
            backlog: Vec::new(),
            protected: Vec::new(),
            unwatched: Vec::new(),
            damaged: None,
            lost_touched: None,
            unreadable: false,
            unclear_fork: false,
            foreign: Foreign::default(),
        })
    }

    /// The descriptors to wait on.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        core::iter::once(&self.own)
            .chain(self.children.values().map(|child| &child.context))
            .map(Userfaultfd::fd)
            .chain(
                self.processor_clock
                    .as_ref()
                    .and_then(ProcessorClock::alarm),
            )
    }

    pub(super) fn descriptor(&self, space: SpaceId) -> Option<BorrowedFd<'_>> {
        self.space(space).map(Userfaultfd::fd)
    }

    /// Memory that may have been dropped without being the agent's to drop.
    pub(super) const fn take_damage(&mut self) -> Option<PageNumber> {
        self.damaged.take()
    }

    /// A lost page that somebody waits for, who must never get one.
    pub(super) const fn take_lost_touched(&mut self) -> Option<SpacePage> {
        self.lost_touched.take()
    }

    /// MOVE says ENOENT for a frame without memory too, which must not be looked into: nobody would
    /// answer the fault.
    fn fill_error(&self, error: Errno, frame: FrameIndex) -> FillError {
        let memory = PageNumber::containing(self.layout.frame(frame.0));
        match fill_error(error) {
            FillError::Gone => match self.residency.pages_in(PageRange::new(memory, 1)) {
                Ok(found) if found.is_empty() => FillError::Empty,
                _ => FillError::Gone,
            },
            error => error,
        }
    }

    /// True once, after part of the program's memory was found to belong to a userfaultfd of its own.
    pub(super) fn take_foreign(&mut self) -> bool {
        let seen = self.foreign == Foreign::Seen;
        if seen {
            self.foreign = Foreign::Said;
        }
        seen
    }

    /// True, once, if what a forked child has inherited cannot be told.
    pub(super) const fn take_unclear_fork(&mut self) -> bool {
        core::mem::replace(&mut self.unclear_fork, false)
    }

    /// True once, after a child may have got what it was not to get.
    pub(super) const fn take_unreadable(&mut self) -> bool {
        core::mem::replace(&mut self.unreadable, false)
    }

    /// What is registered in a space, as far as its messages tell.
    fn armed(&self, space: SpaceId) -> Option<&RangeSet> {
        if space == SpaceId::OWN {
            Some(&self.registered)
        } else {
            self.children.get(&space).map(|child| &child.ranges.armed)
        }
    }

    /// None of a child that has no hand.
    fn residency_of(&self, space: SpaceId) -> Option<&Residency> {
        if space == SpaceId::OWN {
            Some(&self.residency)
        } else {
            let child = self.children.get(&space)?;
            Some(&child.hand.as_ref()?.residency)
        }
    }

    fn space(&self, space: SpaceId) -> Option<&Userfaultfd> {
        if space == SpaceId::OWN {
            Some(&self.own)
        } else {
            self.children.get(&space).map(|child| &child.context)
        }
    }
}

impl Kernel for LinuxKernel {
    type Frames = LinuxFrames;

    fn frames(&self) -> &LinuxFrames {
        &self.frames
    }

    fn frames_mut(&mut self) -> &mut LinuxFrames {
        &mut self.frames
    }

    fn read(&mut self) -> Incoming {
        self.read_messages()
    }

    fn has_backlog(&self) -> bool {
        self.has_messages()
    }

    fn can_evict(&self, space: SpaceId) -> bool {
        let has_hand = |child: &Child| child.hand.is_some();
        match space {
            SpaceId::OWN => !self.own_closed,
            _ => self.children.get(&space).is_some_and(has_hand),
        }
    }

    fn move_out(
        &mut self,
        page: SpacePage,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>) {
        let range = PageRange::new(page.page(), u64::from(count));
        let free = match self.still_registered(page.space(), range) {
            Ok(registered) => self.may_leave(page.space(), registered),
            Err(error) => return (0, Err(error)),
        };
        let (moved, result) = leave_before(free, count, || {
            if page.space() == SpaceId::OWN {
                self.move_out_own(page.page(), frame, free)
            } else {
                self.move_out_child(page.space(), page.page(), frame, free)
            }
        });
        if moved > 0 {
            self.note_settled(page.space());
        }
        (moved, result)
    }

    fn move_out_runs(&mut self, runs: &mut [Departure]) {
        let mut rest = runs;
        while let Some(first) = rest.first() {
            let space = first.page.space();
            let own = rest
                .iter()
                .take_while(|run| run.page.space() == space)
                .count();
            let (batch, later) = rest.split_at_mut(own);
            let copies = space == SpaceId::OWN && !self.features.can_move();
            let mut stays = |run: &Departure| {
                let range = PageRange::new(run.page.page(), u64::from(run.count));
                self.may_leave(space, range) < run.count
            };
            if copies && !batch.iter().any(&mut stays) {
                self.copy_out_runs(batch);
            } else {
                Departure::one_by_one(self, batch);
            }
            // Once it must settle, nothing more is tried.
            if batch.iter().any(|run| run.error == Some(EvictError::Again)) {
                return;
            }
            rest = later;
        }
    }

    fn moves_memory(&self, space: SpaceId) -> bool {
        space == SpaceId::OWN && self.features.can_move()
    }

    fn move_in(
        &mut self,
        frame: FrameIndex,
        page: SpacePage,
        count: u32,
    ) -> (u32, Result<(), FillError>) {
        if self.is_unsettled() {
            return (0, Err(FillError::Again));
        }
        let (to, from) = (page.page().address(), self.layout.frame(frame.0));
        let (moved, result) = if page.space() == SpaceId::OWN {
            self.move_in_own(to, from, count)
        } else if let Some(context) = self.space(page.space()) {
            Self::move_in_child(context, to, from, count)
        } else {
            return (0, Err(FillError::SpaceGone));
        };
        if moved > 0 {
            self.note_settled(page.space());
        }
        let failed = FrameIndex(frame.0 + moved);
        (
            moved,
            result.map_err(|error| self.fill_error(error, failed)),
        )
    }

    fn copy_in(&mut self, frame: FrameIndex, page: SpacePage) -> Result<(), FillError> {
        if self.is_unsettled() {
            return Err(FillError::Again);
        }
        let from = self.layout.frame(frame.0);
        let context = self.space(page.space()).ok_or(FillError::SpaceGone)?;
        // SAFETY: the frame has memory, and the pager has put the page's content there.
        let copy = || unsafe { context.copy(page.page().address(), from, PAGE_SIZE as u64) };
        surely(copy).1.map_err(fill_error)?;
        self.note_settled(page.space());
        Ok(())
    }

    fn zero_in(&mut self, page: SpacePage) -> Result<(), FillError> {
        if self.is_unsettled() {
            return Err(FillError::Again);
        }
        let context = self.space(page.space()).ok_or(FillError::SpaceGone)?;
        // SAFETY: the pager knows that the page was never written.
        let zero = || ((), unsafe { context.zero(page.page()) });
        surely(zero).1.map_err(fill_error)?;
        self.note_settled(page.space());
        Ok(())
    }

    fn add_frames(&mut self, frame: FrameIndex, count: u32) -> u32 {
        self.give_memory(frame, count)
    }

    fn drop_frames(&mut self, frame: FrameIndex, count: u32) -> u32 {
        self.take_memory(frame, count)
    }

    fn wake(&mut self, page: SpacePage) {
        if let Some(context) = self.space(page.space()) {
            // Fails only for a space that is gone: then nobody waits.
            let _ = context.wake(page.page());
        }
    }

    fn poison(&mut self, page: SpacePage) -> Result<(), FillError> {
        if self.is_unsettled() {
            return Err(FillError::Again);
        }
        let context = self.space(page.space()).ok_or(FillError::SpaceGone)?;
        if self.features.can_poison() {
            let poison = || ((), context.poison(page.page()));
            return surely(poison).1.map_err(fill_error);
        }
        self.lost_touched = Some(page);
        Err(FillError::Again)
    }

    fn resident_pages(&mut self) -> u64 {
        self.count_resident()
    }

    fn processor_time(&self) -> Option<Duration> {
        self.count_processor_time()
    }

    fn wake_when_run(&mut self, wanted: bool) -> bool {
        let clock = self.processor_clock.as_mut();
        clock.is_some_and(|clock| clock.set_alarm(wanted))
    }

    fn register_more(&mut self, pages: u64, into: &mut Vec<Charge>) {
        self.take_charge(pages, into);
    }

    fn finish_registering(&mut self, into: &mut Vec<Charge>) {
        self.finish_surveys(into);
    }

    fn zero_mapped(&mut self, space: SpaceId, range: PageRange) -> Vec<PageNumber> {
        self.residency_of(space)
            .and_then(|residency| residency.zero_mapped(range).ok())
            .unwrap_or_default()
    }

    fn is_changing(&self) -> bool {
        let mut children = self.children.values();
        self.is_unsettled()
            || self.own.is_changing()
            || children.any(|child| child.context.is_changing())
    }

    fn is_registered(&self, page: SpacePage) -> bool {
        if page.space() == SpaceId::OWN {
            return self.registered.contains(page.page());
        }
        let child = self.children.get(&page.space());
        child.is_some_and(|child| child.ranges.charged.contains(page.page()))
    }

    fn may_be_dropping(&mut self, space: SpaceId) -> bool {
        let child = self.children.get(&space);
        let hand = child.and_then(|child| child.hand.as_ref());
        let process = if space == SpaceId::OWN {
            Pid::from_raw(self.program)
        } else {
            hand.map(Hand::child)
        };
        process.is_none_or(Residency::may_be_dropping)
    }

    fn has_dropped_all(&mut self, space: SpaceId) -> bool {
        self.all_is_dropped(space)
    }

    fn residents_from(
        &mut self,
        space: SpaceId,
        from: PageNumber,
        into: &mut Vec<PageNumber>,
    ) -> Option<PageNumber> {
        self.residents_in_charge(space, from, into)
    }

    fn space_alive(&mut self, space: SpaceId) -> bool {
        if space == SpaceId::OWN {
            self.own.is_alive()
        } else {
            self.child_alive(space)
        }
    }

    fn close_space(&mut self, space: SpaceId) {
        self.order.remove(&space);
        self.gathering.remove(&space);
        self.surveys.remove(&space);
        self.dropping.remove(&space);
        if space == SpaceId::OWN {
            self.close_own();
        } else if self.children.remove(&space).is_some() {
            self.shared.forget();
        }
    }
}

const fn evict_error(error: Errno) -> EvictError {
    match error {
        Errno::AGAIN => EvictError::Again,
        Errno::BUSY => EvictError::Pinned,
        Errno::NOENT => EvictError::Absent,
        _ => EvictError::Fixed,
    }
}

const fn fill_error(error: Errno) -> FillError {
    match error {
        Errno::AGAIN => FillError::Again,
        Errno::EXIST => FillError::Present,
        Errno::NOENT => FillError::Gone,
        Errno::SRCH => FillError::SpaceGone,
        Errno::NOMEM => FillError::NoMemory,
        _ => FillError::CopyOnly,
    }
}
