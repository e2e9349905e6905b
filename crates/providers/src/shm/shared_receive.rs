//! Receives: a queue pair's own, or those of a queue that several share (IB spec 10.2.9).

use super::completion::unknown;
use super::hub::Hub;
use super::region::Regions;
use crate::table::Table;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_verbs::{
    AsyncEvent, ProtectionDomain, ReceiveRequest, ScatterGatherEntry, SharedReceiveQueue,
    SharedReceiveQueueCapabilities, VerbsError, WorkRequestId,
};

#[derive(Debug)]
pub(super) struct PostedReceive {
    pub(super) wr_id: WorkRequestId,
    pub(super) entries: Vec<ScatterGatherEntry>,
    pub(super) length: u32,
    /// Whose regions the entries name.
    pub(super) domain: ProtectionDomain,
}

impl PostedReceive {
    pub(super) fn new(domain: ProtectionDomain, request: &ReceiveRequest, length: u32) -> Self {
        Self {
            wr_id: request.wr_id,
            entries: request.entries.clone(),
            length,
            domain,
        }
    }
}

/// Receives that queue pairs take from. A slot is free again when a message has taken its receive.
#[derive(Debug)]
pub(super) struct SharedQueue {
    pub(super) domain: ProtectionDomain,
    capabilities: SharedReceiveQueueCapabilities,
    posted: VecDeque<PostedReceive>,
    /// The armed limit, or 0.
    limit: u32,
    pub(super) users: u32,
}

pub(super) type SharedQueues = Table<SharedReceiveQueue, SharedQueue>;

impl SharedQueue {
    pub(super) fn new(
        domain: ProtectionDomain,
        capabilities: SharedReceiveQueueCapabilities,
    ) -> Self {
        Self {
            domain,
            capabilities,
            posted: VecDeque::new(),
            limit: 0,
            users: 0,
        }
    }

    pub(super) fn posted(&self) -> usize {
        self.posted.len()
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    pub(super) fn arm(&mut self, limit: u32) -> Result<(), VerbsError> {
        if limit > self.capabilities.requests_max {
            return Err(VerbsError::LimitExceeded {
                what: "limit of a shared receive queue",
                asked: u64::from(limit),
                limit: u64::from(self.capabilities.requests_max),
            });
        }
        self.limit = limit;
        Ok(())
    }

    pub(super) fn post(
        &mut self,
        regions: &mut Regions,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        let (entries_max, entries) = (self.capabilities.entries_max, &request.entries);
        let length = regions.check(self.domain, entries, (true, entries_max, u32::MAX))?;
        if self.posted.len() >= self.capabilities.requests_max as usize {
            return Err(VerbsError::QueueFull("shared receive"));
        }
        regions.count_user(entries, true);
        let posted = PostedReceive::new(self.domain, request, length);
        self.posted.push_back(posted);
        Ok(())
    }

    /// Ends the queue: its receives hold on to their regions no longer.
    pub(super) fn destroy(self, regions: &mut Regions) {
        for posted in &self.posted {
            regions.count_user(&posted.entries, false);
        }
    }
}

/// Where a queue pair's messages go.
#[derive(Debug)]
pub(super) enum ReceiveQueue {
    Own(VecDeque<PostedReceive>),
    Shared(SharedReceiveQueue),
}

impl ReceiveQueue {
    /// The oldest receive.
    pub(super) fn first<'a>(&'a self, shared: &'a SharedQueues) -> Option<&'a PostedReceive> {
        match self {
            Self::Own(posted) => posted.front(),
            Self::Shared(queue) => shared.get(*queue)?.posted.front(),
        }
    }

    /// Those that no other queue pair takes, the oldest first.
    pub(super) fn own(&self) -> impl Iterator<Item = &PostedReceive> {
        match self {
            Self::Own(posted) => Some(posted.iter()),
            Self::Shared(_) => None,
        }
        .into_iter()
        .flatten()
    }

    /// Takes the oldest receive off the queue, and says so when that reaches the armed limit.
    pub(super) fn take(&mut self, hub: &mut Hub) -> Option<PostedReceive> {
        let taken = match self {
            Self::Own(posted) => posted.pop_front()?,
            Self::Shared(queue) => {
                let found = hub.shared.get_mut(*queue)?;
                let taken = found.posted.pop_front()?;
                if found.posted.len() < found.limit as usize {
                    found.limit = 0;
                    hub.raise(AsyncEvent::SharedReceiveQueueLimit(*queue));
                }
                taken
            }
        };
        hub.regions.count_user(&taken.entries, false);
        Some(taken)
    }

    /// Drops the receives that are the queue pair's own.
    pub(super) fn forget(&mut self, regions: &mut Regions) {
        if let Self::Own(posted) = self {
            for receive in posted.drain(..) {
                regions.count_user(&receive.entries, false);
            }
        }
    }

    pub(super) fn shared(&self) -> Option<SharedReceiveQueue> {
        match self {
            Self::Own(_) => None,
            Self::Shared(queue) => Some(*queue),
        }
    }
}

impl Hub {
    pub(super) fn shared_queue(
        &mut self,
        queue: SharedReceiveQueue,
    ) -> Result<&mut SharedQueue, VerbsError> {
        self.shared.get_mut(queue).ok_or_else(|| unknown(queue))
    }
}
