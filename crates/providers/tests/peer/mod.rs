//! One side of a connection in a test, with a real clock and real sleep.
#![allow(dead_code, reason = "each test program uses a part of this")]

pub(crate) mod pair;
pub(crate) mod process;

use legato_base::Time;
use legato_providers::{Pollable, ShmProvider};
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionQueue, ConnectionEvent, Event, MemoryRegion,
    ProtectionDomain, Provider, QueuePair, QueuePairCapabilities, QueuePairInit, ReceiveRequest,
    Receives, RemoteAddress, RemoteKey, SendFlags, SendOperation, SendRequest, SharedReceiveQueue,
    SharedReceiveQueueCapabilities, VerbsError, WorkRequestId,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::time::Instant;

pub(crate) const REGION_LENGTH: u64 = 256 * 1024;
pub(crate) const REQUESTS: u32 = 64;
/// A test that waits longer than this has failed.
const PATIENCE_S: u64 = 60;

pub(crate) struct Peer<P = ShmProvider> {
    pub(crate) provider: P,
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    pub(crate) shared: Option<SharedReceiveQueue>,
    pub(crate) queue_pair: QueuePair,
    pub(crate) region: MemoryRegion,
    pub(crate) events: VecDeque<Event>,
    pub(crate) completions: VecDeque<Completion>,
    origin: Instant,
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self::with_receives(ShmProvider::new().unwrap(), None)
    }

    /// With a shared receive queue of so many receives.
    pub(crate) fn sharing(requests_max: u32) -> Self {
        Self::with_receives(ShmProvider::new().unwrap(), Some(requests_max))
    }
}

impl<P: Provider + Pollable> Peer<P> {
    pub(crate) fn over(provider: P) -> Self {
        Self::with_receives(provider, None)
    }

    /// For several that share a NIC, and so a clock.
    pub(crate) fn over_since(provider: P, origin: Instant) -> Self {
        Self {
            origin,
            ..Self::over(provider)
        }
    }

    /// With a shared receive queue of so many receives, if there is a number.
    pub(crate) fn with_receives(mut provider: P, shared: Option<u32>) -> Self {
        let domain = provider.create_protection_domain().unwrap();
        let queue = provider.create_completion_queue(4 * REQUESTS).unwrap();
        let shared = shared.map(|requests_max| {
            let capabilities = SharedReceiveQueueCapabilities {
                requests_max,
                entries_max: 2,
            };
            provider
                .create_shared_receive_queue(domain, capabilities)
                .unwrap()
        });
        let access = AccessFlags::from_bits(15);
        let region = provider
            .allocate_region(domain, REGION_LENGTH, access)
            .unwrap();
        let mut peer = Self {
            provider,
            domain,
            queue,
            shared,
            // Made below.
            queue_pair: QueuePair {
                index: u32::MAX,
                generation: 0,
            },
            region,
            events: VecDeque::new(),
            completions: VecDeque::new(),
            origin: Instant::now(),
        };
        peer.queue_pair = peer.create_queue_pair();
        peer.provider.modify_to_init(peer.queue_pair).unwrap();
        peer
    }

    /// One more queue pair of the usual size, in Reset.
    pub(crate) fn create_queue_pair(&mut self) -> QueuePair {
        let capabilities = QueuePairCapabilities {
            send_requests_max: REQUESTS,
            receive_requests_max: REQUESTS,
            entries_max: 2,
        };
        let mut init = QueuePairInit::new(self.domain, self.queue, capabilities);
        init.receives = self.shared.map_or(Receives::Own, Receives::Shared);
        self.provider.create_queue_pair(&init).unwrap()
    }

