//! Making queue pairs and shared receive queues: limits, ledgers, and who uses what.

use super::ShmProvider;
use super::completion::unknown;
use super::queue_pair::Pair;
use super::shared_receive::SharedQueue;
use legato_verbs::{
    ProtectionDomain, QueuePair, QueuePairInit, Receives, SharedReceiveQueue,
    SharedReceiveQueueCapabilities, VerbsError,
};

/// Queue pairs that one provider can have.
pub const QUEUE_PAIRS_MAX: u32 = 16_384;
/// Shared receive queues that one provider can have.
pub const SHARED_RECEIVE_QUEUES_MAX: u32 = 4_096;
/// Requests that one queue of a queue pair, or a shared receive queue, can have outstanding.
pub const QUEUE_PAIR_REQUESTS_MAX: u32 = 16_384;
/// Scatter/gather entries of one request.
pub const ENTRIES_MAX: u32 = 64;

fn within(what: &'static str, asked: u32, limit: u32) -> Result<(), VerbsError> {
    if asked > limit {
        let (asked, limit) = (u64::from(asked), u64::from(limit));
        return Err(VerbsError::LimitExceeded { what, asked, limit });
    }
    Ok(())
}

impl ShmProvider {
    /// Everything that a queue pair is to be made with exists and has room for it.
    fn check_init(&self, init: &QueuePairInit) -> Result<(), VerbsError> {
        let alive = self.queue_pairs.len() as u32;
        within("queue pairs", alive + 1, QUEUE_PAIRS_MAX)?;
        let capabilities = &init.capabilities;
        for requests in [
            capabilities.send_requests_max,
            capabilities.receive_requests_max,
        ] {
            within("requests of a queue", requests, QUEUE_PAIR_REQUESTS_MAX)?;
        }
        let entries = capabilities.entries_max;
        within("entries of a request", entries, ENTRIES_MAX)?;
        self.domains
            .get(init.domain)
            .ok_or_else(|| unknown(init.domain))?;
        if let Receives::Shared(queue) = init.receives {
            self.hub.shared.get(queue).ok_or_else(|| unknown(queue))?;
        }
        Ok(())
    }

    /// Reserves completions for both queues of a pair, or none.
    fn reserve(&mut self, pair: &Pair) -> Result<(), VerbsError> {
        let [(sends, send_requests), (receives, receive_requests)] = pair.ledger();
        let queues = &mut self.hub.queues;
        queues.get(receives).ok_or_else(|| unknown(receives))?;
        let found = queues.get_mut(sends).ok_or_else(|| unknown(sends))?;
        if sends == receives {
            // One number in the refusal, and two users as for two queues.
            found.check(send_requests + receive_requests)?;
        }
        found.reserve(send_requests)?;
        let found = queues.get_mut(receives);
        let reserved = found.map_or(Ok(()), |found| found.reserve(receive_requests));
        if reserved.is_err()
            && let Some(found) = queues.get_mut(sends)
        {
            found.release(send_requests);
        }
        reserved
    }

    pub(super) fn add_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        self.check_init(init)?;
        let pair = Pair::new(*init);
        self.reserve(&pair)?;
        if let Some(users) = self.domains.get_mut(init.domain) {
            users.queue_pairs += 1;
        }
        if let Receives::Shared(queue) = init.receives {
            self.hub.shared_queue(queue)?.users += 1;
        }
        let handle = self.queue_pairs.insert(pair);
        if let Some(pair) = self.queue_pairs.get_mut(handle) {
            pair.handle = handle;
        }
        Ok(handle)
    }

    pub(super) fn add_shared_queue(
        &mut self,
        domain: ProtectionDomain,
        capabilities: SharedReceiveQueueCapabilities,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        let alive = self.hub.shared.len() as u32;
        within(
            "shared receive queues",
            alive + 1,
            SHARED_RECEIVE_QUEUES_MAX,
        )?;
        let requests = capabilities.requests_max;
        within("requests of a queue", requests, QUEUE_PAIR_REQUESTS_MAX)?;
        let entries = capabilities.entries_max;
        within("entries of a request", entries, ENTRIES_MAX)?;
        let users = self.domains.get_mut(domain);
        let users = users.ok_or_else(|| unknown(domain))?;
        users.shared_receive_queues += 1;
        let queue = SharedQueue::new(domain, capabilities);
        Ok(self.hub.shared.insert(queue))
    }

    pub(super) fn remove_shared_queue(
        &mut self,
        queue: SharedReceiveQueue,
    ) -> Result<(), VerbsError> {
        if self.hub.shared_queue(queue)?.users > 0 {
            return Err(VerbsError::Busy("shared receive queue"));
        }
        if let Some(found) = self.hub.shared.remove(queue) {
            if let Some(users) = self.domains.get_mut(found.domain) {
                users.shared_receive_queues -= 1;
            }
            found.destroy(&mut self.hub.regions);
        }
        Ok(())
    }
}
