//! What threads call, touch and end, as the kernel carries it out.

use super::config::Attaching;
use super::kernel::SimKernel;
use super::space::Access;
use legato_base::PageNumber;
use legato_pager::order::Message;
use legato_pager::{Kernel, PageRange, SpaceId, SpacePage};

/// One child in so many is never attached.
const UNATTACHABLE_EVERY: u64 = 5;
/// One access in so many to a page that may be dropped finds it dropped.
const DROPPED_EVERY: u64 = 3;
/// One write in so many to a page that MADV_FREE left is faster than the agent.
const WRITTEN_UNSEEN_EVERY: u64 = 8;

impl SimKernel {
    pub(super) fn touch(&mut self, space: SpaceId, page: u64) -> Access {
        self.drop_lazy(space, page);
        self.space_mut(space).touch(page)
    }

    /// The kernel drops a page that it may drop, or leaves it.
    pub(super) fn drop_lazy(&mut self, space: SpaceId, page: u64) {
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

    /// True if the space's process has ended, and nothing waits that was read of it: children may be among
    /// that.
    pub(super) fn has_ended(&self, space: SpaceId) -> bool {
        let space = self.spaces.get(&space);
        space.is_some_and(|space| space.ended && !space.order.has_waiting())
    }

    /// True if the pager has read the event, or the space is gone with all its events.
    pub(super) fn is_read(&self, space: SpaceId, event: u64) -> bool {
        self.spaces
            .get(&space)
            .is_none_or(|space| space.announcements.is_over(event))
    }

    /// The program writes to a page that MADV_FREE left. Mostly the agent sees it: it protects such
    /// pages where it is in charge, when it has followed what was announced. But a thread may be faster.
    pub(super) fn report_written(&mut self, page: SpacePage) {
        let (now, number) = (self.now, page.page().0);
        let place = self.space_mut(page.space());
        if !place.registered.contains(&number) {
            return;
        }
        // What the agent knows to be registered may have moved, or may not be all of it.
        let is_protected = place.is_followed(now) && self.is_registered(page);
        if self.happens(WRITTEN_UNSEEN_EVERY) || !is_protected {
            self.space_mut(page.space()).strays.insert(number);
        } else {
            self.written.push(page);
        }
    }
}
