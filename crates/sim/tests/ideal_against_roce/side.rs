//! A side of a world, and what there is to see of it, without names of the world's own.

use crate::script::{BATCH, Key, QUEUE_PAIRS, SLOT, TARGET};
use legato_verbs::{
    AccessFlags, Completion, CompletionKind, CompletionQueue, ConnectionEvent, ConnectionRequest,
    Event, MemoryRegion, ProtectionDomain, Provider, QueuePair, QueuePairCapabilities,
    QueuePairInit, Receives, RemoteAddress, RemoteKey, SharedReceiveQueue,
    SharedReceiveQueueCapabilities,
};
use std::collections::BTreeMap;

pub(crate) const REQUESTS: u32 = 8;
const CAPABILITIES: QueuePairCapabilities = QueuePairCapabilities {
    send_requests_max: REQUESTS,
    receive_requests_max: REQUESTS,
    entries_max: 2,
};
const ALL_ACCESS: AccessFlags = AccessFlags::from_bits(31);
/// Behind the places of sends and of receives.
pub(crate) const TARGET_AT: u64 =
    (BATCH as u64 + QUEUE_PAIRS as u64 * REQUESTS as u64) * SLOT as u64;
pub(crate) const REGION_LENGTH: u64 = TARGET_AT + TARGET as u64;
/// Ids of receives begin here.
pub(crate) const RECEIVES: u64 = 1 << 32;

/// A side, and its names for things.
pub(crate) struct Side {
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: CompletionQueue,
    pub(crate) shared: SharedReceiveQueue,
    pub(crate) queue_pairs: Vec<QueuePair>,
    pub(crate) region: MemoryRegion,
    pub(crate) passing: MemoryRegion,
    pub(crate) stale: RemoteKey,
    pub(crate) window: RemoteKey,
    /// Keys that the window gets when the request of this id has completed.
    pub(crate) next_windows: BTreeMap<u64, RemoteKey>,
    pub(crate) receives: [u32; QUEUE_PAIRS],
    pub(crate) asked: Option<ConnectionRequest>,
}

impl Side {
    pub(crate) fn new(nic: &mut dyn Provider) -> Self {
        let domain = nic.create_protection_domain().unwrap();
        let entries = 2 * REQUESTS * (QUEUE_PAIRS as u32 + 1);
        let capabilities = SharedReceiveQueueCapabilities {
            requests_max: REQUESTS,
            entries_max: 2,
        };
        let mut side = Self {
            domain,
            queue: nic.create_completion_queue(entries).unwrap(),
            shared: nic
                .create_shared_receive_queue(domain, capabilities)
                .unwrap(),
            queue_pairs: Vec::new(),
            region: nic
                .allocate_region(domain, REGION_LENGTH, ALL_ACCESS)
                .unwrap(),
            passing: nic
                .allocate_region(domain, u64::from(TARGET), ALL_ACCESS)
                .unwrap(),
            stale: RemoteKey(0),
            window: nic.allocate_window(domain).unwrap(),
            next_windows: BTreeMap::new(),
            receives: [0; QUEUE_PAIRS],
            asked: None,
        };
        for place in 0..QUEUE_PAIRS {
            let queue_pair = side.create_queue_pair(nic, place);
            side.queue_pairs.push(queue_pair);
        }
        side
    }

    pub(crate) fn create_queue_pair(&self, nic: &mut dyn Provider, place: usize) -> QueuePair {
        let mut init = QueuePairInit::new(self.domain, self.queue, CAPABILITIES);
        if place + 1 == QUEUE_PAIRS {
            init.receives = Receives::Shared(self.shared);
        }
        nic.create_queue_pair(&init).unwrap()
    }

    fn name(&self, queue_pair: QueuePair) -> String {
        let place = self
            .queue_pairs
            .iter()
            .position(|known| *known == queue_pair);
        place.map_or("one that is gone".to_owned(), |place| {
            format!("pair {place}")
        })
    }

    /// Where a request to this side goes.
    pub(crate) fn remote(&self, key: Key, offset: u64) -> RemoteAddress {
        let at = self.region.address + TARGET_AT + offset;
        let (key, address) = match key {
            Key::Region => (self.region.remote_key, at),
            Key::Window => (self.window, at),
            Key::Passing => (self.passing.remote_key, self.passing.address + offset),
            Key::Stale => (self.stale, self.passing.address + offset),
            Key::Wrong => (RemoteKey(!self.region.remote_key.0), at),
        };
        RemoteAddress { key, address }
    }

    /// In the order of each queue: how the queues mix is nobody's promise.
    pub(crate) fn note_completions(&mut self, nic: &mut dyn Provider, lines: &mut Vec<String>) {
        let mut done: Vec<Completion> = Vec::new();
        nic.poll_completion_queue(self.queue, usize::MAX, &mut done)
            .unwrap();
        done.sort_by_key(|done| (done.wr_id.0 >= RECEIVES, self.name(done.queue_pair)));
        for done in done {
            let (id, name) = (done.wr_id.0, self.name(done.queue_pair));
            if let (Ok(CompletionKind::BindWindow), Some(key)) =
                (done.result, self.next_windows.remove(&id))
            {
                self.window = key;
            }
            let mut result = done.result;
            if let Ok(CompletionKind::ReceiveWithInvalidate { key, .. }) = &mut result {
                *key = RemoteKey(u32::from(*key == self.window));
            }
            lines.push(format!("{id:x} of {name}: {result:?}"));
        }
    }

    pub(crate) fn note_events(&mut self, nic: &mut dyn Provider, lines: &mut Vec<String>) {
        let mut events = Vec::new();
        while let Some(event) = nic.poll_event() {
            if let Event::Connection(ConnectionEvent::Requested {
                request,
                private_data,
                ..
            }) = event
            {
                self.asked = Some(request);
                events.push(format!("Connection(Requested {private_data:?})"));
                continue;
            }
            let mut text = format!("{event:?}");
            for (place, queue_pair) in self.queue_pairs.iter().enumerate() {
                text = text.replace(&format!("{queue_pair:?}"), &format!("pair {place}"));
            }
            for own in [format!("{:?}", self.queue), format!("{:?}", self.shared)] {
                text = text.replace(&own, "own");
            }
            events.push(text);
        }
        events.sort();
        lines.append(&mut events);
    }
}

pub(crate) fn digest(nic: &dyn Provider, region: &MemoryRegion) -> u64 {
    let mut bytes = vec![0; region.length as usize];
    nic.read_region(region, 0, &mut bytes).unwrap();
    let words = bytes.chunks(8).map(|word| {
        let mut whole = [0; 8];
        whole[..word.len()].copy_from_slice(word);
        u64::from_le_bytes(whole)
    });
    // FNV-1a, a word at a time, with the upper half mixed in.
    words.fold(0xCBF2_9CE4_8422_2325, |sum: u64, word| {
        let sum = (sum ^ word).wrapping_mul(0x0100_0000_01B3);
        sum ^ sum >> 32
    })
}
