//! The verbs of the near half.

use super::super::call::{Answer, Call};
use super::super::codec::TEXT_MAX;
use super::{LOOK, ProxyProvider};
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    AccessFlags, Address, AddressVector, Arm, Completion, CompletionQueue, ConnectionRequest,
    DeviceAttributes, Event, Listener, MemoryRegion, PRIVATE_DATA_MAX, ProtectionDomain, Provider,
    QueuePair, QueuePairAttributes, QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest,
    ResourceCounts, SendRequest, VerbsError,
};

impl Provider for ProxyProvider {
    fn attributes(&self) -> DeviceAttributes {
        self.attributes
    }

    /// Nothing is left of a NIC that is gone.
    fn resource_counts(&self) -> ResourceCounts {
        let Ok(Answer::Counts(mut counts)) = self.ask(&Call::ResourceCounts) else {
            return ResourceCounts::default();
        };
        let shared = counts.memory_regions.saturating_sub(self.pool_count());
        counts.memory_regions = shared + self.regions.own_count(None);
        counts.registered_bytes = self.regions.bytes();
        counts
    }

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        let (Answer::Domain(domain), None) = self.call(&Call::CreateDomain)? else {
            return Err(self.misspoke());
        };
        self.domains.insert(domain);
        Ok(domain)
    }

    fn destroy_protection_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        self.end_domain(domain)
    }

    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        self.make_region(domain, length, access)
    }

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        self.end_region(region)
    }

    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        self.regions.read(region, offset, into)
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        self.regions.write(region, offset, from)
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        let (Answer::Queue(queue), None) = self.call(&Call::CreateQueue { entries })? else {
            return Err(self.misspoke());
        };
        self.queues.insert(queue, Default::default());
        Ok(queue)
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        self.call_done(&Call::DestroyQueue(queue))?;
        if let Some(ended) = self.queues.remove(&queue) {
            self.ready -= ended.len();
        }
        let ready = Event::CompletionQueueReady(queue);
        self.events.retain(|event| *event != ready);
        Ok(())
    }

    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        self.poll_queue(queue, max, |completion| into.push(completion))
    }

    fn arm_completion_queue(
        &mut self,
        queue: CompletionQueue,
        arm: Arm,
    ) -> Result<bool, VerbsError> {
        let (Answer::Waits(waits), None) = self.call(&Call::ArmQueue(queue, arm))? else {
            return Err(self.misspoke());
        };
        let here = self.queues.get(&queue).is_some_and(|it| !it.is_empty());
        Ok(waits || here)
    }

    fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        self.make_pair(init)
    }

    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        match self.ask(&Call::QueryState(queue_pair))? {
            Answer::State(state) => Ok(state),
            _ => Err(VerbsError::DeviceRemoved),
        }
    }

    fn query_attributes(&self, queue_pair: QueuePair) -> Result<QueuePairAttributes, VerbsError> {
        match self.ask(&Call::QueryAttributes(queue_pair))? {
            Answer::Attributes(attributes) => Ok(attributes),
            _ => Err(VerbsError::DeviceRemoved),
        }
    }

    fn queue_pair_number(&self, queue_pair: QueuePair) -> Result<QueuePairNumber, VerbsError> {
        let pair = self.pairs.get(&queue_pair);
        pair.map(|pair| pair.number)
            .ok_or(VerbsError::UnknownHandle("queue pair"))
    }

    fn port_address(&self) -> AddressVector {
        self.port
    }

    fn modify_queue_pair(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        self.modify(queue_pair, to, attributes)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        self.end_pair(queue_pair)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        self.send(queue_pair, request)
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        self.receive(queue_pair, request)
    }

    fn listen(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        match self.call(&Call::Listen(address.clone()))? {
            (Answer::Listener(listener), None) => Ok(listener),
            _ => Err(self.misspoke()),
        }
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        self.end_listener(listener)
    }

    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let call = Call::Connect {
            pair: queue_pair,
            address: address.clone(),
            private: private(private_data)?,
        };
        self.change_connection(queue_pair, &call, true)
    }

    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let call = Call::Accept {
            request,
            pair: queue_pair,
            private: private(private_data)?,
        };
        self.change_connection(queue_pair, &call, true)
    }

    fn reject(
        &mut self,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        self.call_done(&Call::Reject {
            request,
            private: private(private_data)?,
        })
    }

    fn disconnect(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        self.change_connection(queue_pair, &Call::Disconnect(queue_pair), false)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.pump();
        self.events.pop_front()
    }

    fn progress(&mut self, now: Time) -> Time {
        if now >= self.look_at {
            self.look_at = now + LOOK;
            self.line.get_mut().look();
        }
        self.pump();
        match self.line.get_mut().has_waiting() && !self.is_gone {
            true => now,
            false => Time::NEVER,
        }
    }

    fn set_sleeping(&mut self, sleeping: bool) -> bool {
        if !sleeping {
            self.look_at = Time::ZERO;
        }
        let quiet = self.line.get_mut().set_sleeping(sleeping);
        (quiet || self.is_gone) && self.ready == 0 && self.events.is_empty()
    }
}

/// What is too long for any packet; the far half's provider has a lower limit.
fn private(data: &[u8]) -> Result<Vec<u8>, VerbsError> {
    if data.len() > TEXT_MAX {
        return Err(VerbsError::LimitExceeded {
            what: "private data",
            asked: data.len() as u64,
            limit: PRIVATE_DATA_MAX as u64,
        });
    }
    Ok(data.to_vec())
}
