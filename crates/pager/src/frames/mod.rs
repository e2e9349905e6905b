//! The frames: page-sized places in the agent's memory that pages pass through on their way out of
//! the program and back. A frame is in exactly one state, which is kept here and nowhere else; that a
//! page is in a frame is all that its entry says.
//!
//! A page that leaves: `Empty`, `Taken`, `Queued`, `Writing`, `Done`, and then `Stale` or `Free`. A page
//! that comes: `Free`, `Taken`, `Fetching`, `Arrived`, and then `Free` again. A victim that is touched
//! again is `Arrived` from wherever it was, and `Empty` where the kernel took the memory along; while it
//! is `Writing` the fabric has the frame, and its content goes through another one. Only a frame that is
//! no operation's can be released.
//!
//! One batched move needs neighbours on both sides, so frames are taken by the run.
//!
//! Memory that was moved out of a program is never written again. A pipe (vmsplice(2)), a socket
//! (MSG_ZEROCOPY) or another process's read may still refer to it, which the kernel neither
//! prevents MOVE by nor tells anybody: such a frame becomes stale, and its memory must be dropped.
//! Whoever refers to it keeps what it had.
//!
//! A frame whose operation is in quarantine is held: the NIC may touch it for ever. The victim in it may be
//! written once more from there, which changes nothing; nothing else comes into it.

mod queue;
mod set;
#[cfg(test)]
mod tests;

use crate::SpacePage;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use legato_base::PageChecksum;
use queue::{Links, Queue};
use set::FrameSet;

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameIndex(pub u32);

impl FrameIndex {
    /// No frame has this number or one above: an entry of the page table has 26 bits for it.
    pub(crate) const END: u32 = 1 << 26;

    #[must_use]
    pub(crate) const fn plus(self, n: u32) -> Self {
        Self(self.0 + n)
    }
}

/// What a frame is at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameState {
    /// It has no memory: a page that moves out brings some.
    Empty,
    /// It has memory whose content means nothing: a page that comes in may use it.
    Free,
    /// It has memory that was moved out of a program and serves no more.
    Stale,
    /// It was taken for what the pager does at this moment.
    Taken,
    /// The fabric reads a page into it; None if nobody wants that page any more.
    Fetching {
        page: Option<SpacePage>,
        demanded: bool,
    },
    /// Its page waits to enter the program.
    Arrived { page: SpacePage, demanded: bool },
    /// A victim that is still to be written.
    Queued(SpacePage),
    /// The fabric writes it; None if its page has gone back to the program, or is gone.
    Writing(Option<SpacePage>),
    /// A victim whose far copy is good.
    Done(SpacePage),
    /// A page was to enter the program from it, and its memory was not there.
    Hollow(SpacePage),
    /// It serves no more, and an operation that is in quarantine may touch it.
    Quarantined,
}

impl FrameState {
    /// The page that is in the frame, or comes there.
    pub(crate) const fn page(self) -> Option<SpacePage> {
        match self {
            Self::Empty | Self::Free | Self::Stale | Self::Taken | Self::Quarantined => None,
            Self::Fetching { page, .. } | Self::Writing(page) => page,
            Self::Arrived { page, .. }
            | Self::Queued(page)
            | Self::Done(page)
            | Self::Hollow(page) => Some(page),
        }
    }
}

// There is one for each ten pages of the cache or more, of 30 GiB of it at most; and they count as local
// memory.
const _: () = assert!(size_of::<FrameState>() == 16);

/// All frames.
#[derive(Debug)]
pub(crate) struct FrameTable {
    states: Vec<FrameState>,
    empty: FrameSet,
    free: FrameSet,
    stale: FrameSet,
    /// Those whose memory was moved out of a program.
    foreign: FrameSet,
    /// Operations in quarantine on each frame that has such.
    held: BTreeMap<FrameIndex, u32>,
    links: Links,
    arrived: Queue,
    queued: Queue,
    done: Queue,
    fetching: u32,
    writing: u32,
    /// Of what is queued.
    checksums: Vec<PageChecksum>,
}

