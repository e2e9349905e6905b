//! Forked children, until they run a program of their own.
//!
//! A child starts with the parent's far pages, shared: the parent writes a changed page to a new
//! slot while a child still reads the old one. The parent's pager serves the child's faults by
//! copying; nothing is evicted from a child, whose memory is bounded by what it touches.

use super::operation::OperationKind;
use super::{Fault, Pager, PagerFabric};
use crate::entry::{FarRecord, Location, WriteBack};
use crate::far::NODE_DEADLINE;
use crate::table::PageTable;
use crate::{FillError, FrameBuffer, FrameIndex, FrameMemory, Kernel, PageRange, SpaceId};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use legato_base::{Duration, PAGE_SIZE, PageNumber, Time};

/// How often children are asked whether they still live.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A forked child.
#[derive(Debug, Default)]
pub(super) struct Child {
    /// Pages that were out of the parent when it forked. What is not here and missing was never
    /// touched.
    pages: PageTable<ChildPage>,
    fetching: BTreeSet<PageNumber>,
}

/// Content of a page that a child has not touched yet.
#[derive(Clone, Debug)]
enum ChildPage {
    Far(FarRecord),
    /// On its way to a node when the parent forked.
    Here(Box<[u8; PAGE_SIZE]>),
    Lost,
}

impl<K: Kernel> Pager<K> {
    pub(super) fn fork(&mut self, parent: SpaceId, child: SpaceId, now: Time) {
        let pages = if parent == SpaceId::OWN {
            self.copy_own_pages()
        } else {
            self.copy_child_pages(parent)
        };
        self.counters.children_served += 1;
        self.children.insert(
            child,
            Child {
                pages,
                fetching: BTreeSet::new(),
            },
        );
        self.check_children_at = self.check_children_at.max(now).min(now + CHECK_INTERVAL);
    }

    fn copy_own_pages(&mut self) -> PageTable<ChildPage> {
        let mut pages = PageTable::default();
        for (page, entry) in self.table.iter() {
            let content = match entry.location {
                // The kernel has shared it.
                Location::Resident => continue,
                Location::Lost => ChildPage::Lost,
                Location::Victim {
                    frame,
                    write_back: WriteBack::Queued | WriteBack::InFlight,
                } => ChildPage::Here(
                    self.kernel
                        .frames()
                        .page(frame, |content| Box::new(*content)),
                ),
                Location::Arrived { frame, .. } => ChildPage::Here(
                    self.kernel
                        .frames()
                        .page(frame, |content| Box::new(*content)),
                ),
                Location::Far
                | Location::Fetching { .. }
                | Location::Victim {
                    write_back: WriteBack::Done,
                    ..
                } => match entry.far {
                    Some(record) => {
                        self.store.extents.share(record.slot());
                        ChildPage::Far(record)
                    }
                    None => ChildPage::Lost,
                },
            };
            pages.insert(page, content);
        }
        pages
    }

    fn copy_child_pages(&mut self, parent: SpaceId) -> PageTable<ChildPage> {
        let mut pages = PageTable::default();
        let Some(parent) = self.children.get(&parent) else {
            return pages;
        };
        for (page, content) in parent.pages.iter() {
            if let ChildPage::Far(record) = content {
                self.store.extents.share(record.slot());
            }
            pages.insert(page, content.clone());
        }
        pages
    }

    /// False if the fault must wait.
    pub(super) fn serve_child(&mut self, fault: Fault, net: &mut PagerFabric<'_>) -> bool {
        let Some(child) = self.children.get_mut(&fault.space) else {
            return true;
        };
        if child.fetching.contains(&fault.page) {
            return true;
        }
        match child.pages.entry(fault.page).cloned() {
            None => {
                let filled = self.kernel.zero_in(fault.space, fault.page);
                self.filled_child(fault.space, fault.page, filled)
            }
            Some(ChildPage::Lost) => self.poison(fault.space, fault.page),
            Some(ChildPage::Here(content)) => self.copy_to_child(fault, &content),
            Some(ChildPage::Far(record)) => self.fetch_for_child(fault, record, net),
        }
    }

    fn copy_to_child(&mut self, fault: Fault, content: &[u8; PAGE_SIZE]) -> bool {
        let Some((frame, _)) = self.take_frames(1) else {
            return false;
        };
        self.kernel
            .frames_mut()
            .page_mut(frame, |page| *page = *content);
        let filled = self.kernel.copy_in(fault.space, frame, fault.page);
        self.release_frame(frame);
        self.filled_child(fault.space, fault.page, filled)
    }

    /// Bookkeeping after a fill; false if it must be tried again.
    fn filled_child(
        &mut self,
        space: SpaceId,
        page: PageNumber,
        filled: Result<(), FillError>,
    ) -> bool {
        match filled {
            Err(FillError::Again | FillError::NoMemory) => return false,
            Err(FillError::Present) => self.kernel.wake(space, page),
            // The mapping or the child is gone: nobody waits.
            Ok(()) | Err(FillError::Gone | FillError::SpaceGone | FillError::CopyOnly) => {}
        }
        self.drop_child_page(space, page);
        true
    }

