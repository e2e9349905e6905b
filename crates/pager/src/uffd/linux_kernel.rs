//! [`Kernel`] on Linux.

use super::context::{Message, OpenError};
use super::dropper::{Dropper, StartTask};
use super::eligible::eligible_ranges;
use super::features::FeatureError;
use super::features::Features;
use super::frame_memory::LinuxFrames;
use super::range_set::RangeSet;
use super::residency::Residency;
use super::{Layout, Userfaultfd};
use crate::{
    EvictError, FillError, FrameIndex, FrameMemory, Kernel, PageRange, SpaceEvent, SpaceId,
};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use legato_base::{PAGE_SHIFT, PAGE_SIZE, PageNumber};
use legato_verbs::MemoryRegion;
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::Advice;

/// Tries of an ioctl that says EAGAIN without an event to read: a page is locked for a moment.
const RETRIES: u32 = 16;

/// What a round of reading brought.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    pub(super) events: Vec<SpaceEvent>,
    pub(super) faults: Vec<(SpaceId, PageNumber)>,
    /// Spaces that are new, so that the supervisor can hold their userfaultfd too.
    pub(super) children: Vec<SpaceId>,
}

/// The program's address space, and its forked children's.
#[derive(Debug)]
pub(super) struct LinuxKernel {
    pub(super) layout: Layout,
    pub(super) features: Features,
    pub(super) program: i32,
    /// The agent's code and data, whose zero-initialised part looks like the program's memory.
    object: PageRange,
    pub(super) own: Userfaultfd,
    trash: Userfaultfd,
    pub(super) frames: LinuxFrames,
    pub(super) residency: Residency,
    registered: RangeSet,
    /// Ranges that refused registration: somebody else's userfaultfd, most likely.
    refused: RangeSet,
    children: BTreeMap<SpaceId, Userfaultfd>,
    last_space: u32,
    /// Starts the task that drops pages. It is started when it is first needed.
    start_task: StartTask,
    pub(super) dropper: Option<Dropper>,
    /// Messages that were read in the middle of something else.
    pub(super) backlog: Vec<Message>,
    /// Pages whose write protection could not be ended yet, and somebody waits.
    protected: Vec<(SpaceId, PageNumber)>,
    /// Memory that may have been dropped without being the agent's to drop.
    pub(super) damaged: Option<PageNumber>,
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
        let residency = Residency::open().map_err(|e| OpenError::System(e.raw_os_error()))?;
        // Without it pages that were resident before could never leave.
        let own_page = PageRange::new(layout.range().start, 1);
        residency
            .pages_in(own_page)
            .map_err(|_| FeatureError::PagemapScan)?;
        Ok(Self {
            layout,
            features,
            program,
            object,
            own,
            trash,
            frames: LinuxFrames::new(layout, pages, headers),
            residency,
            registered: RangeSet::default(),
            refused: RangeSet::default(),
            children: BTreeMap::new(),
            last_space: 0,
            start_task,
            dropper: None,
            backlog: Vec::new(),
            protected: Vec::new(),
            damaged: None,
        })
    }

    /// The descriptors to wait on.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        core::iter::once(&self.own)
            .chain(self.children.values())
            .map(Userfaultfd::fd)
    }

    pub(super) fn descriptor(&self, space: SpaceId) -> Option<BorrowedFd<'_>> {
        self.space(space).map(Userfaultfd::fd)
    }

    /// Reads what waits, and follows the changes of what is registered.
    pub(super) fn read(&mut self) -> Incoming {
        let mut incoming = Incoming::default();
        let spaces: Vec<SpaceId> = core::iter::once(SpaceId::OWN)
            .chain(self.children.keys().copied())
            .collect();
        for (space, page) in core::mem::take(&mut self.protected) {
            self.end_protection(space, page);
        }
        let mut messages = core::mem::take(&mut self.backlog);
        for space in spaces {
            // A child that has ended reads as an error; `space_alive` finds it.
            let _ = self.space(space).map(|context| context.read(&mut messages));
            for message in messages.drain(..) {
                self.accept(space, message, &mut incoming);
            }
        }
        incoming
    }

    /// Lets every waiting thread of every space try again.
    pub(super) fn wake_all(&self) {
        core::iter::once(&self.own)
            .chain(self.children.values())
            .for_each(Userfaultfd::wake_all);
    }

    fn accept(&mut self, space: SpaceId, message: Message, incoming: &mut Incoming) {
        match message {
            Message::Fault {
                page,
                protected: true,
            } => self.end_protection(space, page),
            Message::Fault {
                page,
                protected: false,
            } => incoming.faults.push((space, page)),
            Message::Forked { child } => {
                self.last_space += 1;
                let id = SpaceId(self.last_space);
                self.children.insert(id, child);
                incoming.children.push(id);
                incoming.events.push(SpaceEvent::Forked {
                    parent: space,
                    child: id,
                });
            }
            Message::Remapped { from, to, length } => {
                let (from, to) = (pages(from, from + length), PageNumber::containing(to));
                if space == SpaceId::OWN {
                    self.registered.remove(from);
                    self.registered.insert(PageRange::new(to, from.count));
                }
                incoming
                    .events
                    .push(SpaceEvent::Remapped { space, from, to });
            }
            Message::Removed {
                start,
                end,
                unmapped,
            } => {
                let range = pages(start, end);
                if unmapped && space == SpaceId::OWN {
                    self.registered.remove(range);
                }
                incoming.events.push(SpaceEvent::Removed { space, range });
            }
        }
    }

    /// A thread waits to write to a page that was protected when it left, when it stayed, or when
    /// the child was forked: by now the agent has no need of the protection. If the page is
    /// missing, the thread faults again.
    fn end_protection(&mut self, space: SpaceId, page: PageNumber) {
        let Some(context) = self.space(space) else {
            return;
        };
        match context.unprotect(page.address(), PAGE_SIZE as u64) {
            Ok(()) => {}
            Err(Errno::AGAIN) => self.protected.push((space, page)),
            // The mapping is gone.
            Err(_) => self.wake(space, page),
        }
    }

    /// True while there are events that the pager does not know of yet: until then its view of
    /// the address space is not to be acted on. The kernel says so only until they are read.
    pub(super) fn is_unsettled(&self) -> bool {
        self.backlog
            .iter()
            .any(|message| !matches!(message, Message::Fault { .. }))
    }

    /// True if [`Self::read`] has something to do already.
    pub(super) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty() || !self.protected.is_empty()
    }

    /// Memory that may have been dropped without being the agent's to drop.
    pub(super) const fn take_damage(&mut self) -> Option<PageNumber> {
        self.damaged.take()
    }

    /// The task that drops pages, if there can be one. The caller puts it back.
    pub(super) fn take_dropper(&mut self) -> Option<Dropper> {
        if !self.features.can_protect() {
            return None;
        }
        self.dropper
            .take()
            .or_else(|| Dropper::start(&self.layout, self.start_task).ok())
    }

    fn space(&self, space: SpaceId) -> Option<&Userfaultfd> {
        if space == SpaceId::OWN {
            Some(&self.own)
        } else {
            self.children.get(&space)
        }
    }

    /// Moves, or where the kernel cannot copies, as many pages as possible; EAGAIN for a moment's lock is tried again.
    fn transfer(&self, dst: u64, src: u64, count: u32, wake: bool) -> (u32, Result<(), Errno>) {
        let total = u64::from(count) << PAGE_SHIFT;
        let mut done = 0;
        let mut tries = 0;
        while done < total {
            // SAFETY: one side is the agent's frames, which nothing else uses; the other is
            // program memory that it has taken charge of, and whose content it keeps.
            let (moved, result) = unsafe {
                if self.features.can_move() {
                    self.own
                        .move_pages(dst + done, src + done, total - done, wake)
                } else {
                    self.own.copy(dst + done, src + done, total - done)
                }
            };
            done += moved;
            tries = if moved > 0 { 0 } else { tries + 1 };
            if let Err(error) = result
                && (moved == 0 && (error != Errno::AGAIN || tries > RETRIES))
            {
                return ((done >> PAGE_SHIFT) as u32, Err(error));
            }
        }
        (count, Ok(()))
    }

    /// As [`Self::transfer`]; a batch that is refused whole may span two mappings, so its first
    /// page is tried alone.
    fn transfer_across(
        &self,
        dst: u64,
        src: u64,
        count: u32,
        wake: bool,
    ) -> (u32, Result<(), Errno>) {
        let mut done = 0;
        while done < count {
            let offset = u64::from(done) << PAGE_SHIFT;
            let (moved, result) = self.transfer(dst + offset, src + offset, count - done, wake);
            done += moved;
            let Err(error) = result else { break };
            if moved > 0 || count - done == 1 || error == Errno::AGAIN {
                return (done, Err(error));
            }
            let (one, alone) = self.transfer(dst + offset, src + offset, 1, wake);
            done += one;
            if alone.is_err() {
                return (done, alone);
            }
        }
        (done, Ok(()))
    }

    /// Pages shared with a forked child refuse to move until they are the program's alone:
    /// populating for writing copies them, as the program's own write would. A page that still
    /// refuses is pinned by a device.
    fn unshare(&self, page: PageNumber) -> bool {
        // SAFETY: the page is present, so nothing faults to the agent itself; its content stays.
        unsafe {
            rustix::mm::madvise(
                page.address() as *mut _,
                PAGE_SIZE,
                Advice::LinuxPopulateWrite,
            )
        }
        .is_ok()
    }

    fn register(&mut self, range: PageRange) -> bool {
        let length = range.count << PAGE_SHIFT;
        let protectable = self.features.can_protect();
        // SAFETY: the pager answers the faults: with zeros for what was never touched, and with
        // the content that it moved out itself.
        match unsafe {
            self.own
                .register(range.start.address(), length, protectable)
        } {
            Ok(()) => {
                self.registered.insert(range);
                true
            }
            Err(_) => {
                self.refused.insert(range);
                false
            }
        }
    }

    pub(super) fn read_maps() -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open("/proc/self/maps", flags, Mode::empty()).ok()?;
        let mut bytes = Vec::new();
        let mut buffer = alloc::vec![0u8; 64 << 10];
        loop {
            match rustix::io::read(&file, &mut buffer) {
                Ok(0) => break,
                Ok(length) => bytes.extend_from_slice(&buffer[..length]),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        Some(String::from_utf8_lossy(&bytes).into_owned())
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

    fn move_out(
        &mut self,
        page: PageNumber,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>) {
        let mut moved = 0;
        while moved < count {
            if self.is_unsettled() {
                return (moved, Err(EvictError::Again));
            }
            let at = page.plus(u64::from(moved));
            if !self.features.can_move() {
                let (more, result) = self.copy_out(at, FrameIndex(frame.0 + moved), count - moved);
                moved += more;
                match result {
                    Ok(()) => continue,
                    error => return (moved, error),
                }
            }
            let to = self.layout.frame(frame.0 + moved);
            let (more, result) = self.transfer_across(to, at.address(), count - moved, false);
            moved += more;
            let Err(error) = result else { break };
            let at = page.plus(u64::from(moved));
            if error == Errno::BUSY && self.unshare(at) {
                let to = self.layout.frame(frame.0 + moved);
                match self.transfer(to, at.address(), 1, false) {
                    (1, _) => {
                        moved += 1;
                        continue;
                    }
                    (_, Err(Errno::AGAIN)) => return (moved, Err(EvictError::Again)),
                    _ => return (moved, Err(EvictError::Pinned)),
                }
            }
            // A mapping that is not writable, or locked.
            if error == Errno::INVAL {
                let (more, result) = self.copy_out(at, FrameIndex(frame.0 + moved), count - moved);
                moved += more;
                match result {
                    Ok(()) => continue,
                    error => return (moved, error),
                }
            }
            return (moved, Err(evict_error(error)));
        }
        (moved, Ok(()))
    }

    fn moves_memory(&self) -> bool {
        self.features.can_move()
    }

    fn move_in(
        &mut self,
        frame: FrameIndex,
        page: PageNumber,
        count: u32,
    ) -> (u32, Result<(), FillError>) {
        if self.is_unsettled() {
            return (0, Err(FillError::Again));
        }
        let from = self.layout.frame(frame.0);
        let (moved, result) = self.transfer_across(page.address(), from, count, true);
        (moved, result.map_err(fill_error))
    }

    fn copy_in(
        &mut self,
        space: SpaceId,
        frame: FrameIndex,
        page: PageNumber,
    ) -> Result<(), FillError> {
        if self.is_unsettled() {
            return Err(FillError::Again);
        }
        let from = self.layout.frame(frame.0);
        let context = self.space(space).ok_or(FillError::SpaceGone)?;
        // SAFETY: the frame has memory, and the pager has put the page's content there.
        let (_, result) = unsafe { context.copy(page.address(), from, PAGE_SIZE as u64) };
        result.map_err(fill_error)
    }

    fn zero_in(&mut self, space: SpaceId, page: PageNumber) -> Result<(), FillError> {
        if self.is_unsettled() {
            return Err(FillError::Again);
        }
        let context = self.space(space).ok_or(FillError::SpaceGone)?;
        // SAFETY: the pager knows that the page was never written.
        unsafe { context.zero(page) }.map_err(fill_error)
    }

    fn add_frames(&mut self, frame: FrameIndex, count: u32) -> u32 {
        for added in 0..count {
            let to = self.layout.frame(frame.0 + added);
            if !self.features.can_move() {
                // Writing is what gives memory to a page.
                self.frames
                    .page_mut(FrameIndex(frame.0 + added), |page| page.fill(0));
                continue;
            }
            // SAFETY: the frame is empty and the agent's own.
            let (bytes, _) = unsafe { self.own.copy(to, self.layout.zeros(), PAGE_SIZE as u64) };
            if bytes == 0 {
                return added;
            }
        }
        count
    }

    fn drop_frames(&mut self, frame: FrameIndex, count: u32) -> u32 {
        if !self.features.can_move() {
            let (start, length) = (self.layout.frame(frame.0), (count as usize) << PAGE_SHIFT);
            // SAFETY: the frames are free and the agent's own. They are not registered, so this
            // waits for nobody.
            let emptied =
                unsafe { rustix::mm::madvise(start as *mut _, length, Advice::LinuxDontNeed) };
            return if emptied.is_ok() { count } else { 0 };
        }
        let mut dropped = 0;
        while dropped < count {
            let batch = (count - dropped).min(Layout::trash_pages());
            let from = self.layout.frame(frame.0 + dropped);
            let bytes = u64::from(batch) << PAGE_SHIFT;
            // SAFETY: the frames are free and the trash is empty; both are the agent's own.
            let (moved, _) = unsafe {
                self.trash
                    .move_pages(self.layout.trash(), from, bytes, false)
            };
            // SAFETY: what is in the trash is nobody's. Its userfaultfd reports no events, so
            // this waits for nobody.
            let emptied = unsafe {
                rustix::mm::madvise(
                    self.layout.trash() as *mut _,
                    bytes as usize,
                    Advice::LinuxDontNeed,
                )
            };
            dropped += (moved >> PAGE_SHIFT) as u32;
            if moved < bytes || emptied.is_err() {
                break;
            }
        }
        dropped
    }

    fn wake(&mut self, space: SpaceId, page: PageNumber) {
        if let Some(context) = self.space(space) {
            // Fails only for a space that is gone: then nobody waits.
            let _ = context.wake(page);
        }
    }

    fn poison(&mut self, space: SpaceId, page: PageNumber) -> Result<(), FillError> {
        if self.is_unsettled() {
            return Err(FillError::Again);
        }
        self.space(space)
            .ok_or(FillError::SpaceGone)?
            .poison(page)
            .map_err(fill_error)
    }

    fn resident_pages(&mut self) -> u64 {
        self.residency.anonymous_pages().unwrap_or(0)
    }

    fn register_more(&mut self, pages: u64, into: &mut Vec<(PageRange, Vec<PageNumber>)>) {
        if self.is_unsettled() {
            return;
        }
        let Some(maps) = Self::read_maps() else {
            return;
        };
        let mut found = 0;
        for range in eligible_ranges(&maps, &[self.layout.range(), self.object]) {
            for part in self.registered.missing_from(range) {
                if self.refused.contains(part.start) || !self.register(part) {
                    continue;
                }
                // After registering: from here on every page that becomes resident is known.
                let resident = self.residency.pages_in(part).unwrap_or_default();
                found += resident.len() as u64;
                into.push((part, resident));
            }
            if found >= pages {
                return;
            }
        }
    }

    fn zero_mapped(&mut self, range: PageRange) -> Vec<PageNumber> {
        self.residency.zero_mapped(range).unwrap_or_default()
    }

    fn is_registered(&self, page: PageNumber) -> bool {
        self.registered.contains(page)
    }

    fn space_alive(&mut self, space: SpaceId) -> bool {
        self.space(space).is_some_and(Userfaultfd::is_alive)
    }

    fn close_space(&mut self, space: SpaceId) {
        self.children.remove(&space);
    }
}

pub(super) const fn pages(start: u64, end: u64) -> PageRange {
    let first = PageNumber::containing(start);
    PageRange::new(
        first,
        PageNumber::containing(end + PAGE_SIZE as u64 - 1).0 - first.0,
    )
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