impl FrameTable {
    /// All frames are empty at first.
    pub(crate) fn new(frames: u32) -> Self {
        assert!(frames <= FrameIndex::END);
        Self {
            states: vec![FrameState::Empty; frames as usize],
            empty: FrameSet::full(frames),
            free: FrameSet::new(frames),
            stale: FrameSet::new(frames),
            foreign: FrameSet::new(frames),
            held: BTreeMap::new(),
            links: Links::new(frames),
            arrived: Queue::new(),
            queued: Queue::new(),
            done: Queue::new(),
            fetching: 0,
            writing: 0,
            checksums: vec![PageChecksum(0); frames as usize],
        }
    }

    pub(crate) const fn free(&self) -> u32 {
        self.free.count()
    }

    pub(crate) const fn empty(&self) -> u32 {
        self.empty.count()
    }

    /// Frames through which pages come: free ones, and those that will be when theirs has come.
    pub(crate) const fn incoming(&self) -> u32 {
        self.free() + self.fetching + self.arrived.length()
    }

    /// Frames whose memory must be dropped before anything else.
    pub(crate) const fn stale(&self) -> u32 {
        self.stale.count()
    }

    /// Frames that have memory and hold nothing.
    pub(crate) const fn unused(&self) -> u32 {
        self.free() + self.stale()
    }

    /// Frames that have memory.
    pub(crate) const fn with_memory(&self) -> u32 {
        self.total() - self.empty()
    }

    /// Frames that hold or await a page.
    pub(crate) const fn used(&self) -> u32 {
        self.with_memory() - self.unused()
    }

    pub(crate) const fn total(&self) -> u32 {
        self.states.len() as u32
    }

    /// Victims that are still to be written.
    pub(crate) const fn queued(&self) -> u32 {
        self.queued.length()
    }

    /// Writes that are not quiet.
    pub(crate) const fn writing(&self) -> u32 {
        self.writing
    }

    /// Victims whose far copy is good.
    pub(crate) const fn done(&self) -> u32 {
        self.done.length()
    }

    pub(crate) const fn has_arrived(&self) -> bool {
        self.arrived.length() > 0
    }

    pub(crate) fn state(&self, frame: FrameIndex) -> FrameState {
        self.states[frame.0 as usize]
    }

    pub(crate) fn states(&self) -> impl Iterator<Item = FrameState> {
        self.states.iter().copied()
    }

