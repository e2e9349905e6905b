//! Two machines on a bench: each with a queue pair and what it needs, connected by hand or by
//! connection management.

use legato_base::{Duration, Time};
use legato_sim::provider::{Personality, SimNetwork, SimNetworkConfig, SimProvider};
use legato_verbs::{
    AccessFlags, Address, AsyncEvent, Completion, CompletionKind, CompletionQueue,
    CompletionStatus, ConnectionEvent, Event, MemoryRegion, PacketSequenceNumber, PathMtu,
    ProtectionDomain, Provider, QueuePair, QueuePairAttributes, QueuePairCapabilities,
    QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest, Receives, RemoteAddress,
    RetryCount, RnrTimer, SendFlags, SendOperation, SendRequest, SharedReceiveQueue,
    SharedReceiveQueueCapabilities, VerbsError, WorkRequestId,
};

pub(crate) type Outcome = Result<CompletionKind, CompletionStatus>;

pub(crate) const SENT: Outcome = Ok(CompletionKind::Send);
pub(crate) const WRITTEN: Outcome = Ok(CompletionKind::RdmaWrite);
pub(crate) const FLUSHED: Outcome = Err(CompletionStatus::WorkRequestFlushed);
pub(crate) const UNANSWERED: Outcome = Err(CompletionStatus::RetryExceeded);

/// How the two are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) left: Personality,
    pub(crate) right: Personality,
    pub(crate) capabilities: QueuePairCapabilities,
    /// Entries of completion queues without a ledger, if that is what is wanted.
    pub(crate) overcommitted: Option<u32>,
    /// Depth of a shared receive queue on the right.
    pub(crate) shared: Option<u32>,
    pub(crate) region_length: u64,
    pub(crate) region_access: AccessFlags,
    /// Of queue pairs.
    pub(crate) access: AccessFlags,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) mtu: PathMtu,
    pub(crate) first_sequence: u32,
}

pub(crate) const ALL_ACCESS: AccessFlags = AccessFlags::from_bits(0b1_1111);
pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);

impl Setup {
    /// Both with the same NIC.
    pub(crate) const fn new(personality: Personality) -> Self {
        Self {
            seed: 1,
            left: personality,
            right: personality,
            capabilities: QueuePairCapabilities {
                send_requests_max: 8,
                receive_requests_max: 8,
                entries_max: 2,
            },
            overcommitted: None,
            shared: None,
            region_length: 64 * 1024,
            region_access: ALL_ACCESS,
            access: AccessFlags::from_bits(0b1110),
            timeout: 14,
            retry_count: 3,
            rnr_retry: 2,
            mtu: PathMtu::Bytes1024,
            first_sequence: 100,
        }
    }
}

pub(crate) struct End {
    pub(crate) nic: SimProvider,
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    pub(crate) queue_pair: QueuePair,
    pub(crate) region: MemoryRegion,
    pub(crate) shared: Option<SharedReceiveQueue>,
    pub(crate) events: Vec<Event>,
}

pub(crate) struct Bench {
    pub(crate) network: SimNetwork,
    pub(crate) left: End,
    pub(crate) right: End,
    pub(crate) setup: Setup,
}

impl End {
    fn new(mut nic: SimProvider, setup: &Setup, shared: Option<u32>) -> Self {
        let domain = nic.create_protection_domain().unwrap();
        let queue = match setup.overcommitted {
            Some(entries) => nic.create_overcommitted_completion_queue(entries),
            None => {
                let sizes = setup.capabilities;
                nic.create_completion_queue(sizes.send_requests_max + sizes.receive_requests_max)
            }
        };
        let queue = queue.unwrap();
        let shared = shared.map(|requests_max| {
            let capabilities = SharedReceiveQueueCapabilities {
                requests_max,
                entries_max: 2,
            };
            nic.create_shared_receive_queue(domain, capabilities)
                .unwrap()
        });
        let region = nic
            .allocate_region(domain, setup.region_length, setup.region_access)
            .unwrap();
        let mut end = Self {
            nic,
            domain,
            queue,
            queue_pair: QueuePair {
                index: 0,
                generation: 0,
            },
            region,
            shared,
            events: Vec::new(),
        };
        end.queue_pair = end.another(setup).unwrap();
        end
    }

    /// On a NIC that is there already.
    pub(crate) fn on(nic: SimProvider, setup: &Setup) -> Self {
        Self::new(nic, setup, None)
    }

