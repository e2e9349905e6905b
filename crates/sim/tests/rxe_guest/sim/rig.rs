//! What all probes use: two ends on one simulated NIC, requests with numbers, and completions that
//! are kept by queue. It does step by step what `probe/rig.c` does.

use legato_base::{Duration, Time};
use legato_sim::provider::{Personality, SimNetwork, SimNetworkConfig};
use legato_verbs::{
    AccessFlags, Completion, CompletionQueue, MemoryRegion, PacketSequenceNumber, PathMtu,
    ProtectionDomain, Provider, QueuePair, QueuePairAttributes, QueuePairCapabilities,
    QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest, Receives, RemoteAddress,
    RetryCount, RnrTimer, ScatterGatherEntry, SendFlags, SendOperation, SendRequest,
    SharedReceiveQueue, VerbsError, WorkRequestId,
};

pub(super) const MTU: u32 = 1024;
pub(super) const AREA: u32 = 16384;
pub(super) const QUEUE: u32 = 8;
/// A queue pair number that nobody has.
pub(super) const NOBODY: QueuePairNumber = QueuePairNumber::new(0xabcde);
/// Receives are numbered from here on, sends from 1: an error says nothing else about its queue.
pub(super) const RECEIVES: u64 = 1000;
pub(super) const ALL_ACCESS: AccessFlags = AccessFlags::from_bits(0b1111);
pub(super) const PORT: u8 = 1;

/// The device, and the lines that the probes have printed.
pub(super) struct Rig {
    pub(super) network: SimNetwork,
    /// Nothing but the trait is used of it.
    pub(super) nic: Box<dyn Provider>,
    pub(super) domain: ProtectionDomain,
    /// Full of a pattern without zeros.
    pub(super) source: MemoryRegion,
    /// Where receives and READs put bytes.
    pub(super) inbox: MemoryRegion,
    /// Events since the last line that had them, by kind.
    pub(super) counts: [u32; 9],
    pub(super) text: String,
}

pub(super) struct End {
    /// None when it has been destroyed.
    pub(super) queue_pair: Option<QueuePair>,
    pub(super) number: QueuePairNumber,
    pub(super) queue: CompletionQueue,
    shares_queue: bool,
    sends: u64,
    pub(super) receives: u64,
    pub(super) log: Vec<Completion>,
}

/// What an end is made with.
#[derive(Clone, Copy, Default)]
pub(super) struct Shape {
    /// `QUEUE` where 0.
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) shared: Option<SharedReceiveQueue>,
    /// Its own where there is none.
    pub(super) queue: Option<CompletionQueue>,
}

#[derive(Clone, Copy)]
pub(super) struct Tune {
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) access: AccessFlags,
}

pub(super) const USUAL: Tune = Tune {
    timeout: 14,
    retry_count: 3,
    rnr_retry: 3,
    access: ALL_ACCESS,
};

/// The result of a call, as the C program prints it. The trait has errors that say more, and no
/// numbers.
pub(super) fn errno(result: Result<(), VerbsError>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(
            VerbsError::InvalidState(_)
            | VerbsError::Attributes(_)
            | VerbsError::LocalProtection
            | VerbsError::LimitExceeded { .. }
            | VerbsError::Unsupported(_),
        ) => 22,
        Err(VerbsError::QueueFull(_)) => 12,
        Err(other) => panic!("{other}"),
    }
}

impl Rig {
    pub(super) fn new(personality: Personality) -> Self {
        let network = SimNetwork::new(1, SimNetworkConfig::default());
        let mut nic = Box::new(network.provider_with("probe", personality));
        let domain = nic.create_protection_domain().unwrap();
        let local = AccessFlags::LOCAL_WRITE;
        let mut area = || nic.allocate_region(domain, u64::from(AREA), local).unwrap();
        let (source, inbox) = (area(), area());
        nic.write_region(&source, 0, &pattern()).unwrap();
        Self {
            network,
            nic,
            domain,
            source,
            inbox,
            counts: [0; 9],
            text: String::new(),
        }
    }

    pub(super) fn area_new(&mut self, length: u32, access: AccessFlags) -> MemoryRegion {
        let made = self
            .nic
            .allocate_region(self.domain, u64::from(length), access);
        made.unwrap()
    }

