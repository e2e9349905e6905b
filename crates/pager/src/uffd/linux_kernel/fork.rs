//! What a forked child does not get of its parent's memory: ranges that are wiped in it
//! (MADV_WIPEONFORK), and ranges that are not there (MADV_DONTFORK).
//!
//! The kernel does not say which those are; `/proc/PID/smaps` does. It is read as soon as the fork's event
//! was, when the thread that forks is on its way back from the call, so its own advice is all in there. What
//! another thread advises or unmaps in the same moment may be seen or not.

use super::LinuxKernel;
use crate::RangeSet;
use crate::uffd::mappings::Flags;
use crate::uffd::message::Message;
use crate::uffd::residency::Residency;
use crate::{PageRange, SpaceId};
use alloc::vec::Vec;

/// Ranges that a child has no content of.
#[derive(Debug, Default)]
pub(in crate::uffd) struct LeftOut {
    pub(super) ranges: Vec<PageRange>,
    /// Those that are there, reading zero. The child wipes them too when it forks.
    pub(super) wiped: RangeSet,
}

impl LinuxKernel {
    /// What is left out of children of this space whose forks were read just now.
    pub(super) fn note_left_out(&mut self, space: SpaceId, messages: &mut [Message]) {
        for child in messages.iter_mut().filter_map(Message::child_mut) {
            child.left_out = if space == SpaceId::OWN {
                let found = left_out_of(&self.residency);
                self.unreadable |= found.is_none();
                Some(found.unwrap_or_default())
            } else {
                let hand = self
                    .children
                    .get(&space)
                    .and_then(|parent| parent.hand.as_ref());
                hand.and_then(|hand| left_out_of(&hand.residency))
            };
        }
    }

    /// What is left out of a child of this space, if so much was noted of it.
    pub(super) fn left_out_by_fork(&self, space: SpaceId, noted: Option<LeftOut>) -> LeftOut {
        if let Some(mut found) = noted {
            // Of a child inherited ranges are registered too, whether they are charged already or not: none
            // is passed over.
            if space == SpaceId::OWN {
                found.keep(&self.own.ranges.charged);
            }
            return found;
        }
        // Which process has this memory is not known. It has inherited its parent's advice, and what it has
        // advised itself since is not seen.
        let parent = self.children.get(&space);
        parent.map_or_else(LeftOut::default, |parent| {
            LeftOut::of_wiped(&parent.space.ranges.wiped)
        })
    }
}

impl LeftOut {
    /// Only what the pager is in charge of counts; nothing else can be out.
    fn keep(&mut self, registered: &RangeSet) {
        let counts = |range: PageRange| registered.missing_from(range) != [range];
        let (kept, gone): (Vec<_>, Vec<_>) = self.ranges.iter().partition(|range| counts(**range));
        self.ranges = kept;
        gone.into_iter().for_each(|range| self.wiped.remove(range));
    }

    fn of_wiped(known: &RangeSet) -> Self {
        let mut left_out = Self::default();
        for range in known.ranges() {
            left_out.ranges.push(range);
            left_out.wiped.insert(range);
        }
        left_out
    }
}

fn left_out_of(residency: &Residency) -> Option<LeftOut> {
    let mut found = LeftOut::default();
    residency.for_each_mapping(|range, flags| match fate(flags) {
        Fate::Copied => {}
        Fate::Absent => found.ranges.push(range),
        Fate::Wiped => {
            found.ranges.push(range);
            found.wiped.insert(range);
        }
    })?;
    Some(found)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Copied,
    Wiped,
    Absent,
}

/// Of a mapping with these flags (proc_pid_smaps(5)), when its process forks. What is not copied
/// is not wiped either.
fn fate(flags: Flags<'_>) -> Fate {
    if flags.has("dc") {
        Fate::Absent
    } else if flags.has("wf") {
        Fate::Wiped
    } else {
        Fate::Copied
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::{PAGE_SHIFT, PageNumber};
    use rustix::mm::{Advice, MapFlags, ProtFlags};

    const PAGES: u64 = 64;

    #[test]
    fn wiped_and_absent_mappings_are_found() {
        // SAFETY: a fresh mapping of this test's own.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                core::ptr::null_mut(),
                (PAGES << PAGE_SHIFT) as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .unwrap();
        let first = PageNumber::containing(start as u64);
        let advise = |page: u64, count: u64, advice| {
            let at = start.wrapping_byte_add((page << PAGE_SHIFT) as usize);
            // SAFETY: as above.
            unsafe { rustix::mm::madvise(at, (count << PAGE_SHIFT) as usize, advice) }.unwrap();
        };
        advise(8, 8, Advice::LinuxWipeOnFork);
        advise(24, 8, Advice::LinuxDontFork);
        advise(40, 8, Advice::LinuxWipeOnFork);
        advise(40, 8, Advice::LinuxDontFork);
        let within = |range: &PageRange| range.start >= first && range.start < first.plus(PAGES);
        let range = |page: u64| PageRange::new(first.plus(page), 8);
        let residency = Residency::open(None, true).unwrap();

        let all = left_out_of(&residency).unwrap();
        let ranges: Vec<_> = all.ranges.into_iter().filter(within).collect();
        assert_eq!(ranges, [range(8), range(24), range(40)]);
        assert!(all.wiped.contains(first.plus(15)) && !all.wiped.contains(first.plus(24)));
        assert!(!all.wiped.contains(first.plus(40)));

        let mut registered = RangeSet::default();
        registered.insert(PageRange::new(first.plus(20), 6));
        let mut some = left_out_of(&residency).unwrap();
        some.keep(&registered);
        assert_eq!(some.ranges, [range(24)]);
        // SAFETY: nothing uses it any more.
        unsafe { rustix::mm::munmap(start, (PAGES << PAGE_SHIFT) as usize) }.unwrap();
    }

    #[test]
    fn what_is_not_copied_is_not_wiped_either() {
        assert_eq!(fate(Flags(" rd wr mr mw me ac sd")), Fate::Copied);
        assert_eq!(fate(Flags(" rd wr wf ac")), Fate::Wiped);
        assert_eq!(fate(Flags(" rd dc wf ac")), Fate::Absent);
    }
}
