//! Forked children, until they run a program of their own.
//!
//! A child starts with the parent's far pages, shared: whoever changes one of them writes it to a
//! slot of its own. What is local the kernel shares by itself (copy on write). Pages leave a child
//! as they leave the program, once a task of Legato's runs in its address space.

use super::{Fault, Pager};
use crate::entry::{Location, PageEntry};
use crate::frames::FrameState;
use crate::{FrameIndex, FrameMemory, Kernel, PageRange, SpaceId, SpacePage};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use legato_base::timeouts::CHILD_REACH;
use legato_base::{Duration, PAGE_SIZE, PageNumber, Time};

/// Pages that a child is given before pages can leave it, and how long it waits for more: memory
/// in it is beyond the pager's reach until then. Most children run another program or end within
/// this; and if nothing can be put into a child, it must not wait for ever.
const GIVEN_MAX: u64 = 256;

/// Content of a page. In a box of its own, so that a weak reference to it does not hold its memory.
#[derive(Debug)]
pub(super) struct Content(Box<[u8; PAGE_SIZE]>);

/// Forked children without a program of their own.
#[derive(Debug, Default)]
pub(super) struct Children {
    pub(super) alive: BTreeMap<SpaceId, Child>,
    /// When they are asked next whether they still live.
    check_at: Time,
    /// Content of pages that were on their way when their space was forked.
    pub(super) kept: BTreeMap<SpacePage, Rc<Content>>,
    /// Content taken over for one child, for the next, by its page and when that left. As long as
    /// a page is out it does not change.
    taken_over: BTreeMap<(SpacePage, u32), Weak<Content>>,
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
/// Pages of a parent looked at together.
const INHERITED_AT_A_TIME: usize = 4096;

impl<K: Kernel> Pager<K> {
    pub(super) fn fork(&mut self, parent: SpaceId, child: SpaceId, now: Time) {
        // In parts: a list of all far pages would be as large as the table.
        let mut from = PageNumber(0);
        loop {
            let rest = PageRange::new(from, PageRange::ALL.end().0 - from.0);
            let part: Vec<(SpacePage, PageEntry)> = self
                .table
                .range(parent, rest)
                .filter(|(_, entry)| entry.location() != Location::Resident)
                .map(|(page, entry)| (page, *entry))
                .take(INHERITED_AT_A_TIME)
                .collect();
            let Some((last, _)) = part.last() else { break };
            from = last.page().plus(1);
            for (page, entry) in part {
                self.inherit(page, entry, SpacePage::new(child, page.page()));
            }
        }
        self.counters.children_served += 1;
        self.children.alive.insert(
            child,
            Child {
                forked: now,
                given: 0,
            },
        );
        self.children.check_at = self.children.check_at.min(now + CHECK_AFTER_FORK);
    }

    /// Gives a child its own entry for a page that was out of its parent.
    fn inherit(&mut self, from: SpacePage, entry: PageEntry, to: SpacePage) {
        let in_frame = match entry.location() {
            Location::Resident | Location::Lost | Location::Kept | Location::Far => None,
            Location::InFrame(frame) => {
                let is_newest = !matches!(
                    self.frames.state(frame),
                    FrameState::Fetching { .. } | FrameState::Done(_)
                );
                is_newest.then_some(frame)
            }
        };
        let content = match (in_frame, entry.location()) {
            (Some(frame), _) => Some(self.take_over(from, entry.stamp, frame)),
            (None, Location::Kept) => self.children.kept.get(&from).cloned(),
            (None, _) => None,
        };
        let shared = entry.far.filter(|_| content.is_none());
        let location = match (&content, shared) {
            (Some(_), _) => Location::Kept,
            (None, Some(_)) => Location::Far,
            (None, None) => Location::Lost,
        };
        if let Some(slot) = shared {
            self.store.extents.share(slot);
        }
        self.children
            .kept
            .extend(content.map(|content| (to, content)));
        self.table
            .insert(to, PageEntry::new(location, shared, self.eviction_clock));
    }

    /// The content of a frame that may soon be needed for something else. Children that are forked
    /// one after the other share it.
    fn take_over(&mut self, page: SpacePage, stamp: u32, frame: FrameIndex) -> Rc<Content> {
        let key = (page, stamp);
        if let Some(content) = self.children.taken_over.get(&key).and_then(Weak::upgrade) {
            return content;
        }
        if self.children.taken_over.len() > 2 * self.frames.total() as usize {
            self.children
                .taken_over
                .retain(|_, content| content.strong_count() > 0);
        }
        let content = self
            .kernel
            .frames()
            .page(frame, |content| Rc::new(Content(Box::new(*content))));
        self.children
            .taken_over
            .insert(key, Rc::downgrade(&content));
        content
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

    /// False if the fault must wait.
    pub(super) fn serve_kept(&mut self, fault: Fault) -> bool {
        let Some(frame) = self.frame_of_kept(fault.page) else {
            return false;
        };
        self.frames.arrive(frame, fault.page, true);
        self.waiting.expect(fault);
        self.fill_arrived();
        true
    }

    /// Puts a kept page into a frame that is taken; None while frames are short.
    fn frame_of_kept(&mut self, page: SpacePage) -> Option<FrameIndex> {
        let (frame, _) = self.take_frames(1)?;
        let Some(content) = self.children.kept.remove(&page) else {
            unreachable!("invariant: a kept page has content");
        };
        self.kernel
            .frames_mut()
            .page_mut(frame, |page| *page = *content.0);
        if let Some(entry) = self.table.entry_mut(page) {
            entry.set_location(Location::InFrame(frame));
        }
        Some(frame)
    }

    /// Sends what was kept to the nodes as soon as there are frames for it: kept pages are local
    /// memory that nobody asked for.
    pub(super) fn release_kept(&mut self) {
        while u64::from(self.frames.free()) > self.budget.reserve / 2 {
            let Some((&page, _)) = self.children.kept.first_key_value() else {
                return;
            };
            let Some(frame) = self.frame_of_kept(page) else {
                return;
            };
            self.queue_write(page, frame);
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