    /// How many bytes from the start on are those of `source`. Of a region that is gone nobody can
    /// tell.
    pub(super) fn written(&self, area: &MemoryRegion) -> usize {
        let mut bytes = vec![0; area.length as usize];
        if self.nic.read_region(area, 0, &mut bytes).is_err() {
            return 0;
        }
        let equal = |(a, b): &(u8, u8)| a == b;
        bytes.into_iter().zip(pattern()).take_while(equal).count()
    }

    pub(super) fn wipe(&mut self, area: &MemoryRegion) {
        let zeros = vec![0; area.length as usize];
        self.nic.write_region(area, 0, &zeros).unwrap();
    }

    pub(super) fn wipe_inbox(&mut self) {
        let inbox = self.inbox;
        self.wipe(&inbox);
    }

    /// Writes the pattern into all of it.
    pub(super) fn fill(&mut self, area: &MemoryRegion) {
        let bytes = pattern();
        let bytes = &bytes[..area.length as usize];
        self.nic.write_region(area, 0, bytes).unwrap();
    }

    pub(super) fn try_end_new(&mut self, shape: Shape) -> Result<End, VerbsError> {
        let own = |depth| if depth == 0 { QUEUE } else { depth };
        let queue = match shape.queue {
            Some(queue) => queue,
            None => self.nic.create_completion_queue(128)?,
        };
        let init = QueuePairInit {
            domain: self.domain,
            send_completions: queue,
            receive_completions: queue,
            receives: shape.shared.map_or(Receives::Own, Receives::Shared),
            capabilities: QueuePairCapabilities {
                send_requests_max: own(shape.sends),
                receive_requests_max: own(shape.receives),
                entries_max: 1,
            },
        };
        let queue_pair = self.nic.create_queue_pair(&init)?;
        Ok(End {
            queue_pair: Some(queue_pair),
            number: self.nic.queue_pair_number(queue_pair)?,
            queue,
            shares_queue: shape.queue.is_some(),
            sends: 0,
            receives: 0,
            log: Vec::new(),
        })
    }

    pub(super) fn end_new(&mut self, shape: Shape) -> End {
        self.try_end_new(shape).unwrap()
    }

    pub(super) fn two_ends(&mut self) -> (End, End) {
        (
            self.end_new(Shape::default()),
            self.end_new(Shape::default()),
        )
    }

    /// Two ends that are connected as usual.
    pub(super) fn pair(&mut self) -> (End, End) {
        let (a, b) = self.two_ends();
        self.join(&a, &b, &USUAL);
        (a, b)
    }

    pub(super) fn end_free(&mut self, mut end: End) {
        self.destroy(&mut end);
        if !end.shares_queue {
            self.nic.destroy_completion_queue(end.queue).unwrap();
        }
    }

    pub(super) fn destroy(&mut self, end: &mut End) {
        if let Some(queue_pair) = end.queue_pair.take() {
            self.nic.destroy_queue_pair(queue_pair).unwrap();
        }
    }

