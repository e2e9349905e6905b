//! What a NIC at second hand costs: WRITEs and READs of a page with its header, on memory that the NIC
//! does not know, through a proxy and with the same provider used directly, in one run.
//!
//! Over shared memory the transfer itself is a copy, so what is left is the proxy: handing a request over
//! and its completion back, and one more copy of the page. Over RoCE between two addresses of this
//! machine it is beside a network. One line for each: the median and the 99th percentile of one request
//! at a time, in nanoseconds, and pages a second with 32 outstanding.
#![allow(clippy::unwrap_used, reason = "a failed call ends the measurement")]

use legato_base::{Duration, Time};
use legato_providers::proxy::{ProxyServer, connection};
use legato_providers::{ForeignMemory, Pollable, ProxyProvider, RoceProvider, ShmProvider};
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionQueue, ConnectionEvent, Event, MemoryRegion,
    Provider, QueuePair, QueuePairCapabilities, QueuePairInit, RemoteAddress, RemoteKey, SendFlags,
    SendOperation, SendRequest, WorkRequestId,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const HEADER: u64 = 64;
const PAGE: u64 = 4096;
const DEPTH: u64 = 32;
const WARM: usize = 500;
const ROUNDS: usize = 5;

/// One side, with a queue pair and memory.
struct Side<P> {
    provider: P,
    queue: CompletionQueue,
    pair: QueuePair,
    region: MemoryRegion,
    /// What the region is about, where the provider did not allocate it.
    _memory: Vec<u8>,
    begun: Instant,
}

impl<P: Provider> Side<P> {
    fn new(
        mut provider: P,
        begun: Instant,
        register: impl FnOnce(&mut P, legato_verbs::ProtectionDomain, &mut Vec<u8>) -> MemoryRegion,
    ) -> Self {
        let domain = provider.create_protection_domain().unwrap();
        let queue = provider.create_completion_queue(256).unwrap();
        let capabilities = QueuePairCapabilities {
            send_requests_max: 64,
            receive_requests_max: 4,
            entries_max: 2,
        };
        let init = QueuePairInit::new(domain, queue, capabilities);
        let pair = provider.create_queue_pair(&init).unwrap();
        provider.modify_to_init(pair).unwrap();
        let mut memory = Vec::new();
        let region = register(&mut provider, domain, &mut memory);
        Self {
            provider,
            queue,
            pair,
            region,
            _memory: memory,
            begun,
        }
    }

    /// With memory of its own, as the pager has.
    fn with_own_memory(provider: P, begun: Instant) -> Self
    where
        P: ForeignMemory,
    {
        Self::new(provider, begun, |provider, domain, memory| {
            memory.resize((DEPTH * (PAGE + HEADER)) as usize, 7);
            let (place, length) = (memory.as_mut_ptr(), memory.len() as u64);
            let access = AccessFlags::LOCAL_WRITE;
            // SAFETY: the vector stays where it is as long as the side, and nobody looks at it.
            unsafe { provider.register_foreign(domain, place, length, access) }.unwrap()
        })
    }

    fn progress(&mut self) -> Vec<Event> {
        let nanos = self.begun.elapsed().as_nanos() as u64;
        self.provider
            .progress(Time::ZERO + Duration::from_nanos(nanos));
        std::iter::from_fn(|| self.provider.poll_event()).collect()
    }

    fn established(&mut self) -> Vec<u8> {
        loop {
            for event in self.progress() {
                if let Event::Connection(ConnectionEvent::Established { private_data, .. }) = event
                {
                    return private_data;
                }
            }
        }
    }

    fn post(&mut self, slot: u64, operation: SendOperation) {
        let header = self.region.entry(slot * HEADER, HEADER as u32);
        let page = self.region.entry(DEPTH * HEADER + slot * PAGE, PAGE as u32);
        let request = SendRequest {
            wr_id: WorkRequestId(slot),
            operation,
            entries: vec![header, page],
            flags: SendFlags::SIGNALED,
        };
        self.provider.post_send(self.pair, &request).unwrap();
    }

    fn poll(&mut self, into: &mut Vec<Completion>) {
        while into.is_empty() {
            self.progress();
            let polled = self.provider.poll_completion_queue(self.queue, 64, into);
            polled.unwrap();
        }
        assert!(into.iter().all(|done| done.result.is_ok()), "{into:?}");
    }

    /// Nanoseconds of each of so many requests, one after the other.
    fn one_at_a_time(&mut self, operation: SendOperation, count: usize) -> Vec<u64> {
        let mut done = Vec::new();
        let one = |_| {
            let begun = Instant::now();
            self.post(0, operation);
            self.poll(&mut done);
            done.clear();
            begun.elapsed().as_nanos() as u64
        };
        (0..count).map(one).collect()
    }

    /// Requests a second with so many outstanding.
    fn together(&mut self, operation: SendOperation, count: usize) -> f64 {
        let (mut posted, mut ended, mut done) = (0, 0, Vec::new());
        let begun = Instant::now();
        let mut free: Vec<u64> = (0..DEPTH).collect();
        while ended < count {
            while posted < count
                && let Some(slot) = free.pop()
            {
                self.post(slot, operation);
                posted += 1;
            }
            self.poll(&mut done);
            ended += done.len();
            free.extend(done.drain(..).map(|completion| completion.wr_id.0));
        }
        count as f64 / begun.elapsed().as_secs_f64()
    }
}

