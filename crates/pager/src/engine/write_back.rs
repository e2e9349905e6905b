//! Victims reach a memory node. A frame is free for other pages only when its content is
//! acknowledged there.

use super::operation::OperationKind;
use super::{Pager, PagerFabric};
use crate::entry::{FarRecord, SlotRef};
use crate::far::EXTENT_SLOTS;
use crate::frames::FrameState;
use crate::{FrameBuffer, FrameIndex, FrameMemory, Kernel, SpacePage};
use legato_base::PageChecksum;
use legato_base::timeouts::NODE_REQUEST;
use legato_base::wire::slot::SlotRecord;

/// Writes outstanding at a time. A fetch that is posted behind them waits for them (one queue
/// pair executes in order), so they are few; and a completion in every 10 us keeps them busy.
const WRITES_IN_FLIGHT_MAX: u32 = 32;
/// More than so many queued frames do not make the writing any faster.
pub(super) const FEW_QUEUED: u32 = 2 * WRITES_IN_FLIGHT_MAX;

impl<K: Kernel> Pager<K> {
    /// Posts queued write-backs while the window and the slots last.
    pub(super) fn post_write_backs(&mut self, net: &mut PagerFabric<'_>) {
        while self.frames.writing() < WRITES_IN_FLIGHT_MAX
            && let Some(frame) = self.frames.oldest_queued()
            && let Some(page) = self.frames.state(frame).page()
            && self.post_write_back(page, frame, net)
        {}
        let keep = u64::from(EXTENT_SLOTS).max(2 * u64::from(self.frames.queued()));
        if self.counters.pages_evicted > 0 {
            self.store.balance(keep, net);
        }
    }

    /// False if it must wait.
    fn post_write_back(
        &mut self,
        page: SpacePage,
        frame: FrameIndex,
        net: &mut PagerFabric<'_>,
    ) -> bool {
        let Some(slot) = self.slot_for(page) else {
            return false;
        };
        let Some((connection, place)) = self.store.locate(slot) else {
            return false;
        };
        // P-20: counted over all pages, from 1 on.
        let version = self.last_version + 1;
        let checksum = self.frames.checksum(frame);
        let record = SlotRecord {
            client: self.client,
            page: page.page(),
            version,
            checksum,
        };
        let header = zerocopy::transmute!(record.to_header());
        self.kernel.frames_mut().set_header(frame, &header);
        // P-19: header and page, by one WRITE.
        let buffer = FrameBuffer::new(self.kernel.frames(), frame);
        let deadline = net.now + NODE_REQUEST;
        match net
            .fabric
            .write(net.provider, connection, place, buffer, deadline)
        {
            Ok(id) => {
                self.note_started(None);
                self.last_version = version;
                let record = FarRecord { version, checksum };
                self.store.extents.set_record(slot, record);
                self.frames.begin_write(frame);
                self.start_operation(id, slot, OperationKind::Write { frame, version });
                true
            }
            Err((refused, buffer)) => {
                self.note_started(Some(refused));
                // The frame stays this victim's: nothing was posted.
                let _same_frame = buffer.into_frame();
                false
            }
        }
    }

    /// The slot to write a page to: its own, unless a forked child still reads the older content
    /// there (P-23). The entry names it from here on, so that it is not lost if the write must wait.
    fn slot_for(&mut self, page: SpacePage) -> Option<SlotRef> {
        let old = self.table.entry(page)?.far;
        if let Some(slot) = old
            && !self.store.extents.is_shared(slot)
            && self.store.locate(slot).is_some()
        {
            return Some(slot);
        }
        let slot = self.store.extents.allocate()?;
        self.counters.far_pages_peak = self.counters.far_pages_peak.max(self.store.extents.used());
        self.release_far(old);
        if let Some(entry) = self.table.entry_mut(page) {
            entry.far = Some(slot);
        }
        Some(slot)
    }

    /// A write is quiet: from here on its frame may serve something else (P-22).
    pub(super) fn finish_write_back(&mut self, frame: FrameIndex, version: u64, success: bool) {
        if success {
            self.counters.pages_written += 1;
        }
        match self.frames.end_operation(frame) {
            FrameState::Writing(Some(page)) if success => {
                self.share_written(page, frame, version);
                self.frames.finish(frame, page);
            }
            FrameState::Writing(Some(page)) => {
                // What the slot holds now is unknown. The content is still here: write it again (P-26).
                self.forget_copy(page, version);
                self.queue_write(page, frame);
            }
            _ => {
                // The page went back to the program, or is gone: the frame was the fabric's only.
                if !success {
                    self.forget_copies_of_version(version);
                }
                self.frames.release(frame);
            }
        }
    }

    /// A write that never ends. What its slot holds, and will hold, is unknown: nothing comes there any more.
    pub(super) fn abandon_write_back(&mut self, frame: FrameIndex, version: u64) {
        let page = self.frames.state(frame).page();
        let page = page.or_else(|| self.page_of_version(version));
        if let Some(page) = page
            && self.has_version(page, version)
            && let Some(entry) = self.table.entry_mut(page)
        {
            entry.far = None;
        }
        self.frames.hold(frame);
    }

    /// The victim's content must be written.
    pub(super) fn queue_write(&mut self, page: SpacePage, frame: FrameIndex) {
        let checksum = self.kernel.frames().page(frame, PageChecksum::of);
        self.frames.queue(frame, page, checksum);
    }

    /// The page's far copy, if it is still this version, is not to be trusted.
    fn forget_copy(&mut self, page: SpacePage, version: u64) {
        if self.has_version(page, version)
            && let Some(entry) = self.table.entry_mut(page)
        {
            let far = entry.far.take();
            self.release_far(far);
        }
    }

    /// Is the page's far copy this version?
    fn has_version(&self, page: SpacePage, version: u64) -> bool {
        let far = self.table.entry(page).and_then(|entry| entry.far);
        let record = far.and_then(|slot| self.store.extents.record(slot));
        record.is_some_and(|record| record.version == version)
    }

    /// True until the write of this version is acknowledged. Its page may have gone back to the
    /// program and be on its way out again: this copy does not count yet.
    pub(super) fn is_being_written(&self, version: u64) -> bool {
        self.operations.values().any(|operation| {
            matches!(operation.kind, OperationKind::Write { version: posted, .. } if posted == version)
        })
    }

    /// True if a slot holds this content, and nothing is under way there.
    pub(super) fn is_written(&self, slot: SlotRef, checksum: PageChecksum) -> bool {
        let record = self.store.extents.record(slot);
        self.store.locate(slot).is_some()
            && record.is_some_and(|record| {
                record.checksum == checksum && !self.is_being_written(record.version)
            })
    }

    /// As [`Self::forget_copy`] when the page is not known any more.
    fn forget_copies_of_version(&mut self, version: u64) {
        if let Some(page) = self.page_of_version(version) {
            self.forget_copy(page, version);
        }
    }

    /// The page whose far copy is this version. Rare: a write that failed after its page had been touched
    /// again.
    fn page_of_version(&self, version: u64) -> Option<SpacePage> {
        let extents = &self.store.extents;
        let is_copy = |slot| {
            extents
                .record(slot)
                .is_some_and(|record| record.version == version)
        };
        self.table
            .iter()
            .find(|(_, entry)| entry.far.is_some_and(is_copy))
            .map(|(page, _)| page)
    }

    /// Gives up one owner's claim on a far copy.
    pub(super) fn release_far(&mut self, far: Option<SlotRef>) {
        if let Some(slot) = far {
            self.counters.far_pages_released += 1;
            self.store.extents.release(slot);
        }
    }
}