    pub(super) fn modify(
        &mut self,
        end: &End,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> i32 {
        let queue_pair = end.queue_pair.unwrap();
        errno(self.nic.modify_queue_pair(queue_pair, to, attributes))
    }

    pub(super) fn modify_to_init(&mut self, end: &End, access: AccessFlags) -> i32 {
        let attributes = QueuePairAttributes {
            access_flags: Some(access),
            ..QueuePairAttributes::INIT
        };
        self.modify(end, QueuePairState::Init, &attributes)
    }

    pub(super) fn modify_to_rtr(&mut self, end: &End, destination: QueuePairNumber) -> i32 {
        let attributes = QueuePairAttributes {
            path_mtu: Some(PathMtu::Bytes1024),
            destination: Some(destination),
            receive_sequence: Some(PacketSequenceNumber::new(100)),
            responder_resources: Some(4),
            rnr_timer: Some(RnrTimer::new(12)),
            address_vector: Some(self.nic.port_address()),
            ..QueuePairAttributes::NONE
        };
        self.modify(end, QueuePairState::ReadyToReceive, &attributes)
    }

    pub(super) fn modify_to_rts(&mut self, end: &End, tune: &Tune) -> i32 {
        let attributes = QueuePairAttributes {
            timeout: Some(tune.timeout),
            retry_count: Some(RetryCount::from_bits(tune.retry_count)),
            rnr_retry: Some(tune.rnr_retry),
            send_sequence: Some(PacketSequenceNumber::new(100)),
            initiator_depth: Some(4),
            ..QueuePairAttributes::NONE
        };
        self.modify(end, QueuePairState::ReadyToSend, &attributes)
    }

    pub(super) fn modify_to(&mut self, end: &End, state: QueuePairState) -> i32 {
        self.modify(end, state, &QueuePairAttributes::NONE)
    }

    pub(super) fn state_of(&self, end: &End) -> QueuePairState {
        self.nic.query_queue_pair(end.queue_pair.unwrap()).unwrap()
    }

    pub(super) fn reach(&mut self, end: &End, destination: QueuePairNumber, tune: &Tune) {
        assert_eq!(self.modify_to_init(end, tune.access), 0, "to INIT");
        assert_eq!(self.modify_to_rtr(end, destination), 0, "to RTR");
        assert_eq!(self.modify_to_rts(end, tune), 0, "to RTS");
    }

    pub(super) fn join(&mut self, a: &End, b: &End, tune: &Tune) {
        self.reach(a, b.number, tune);
        self.reach(b, a.number, tune);
    }

    /// Posts with the next number, which is used up also where the post is refused.
    pub(super) fn post_entry(
        &mut self,
        end: &mut End,
        operation: SendOperation,
        entry: Option<ScatterGatherEntry>,
        flags: SendFlags,
    ) -> i32 {
        end.sends += 1;
        let request = SendRequest {
            wr_id: WorkRequestId(end.sends),
            operation,
            entries: entry.into_iter().collect(),
            flags,
        };
        errno(self.nic.post_send(end.queue_pair.unwrap(), &request))
    }

    /// The same with `length` bytes of `source` or into `inbox`.
    pub(super) fn post(&mut self, end: &mut End, operation: SendOperation, length: u32) -> i32 {
        self.post_flagged(end, operation, length, SendFlags::SIGNALED)
    }

    fn post_flagged(
        &mut self,
        end: &mut End,
        operation: SendOperation,
        length: u32,
        flags: SendFlags,
    ) -> i32 {
        let local = if operation.writes_locally() {
            self.inbox
        } else {
            self.source
        };
        let entry = (length > 0).then(|| local.entry(0, length));
        self.post_entry(end, operation, entry, flags)
    }

    pub(super) fn post_send(&mut self, end: &mut End, length: u32) -> i32 {
        self.post(end, SendOperation::Send, length)
    }

    /// It completes only if it fails.
    pub(super) fn post_silent(&mut self, end: &mut End, length: u32) -> i32 {
        self.post_flagged(end, SendOperation::Send, length, SendFlags::NONE)
    }

    pub(super) fn post_receive(&mut self, end: &mut End, length: u32) -> i32 {
        let entry = self.inbox.entry(0, length);
        self.post_receive_entry(end, entry)
    }

    pub(super) fn post_receive_entry(&mut self, end: &mut End, entry: ScatterGatherEntry) -> i32 {
        end.receives += 1;
        let request = ReceiveRequest {
            wr_id: WorkRequestId(RECEIVES + end.receives),
            entries: vec![entry],
        };
        errno(self.nic.post_receive(end.queue_pair.unwrap(), &request))
    }

    pub(super) fn post_shared(&mut self, queue: SharedReceiveQueue, number: u64, length: u32) {
        let request = ReceiveRequest {
            wr_id: WorkRequestId(RECEIVES + number),
            entries: vec![self.inbox.entry(0, length)],
        };
        self.nic.post_shared_receive(queue, &request).unwrap();
    }

    pub(super) fn now(&self) -> Time {
        self.network.now()
    }

    pub(super) fn pause_ms(&self, milliseconds: u64) {
        let length = Duration::from_millis(milliseconds);
        self.network.advance_to(self.now() + length);
    }
}

/// The bytes of `source`.
fn pattern() -> Vec<u8> {
    (0..AREA).map(|at| (at % 251 + 1) as u8).collect()
}

/// A place in a region, or before or behind it.
pub(super) const fn place(area: &MemoryRegion, offset: i64) -> RemoteAddress {
    RemoteAddress {
        key: area.remote_key,
        address: area.address.wrapping_add_signed(offset),
    }
}
