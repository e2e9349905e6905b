//! Compares what the pager counts with what there is, for simulations: it walks all pages.

use super::Pager;
use super::candidates::is_candidate;
use super::operation::OperationKind;
use crate::entry::PageEntry;
use crate::entry::{Flag, Location};
use crate::frames::FrameState;
use crate::{FrameIndex, FrameMemory, Kernel, NodeIndex, PageRange, SpaceId, SpacePage};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use legato_base::{PageChecksum, PageNumber};
use legato_verbs::RemoteAddress;

/// Where a page's newest content is, as far as the pager knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newest {
    /// In the program, in a frame, or in the pager's own memory.
    Here,
    /// In this slot alone. None if its node has been lost meanwhile.
    Far(Option<(NodeIndex, RemoteAddress)>),
    /// Nowhere.
    Lost,
}

impl<K: Kernel> Pager<K> {
    /// What is counted or owned wrong, if anything is.
    pub fn miscounted(&self) -> Option<&'static str> {
        let checks = [
            (
                "resident pages",
                self.candidates.count() == self.pages_that(|l| l == Location::Resident),
            ),
            ("candidates for eviction", self.all_are_candidates()),
            (
                "writes in flight",
                u64::from(self.frames.writing()) == self.writes(),
            ),
            ("checksums of queued writes", self.checksums_are_right()),
            ("kept pages", self.kept_is_right()),
            ("frames", self.frames_are_right()),
            ("far pages", self.far_is_right()),
            ("write-backs while a fault was served", !self.wrote_in_fault),
        ];
        let wrong = checks.into_iter().find(|&(_, right)| !right);
        wrong.map(|(what, _)| what)
    }

    /// True if the pager knows of a page, or will look at it.
    pub fn has_in_care(&self, page: SpacePage) -> bool {
        self.table.entry(page).is_some() || self.strays.has_in_use(page)
    }

    /// The pages of a space that the pager takes for resident, but for those that the kernel may have
    /// dropped without a word.
    pub fn taken_for_resident(&self, space: SpaceId) -> impl Iterator<Item = PageNumber> {
        let pages = self.table.range(space, PageRange::ALL);
        let resident = pages
            .filter(|(_, entry)| entry.location() == Location::Resident && !entry.is(Flag::Unseen));
        resident.map(|(page, _)| page.page())
    }

    /// Where the newest content of each page is.
    pub fn newest(&self) -> impl Iterator<Item = (SpacePage, Newest)> {
        let pages = self.table.iter();
        pages.map(|(page, entry)| (page, self.newest_of(entry)))
    }

    /// True if no copy of a page is left.
    pub fn is_lost(&self, page: SpacePage) -> bool {
        let entry = self.table.entry(page);
        entry.is_some_and(|entry| entry.location() == Location::Lost)
    }

    fn newest_of(&self, entry: &PageEntry) -> Newest {
        let is_here = match entry.location() {
            Location::Resident | Location::Kept => true,
            Location::InFrame(frame) => {
                !matches!(self.frames.state(frame), FrameState::Fetching { .. })
            }
            Location::Far => false,
            Location::Lost => return Newest::Lost,
        };
        match entry.far {
            _ if is_here => Newest::Here,
            far => Newest::Far(far.and_then(|slot| self.store.extents.locate(slot))),
        }
    }

    fn pages_that(&self, is: impl Fn(Location) -> bool) -> u64 {
        let pages = self.table.iter();
        pages.filter(|(_, entry)| is(entry.location())).count() as u64
    }

    /// Each resident page has one place from which it can be chosen.
    fn all_are_candidates(&self) -> bool {
        let places = self.candidates.places();
        let mut valid: Vec<SpacePage> = places
            .filter(|&queued| is_candidate(&self.table, queued))
            .map(|queued| queued.page)
            .collect();
        let count = valid.len();
        valid.sort_unstable();
        valid.dedup();
        count == valid.len() && count as u64 == self.candidates.count()
    }

    fn writes(&self) -> u64 {
        let is_write = |kind| matches!(kind, OperationKind::Write { .. });
        let operations = self.operations.values();
        operations
            .filter(|operation| is_write(operation.kind))
            .count() as u64
    }

    /// What is queued to be written is what is in the frame.
    fn checksums_are_right(&self) -> bool {
        let memory = self.kernel.frames();
        let states = self.frames.states().zip((0..).map(FrameIndex));
        let mut queued = states.filter(|(state, _)| matches!(state, FrameState::Queued(_)));
        queued.all(|(_, frame)| memory.page(frame, PageChecksum::of) == self.frames.checksum(frame))
    }

    fn kept_is_right(&self) -> bool {
        let kept = self
            .table
            .iter()
            .filter(|(_, entry)| entry.location() == Location::Kept);
        kept.map(|(page, _)| page).eq(self.children.kept.pages())
    }

    /// A page in a frame is what the frame holds, and what a frame holds is in it. Between turns none
    /// is taken for nothing.
    fn frames_are_right(&self) -> bool {
        let held = self.frames.states().filter_map(FrameState::page).count();
        let mut in_frames = 0;
        let right = self.table.iter().all(|(page, entry)| {
            frame_of(entry.location()).is_none_or(|frame| {
                in_frames += 1;
                self.frames.state(frame).page() == Some(page)
            })
        });
        let none_is_taken = self.frames.states().all(|state| state != FrameState::Taken);
        right && held == in_frames && none_is_taken
    }

    /// Every slot in use is some page's.
    fn far_is_right(&self) -> bool {
        let records = self.table.iter().filter_map(|(_, entry)| entry.far);
        let slots: BTreeSet<_> = records
            .filter(|&slot| self.store.extents.locate(slot).is_some())
            .collect();
        slots.len() as u64 == self.store.extents.used()
    }
}

const fn frame_of(location: Location) -> Option<FrameIndex> {
    match location {
        Location::InFrame(frame) => Some(frame),
        Location::Resident | Location::Far | Location::Kept | Location::Lost => None,
    }
}