/// A node in a thread of its own, which spins: what is measured is not how it is woken.
fn node<P: Provider>(
    open: impl FnOnce() -> P + Send + 'static,
    address: Address,
    stop: Arc<AtomicBool>,
) -> std::thread::JoinHandle<()> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    let serve = move || {
        let mut side = Side::new(open(), Instant::now(), |provider, domain, _| {
            let access =
                AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
            provider.allocate_region(domain, 2 * PAGE, access).unwrap()
        });
        side.provider.listen(&address).unwrap();
        ready.send(()).unwrap();
        while !stop.load(Ordering::Relaxed) {
            for event in side.progress() {
                if let Event::Connection(ConnectionEvent::Requested { request, .. }) = event {
                    // A queue pair for each: they come one after the other.
                    let mut private = side.region.remote_key.0.to_le_bytes().to_vec();
                    private.extend(side.region.address.to_le_bytes());
                    side.provider.accept(request, side.pair, &private).unwrap();
                }
            }
            std::thread::yield_now();
        }
    };
    let thread = std::thread::spawn(serve);
    is_ready.recv().unwrap();
    thread
}

/// A far half that spins, as the supervisor's thread does while there is work.
fn far<P: Provider + ForeignMemory + Pollable>(
    open: impl FnOnce() -> P + Send + 'static,
) -> ProxyProvider {
    let (near, far) = connection().unwrap();
    std::thread::spawn(move || {
        let begun = Instant::now();
        let mut server = ProxyServer::new(far, open());
        while server.ended().is_none() {
            let nanos = begun.elapsed().as_nanos() as u64;
            if !server.turn(Time::ZERO + Duration::from_nanos(nanos)).worked {
                std::thread::yield_now();
            }
        }
    });
    ProxyProvider::open(near).unwrap()
}

struct Result {
    median: u64,
    late: u64,
    rate: f64,
}

fn measure<P: Provider>(
    side: &mut Side<P>,
    address: &Address,
    counts: (usize, usize),
) -> [Result; 2] {
    side.provider.connect(side.pair, address, &[]).unwrap();
    let private = side.established();
    let target = RemoteAddress {
        key: RemoteKey(u32::from_le_bytes(private[..4].try_into().unwrap())),
        address: u64::from_le_bytes(private[4..12].try_into().unwrap()),
    };
    [
        SendOperation::RdmaWrite(target),
        SendOperation::RdmaRead(target),
    ]
    .map(|operation| {
        side.one_at_a_time(operation, WARM);
        let (mut all, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            all.extend(side.one_at_a_time(operation, counts.0 / ROUNDS));
            rates.push(side.together(operation, counts.1 / ROUNDS));
        }
        all.sort_unstable();
        rates.sort_by(f64::total_cmp);
        Result {
            median: all[all.len() / 2],
            late: all[all.len() * 99 / 100],
            rate: rates[ROUNDS / 2],
        }
    })
}

fn compare(name: &str, direct: [Result; 2], second_hand: [Result; 2]) {
    for (operation, direct, proxied) in ["WRITE", "READ"]
        .into_iter()
        .zip(direct)
        .zip(second_hand)
        .map(|((operation, direct), proxied)| (operation, direct, proxied))
    {
        for (how, it) in [("direct", &direct), ("proxy", &proxied)] {
            println!(
                "{name:5} {operation:6} {how:7} median {:7} ns  p99 {:8} ns  {:8.0} pages/s",
                it.median, it.late, it.rate
            );
        }
        println!(
            "{name:5} {operation:6} ratio   latency {:.2} (+{} ns), rate {:.2}",
            proxied.median as f64 / direct.median as f64,
            proxied.median.saturating_sub(direct.median),
            proxied.rate / direct.rate
        );
    }
}

fn main() {
    let shm = |number: u32| {
        Address::Shm(format!(
            "@legato-proxy-cost-{}-{number}",
            std::process::id()
        ))
    };
    let roce = |place: &str| Address::Roce(place.parse().unwrap());
    let counts = (20_000, 100_000);
    let results = [1, 2].map(|number| {
        let stop = Arc::new(AtomicBool::new(false));
        let serving = node(
            || ShmProvider::new().unwrap(),
            shm(number),
            Arc::clone(&stop),
        );
        let begun = Instant::now();
        let result = match number {
            1 => measure(
                &mut Side::with_own_memory(ShmProvider::new().unwrap(), begun),
                &shm(number),
                counts,
            ),
            _ => measure(
                &mut Side::with_own_memory(far(|| ShmProvider::new().unwrap()), begun),
                &shm(number),
                counts,
            ),
        };
        stop.store(true, Ordering::Relaxed);
        serving.join().unwrap();
        result
    });
    let [direct, proxied] = results;
    compare("shm", direct, proxied);
    let results = [1, 2].map(|number| {
        let stop = Arc::new(AtomicBool::new(false));
        let at = format!("127.0.1.{number}:4791");
        let here = format!("127.0.2.{number}:4791");
        let (there, here) = (roce(&at), roce(&here));
        let listen = there.clone();
        let serving = node(
            move || RoceProvider::open(&listen).unwrap(),
            there.clone(),
            Arc::clone(&stop),
        );
        let begun = Instant::now();
        let open = move || RoceProvider::open(&here).unwrap();
        let counts = (5_000, 20_000);
        let result = match number {
            1 => measure(&mut Side::with_own_memory(open(), begun), &there, counts),
            _ => measure(&mut Side::with_own_memory(far(open), begun), &there, counts),
        };
        stop.store(true, Ordering::Relaxed);
        serving.join().unwrap();
        result
    });
    let [direct, proxied] = results;
    compare("roce", direct, proxied);
}
