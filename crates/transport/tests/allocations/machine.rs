//! A channel adapter, and around it what allocates nothing by itself.

use crate::side::way_to_send;
use legato_base::{Duration, Time};
use legato_transport::adapter::{
    Alarm, Alarms, Chance, ChannelAdapter, Configuration, Flow, Policy, RegionNumber, Surroundings,
};
use legato_transport::cm::{CaGuid, Gid, LocalPort, Parameters};
use legato_transport::rc::{self, Backoff, Recovery};
use legato_verbs::{
    AccessFlags, Completion, CompletionQueue, LocalKey, MemoryRegion, PathMtu, QueuePair,
    QueuePairCapabilities, QueuePairInit, QueuePairNumber, ReceiveRequest, RetryCount, RnrTimer,
    SendRequest, VerbsError,
};
use std::collections::VecDeque;
use std::net::Ipv4Addr;

pub(crate) const MTU: u32 = 256;
/// Scatter/gather entries of a request.
pub(crate) const ENTRIES_MAX: u32 = 4;
const ALL_ACCESS: AccessFlags = AccessFlags::from_bits(15);
/// Bytes of the only region.
const REGION: u64 = 1 << 16;

#[derive(Default)]
pub(crate) struct Around {
    now: Time,
    alarms: Alarms,
    memory: Vec<u8>,
    sent: VecDeque<(Vec<u8>, usize)>,
    spare: Vec<Vec<u8>>,
}

impl Surroundings for Around {
    type Buffer = Vec<u8>;

    fn now(&self) -> Time {
        self.now
    }

    fn set_alarm(&mut self, at: Time, alarm: Alarm) {
        self.alarms.set(at, alarm);
    }

    fn link_has_room(&mut self) -> bool {
        true
    }

    fn watch_link(&mut self) {}

    fn take_buffer(&mut self, room: usize) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(room, 0);
        buffer
    }

    fn give_buffer(&mut self, buffer: Vec<u8>) {
        self.spare.push(buffer);
    }

    fn send(&mut self, _: Flow, _: Gid, buffer: Vec<u8>, length: usize) {
        self.sent.push_back((buffer, length));
    }

    fn allocate_memory(
        &mut self,
        _: RegionNumber,
        _: LocalKey,
        length: u64,
    ) -> Result<(), VerbsError> {
        assert!(self.memory.is_empty(), "there is one region");
        self.memory.resize(length as usize, 0);
        Ok(())
    }

    fn release_memory(&mut self, _: RegionNumber) {}

    fn read_memory(&self, _: RegionNumber, offset: u64, into: &mut [u8]) -> bool {
        let start = offset as usize;
        into.copy_from_slice(&self.memory[start..start + into.len()]);
        true
    }

    fn write_memory(&mut self, _: RegionNumber, offset: u64, from: &[u8]) -> bool {
        let start = offset as usize;
        self.memory[start..start + from.len()].copy_from_slice(from);
        true
    }

    fn update_memory(
        &mut self,
        _: RegionNumber,
        _: u64,
        _: &mut dyn FnMut(u64) -> u64,
    ) -> Option<u64> {
        None
    }
}

pub(crate) struct Machine {
    adapter: ChannelAdapter,
    around: Around,
    queue: CompletionQueue,
    queue_pair: QueuePair,
    pub(crate) region: MemoryRegion,
    completions: Vec<Completion>,
}

fn gid(number: u8) -> Gid {
    Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, number))
}

impl Machine {
    pub(crate) fn new(number: u8, recovery: Recovery) -> Self {
        let transport = rc::Policy {
            recovery,
            backoff: Backoff::Doubling,
            ..rc::Policy::IDEAL
        };
        let configuration = Configuration {
            name: "test",
            port: LocalPort {
                ca_guid: CaGuid(u64::from(number)),
                gid: gid(number),
            },
            policy: Policy {
                transport,
                ..Policy::IDEAL
            },
            message_length_max: 1 << 20,
            timeout: 14,
            retry_count: RetryCount::from_bits(3),
            rnr_retry: 2,
            rnr_timer: RnrTimer::new(12),
            path_mtu: PathMtu::Bytes256,
            reads_max: 16,
            connection_management: Parameters::default(),
        };
        let chance = Chance::from_seed(u64::from(number));
        let mut adapter = ChannelAdapter::new(configuration, chance);
        let mut around = Around::default();
        let domain = adapter.create_protection_domain().unwrap();
        let queue = adapter.create_completion_queue(16, true).unwrap();
        let capabilities = QueuePairCapabilities {
            send_requests_max: 8,
            receive_requests_max: 8,
            entries_max: ENTRIES_MAX,
        };
        let init = QueuePairInit::new(domain, queue, capabilities);
        let queue_pair = adapter.create_queue_pair(&init).unwrap();
        let region = adapter.allocate_region(&mut around, domain, REGION, ALL_ACCESS);
        Self {
            region: region.unwrap(),
            adapter,
            around,
            queue,
            queue_pair,
            completions: Vec::new(),
        }
    }

    pub(crate) fn number(&self) -> QueuePairNumber {
        self.adapter.queue_pair_number(self.queue_pair).unwrap()
    }

    /// Ready to send to a queue pair of the machine `peer`.
    pub(crate) fn connect(&mut self, peer: u8, destination: QueuePairNumber) {
        let mut way = way_to_send(gid(peer).0, destination, PathMtu::Bytes256);
        way[0].1.access_flags = Some(ALL_ACCESS);
        for (state, attributes) in way {
            let Self {
                adapter, around, ..
            } = self;
            adapter
                .modify_queue_pair(around, self.queue_pair, state, &attributes)
                .unwrap();
        }
    }

    pub(crate) fn post(&mut self, request: &SendRequest) {
        let posted = self
            .adapter
            .post_send(&mut self.around, self.queue_pair, request);
        posted.unwrap();
    }

    pub(crate) fn post_receive(&mut self, request: &ReceiveRequest) {
        let posted = self
            .adapter
            .post_receive(&mut self.around, self.queue_pair, request);
        posted.unwrap();
    }

    /// Time passes, and what is due is done.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.around.now = self.around.now + time;
        while let Some(alarm) = self.around.alarms.take_due(self.around.now) {
            self.adapter.alarm(&mut self.around, alarm);
        }
    }

    /// Gives the other machine all packets that there are. False if there are none.
    pub(crate) fn send_to(&mut self, from: u8, other: &mut Self) -> bool {
        let mut has_sent = false;
        while let Some((buffer, length)) = self.around.sent.pop_front() {
            has_sent = true;
            let (adapter, around) = (&mut other.adapter, &mut other.around);
            adapter.receive(around, gid(from), &buffer[..length]);
            self.around.spare.push(buffer);
        }
        has_sent
    }

    /// Takes the completions, which have to be good, and returns their number.
    pub(crate) fn poll(&mut self) -> usize {
        self.completions.clear();
        let polled = self.adapter.poll_completion_queue(
            &mut self.around,
            self.queue,
            16,
            &mut self.completions,
        );
        for completion in &self.completions {
            assert!(completion.result.is_ok(), "{completion:?}");
        }
        polled.unwrap()
    }
}
