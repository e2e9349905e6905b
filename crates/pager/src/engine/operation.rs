//! Operations in flight. What they mean is decided when they are quiet, not when they are over:
//! until then their frame belongs to the fabric.

use super::{Pager, PagerFabric};
use crate::entry::SlotRef;
use crate::far::ExtentUse;
use crate::{FrameBuffer, FrameIndex, Kernel};
use legato_fabric::OperationId;

/// One operation.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) kind: OperationKind,
    extent: ExtentUse,
    /// None until its outcome is known.
    succeeded: Option<bool>,
}

/// What an operation is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum OperationKind {
    /// Fetches the page that owns the frame.
    Read { frame: FrameIndex },
    /// Writes the victim in the frame back, as this version.
    Write { frame: FrameIndex, version: u64 },
}

impl<K: Kernel> Pager<K> {
    /// An operation on a slot was posted.
    pub(super) fn start_operation(&mut self, id: OperationId, slot: SlotRef, kind: OperationKind) {
        self.looks.outdate();
        let Some(extent) = self.store.extents.begin_use(slot) else {
            unreachable!("invariant: an operation is posted on an extent that is there");
        };
        self.operations.insert(
            id,
            Operation {
                kind,
                extent,
                succeeded: None,
            },
        );
    }

    pub(super) fn handle_outcome(&mut self, id: OperationId, success: bool) {
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.succeeded = Some(success);
        }
    }

    /// What the operation means for its page is decided here (P-18).
    pub(super) fn handle_quiesced(
        &mut self,
        id: OperationId,
        buffer: FrameBuffer,
        net: &mut PagerFabric<'_>,
    ) {
        let frame: FrameIndex = buffer.into_frame();
        let Some(operation) = self.operations.remove(&id) else {
            // It was in quarantine.
            self.frames.let_go(frame);
            return;
        };
        self.store.extents.end_use(operation.extent);
        let success = operation.succeeded == Some(true);
        match operation.kind {
            OperationKind::Read { .. } => self.finish_fetch(frame, success, net.now),
            OperationKind::Write { version, .. } => {
                self.finish_write_back(frame, version, success);
            }
        }
    }

    /// The NIC may touch the frame for ever. What was to come into it is fetched into another one, or
    /// is lost with its node; what was to be written out of it is in it still, and is written elsewhere.
    /// Its extent stays in use.
    pub(super) fn handle_quarantined(&mut self, id: OperationId, net: &PagerFabric<'_>) {
        let Some(operation) = self.operations.remove(&id) else {
            return;
        };
        match operation.kind {
            OperationKind::Read { frame } => self.abandon_fetch(frame, net.now),
            OperationKind::Write { frame, version } => self.abandon_write_back(frame, version),
        }
    }
}
