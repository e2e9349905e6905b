//! The end of a fabric whose buffers borrow from regions.

use crate::event::Buffer;
use crate::{Fabric, FabricEvent};
use alloc::collections::VecDeque;
use legato_verbs::{Provider, VerbsError};

impl<B: Buffer> Fabric<B> {
    /// As [`Self::shutdown`], but leaves the protection domain to the caller, whose regions belong
    /// to it. For buffers that borrow: a fabric may hold one as long as it lives, so no region can
    /// be deregistered before it is gone, and no protection domain before its regions.
    ///
    /// Returns the events not taken yet, and the buffers with them. No more will come.
    ///
    /// # Errors
    /// As [`Provider::close_listener`], with the fabric, and [`VerbsError::Busy`] as long as
    /// something is over and not known to be quiet: turn, or leave its memory alone for ever.
    #[expect(
        clippy::result_large_err,
        reason = "it happens once in a fabric's life"
    )]
    pub fn dismantle(
        mut self,
        provider: &mut dyn Provider,
    ) -> Result<VecDeque<FabricEvent<B>>, (VerbsError, Self)> {
        let ended = self.disconnect_all(provider).and_then(|()| {
            // P-74: something may still touch its memory.
            if !self.shared.fence.is_empty() {
                return Err(VerbsError::Busy("memory in quarantine"));
            }
            self.shared.end_receives(provider)?;
            provider.destroy_completion_queue(self.shared.queue)
        });
        match ended {
            Ok(()) => Ok(core::mem::take(&mut self.shared.events)),
            Err(error) => Err((error, self)),
        }
    }
}

impl<B> Drop for Fabric<B> {
    /// Operations under way go on without their fabric. Their buffers are left to them: nobody will
    /// say when they are quiet, so they are never dropped, as if they were free (P-73).
    fn drop(&mut self) {
        let slots = self.slots.iter_mut();
        for connection in slots.filter_map(|slot| slot.connection.as_deref_mut()) {
            for (_, operation) in connection.operations.take_all() {
                core::mem::forget(operation.buffer);
            }
        }
        self.shared.fence.forget_buffers();
    }
}
