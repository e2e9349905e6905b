//! Forked children, until they run a program of their own.
//!
//! A child starts with the parent's far pages, shared: whoever changes one of them writes it to a
//! slot of its own. What is local the kernel shares by itself (copy on write). Pages leave a child
//! as they leave the program, once a task of Legato's runs in its address space.

use super::fault::Stall;
use super::kept::Kept;
use super::write_back::FEW_QUEUED;
use super::{Fault, Pager};
use crate::entry::{Location, PageEntry, SlotRef};
use crate::frames::FrameState;
use crate::{FrameIndex, FrameMemory, Kernel, PageRange, SpaceId, SpacePage};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use legato_base::timeouts::CHILD_REACH;
use legato_base::{Duration, PAGE_SIZE, Time};

/// Pages that a child is given before pages can leave it, and how long it waits for more: memory
/// in it is beyond the pager's reach until then. Most children run another program or end within
/// this; and if nothing can be put into a child, it must not wait for ever.
const GIVEN_MAX: u64 = 256;

/// Forked children without a program of their own.
#[derive(Debug, Default)]
pub(super) struct Children {
    pub(super) alive: BTreeMap<SpaceId, Child>,
    /// When they are asked next whether they still live.
    check_at: Time,
    pub(super) kept: Kept,
}

/// A forked child.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    forked: Time,
    /// Pages that entered it while none could leave.
    given: u64,
}

/// How often children are asked whether they still live.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// And after a fork: a program that forks much must not be served for children of its past.
const CHECK_AFTER_FORK: Duration = Duration::from_millis(10);

impl<K: Kernel> Pager<K> {
    pub(super) fn fork(&mut self, parent: SpaceId, child: SpaceId, now: Time) {
        let mut table = core::mem::take(&mut self.table);
        table.derive(parent, child, |from, entry, to| {
            self.inherit(from, *entry, to)
        });
        self.table = table;
        self.counters.children_served += 1;
        let kept = self.children.kept.contents() as u64;
        self.counters.kept_pages_peak = self.counters.kept_pages_peak.max(kept);
        self.children.alive.insert(
            child,
            Child {
                forked: now,
                given: 0,
            },
        );
        self.children.check_at = self.children.check_at.min(now + CHECK_AFTER_FORK);
    }

    /// A child's own entry for a page of its parent. What is in the parent the child has as well.
    fn inherit(&mut self, from: SpacePage, entry: PageEntry, to: SpacePage) -> Option<PageEntry> {
        let (location, far) = match (entry.location(), entry.far) {
            (Location::Resident, _) => return None,
            (Location::Kept, _) => {
                self.children.kept.share(to, from);
                (Location::Kept, None)
            }
            (Location::InFrame(frame), _) if self.keep_newest(frame, to) => (Location::Kept, None),
            (_, Some(slot)) => {
                self.store.extents.share(slot);
                (Location::Far, Some(slot))
            }
            (_, None) => (Location::Lost, None),
        };
        Some(PageEntry::new(location, far, self.eviction_clock))
    }

    /// Keeps the content of a frame for a page, unless the far copy of it is good: the frame may soon
    /// be needed for something else. False if it is not kept.
    fn keep_newest(&mut self, frame: FrameIndex, page: SpacePage) -> bool {
        if let FrameState::Fetching { .. } | FrameState::Done(_) = self.frames.state(frame) {
            return false;
        }
        let kept = &mut self.children.kept;
        let frames = self.kernel.frames();
        frames.page(frame, |content| kept.keep(page, frame, content));
        true
    }

    /// True for a child that pages cannot leave yet, as long as that may change soon and memory is
    /// short.
    pub(super) fn must_wait_for_reach(&self, fault: Fault, now: Time) -> bool {
        let space = fault.page.space();
        self.children.alive.get(&space).is_some_and(|child| {
            child.given >= GIVEN_MAX && self.will_be_reached(space, child, now) && self.is_pressed()
        })
    }

    fn will_be_reached(&self, space: SpaceId, child: &Child, now: Time) -> bool {
        now < child.forked + CHILD_REACH && !self.kernel.can_evict(space)
    }

    /// Local pages now. What children were given is not among those that the kernel counts until it
    /// reaches them.
    pub(super) fn count_resident(&mut self, now: Time) -> u64 {
        let counted = self.kernel.resident_pages();
        let unreached = self
            .children
            .alive
            .iter()
            .filter(|&(&space, child)| self.will_be_reached(space, child, now));
        counted + unreached.map(|(_, child)| child.given).sum::<u64>()
    }

