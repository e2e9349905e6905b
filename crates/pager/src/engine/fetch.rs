//! A page comes from a memory node.

use super::operation::OperationKind;
use super::{Pager, PagerEvent, PagerFabric};
use crate::entry::{FarRecord, Flag, Location};
use crate::frames::FrameState;
use crate::{FrameBuffer, FrameIndex, FrameMemory, Kernel, SpacePage};
use legato_base::Time;
use legato_base::timeouts::NODE_REQUEST;
use legato_base::wire::slot::{SlotMismatch, SlotRecord};

impl<K: Kernel> Pager<K> {
    /// Starts fetching a far page into a frame that was taken for it, or finds it lost. False if that must wait.
    /// Where no fetch begins the frame is released.
    pub(super) fn fetch_into(
        &mut self,
        page: SpacePage,
        frame: FrameIndex,
        demanded: bool,
        net: &mut PagerFabric<'_>,
    ) -> bool {
        let Some(entry) = self.table.entry(page) else {
            self.frames.release(frame);
            return false;
        };
        let stamp = entry.stamp;
        let found = entry
            .far
            .and_then(|slot| Some((slot, self.store.locate(slot)?)));
        let Some((slot, (connection, place))) = found else {
            self.frames.release(frame);
            self.lose_page(page);
            return true;
        };
        // P-19: header and page, by one READ.
        let buffer = FrameBuffer::new(self.kernel.frames(), frame);
        let deadline = net.now + NODE_REQUEST;
        match net
            .fabric
            .read(net.provider, connection, place, buffer, deadline)
        {
            Ok(id) => {
                self.note_started(None);
                self.start_operation(id, slot, OperationKind::Read { frame });
                self.frames.fetch(frame, page, demanded);
                if let Some(entry) = self.table.entry_mut(page) {
                    entry.set_location(Location::InFrame(frame));
                    entry.set(Flag::Prefetched, !demanded);
                }
                // Prefetched pages count too: a walk that goes on would have faulted on them.
                let distance = self.eviction_clock.wrapping_sub(stamp);
                self.candidates.handle_refault(page, distance);
                true
            }
            Err((refused, buffer)) => {
                self.note_started(Some(refused));
                self.frames.release(buffer.into_frame());
                false
            }
        }
    }

    /// A fetch is quiet: the page enters the program only if it is what the record says (P-21).
    pub(super) fn finish_fetch(&mut self, frame: FrameIndex, success: bool, now: Time) {
        let FrameState::Fetching {
            page: Some(page),
            demanded,
        } = self.frames.end_operation(frame)
        else {
            self.frames.release(frame);
            return;
        };
        let Some(entry) = self.table.entry_mut(page) else {
            unreachable!("invariant: a page that is fetched is in the table");
        };
        let far = entry.far;
        if !success {
            // The connection is going down with it; what that means for the page comes next.
            entry.set_location(Location::Far);
            self.frames.release(frame);
            self.waiting.start_again(page, now);
            return;
        }
        self.counters.pages_fetched += 1;
        let record = far.and_then(|slot| self.store.extents.record(slot));
        let verified = record.map(|record| self.verify(frame, &record));
        if let Some(Ok(())) = verified {
            self.frames.arrive(frame, page, demanded);
            return;
        }
        // Without a record the slot is lost with its node, which has been told.
        let node = far.and_then(|slot| Some(self.store.extents.locate(slot)?.0));
        self.frames.release(frame);
        self.lose_page(page);
        if let (Some(node), Some(Err(mismatch))) = (node, verified) {
            self.counters.pages_rejected += 1;
            self.events.push_back(PagerEvent::PageRejected {
                page,
                node,
                mismatch,
            });
        }
        self.waiting.start_again(page, now);
    }

    /// A fetch that never ends: its page is served anew, and the frame is nobody's.
    pub(super) fn abandon_fetch(&mut self, frame: FrameIndex, now: Time) {
        let page = self.frames.state(frame).page();
        self.frames.hold(frame);
        if let Some(page) = page
            && let Some(entry) = self.table.entry_mut(page)
        {
            entry.set_location(Location::Far);
            self.waiting.start_again(page, now);
        }
    }

    /// Compares what came with the process's own word.
    pub(super) fn verify(&self, frame: FrameIndex, record: &FarRecord) -> Result<(), SlotMismatch> {
        let expected = SlotRecord {
            client: self.client,
            page: legato_base::PageNumber(0),
            version: record.version,
            checksum: record.checksum,
        };
        let frames = self.kernel.frames();
        frames.header(frame, |header| {
            frames.page(frame, |page| expected.verify(header, page))
        })
    }
}