    fn drop_child_page(&mut self, space: SpaceId, page: PageNumber) {
        let dropped = self
            .children
            .get_mut(&space)
            .and_then(|child| child.pages.remove(page));
        if let Some(ChildPage::Far(record)) = dropped {
            self.release_far(Some(record));
        }
    }

    fn fetch_for_child(
        &mut self,
        fault: Fault,
        record: FarRecord,
        net: &mut PagerFabric<'_>,
    ) -> bool {
        let Some((connection, place)) = self.store.locate(record.slot()) else {
            self.lose_child_page(fault.space, fault.page);
            return self.poison(fault.space, fault.page);
        };
        let Some((frame, _)) = self.take_frames(1) else {
            return false;
        };
        let buffer = FrameBuffer::new(self.kernel.frames(), frame);
        match net.fabric.read(
            net.provider,
            connection,
            place,
            buffer,
            net.now + NODE_DEADLINE,
        ) {
            Ok(id) => {
                let (space, page) = (fault.space, fault.page);
                self.start_operation(
                    id,
                    OperationKind::ChildRead {
                        space,
                        page,
                        record,
                    },
                );
                if let Some(child) = self.children.get_mut(&space) {
                    child.fetching.insert(page);
                }
                true
            }
            Err((_, buffer)) => {
                self.release_frame(buffer.into_frame());
                false
            }
        }
    }

    pub(super) fn finish_child_fetch(
        &mut self,
        space: SpaceId,
        page: PageNumber,
        record: FarRecord,
        frame: FrameIndex,
        success: bool,
        now: Time,
    ) {
        let good = success && self.verify(frame, &record).is_ok();
        self.counters.pages_fetched += u64::from(success);
        let wanted = self.children.get_mut(&space).is_some_and(|child| {
            child.fetching.remove(&page);
            matches!(child.pages.entry(page), Some(ChildPage::Far(now)) if *now == record)
        });
        let again = Fault {
            space,
            page,
            at: now,
        };
        if !wanted {
            // Unmapped or emptied meanwhile; whoever waits faults again and is served anew.
            self.kernel.wake(space, page);
        } else if good {
            let filled = self.kernel.copy_in(space, frame, page);
            if !self.filled_child(space, page, filled) {
                self.stalled.push_back(again);
            }
        } else {
            if success {
                self.counters.pages_rejected += 1;
            }
            self.lose_child_page(space, page);
            self.stalled.push_back(again);
        }
        self.release_frame(frame);
    }

    fn lose_child_page(&mut self, space: SpaceId, page: PageNumber) {
        self.drop_child_page(space, page);
        self.counters.pages_lost += 1;
        if let Some(child) = self.children.get_mut(&space) {
            child.pages.insert(page, ChildPage::Lost);
        }
    }

    /// Marks what a child had on lost nodes; returns how many pages.
    pub(super) fn lose_pages_of_children(&mut self) -> u64 {
        let store = &self.store;
        let mut lost = 0;
        for child in self.children.values_mut() {
            for (_, content) in child.pages.iter_mut() {
                if matches!(content, ChildPage::Far(at) if store.extents.locate(at.slot()).is_none())
                {
                    *content = ChildPage::Lost;
                    lost += 1;
                }
            }
        }
        lost
    }

    pub(super) fn remove_in_child(&mut self, space: SpaceId, range: PageRange) {
        self.forget_stalled(space, range);
        let Some(child) = self.children.get_mut(&space) else {
            return;
        };
        for (page, content) in child.pages.remove_range(range) {
            if let ChildPage::Far(record) = content {
                self.release_far(Some(record));
            }
            self.kernel.wake(space, page);
        }
    }

    pub(super) fn remap_in_child(&mut self, space: SpaceId, from: PageRange, to: PageNumber) {
        self.remove_in_child(space, PageRange::new(to, from.count));
        self.forget_stalled(space, from);
        let Some(child) = self.children.get_mut(&space) else {
            return;
        };
        for (page, content) in child.pages.remove_range(from) {
            child
                .pages
                .insert(PageNumber(to.0 + (page.0 - from.start.0)), content);
            self.kernel.wake(space, page);
        }
    }

    /// Forgets children that have ended or run another program.
    pub(super) fn check_children(&mut self, now: Time) {
        if self.children.is_empty() || now < self.check_children_at {
            return;
        }
        self.check_children_at = now + CHECK_INTERVAL;
        let gone: alloc::vec::Vec<SpaceId> = self
            .children
            .keys()
            .copied()
            .filter(|&space| !self.kernel.space_alive(space))
            .collect();
        for space in gone {
            self.kernel.close_space(space);
            let all = PageRange::new(PageNumber(0), u64::MAX);
            self.remove_in_child(space, all);
            self.children.remove(&space);
            self.stalled.retain(|fault| fault.space != space);
        }
    }

    pub(super) fn children_deadline(&self) -> Time {
        if self.children.is_empty() {
            Time::NEVER
        } else {
            self.check_children_at
        }
    }
}
