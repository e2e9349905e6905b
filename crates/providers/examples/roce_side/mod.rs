//! A software RoCE NIC with a queue pair, which reads and writes the other's memory.

use legato_base::Time;
use legato_base::secret::Keyring;
use legato_providers::RoceProvider;
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionQueue, ConnectionEvent, Event, MemoryRegion,
    Provider, QueuePair, QueuePairCapabilities, QueuePairInit, RemoteAddress, RemoteKey, SendFlags,
    SendOperation, SendRequest, WorkRequestId,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const REGION_LENGTH: u64 = 1 << 20;

pub(crate) struct Side {
    pub(crate) provider: RoceProvider,
    queue: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
    begun: Instant,
    done: Vec<Completion>,
}

impl Side {
    /// With keys, streams are sealed.
    pub(crate) fn new(place: &Address, keys: Option<&Keyring>) -> Self {
        let mut provider = RoceProvider::open_with(place, keys).unwrap();
        let domain = provider.create_protection_domain().unwrap();
        let queue = provider.create_completion_queue(256).unwrap();
        let access = AccessFlags::from_bits(7);
        let region = provider
            .allocate_region(domain, REGION_LENGTH, access)
            .unwrap();
        let capabilities = QueuePairCapabilities {
            send_requests_max: 64,
            receive_requests_max: 1,
            entries_max: 1,
        };
        let init = QueuePairInit::new(domain, queue, capabilities);
        let queue_pair = provider.create_queue_pair(&init).unwrap();
        provider.modify_to_init(queue_pair).unwrap();
        Self {
            provider,
            queue,
            queue_pair,
            region,
            begun: Instant::now(),
            done: Vec::new(),
        }
    }

    fn progress(&mut self) -> Option<Event> {
        let nanos = self.begun.elapsed().as_nanos() as u64;
        self.provider.progress(Time::from_nanos(nanos));
        self.provider.poll_event()
    }

    fn introduction(&self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.region.remote_key.0.to_le_bytes());
        bytes[4..].copy_from_slice(&self.region.address.to_le_bytes());
        bytes
    }

    /// Answers until there is nobody to answer to.
    pub(crate) fn serve(&mut self, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            if let Some(Event::Connection(ConnectionEvent::Requested { request, .. })) =
                self.progress()
            {
                let introduction = self.introduction();
                let accepted = self
                    .provider
                    .accept(request, self.queue_pair, &introduction);
                accepted.unwrap();
            }
        }
    }

    pub(crate) fn connect(&mut self, to: &Address) -> RemoteAddress {
        self.provider.connect(self.queue_pair, to, &[]).unwrap();
        loop {
            if let Some(Event::Connection(event)) = self.progress() {
                let ConnectionEvent::Established { private_data, .. } = event else {
                    panic!("{event:?}");
                };
                return RemoteAddress {
                    key: RemoteKey(u32::from_le_bytes(private_data[..4].try_into().unwrap())),
                    address: u64::from_le_bytes(private_data[4..12].try_into().unwrap()),
                };
            }
        }
    }

    /// So many requests, a few of them under way at once.
    pub(crate) fn run(
        &mut self,
        operation: SendOperation,
        length: usize,
        count: usize,
        under_way: usize,
    ) {
        let (mut posted, mut completed) = (0, 0);
        while completed < count {
            while posted < count && posted < completed + under_way {
                let request = SendRequest {
                    wr_id: WorkRequestId(0),
                    operation,
                    entries: vec![self.region.entry(0, length as u32)],
                    flags: SendFlags::SIGNALED,
                };
                self.provider.post_send(self.queue_pair, &request).unwrap();
                posted += 1;
            }
            self.progress();
            let (queue, done) = (self.queue, &mut self.done);
            let polled = self.provider.poll_completion_queue(queue, usize::MAX, done);
            completed += polled.unwrap();
            assert!(self.done.drain(..).all(|done| done.result.is_ok()));
        }
    }
}