    /// One more queue pair on the same queues.
    pub(crate) fn another(&mut self, setup: &Setup) -> Result<QueuePair, VerbsError> {
        let init = QueuePairInit {
            receives: self.shared.map_or(Receives::Own, Receives::Shared),
            ..QueuePairInit::new(self.domain, self.queue, setup.capabilities)
        };
        self.nic.create_queue_pair(&init)
    }

    pub(crate) fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress {
            key: self.region.remote_key,
            address: self.region.address + offset,
        }
    }

    /// A signaled request of `length` bytes from the beginning of the region.
    pub(crate) fn request(&self, wr_id: u64, operation: SendOperation, length: u32) -> SendRequest {
        SendRequest {
            wr_id: WorkRequestId(wr_id),
            operation,
            entries: vec![self.region.entry(0, length)],
            flags: SendFlags::SIGNALED,
        }
    }

    pub(crate) fn post(&mut self, wr_id: u64, operation: SendOperation, length: u32) {
        let request = self.request(wr_id, operation, length);
        self.nic.post_send(self.queue_pair, &request).unwrap();
    }

    pub(crate) fn send(&mut self, wr_id: u64, length: u32) {
        self.post(wr_id, SendOperation::Send, length);
    }

    pub(crate) fn try_send(&mut self, wr_id: u64, flags: SendFlags) -> Result<(), VerbsError> {
        let mut request = self.request(wr_id, SendOperation::Send, 16);
        request.flags = flags;
        self.nic.post_send(self.queue_pair, &request)
    }

    /// A post that a queue pair in the error state takes.
    pub(crate) fn try_send_in_error(&mut self) {
        self.try_send(77, SendFlags::SIGNALED).unwrap();
    }

    pub(crate) fn try_receive(&mut self, wr_id: u64, length: u32) -> Result<(), VerbsError> {
        let request = ReceiveRequest {
            wr_id: WorkRequestId(wr_id),
            entries: vec![self.region.entry(32 * 1024, length)],
        };
        match self.shared {
            Some(shared) => self.nic.post_shared_receive(shared, &request),
            None => self.nic.post_receive(self.queue_pair, &request),
        }
    }

    pub(crate) fn receive(&mut self, wr_id: u64, length: u32) {
        self.try_receive(wr_id, length).unwrap();
    }

    pub(crate) fn polled(&mut self) -> Vec<(u64, Outcome)> {
        let came = self.completions();
        came.iter().map(|it| (it.wr_id.0, it.result)).collect()
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        let mut came = Vec::new();
        self.nic
            .poll_completion_queue(self.queue, 10_000, &mut came)
            .unwrap();
        came
    }

    pub(crate) fn state(&self) -> QueuePairState {
        self.nic.query_queue_pair(self.queue_pair).unwrap()
    }

    pub(crate) fn events(&mut self) -> &mut Vec<Event> {
        while let Some(event) = self.nic.poll_event() {
            self.events.push(event);
        }
        &mut self.events
    }

    pub(crate) fn async_events(&mut self) -> Vec<AsyncEvent> {
        let events = self.events().iter();
        events
            .filter_map(|event| match event {
                Event::Async(event) => Some(*event),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn connection_events(&mut self) -> Vec<ConnectionEvent> {
        let events = self.events().iter();
        events
            .filter_map(|event| match event {
                Event::Connection(event) => Some(event.clone()),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn fill(&mut self, offset: u64, bytes: &[u8]) {
        self.nic.write_region(&self.region, offset, bytes).unwrap();
    }

    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.nic
            .read_region(&self.region, offset, &mut bytes)
            .unwrap();
        bytes
    }

    /// A device that refuses to go to the error state now and then is asked again.
    pub(crate) fn enter_error(&mut self) {
        if self.nic.modify_to_error(self.queue_pair).is_err() {
            self.nic.modify_to_error(self.queue_pair).unwrap();
        }
    }

    pub(crate) fn enter_init(&mut self, setup: &Setup) {
        let init = QueuePairAttributes {
            access_flags: Some(setup.access),
            ..QueuePairAttributes::INIT
        };
        let to = QueuePairState::Init;
        self.nic
            .modify_queue_pair(self.queue_pair, to, &init)
            .unwrap();
    }

    /// From Init to ReadyToSend, towards a queue pair of the other end.
    pub(crate) fn join(&mut self, setup: &Setup, peer: &Self, number: QueuePairNumber) {
        let (to_receive, to_send) = attributes(setup, peer, number);
        for (to, attributes) in [
            (QueuePairState::ReadyToReceive, to_receive),
            (QueuePairState::ReadyToSend, to_send),
        ] {
            self.nic
                .modify_queue_pair(self.queue_pair, to, &attributes)
                .unwrap();
        }
    }
}

/// What takes a queue pair from Init to ReadyToReceive, and on to ReadyToSend.
pub(crate) fn attributes(
    setup: &Setup,
    peer: &End,
    number: QueuePairNumber,
) -> (QueuePairAttributes, QueuePairAttributes) {
    let to_receive = QueuePairAttributes {
        address_vector: Some(peer.nic.port_address()),
        path_mtu: Some(setup.mtu),
        destination: Some(number),
        receive_sequence: Some(PacketSequenceNumber::new(setup.first_sequence)),
        responder_resources: Some(8),
        rnr_timer: Some(RnrTimer::new(12)),
        ..QueuePairAttributes::NONE
    };
    let to_send = QueuePairAttributes {
        timeout: Some(setup.timeout),
        retry_count: Some(RetryCount::from_bits(setup.retry_count)),
        rnr_retry: Some(setup.rnr_retry),
        send_sequence: Some(PacketSequenceNumber::new(setup.first_sequence)),
        initiator_depth: Some(8),
        ..QueuePairAttributes::NONE
    };
    (to_receive, to_send)
}

impl Bench {
    /// Two queue pairs in Reset.
    pub(crate) fn unconnected(setup: Setup) -> Self {
        let config = SimNetworkConfig {
            retry_count: RetryCount::from_bits(setup.retry_count),
            ..SimNetworkConfig::default()
        };
        let network = SimNetwork::new(setup.seed, config);
        let left = network.provider_with("left", setup.left);
        let right = network.provider_with("right", setup.right);
        Self {
            left: End::new(left, &setup, None),
            right: End::new(right, &setup, setup.shared),
            network,
            setup,
        }
    }

    /// Connected by hand.
    pub(crate) fn connected(setup: Setup) -> Self {
        let mut bench = Self::unconnected(setup);
        bench.connect();
        bench
    }

    pub(crate) fn connect(&mut self) {
        let setup = self.setup;
        let numbers =
            [&self.left, &self.right].map(|end| end.nic.queue_pair_number(end.queue_pair).unwrap());
        self.left.enter_init(&setup);
        self.right.enter_init(&setup);
        self.left.join(&setup, &self.right, numbers[1]);
        self.right.join(&setup, &self.left, numbers[0]);
    }

    /// The left one is connected to a number that nobody has.
    pub(crate) fn alone(setup: Setup) -> Self {
        let mut bench = Self::unconnected(setup);
        bench.left.enter_init(&setup);
        let nobody = QueuePairNumber::new(0x00AB_CDEF);
        bench.left.join(&setup, &bench.right, nobody);
        bench
    }

    /// Connected by connection management.
    pub(crate) fn managed(setup: Setup) -> Self {
        let mut bench = Self::unconnected(setup);
        bench.manage("port");
        bench
    }

    pub(crate) fn manage(&mut self, name: &str) {
        self.left.enter_init(&self.setup);
        self.right.enter_init(&self.setup);
        let address = Address::Sim(name.to_owned());
        let listener = self.right.nic.listen(&address).unwrap();
        let (left, right) = (self.left.queue_pair, self.right.queue_pair);
        self.left.nic.connect(left, &address, &[]).unwrap();
        let request = loop {
            let mut events = self.right.events().iter();
            let found = events.find_map(|event| match event {
                Event::Connection(ConnectionEvent::Requested { request, .. }) => Some(*request),
                _ => None,
            });
            match found {
                Some(request) => break request,
                None => self.step(),
            }
        };
        self.right.nic.accept(request, right, &[]).unwrap();
        while self.left.state() != QueuePairState::ReadyToSend
            || self.right.state() != QueuePairState::ReadyToSend
        {
            self.step();
        }
        self.right.nic.close_listener(listener).unwrap();
        self.left.events().clear();
        self.right.events().clear();
    }

    pub(crate) fn step(&self) {
        let next = self.network.next_event_time();
        self.network
            .advance_to(next.expect("something is under way"));
    }

    pub(crate) fn run(&self) {
        while let Some(time) = self.network.next_event_time() {
            self.network.advance_to(time);
        }
    }

    pub(crate) fn run_for(&self, duration: Duration) {
        self.network.advance_to(self.network.now() + duration);
    }

    /// When the first completion comes to the left.
    pub(crate) fn time_of_completion(&mut self) -> (Time, Vec<(u64, Outcome)>) {
        loop {
            let came = self.left.polled();
            if !came.is_empty() {
                return (self.network.now(), came);
            }
            self.step();
        }
    }
}

impl Drop for Bench {
    /// No test lets a NIC write outside its regions.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.network.check_canaries().unwrap();
        }
    }
}
