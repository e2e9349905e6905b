//! The end: what the near half had is given up, whatever became of it.

use super::ProxyServer;
use crate::{ForeignMemory, Pollable};
use legato_verbs::{Provider, VerbsError};

impl<P: Provider + ForeignMemory + Pollable> ProxyServer<P> {
    /// Queue pairs first: then nothing uses the memory any more. What the NIC does not let go of stays
    /// mapped for ever, so that a late write reaches nobody's memory.
    pub(super) fn release(&mut self) {
        self.rings = None;
        self.told.clear();
        self.events.clear();
        for (pair, _) in core::mem::take(&mut self.pairs) {
            // A failure shows below: the regions of its requests stay busy.
            let _ = self.provider.destroy_queue_pair(pair);
        }
        for listener in core::mem::take(&mut self.listeners) {
            let _ = self.provider.close_listener(listener);
        }
        for (_, served) in core::mem::take(&mut self.regions) {
            match self.provider.deregister_region(&served.region) {
                Ok(()) | Err(VerbsError::UnknownHandle(_)) => drop(served.mapping),
                Err(_) => {
                    core::mem::forget(served.mapping);
                    self.leaked += 1;
                }
            }
        }
        self.region_bytes = 0;
        for queue in core::mem::take(&mut self.queues) {
            let _ = self.provider.destroy_completion_queue(queue);
        }
        for domain in core::mem::take(&mut self.domains) {
            let _ = self.provider.destroy_protection_domain(domain);
        }
    }
}

impl<P: Provider + ForeignMemory + Pollable> Drop for ProxyServer<P> {
    fn drop(&mut self) {
        self.release();
    }
}
