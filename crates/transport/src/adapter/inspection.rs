//! What can be seen of an adapter from outside.

use super::objects::NO_QUEUE_PAIR;
use super::queue_pair::{Receives, Stage};
use super::surroundings::{RegionNumber, Surroundings};
use super::{ChannelAdapter, Configuration};
use crate::cm::{ConnectionId, Gid, ManagerCounts, ServiceId};
use crate::rc;
use legato_base::Time;
use legato_verbs::{
    AccessFlags, AddressVector, LocalKey, QueuePair, QueuePairAttributes, QueuePairNumber,
    QueuePairState, ScatterGatherEntry, SharedReceiveQueue, VerbsError,
};

impl ChannelAdapter {
    pub const fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        Ok(self.engine(queue_pair).ok_or(NO_QUEUE_PAIR)?.state())
    }

    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn query_attributes(
        &self,
        queue_pair: QueuePair,
    ) -> Result<QueuePairAttributes, VerbsError> {
        Ok(*self.engine(queue_pair).ok_or(NO_QUEUE_PAIR)?.query())
    }

    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn queue_pair_number(&self, queue_pair: QueuePair) -> Result<QueuePairNumber, VerbsError> {
        Ok(self.engine(queue_pair).ok_or(NO_QUEUE_PAIR)?.number())
    }

    pub const fn port_address(&self) -> AddressVector {
        AddressVector {
            destination: self.configuration.port.gid.0,
        }
    }

    /// # Errors
    /// As [`legato_verbs::Provider::arm_shared_receive_queue`].
    pub fn arm_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
        limit: u32,
    ) -> Result<(), VerbsError> {
        self.objects.shared.queue_mut(queue)?.arm_limit(limit)
    }

    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn query_shared_receive_queue(&self, queue: SharedReceiveQueue) -> Result<u32, VerbsError> {
        Ok(self.objects.shared.queue(queue)?.limit())
    }

    /// True if an event or a completion waits to be polled.
    pub fn has_work(&self) -> bool {
        let mut queues = self.objects.queues.iter();
        !self.objects.events.is_empty() || queues.any(|(_, record)| !record.queue.is_empty())
    }

    /// The transport of a queue pair.
    pub fn engine(&self, queue_pair: QueuePair) -> Option<&rc::QueuePair> {
        Some(&self.record(queue_pair)?.engine)
    }

    /// The queue pair that has this number now.
    pub fn queue_pair_numbered(&self, number: QueuePairNumber) -> Option<QueuePair> {
        self.by_number.get(&number).copied()
    }

    /// Receives that a queue pair's peer may use.
    pub fn posted_receives(&self, queue_pair: QueuePair) -> Option<u32> {
        match &self.record(queue_pair)?.context.receives {
            Receives::Own(queue) => Some(queue.posted()),
            Receives::Shared(shared) => Some(self.objects.shared.queue(*shared).ok()?.posted()),
        }
    }

    /// Is the alarm of a queue pair's timer due that was set last?
    pub fn timer_is_due(&self, queue_pair: QueuePair, now: Time) -> bool {
        let record = self.record(queue_pair);
        record.is_some_and(|record| record.timer_at <= now)
    }

    /// Asks a peer without a receive again then, and not when its answer said.
    pub fn wait_for_receive(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
        until: Time,
    ) {
        if let Some(record) = self.record_mut(name) {
            record.engine.wait_for_receive(until);
            record.timer_at = Time::NEVER;
        }
        self.set_timer(surroundings, name);
    }

    /// Queue pairs that are connected, as far as this side knows, and to whom.
    pub fn connections(&self) -> impl Iterator<Item = (QueuePair, ConnectionId, Gid)> {
        self.queue_pairs.iter().filter_map(|(_, record)| {
            let link = record.link?;
            let connected = matches!(link.stage, Stage::Accepted | Stage::Established);
            let connection = link.id.filter(|_| connected)?;
            Some((record.context.handle, connection, link.peer))
        })
    }

    /// Those to whom there is a connection, or something to say about one: it has not begun yet, or
    /// its end is not acknowledged.
    pub fn peers(&self) -> impl Iterator<Item = Gid> {
        self.manager.peers()
    }

    /// True if a queue pair has this peer, whoever connected it.
    pub fn has_queue_pair_to(&self, peer: Gid) -> bool {
        let mut all = self.queue_pairs.iter();
        all.any(|(_, record)| {
            let vector = record.engine.query().address_vector;
            vector.is_some_and(|vector| vector.destination == peer.0)
        })
    }

    pub fn listens(&self, service: ServiceId) -> bool {
        self.listeners.iter().any(|(_, &it)| it == service)
    }

    /// Where a local entry is, if its region is there and all of it may be used so.
    pub fn local_place(
        &self,
        entry: &ScatterGatherEntry,
        access: AccessFlags,
    ) -> Option<(RegionNumber, u64)> {
        let domain = self.objects.regions.get(&entry.local_key)?.domain;
        let place = self.objects.keys.check_local(domain, entry, access).ok()?;
        Some((RegionNumber(place.owner), place.offset))
    }

    pub fn has_region(&self, key: LocalKey) -> bool {
        self.objects.regions.contains_key(&key)
    }

    /// What connection management holds, of ended connections too.
    pub fn manager_counts(&self) -> ManagerCounts {
        self.manager.counts()
    }

    /// Queue pair numbers that cannot be given out, of ended connections too.
    pub fn numbers_in_use(&self) -> usize {
        self.numbers.count()
    }

    /// Packets that were none, or nobody's, or from a stranger.
    pub const fn packets_discarded(&self) -> u64 {
        self.packets_discarded
    }
}