    /// Frames whose pages wait to enter the program.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = FrameIndex> {
        self.arrived.iter(&self.links)
    }

    /// The oldest victim whose far copy is good.
    pub(crate) const fn oldest_done(&self) -> Option<FrameIndex> {
        self.done.first()
    }

    /// The victim that is to be written next.
    pub(crate) const fn oldest_queued(&self) -> Option<FrameIndex> {
        self.queued.first()
    }

    /// What was said of a victim when it was queued.
    pub(crate) fn checksum(&self, frame: FrameIndex) -> PageChecksum {
        self.checksums[frame.0 as usize]
    }

    /// Takes up to `count` neighbouring empty frames for pages that move out.
    pub(crate) fn take_empty_run(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        let run = self.empty.find_run(count)?;
        Some(self.take(run))
    }

    /// Takes up to `count` neighbouring free frames for pages that come in.
    pub(crate) fn take_free_run(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        let run = self.free.find_run(count)?;
        Some(self.take(run))
    }

    /// Takes up to `count` neighbouring stale frames, whose memory is to be dropped.
    pub(crate) fn take_stale_run(&mut self, count: u32) -> Option<(FrameIndex, u32)> {
        let run = self.stale.find_run(count)?;
        Some(self.take(run))
    }

    fn take(&mut self, run: (FrameIndex, u32)) -> (FrameIndex, u32) {
        let (first, count) = run;
        (0..count).for_each(|step| self.set(first.plus(step), FrameState::Taken));
        run
    }

    /// True if the frame's memory came from a program.
    pub(crate) fn is_foreign(&self, frame: FrameIndex) -> bool {
        self.foreign.contains(frame)
    }

    /// True if an operation that is in quarantine may touch the frame.
    pub(crate) fn is_held(&self, frame: FrameIndex) -> bool {
        self.held.contains_key(&frame)
    }

    /// The operation on the frame is in quarantine. What was to come there comes elsewhere; a victim is to
    /// be written again.
    #[track_caller]
    pub(crate) fn hold(&mut self, frame: FrameIndex) {
        let to = match self.state(frame) {
            FrameState::Fetching { .. } | FrameState::Writing(None) => FrameState::Quarantined,
            // What was said of its content when it was queued is true still.
            FrameState::Writing(Some(page)) => FrameState::Queued(page),
            _ => self.refuse(frame),
        };
        *self.held.entry(frame).or_insert(0) += 1;
        self.set(frame, to);
    }

    /// An operation that was in quarantine is quiet after all.
    pub(crate) fn let_go(&mut self, frame: FrameIndex) {
        if let Some(count) = self.held.get_mut(&frame) {
            *count -= 1;
            if *count > 0 {
                return;
            }
            self.held.remove(&frame);
        }
        if self.state(frame) == FrameState::Quarantined {
            self.set(frame, FrameState::Taken);
            self.release(frame);
        }
    }

    /// A frame that was taken got its memory from a program.
    #[track_caller]
    pub(crate) fn mark_foreign(&mut self, frame: FrameIndex) {
        self.expect(frame, |state| state == FrameState::Taken);
        self.foreign.insert(frame);
    }

    /// The content no longer matters.
    #[track_caller]
    pub(crate) fn release(&mut self, frame: FrameIndex) {
        self.expect(frame, is_ours);
        let to = match self.foreign.contains(frame) {
            _ if self.is_held(frame) => FrameState::Quarantined,
            true => FrameState::Stale,
            false => FrameState::Free,
        };
        self.set(frame, to);
    }

    /// The memory has moved away, or was dropped.
    #[track_caller]
    pub(crate) fn emptied(&mut self, frame: FrameIndex) {
        self.expect(frame, is_ours);
        self.foreign.remove(frame);
        let to = match self.is_held(frame) {
            true => FrameState::Quarantined,
            false => FrameState::Empty,
        };
        self.set(frame, to);
    }

    /// A read of the page into a frame that was taken for it has been posted.
    #[track_caller]
    pub(crate) fn fetch(&mut self, frame: FrameIndex, page: SpacePage, demanded: bool) {
        self.expect(frame, |state| state == FrameState::Taken);
        let page = Some(page);
        self.set(frame, FrameState::Fetching { page, demanded });
    }

    /// The page is in the frame, and waits to enter the program.
    #[track_caller]
    pub(crate) fn arrive(&mut self, frame: FrameIndex, page: SpacePage, demanded: bool) {
        self.expect(frame, |state| match state {
            FrameState::Taken => true,
            FrameState::Queued(victim) | FrameState::Done(victim) => victim == page,
            _ => false,
        });
        self.set(frame, FrameState::Arrived { page, demanded });
    }

    /// Somebody waits for the page that comes there or has arrived.
    pub(crate) fn demand(&mut self, frame: FrameIndex) {
        if let FrameState::Fetching { demanded, .. } | FrameState::Arrived { demanded, .. } =
            &mut self.states[frame.0 as usize]
        {
            *demanded = true;
        }
    }

    /// A page that should enter the program has lost its memory: it must not be looked into.
    #[track_caller]
    pub(crate) fn hollow(&mut self, frame: FrameIndex) {
        let FrameState::Arrived { page, .. } = self.state(frame) else {
            self.refuse(frame);
        };
        self.set(frame, FrameState::Hollow(page));
    }

    /// A victim must be written. The frame was taken for it, or its far copy has turned bad.
    #[track_caller]
    pub(crate) fn queue(&mut self, frame: FrameIndex, page: SpacePage, checksum: PageChecksum) {
        self.expect(frame, |state| match state {
            FrameState::Taken => true,
            FrameState::Done(victim) => victim == page,
            _ => false,
        });
        self.checksums[frame.0 as usize] = checksum;
        self.set(frame, FrameState::Queued(page));
    }

    /// The write of a queued victim has been posted.
    #[track_caller]
    pub(crate) fn begin_write(&mut self, frame: FrameIndex) {
        let FrameState::Queued(page) = self.state(frame) else {
            self.refuse(frame);
        };
        self.set(frame, FrameState::Writing(Some(page)));
    }

    /// The far copy of the victim in a frame that was taken is good.
    #[track_caller]
    pub(crate) fn finish(&mut self, frame: FrameIndex, page: SpacePage) {
        self.expect(frame, |state| state == FrameState::Taken);
        self.set(frame, FrameState::Done(page));
    }

    /// Nobody wants the page of an operation any more, or it is elsewhere. The frame is the fabric's
    /// until that is quiet.
    #[track_caller]
    pub(crate) fn disown(&mut self, frame: FrameIndex) {
        let to = match self.state(frame) {
            FrameState::Fetching { demanded, .. } => FrameState::Fetching {
                page: None,
                demanded,
            },
            FrameState::Writing(_) => FrameState::Writing(None),
            _ => self.refuse(frame),
        };
        self.set(frame, to);
    }

    /// The operation on the frame is quiet: the frame is the pager's again, taken. Returns what it was.
    #[track_caller]
    pub(crate) fn end_operation(&mut self, frame: FrameIndex) -> FrameState {
        let was = self.state(frame);
        self.expect(frame, is_in_operation);
        self.set(frame, FrameState::Taken);
        was
    }

    /// The page in the frame has got another address.
    #[track_caller]
    pub(crate) fn rename(&mut self, frame: FrameIndex, to: SpacePage) {
        match &mut self.states[frame.0 as usize] {
            FrameState::Fetching {
                page: Some(page), ..
            }
            | FrameState::Writing(Some(page))
            | FrameState::Arrived { page, .. }
            | FrameState::Queued(page)
            | FrameState::Done(page)
            | FrameState::Hollow(page) => *page = to,
            _ => self.refuse(frame),
        }
    }

    fn set(&mut self, frame: FrameIndex, to: FrameState) {
        let links = &mut self.links;
        match self.states[frame.0 as usize] {
            FrameState::Empty => self.empty.remove(frame),
            FrameState::Free => self.free.remove(frame),
            FrameState::Stale => self.stale.remove(frame),
            FrameState::Arrived { .. } => self.arrived.remove(frame, links),
            FrameState::Queued(_) => self.queued.remove(frame, links),
            FrameState::Done(_) => self.done.remove(frame, links),
            FrameState::Fetching { .. } => self.fetching -= 1,
            FrameState::Writing(_) => self.writing -= 1,
            FrameState::Taken | FrameState::Hollow(_) | FrameState::Quarantined => {}
        }
        self.states[frame.0 as usize] = to;
        match to {
            FrameState::Empty => self.empty.insert(frame),
            FrameState::Free => self.free.insert(frame),
            FrameState::Stale => self.stale.insert(frame),
            FrameState::Arrived { .. } => self.arrived.push(frame, links),
            FrameState::Queued(_) => self.queued.push(frame, links),
            FrameState::Done(_) => self.done.push(frame, links),
            FrameState::Fetching { .. } => self.fetching += 1,
            FrameState::Writing(_) => self.writing += 1,
            FrameState::Taken | FrameState::Hollow(_) | FrameState::Quarantined => {}
        }
    }

    #[track_caller]
    fn expect(&self, frame: FrameIndex, is_legal: impl FnOnce(FrameState) -> bool) {
        if !is_legal(self.state(frame)) {
            self.refuse(frame);
        }
    }

    #[track_caller]
    fn refuse(&self, frame: FrameIndex) -> ! {
        let state = self.state(frame);
        panic!("invariant: frame {} is {state:?} here", frame.0)
    }
}

/// In use, and no operation may touch it.
const fn is_ours(state: FrameState) -> bool {
    !is_in_operation(state)
        && !matches!(
            state,
            FrameState::Empty | FrameState::Free | FrameState::Stale | FrameState::Quarantined
        )
}

const fn is_in_operation(state: FrameState) -> bool {
    matches!(state, FrameState::Fetching { .. } | FrameState::Writing(_))
}
