//! Two queue pairs, each with a host of plain memory, and a wire between them in virtual time.

mod host;
pub(crate) mod hostile;

pub(crate) use host::{BASE, TestHost};

use legato_base::{Duration, Random, Time};
use legato_transport::rc::{Configuration, Policy, QueuePair, Receives};
use legato_transport::wire::Packet;
use legato_transport::{
    PacketSequenceNumber, PathMtu, QueueCompletion, QueuePairNumber, WorkQueue,
};
use legato_verbs::{
    AccessFlags, AddressVector, CompletionKind, CompletionStatus, QueuePairAttributes,
    QueuePairCapabilities, QueuePairState, ReceiveRequest, RemoteAddress, RetryCount, RnrTimer,
    ScatterGatherEntry, SendFlags, SendOperation, SendRequest, WorkRequestId,
};
use std::collections::BTreeMap;

pub(crate) const LEFT: usize = 0;
pub(crate) const RIGHT: usize = 1;
pub(crate) const FLUSHED: Result<CompletionKind, CompletionStatus> =
    Err(CompletionStatus::WorkRequestFlushed);
/// From one end to the other.
pub(crate) const LATENCY: Duration = Duration::from_micros(1);
pub(crate) const ALL_ACCESS: AccessFlags = AccessFlags::from_bits(15);

pub(crate) struct Options {
    pub(crate) policy: Policy,
    pub(crate) receives: Receives,
    pub(crate) mtu: PathMtu,
    pub(crate) access: AccessFlags,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) first: u32,
    pub(crate) resources: u8,
    pub(crate) depth: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::IDEAL,
            receives: Receives::Own,
            mtu: PathMtu::Bytes1024,
            access: ALL_ACCESS,
            timeout: 14,
            retry_count: 3,
            rnr_retry: 2,
            rnr_timer: 12,
            first: 100,
            resources: 4,
            depth: 64,
        }
    }
}

impl Options {
    pub(crate) fn queue_pair(&self, number: u32) -> QueuePair {
        let capabilities = QueuePairCapabilities {
            send_requests_max: self.depth,
            receive_requests_max: self.depth,
            entries_max: 4,
        };
        QueuePair::new(
            QueuePairNumber::new(number),
            &Configuration {
                capabilities,
                receives: self.receives,
                policy: self.policy,
            },
        )
    }

    pub(crate) fn init(&self) -> QueuePairAttributes {
        QueuePairAttributes {
            partition_index: Some(0),
            port: Some(1),
            access_flags: Some(self.access),
            ..QueuePairAttributes::NONE
        }
    }

    pub(crate) fn ready_to_receive(&self, peer: u32) -> QueuePairAttributes {
        QueuePairAttributes {
            address_vector: Some(AddressVector {
                destination: [peer as u8; 16],
            }),
            path_mtu: Some(self.mtu),
            destination: Some(QueuePairNumber::new(peer)),
            receive_sequence: Some(PacketSequenceNumber::new(self.first)),
            responder_resources: Some(self.resources),
            rnr_timer: Some(RnrTimer::new(self.rnr_timer)),
            ..QueuePairAttributes::NONE
        }
    }

    pub(crate) fn ready_to_send(&self) -> QueuePairAttributes {
        QueuePairAttributes {
            timeout: Some(self.timeout),
            retry_count: Some(RetryCount::from_bits(self.retry_count)),
            rnr_retry: Some(self.rnr_retry),
            send_sequence: Some(PacketSequenceNumber::new(self.first)),
            initiator_depth: Some(self.resources),
            ..QueuePairAttributes::NONE
        }
    }

    /// A queue pair and its host, brought to a state that requests lead to.
    pub(crate) fn end(&self, number: u32, peer: u32, state: QueuePairState) -> End {
        let mut end = End {
            queue_pair: self.queue_pair(number),
            host: TestHost::default(),
        };
        let path = [
            (QueuePairState::Init, self.init()),
            (QueuePairState::ReadyToReceive, self.ready_to_receive(peer)),
            (QueuePairState::ReadyToSend, self.ready_to_send()),
            (QueuePairState::SendQueueDrain, QueuePairAttributes::NONE),
        ];
        if state == QueuePairState::Error {
            end.modify(QueuePairState::Init, &self.init());
            end.modify(QueuePairState::Error, &QueuePairAttributes::NONE);
            return end;
        }
        for (next, attributes) in path {
            if end.queue_pair.state() == state {
                break;
            }
            end.modify(next, &attributes);
        }
        end
    }
}

pub(crate) struct End {
    pub(crate) queue_pair: QueuePair,
    pub(crate) host: TestHost,
}

impl End {
    pub(crate) fn modify(&mut self, to: QueuePairState, attributes: &QueuePairAttributes) {
        self.queue_pair
            .modify(to, attributes, &mut self.host)
            .unwrap();
    }

    pub(crate) fn post(&mut self, request: SendRequest) {
        self.queue_pair.post_send(&request, &mut self.host).unwrap();
    }

    pub(crate) fn post_receive(&mut self, wr_id: u64, entries: Vec<ScatterGatherEntry>) {
        self.queue_pair.check_post_receive().unwrap();
        self.host.receives.push_back(ReceiveRequest {
            wr_id: WorkRequestId(wr_id),
            entries,
        });
        self.queue_pair.receive_posted(&mut self.host);
    }