    /// A page entered a space that pages cannot leave.
    pub(super) fn count_given(&mut self, space: SpaceId) {
        if let Some(child) = self.children.alive.get_mut(&space) {
            child.given += 1;
        }
    }

    pub(super) fn serve_kept(&mut self, fault: Fault) -> Result<(), Stall> {
        let frame = self.frame_of_kept(fault.page).ok_or(Stall::Frame)?;
        self.frames.arrive(frame, fault.page, true);
        self.waiting.expect(fault);
        self.fill_arrived();
        Ok(())
    }

    /// Puts a kept page into a frame that is taken; None while frames are short.
    fn frame_of_kept(&mut self, page: SpacePage) -> Option<FrameIndex> {
        let (frame, _) = self.take_frames(1)?;
        let kept = &mut self.children.kept;
        let frames = self.kernel.frames_mut();
        frames.page_mut(frame, |content| kept.put(page, frame, content));
        if let Some(entry) = self.table.entry_mut(page) {
            entry.set_location(Location::InFrame(frame));
        }
        Some(frame)
    }

    /// Sends what was kept to the nodes as soon as there are frames for it: kept pages are local
    /// memory that nobody asked for. What a frame holds that is written anyway waits for that.
    pub(super) fn release_kept(&mut self) {
        while self.frames_for_kept() > self.budget.frames_ready() / 2
            && let Some((page, frame)) = self.children.kept.oldest()
            && !self.is_to_be_written(page, frame)
            && let Some(frame) = self.frame_of_kept(page)
        {
            self.queue_write(page, frame);
        }
    }

    /// Frames that kept pages may have, half of those that are ready among them: where little else is to be
    /// written, also those of victims whose copy is good.
    fn frames_for_kept(&self) -> u64 {
        let is_quiet = self.frames.queued() < FEW_QUEUED;
        let done = if is_quiet { self.frames.done() } else { 0 };
        u64::from(self.frames.free() + done)
    }

    /// True if a kept page's content is about to be written from a frame.
    fn is_to_be_written(&self, page: SpacePage, frame: FrameIndex) -> bool {
        let kept = &self.children.kept;
        let is_in = |content: &[u8; PAGE_SIZE]| kept.is_in(page, content);
        match self.frames.state(frame) {
            FrameState::Queued(_) | FrameState::Writing(Some(_)) => {
                self.kernel.frames().page(frame, is_in)
            }
            _ => false,
        }
    }

    /// A page is in a frame and, as this version, in its slot: so is it for all for whom it was kept.
    pub(super) fn share_written(&mut self, page: SpacePage, frame: FrameIndex, version: u64) {
        if self.children.kept.is_empty() {
            return;
        }
        let slot = self.table.entry(page).and_then(|entry| entry.far);
        let is_there = |&slot: &SlotRef| {
            let record = self.store.extents.record(slot);
            record.is_some_and(|record| record.version == version)
        };
        let Some(slot) = slot.filter(is_there) else {
            return;
        };
        let kept = &mut self.children.kept;
        let frames = self.kernel.frames();
        let pages = frames.page(frame, |content| kept.written(frame, content));
        for page in pages {
            let Some(entry) = self.table.entry_mut(page) else {
                unreachable!("invariant: a kept page has an entry");
            };
            entry.set_location(Location::Far);
            entry.far = Some(slot);
            self.store.extents.share(slot);
        }
    }

    /// Forgets children that have ended or run another program.
    pub(super) fn check_children(&mut self, now: Time) {
        if self.children.alive.is_empty() || now < self.children.check_at {
            return;
        }
        self.children.check_at = now + CHECK_INTERVAL;
        let gone: Vec<SpaceId> = self
            .children
            .alive
            .keys()
            .copied()
            .filter(|&space| !self.kernel.space_alive(space))
            .collect();
        for space in gone {
            self.close_space(space);
            self.children.alive.remove(&space);
        }
    }

    /// The program has ended or runs another image, and forked children of it go on.
    pub fn close_own_space(&mut self) {
        self.close_space(SpaceId::OWN);
    }

    fn close_space(&mut self, space: SpaceId) {
        self.kernel.close_space(space);
        self.remove(space, PageRange::ALL);
    }

    pub(super) fn children_deadline(&self) -> Time {
        if self.children.alive.is_empty() {
            Time::NEVER
        } else {
            self.children.check_at
        }
    }
}