    /// Where the peer can reach our region, as private data.
    pub(crate) fn introduction(&self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.region.remote_key.0.to_le_bytes());
        bytes[4..].copy_from_slice(&self.region.address.to_le_bytes());
        bytes
    }

    pub(crate) fn progress(&mut self) -> Time {
        let now = Time::from_nanos(self.origin.elapsed().as_nanos() as u64);
        let deadline = self.provider.progress(now);
        while let Some(event) = self.provider.poll_event() {
            self.events.push_back(event);
        }
        let mut completions = Vec::new();
        self.provider
            .poll_completion_queue(self.queue, usize::MAX, &mut completions)
            .unwrap();
        self.completions.extend(completions);
        deadline
    }

    /// Progresses, sleeping in between, until `probe` finds something.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut probe: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let begin = self.origin.elapsed();
        loop {
            let deadline = self.progress();
            if let Some(found) = probe(self) {
                return found;
            }
            let now = self.origin.elapsed();
            assert!(
                (now - begin).as_secs() < PATIENCE_S,
                "{what} never happened; events {:?}, completions {:?}",
                self.events,
                self.completions
            );
            if self.provider.set_sleeping(true) {
                let left = deadline.as_nanos().saturating_sub(now.as_nanos() as u64);
                let timeout = Timespec {
                    tv_sec: (left / 1_000_000_000).min(PATIENCE_S) as i64,
                    tv_nsec: (left % 1_000_000_000) as _,
                };
                self.wait(&timeout);
            }
            self.provider.set_sleeping(false);
        }
    }

    /// False if there was nothing to do in this time.
    pub(crate) fn wait(&self, timeout: &Timespec) -> bool {
        let mut descriptors = Vec::new();
        self.provider.descriptors(&mut descriptors);
        let mut waited: Vec<_> = descriptors
            .iter()
            .map(|descriptor| PollFd::new(descriptor, PollFlags::IN))
            .collect();
        poll(&mut waited, Some(timeout)).unwrap() > 0
    }

    pub(crate) fn event<T>(&mut self, what: &str, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        self.until(what, |peer| {
            let found = peer.events.iter().enumerate();
            let (place, value) = found
                .filter_map(|(place, event)| Some((place, pick(event)?)))
                .next()?;
            peer.events.remove(place);
            Some(value)
        })
    }

    pub(crate) fn completion(&mut self) -> Completion {
        self.until("a completion", |peer| peer.completions.pop_front())
    }

    /// Listens, says so, and accepts one peer. Returns where the peer's region is.
    pub(crate) fn serve(&mut self, address: &Address, ready: impl FnOnce()) -> RemoteAddress {
        let listener = self.provider.listen(address).unwrap();
        ready();
        let (request, private) = self.event("a request", |event| match event {
            Event::Connection(ConnectionEvent::Requested {
                request,
                private_data,
                ..
            }) => Some((*request, private_data.clone())),
            _ => None,
        });
        let introduction = self.introduction();
        self.provider
            .accept(request, self.queue_pair, &introduction)
            .unwrap();
        self.established();
        self.provider.close_listener(listener).unwrap();
        remote(&private)
    }

    pub(crate) fn connect(&mut self, address: &Address) -> RemoteAddress {
        let introduction = self.introduction();
        self.provider
            .connect(self.queue_pair, address, &introduction)
            .unwrap();
        remote(&self.established())
    }

    fn established(&mut self) -> Vec<u8> {
        self.event("Established", |event| match event {
            Event::Connection(ConnectionEvent::Established { private_data, .. }) => {
                Some(private_data.clone())
            }
            _ => None,
        })
    }

    pub(crate) fn disconnected(&mut self) {
        self.event("Disconnected", |event| {
            matches!(
                event,
                Event::Connection(ConnectionEvent::Disconnected { .. })
            )
            .then_some(())
        });
    }

    pub(crate) fn post_receive(&mut self, wr_id: u64, offset: u64, length: u32) {
        let request = ReceiveRequest {
            wr_id: WorkRequestId(wr_id),
            entries: vec![self.region.entry(offset, length)],
        };
        let posted = match self.shared {
            Some(shared) => self.provider.post_shared_receive(shared, &request),
            None => self.provider.post_receive(self.queue_pair, &request),
        };
        posted.unwrap();
    }

    pub(crate) fn post(&mut self, wr_id: u64, operation: SendOperation, offset: u64, length: u32) {
        self.post_with(SendFlags::SIGNALED, wr_id, operation, (offset, length))
            .unwrap();
    }

    pub(crate) fn post_with(
        &mut self,
        flags: SendFlags,
        wr_id: u64,
        operation: SendOperation,
        (offset, length): (u64, u32),
    ) -> Result<(), VerbsError> {
        let request = SendRequest {
            wr_id: WorkRequestId(wr_id),
            operation,
            entries: vec![self.region.entry(offset, length)],
            flags,
        };
        self.provider.post_send(self.queue_pair, &request)
    }

    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.provider
            .read_region(&self.region, offset, &mut bytes)
            .unwrap();
        bytes
    }

    pub(crate) fn fill(&mut self, offset: u64, bytes: &[u8]) {
        let region = self.region;
        self.provider.write_region(&region, offset, bytes).unwrap();
    }

    /// Destroys everything; nothing may be left.
    pub(crate) fn dismantle(mut self) {
        self.provider.destroy_queue_pair(self.queue_pair).unwrap();
        if let Some(shared) = self.shared {
            self.provider.destroy_shared_receive_queue(shared).unwrap();
        }
        self.provider.deregister_region(&self.region).unwrap();
        self.provider.destroy_completion_queue(self.queue).unwrap();
        self.provider
            .destroy_protection_domain(self.domain)
            .unwrap();
        assert_eq!(self.provider.resource_counts(), Default::default());
    }
}

fn remote(private: &[u8]) -> RemoteAddress {
    RemoteAddress {
        key: RemoteKey(u32::from_le_bytes(private[..4].try_into().unwrap())),
        address: u64::from_le_bytes(private[4..12].try_into().unwrap()),
    }
}

pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut random = legato_base::Random::from_seed(seed);
    (0..length)
        .map(|_| (random.next_u64() >> 56) as u8)
        .collect()
}

/// A name that no other test uses.
pub(crate) fn address(name: &str) -> Address {
    Address::Shm(format!("@legato-test-{}-{name}", std::process::id()))
}
