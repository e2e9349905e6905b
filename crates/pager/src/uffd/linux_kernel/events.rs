//! Messages of the address spaces: faults, and changes that the pager must follow.

use super::LinuxKernel;
use super::accept::Batch;
use super::gather::Ready;
use super::space::Space;
use crate::order::Sequence;
use crate::uffd::agent::now;
use crate::uffd::context::MESSAGES_MAX;
use crate::uffd::mappings::mapping_of;
use crate::uffd::message::{Message, Newborn};
use crate::uffd::program::has_threads;
use crate::uffd::transfer::surely;
use crate::{Incoming, Kernel, PageRange, RangeSet, SpaceId, SpacePage};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use legato_base::{PAGE_SHIFT, PAGE_SIZE, PageNumber};
use rustix::io::Errno;

impl LinuxKernel {
    /// Reads what waits, and follows the changes of what is registered.
    pub(super) fn read_messages(&mut self) -> Incoming {
        let mut incoming = Incoming::default();
        for (space, page) in core::mem::take(&mut self.protected) {
            self.end_protection(space, page);
        }
        self.discard_full_staging();
        for (space, range) in core::mem::take(&mut self.unwatched) {
            self.watch(space, range);
        }
        for (space, range) in core::mem::take(&mut self.unmarked) {
            self.mark(space, range);
        }
        let mut backlog = core::mem::take(&mut self.backlog);
        for space in self.ids() {
            let (mine, rest) = backlog.into_iter().partition(|(of, _)| *of == space);
            backlog = rest;
            let mine: Vec<(SpaceId, Message)> = mine;
            for (_, message) in mine {
                let mut batch = Batch::from(message);
                let is_changing = self.is_changing_in(space);
                self.leave_new_parts_to_kernel(space, &mut batch.messages, is_changing);
                batch.sequence = self.sequence_of(space, &batch);
                self.ask_children(space, &mut batch);
                self.receive(space, batch);
            }
            let batch = self.read_from(space);
            self.receive(space, batch);
            self.accept_in_order(space, &mut incoming);
        }
        incoming
    }

    /// What waits in one space. A child that has ended reads as an error; `space_alive` finds it.
    fn read_from(&mut self, space: SpaceId) -> Batch {
        let mut batch = Batch::default();
        let is_contested = |space: &Space| space.order.is_contested(now());
        let is_changing = self.is_changing_in(space);
        let quiet = if self.space(space).is_some_and(is_contested) {
            None
        } else {
            self.look_for_moves(space, is_changing)
        };
        let ready = if let Some(ready) = quiet {
            Some(ready)
        } else {
            // Faults do not wait until the events are all there.
            let _ = self
                .space(space)
                .map(|space| space.read_faults(&mut batch.messages));
            batch
                .messages
                .is_empty()
                .then(|| self.gather(space))
                .flatten()
        };
        if ready.is_some() {
            self.take_new_parts_back(space);
        }
        if let (Some(ready), Some(watched)) = (ready, self.space(space)) {
            let messages = &mut batch.messages;
            let _ = match ready.changes {
                Some(count) => watched.read_changes(count, messages),
                None => watched.context.read(MESSAGES_MAX, messages),
            };
            batch.sequence = match quiet {
                Some(Ready {
                    sequence: Sequence::AtOnce,
                    ..
                }) => self.sequence_of(space, &batch),
                _ => ready.sequence,
            };
        }
        self.leave_new_parts_to_kernel(space, &mut batch.messages, is_changing);
        self.ask_children(space, &mut batch);
        batch
    }

    /// Asks the children of forks beside other changes what they have inherited.
    fn ask_children(&mut self, space: SpaceId, batch: &mut Batch) {
        if !batch.messages.iter().any(Message::is_change) {
            return;
        }
        self.note_left_out(space, &mut batch.messages);
        let order = self.space_mut(space).map(|space| &mut space.order);
        let Some(mut order) = order.map(core::mem::take) else {
            return;
        };
        if let Some(Space { ranges, .. }) = self.space(space) {
            let armed = &ranges.armed;
            let mapped = || self.mapped(space).unwrap_or_else(|| armed.clone());
            let all_told = order.ask_children(batch, armed, mapped, Newborn::ask);
            self.unclear_fork |= !all_told;
        }
        if let Some(space) = self.space_mut(space) {
            space.order = order;
        }
    }

    /// What is mapped in a space. None if that cannot be read.
    fn mapped(&self, space: SpaceId) -> Option<RangeSet> {
        let mut mapped = RangeSet::new();
        let residency = self.residency_of(space)?;
        residency.for_each_line(|line| {
            if let Some(mapping) = mapping_of(line) {
                mapped.insert(mapping);
            }
        })?;
        Some(mapped)
    }

    /// What the order of messages is worth that were read while no thread was seen to move memory.
    fn sequence_of(&self, space: SpaceId, batch: &Batch) -> Sequence {
        if !batch.messages.iter().any(Message::is_change) {
            return Sequence::AsDone;
        }
        let processes = self.processes_of(space);
        if matches!(processes[..], [process] if !has_threads(process)) {
            return Sequence::AsDone;
        }
        // A move came between looking for one and reading.
        if batch.messages.iter().any(Message::is_move) {
            return Sequence::Incomplete;
        }
        Sequence::AtOnce
    }