    /// Takes the completions of a queue, as pairs; those of the send queue count as polled.
    pub(crate) fn poll(
        &mut self,
        queue: WorkQueue,
    ) -> Vec<(u64, Result<CompletionKind, CompletionStatus>)> {
        let (these, others): (Vec<QueueCompletion>, Vec<_>) = self
            .host
            .completions
            .drain(..)
            .partition(|completion| completion.queue == queue);
        self.host.completions = others;
        if queue == WorkQueue::Send {
            these.iter().for_each(|_| self.queue_pair.send_polled());
        }
        these
            .into_iter()
            .map(|completion| (completion.wr_id.0, completion.result))
            .collect()
    }

    pub(crate) fn state(&self) -> QueuePairState {
        self.queue_pair.state()
    }
}

/// How bad the wire is, in thousandths.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) drop: u64,
    pub(crate) double: u64,
    pub(crate) reorder: u64,
}

/// Looks at each packet, with the end that sent it: false loses it.
pub(crate) type Filter = Box<dyn FnMut(usize, &Packet<'_>) -> bool>;

pub(crate) struct Pair {
    pub(crate) ends: [End; 2],
    pub(crate) now: Time,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) filter: Filter,
    /// Now and then a packet is changed.
    pub(crate) mutate: bool,
    /// Packets that were sent, by end.
    pub(crate) sent: [u64; 2],
    wire: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    serial: u64,
    buffer: Vec<u8>,
}

impl Pair {
    pub(crate) fn new(options: &Options) -> Self {
        Self::of(
            options.end(10, 11, QueuePairState::ReadyToSend),
            options.end(11, 10, QueuePairState::ReadyToSend),
        )
    }

    pub(crate) fn of(left: End, right: End) -> Self {
        Self {
            ends: [left, right],
            now: Time::ZERO,
            random: Random::from_seed(0),
            faults: Faults::default(),
            filter: Box::new(|_, _| true),
            mutate: false,
            sent: [0; 2],
            wire: BTreeMap::new(),
            serial: 0,
            buffer: vec![0; 8192],
        }
    }

    pub(crate) fn left(&mut self) -> &mut End {
        &mut self.ends[LEFT]
    }

    pub(crate) fn right(&mut self) -> &mut End {
        &mut self.ends[RIGHT]
    }

    /// Puts all packets on the wire that there are.
    pub(crate) fn pump(&mut self) {
        for from in [LEFT, RIGHT] {
            let end = &mut self.ends[from];
            while let Some(transmit) =
                end.queue_pair
                    .transmit(self.now, &mut end.host, &mut self.buffer)
            {
                self.sent[from] += 1;
                let bytes = &self.buffer[..transmit.length];
                let packet = Packet::parse(bytes).unwrap();
                if !(self.filter)(from, &packet) {
                    continue;
                }
                let copies = if self.random.ratio(self.faults.double, 1000) {
                    2
                } else {
                    1
                };
                for _ in 0..copies {
                    if self.random.ratio(self.faults.drop, 1000) {
                        continue;
                    }
                    let late = if self.random.ratio(self.faults.reorder, 1000) {
                        Duration::from_nanos(self.random.below(10_000))
                    } else {
                        Duration::ZERO
                    };
                    self.serial += 1;
                    let at = self.now + LATENCY + late;
                    let mut bytes = bytes.to_vec();
                    if self.mutate && self.random.ratio(1, 20) {
                        let place = self.random.below(bytes.len().min(44) as u64) as usize;
                        bytes[place] ^= 1 << self.random.below(8);
                    }
                    self.wire.insert((at, self.serial), (1 - from, bytes));
                }
            }
        }
    }

    /// Goes on to the next thing that happens, unless that is after `end`.
    pub(crate) fn step(&mut self, end: Time) -> bool {
        self.pump();
        let arrival = self.wire.keys().next().map_or(Time::NEVER, |key| key.0);
        let deadline = |end: &End| end.queue_pair.next_deadline();
        let next = self.ends.iter().map(deadline).fold(arrival, Time::min);
        if next > end || next == Time::NEVER {
            return false;
        }
        self.now = self.now.max(next);
        while let Some(entry) = self.wire.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, bytes) = entry.remove();
            let Ok(packet) = Packet::parse(&bytes) else {
                assert!(self.mutate, "what is sent can be read");
                continue;
            };
            let end = &mut self.ends[to];
            end.queue_pair.input(self.now, &packet, &mut end.host);
        }
        for end in &mut self.ends {
            if end.queue_pair.next_deadline() <= self.now {
                end.queue_pair.expire(self.now, &mut end.host);
            }
        }
        true
    }

    /// Until nothing happens any more, or the virtual time is over.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = self.now.max(end);
    }

    /// Until nothing is under way and no timer runs.
    pub(crate) fn run(&mut self) {
        while self.step(Time::NEVER) {}
    }
}

pub(crate) fn request(
    wr_id: u64,
    operation: SendOperation,
    entries: Vec<ScatterGatherEntry>,
) -> SendRequest {
    SendRequest {
        wr_id: WorkRequestId(wr_id),
        operation,
        entries,
        flags: SendFlags::SIGNALED,
    }
}

pub(crate) fn unsignaled(mut request: SendRequest) -> SendRequest {
    request.flags = request.flags.without(SendFlags::SIGNALED);
    request
}

pub(crate) fn remote(key: u32, offset: u64) -> RemoteAddress {
    RemoteAddress {
        key: legato_verbs::RemoteKey(key),
        address: BASE + offset,
    }
}

pub(crate) fn entry(key: u32, offset: u64, length: u32) -> ScatterGatherEntry {
    ScatterGatherEntry {
        local_key: legato_verbs::LocalKey(key),
        address: BASE + offset,
        length,
    }
}
