//! [`Kernel`] on Linux.

mod accept;
mod child;
mod close;
mod droppable;
mod dropped;
mod events;
mod fork;
mod frames;
mod gather;
mod grown;
mod kernel;
mod newborn;
mod own;
mod ranges;
mod refused;
mod register;
mod resident;
mod rss;
mod space;
mod survey;
mod thread_blocks;
mod undone;
mod waits;

use super::dropper::{Dropper, StartTask};
use super::features::Features;
use super::frame_memory::LinuxFrames;
use super::hand::remote::Applicant;
use super::message::Message;
use super::opening::OpenError;
use super::processor_clock::ProcessorClock;
use super::residency::Residency;
use super::{Layout, Userfaultfd};
use crate::{PageRange, SpaceId, SpacePage};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use child::Child;
pub(super) use fork::LeftOut;
use legato_base::PageNumber;
use legato_verbs::MemoryRegion;
use ranges::Ranges;
use resident::Shared;
use rss::RssCounter;
pub(super) use rss::is_exact;
use rustix::fd::BorrowedFd;
use rustix::process::Pid;
use space::Space;

/// The program's address space, and its forked children's.
#[derive(Debug)]
pub(super) struct LinuxKernel {
    pub(super) layout: Layout,
    pub(super) features: Features,
    pub(super) program: i32,
    /// Other processes that use the program's memory, as far as they have been seen.
    sharers: Vec<Pid>,
    processor_clock: Option<ProcessorClock>,
    /// The agent's code and data, whose zero-initialised part looks like the program's memory.
    object: PageRange,
    /// Where musl keeps the word that the kernel clears when a thread ends.
    last_word: Option<PageNumber>,
    pub(super) own: Space,
    trash: Userfaultfd,
    pub(super) frames: LinuxFrames,
    pub(super) residency: Residency,
    children: BTreeMap<SpaceId, Child>,
    /// Hands whose child is yet to be found.
    applicants: Vec<Applicant>,
    /// Children that were ended and not reported yet.
    killed: Vec<Pid>,
    own_rss: RssCounter,
    shared: Shared,
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
    /// Pages that are away and could not be marked yet.
    unmarked: Vec<(SpaceId, PageRange)>,
    /// Memory that may have been dropped without being the agent's to drop.
    pub(super) damaged: Option<PageNumber>,
    /// Which area of the layout takes pages that leave by being copied.
    pub(super) area: u32,
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
    pub(super) last_word: Option<u64>,
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
            last_word,
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
            sharers: Vec::new(),
            processor_clock: Pid::from_raw(program).map(ProcessorClock::new),
            object,
            last_word: last_word.map(PageNumber::containing),
            own: Space::new(own, Ranges::default()),
            trash,
            frames: LinuxFrames::new(layout, pages, headers),
            residency,
            children: BTreeMap::new(),
            applicants: Vec::new(),
            killed: Vec::new(),
            own_rss: RssCounter::new(features.mask),
            shared: Shared::default(),
            last_space: 0,
            start_task,
            dropper: None,
            backlog: Vec::new(),
            protected: Vec::new(),
            unwatched: Vec::new(),
            unmarked: Vec::new(),
            damaged: None,
            area: 0,
            lost_touched: None,
            unreadable: false,
            unclear_fork: false,
            foreign: Foreign::default(),
        })
    }

    /// The descriptors to wait on.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let clock = self.processor_clock.as_ref();
        let alarm = clock.and_then(ProcessorClock::alarm);
        self.spaces().map(|space| space.context.fd()).chain(alarm)
    }

    pub(super) fn descriptor(&self, space: SpaceId) -> Option<BorrowedFd<'_>> {
        self.space(space).map(|space| space.context.fd())
    }

    /// Other processes than the program use its memory.
    pub(super) fn set_sharers(&mut self, sharers: Vec<Pid>) {
        self.sharers = sharers;
    }

    /// Memory that may have been dropped without being the agent's to drop.
    pub(super) const fn take_damage(&mut self) -> Option<PageNumber> {
        self.damaged.take()
    }

    /// A lost page that somebody waits for, who must never get one.
    pub(super) const fn take_lost_touched(&mut self) -> Option<SpacePage> {
        self.lost_touched.take()
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

    /// None of a child that has no hand.
    fn residency_of(&self, space: SpaceId) -> Option<&Residency> {
        if space == SpaceId::OWN {
            Some(&self.residency)
        } else {
            let child = self.children.get(&space)?;
            Some(&child.hand.as_ref()?.residency)
        }
    }

    fn space(&self, id: SpaceId) -> Option<&Space> {
        match id {
            SpaceId::OWN => Some(&self.own),
            _ => self.children.get(&id).map(|child| &child.space),
        }
    }

    fn space_mut(&mut self, id: SpaceId) -> Option<&mut Space> {
        match id {
            SpaceId::OWN => Some(&mut self.own),
            _ => self.children.get_mut(&id).map(|child| &mut child.space),
        }
    }

    /// The program's, and its children's.
    fn spaces(&self) -> impl Iterator<Item = &Space> {
        core::iter::once(&self.own).chain(self.children.values().map(|child| &child.space))
    }

    /// Of the same spaces.
    fn ids(&self) -> Vec<SpaceId> {
        let children = self.children.keys().copied();
        core::iter::once(SpaceId::OWN).chain(children).collect()
    }
}