    /// Lets every waiting thread of every space try again.
    pub(in crate::uffd) fn wake_all(&self) {
        self.spaces().for_each(|space| space.context.wake_all());
    }

    /// Write-protects what is present in a range that is being dropped. MADV_FREE leaves pages
    /// there, which the program may use again without a fault: it shows by this.
    fn watch(&mut self, space: SpaceId, range: PageRange) {
        if !self.features.can_protect() {
            return;
        }
        let Some(Space { context, .. }) = self.space(space) else {
            return;
        };
        // Until the thread goes on whose event was read.
        if context.is_changing() {
            self.unwatched.push((space, range));
            return;
        }
        // What is missing would be marked, and take page tables.
        let present = match self.residency_of(space) {
            Some(residency) if self.features.can_mark() => residency.present_in(range),
            _ => Ok(Vec::from([range])),
        };
        let is_refused = |range: &PageRange| {
            let length = range.count << PAGE_SHIFT;
            context.protect(range.start.address(), length) == Err(Errno::AGAIN)
        };
        // In any other case the range is no longer what it was.
        if present.is_ok_and(|ranges| ranges.iter().any(is_refused)) {
            self.unwatched.push((space, range));
        }
    }

    /// Marks pages that have left, so that whoever asks the kernel which pages of a program exist hears
    /// that these do. One that has come back meanwhile is write-protected by that, and shows so.
    pub(super) fn mark(&mut self, space: SpaceId, range: PageRange) {
        if !self.features.can_mark() {
            return;
        }
        let Some(Space { context, .. }) = self.space(space) else {
            return;
        };
        // Any other error means that the mapping is gone.
        if surely(|| ((), context.mark(range))).1 == Err(Errno::AGAIN) {
            self.unmarked.push((space, range));
        }
    }

    /// A thread waits to write to a page that was protected when it left, when it stayed, when it
    /// was to be dropped, or when the child was forked: by now the agent has no need of the
    /// protection. If the page is missing, the thread faults again.
    pub(super) fn end_protection(&mut self, space: SpaceId, page: PageNumber) {
        let Some(Space { context, .. }) = self.space(space) else {
            return;
        };
        match context.unprotect(page.address(), PAGE_SIZE as u64) {
            Ok(()) => {}
            Err(Errno::AGAIN) => self.protected.push((space, page)),
            // The mapping is gone.
            Err(_) => self.wake(SpacePage::new(space, page)),
        }
    }

    /// True while there are events that the pager does not know of yet: until then its view of
    /// the address spaces is not to be acted on. The kernel says so only until they are read.
    pub(in crate::uffd) fn is_unsettled(&self) -> bool {
        let mut backlog = self.backlog.iter();
        self.has_waiting() || backlog.any(|(_, message)| message.is_change())
    }

    /// The same of one space: what others wait for is not about its pages.
    pub(in crate::uffd) fn is_unsettled_in(&self, id: SpaceId) -> bool {
        let mut backlog = self.backlog.iter();
        self.space(id)
            .is_some_and(|space| space.order.has_waiting())
            || backlog.any(|(of, message)| *of == id && message.is_change())
    }

    /// True while an event of a space that somebody waits with has not been read.
    fn is_changing_in(&self, id: SpaceId) -> bool {
        self.space(id)
            .is_some_and(|space| space.context.is_changing())
    }

    /// True if [`Self::read_messages`] has something to do already. What waits until no event is missing waits
    /// for a thread to get a processor.
    pub(super) fn has_messages(&self) -> bool {
        !self.backlog.is_empty()
            || !self.protected.is_empty()
            || !self.unwatched.is_empty()
            || !self.unmarked.is_empty()
    }
}

/// The next number that no child has, round and round: one that was in use lately may still be in
/// somebody's mind.
pub(super) fn next_space<T>(last: u32, children: &BTreeMap<SpaceId, T>) -> u32 {
    let all = SpaceId::OWN.0 + 1..SpaceId::END;
    let from = last.saturating_add(1).clamp(all.start, all.end);
    (from..all.end)
        .chain(all.start..from)
        .find(|&id| !children.contains_key(&SpaceId(id)))
        .expect("invariant: each child has a descriptor, and no process has so many")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_children_come_again_when_they_are_free() {
        let mut children = BTreeMap::new();
        let mut last = SpaceId::OWN.0;
        for id in [1, 2, 3] {
            last = next_space(last, &children);
            assert_eq!(last, id);
            children.insert(SpaceId(last), ());
        }
        children.remove(&SpaceId(2));
        assert_eq!(next_space(last, &children), 4);
        let highest = SpaceId::END - 1;
        assert_eq!(next_space(highest - 1, &children), highest);
        assert_eq!(next_space(highest, &children), 2);
    }
}
