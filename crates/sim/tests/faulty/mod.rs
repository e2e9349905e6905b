//! A simulated NIC whose posts can be refused and whose completions can be held back or doubled.

use legato_base::Time;
use legato_sim::provider::SimProvider;
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionQueue, ConnectionRequest, DeviceAttributes, Event,
    Listener, MemoryRegion, ProtectionDomain, Provider, QueuePair, QueuePairCapabilities,
    QueuePairState, ReceiveRequest, ResourceCounts, SendRequest, VerbsError,
};

#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) nic: SimProvider,
    /// The next sends, or receives, are refused with this.
    pub(crate) refuse_sends: Option<VerbsError>,
    pub(crate) refuse_receives: Option<VerbsError>,
    pub(crate) hold_completions: bool,
    pub(crate) double_completions: bool,
}

impl Faulty {
    pub(crate) const fn new(nic: SimProvider) -> Self {
        Self {
            nic,
            refuse_sends: None,
            refuse_receives: None,
            hold_completions: false,
            double_completions: false,
        }
    }
}

impl Provider for Faulty {
    fn attributes(&self) -> DeviceAttributes {
        self.nic.attributes()
    }

    fn resource_counts(&self) -> ResourceCounts {
        self.nic.resource_counts()
    }

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        self.nic.create_protection_domain()
    }

    fn destroy_protection_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        self.nic.destroy_protection_domain(domain)
    }

    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        self.nic.allocate_region(domain, length, access)
    }

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        self.nic.deregister_region(region)
    }

    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        self.nic.read_region(region, offset, into)
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        self.nic.write_region(region, offset, from)
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        self.nic.create_completion_queue(entries)
    }

    fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        self.nic.destroy_completion_queue(queue)
    }

    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        if self.hold_completions {
            return Ok(0);
        }
        let polled = self.nic.poll_completion_queue(queue, max, into)?;
        if self.double_completions {
            let again = into[into.len() - polled..].to_vec();
            into.extend(again);
            return Ok(2 * polled);
        }
        Ok(polled)
    }

    fn create_queue_pair(
        &mut self,
        domain: ProtectionDomain,
        queue: CompletionQueue,
        capabilities: QueuePairCapabilities,
    ) -> Result<QueuePair, VerbsError> {
        self.nic.create_queue_pair(domain, queue, capabilities)
    }

    fn query_queue_pair(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        self.nic.query_queue_pair(queue_pair)
    }

    fn modify_to_init(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        self.nic.modify_to_init(queue_pair)
    }

    fn modify_to_error(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        self.nic.modify_to_error(queue_pair)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        self.nic.destroy_queue_pair(queue_pair)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        match self.refuse_sends {
            Some(error) => Err(error),
            None => self.nic.post_send(queue_pair, request),
        }
    }

    fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        match self.refuse_receives {
            Some(error) => Err(error),
            None => self.nic.post_receive(queue_pair, request),
        }
    }

    fn listen(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        self.nic.listen(address)
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        self.nic.close_listener(listener)
    }

    fn connect(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        self.nic.connect(queue_pair, address, private_data)
    }

    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        self.nic.accept(request, queue_pair, private_data)
    }

    fn reject(
        &mut self,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        self.nic.reject(request, private_data)
    }

    fn disconnect(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        self.nic.disconnect(queue_pair)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.nic.poll_event()
    }

    fn progress(&mut self, now: Time) -> Time {
        self.nic.progress(now)
    }

    fn set_sleeping(&mut self, sleeping: bool) -> bool {
        self.nic.set_sleeping(sleeping)
    }
}
