//! Flows between the ends of a link: READs or WRITEs of a software RoCE NIC, and TCP.

use crate::netns::{HOSTS, Link};
use legato_base::Time;
use legato_providers::{Pollable, RoceProvider};
use legato_transport::adapter::PathState;
use legato_transport::congestion::Counters;
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionQueue, ConnectionEvent, Event, MemoryRegion,
    Provider, QueuePair, QueuePairCapabilities, QueuePairInit, RemoteAddress, RemoteKey, SendFlags,
    SendOperation, SendRequest, WorkRequestId,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::net::sockopt;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const REGION_LENGTH: u64 = 1 << 20;
/// Bytes of a request, and requests under way.
const LENGTH: u32 = 256 << 10;
const UNDER_WAY: usize = 4;
const ROCE_PORT: u16 = 4791;
const TCP_PORT: u16 = 5001;

/// Which way the bytes go. The asking side is always the near one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    Write,
}

/// What a flow has carried, and when it is to end.
#[derive(Default)]
pub(crate) struct Meter {
    pub(crate) bytes: AtomicU64,
    pub(crate) over: AtomicBool,
}

impl Meter {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

struct Side {
    provider: RoceProvider,
    queue: CompletionQueue,
    queue_pair: QueuePair,
    region: MemoryRegion,
    begun: Instant,
    done: Vec<Completion>,
}

impl Side {
    fn new(place: &Address) -> Self {
        let mut provider = RoceProvider::open(place).unwrap();
        let domain = provider.create_protection_domain().unwrap();
        let queue = provider.create_completion_queue(256).unwrap();
        let access = AccessFlags::from_bits(7);
        let region = provider.allocate_region(domain, REGION_LENGTH, access);
        let capabilities = QueuePairCapabilities {
            send_requests_max: 64,
            receive_requests_max: 1,
            entries_max: 1,
        };
        let init = QueuePairInit::new(domain, queue, capabilities);
        let queue_pair = provider.create_queue_pair(&init).unwrap();
        provider.modify_to_init(queue_pair).unwrap();
        Self {
            queue,
            queue_pair,
            region: region.unwrap(),
            provider,
            begun: Instant::now(),
            done: Vec::new(),
        }
    }

    /// What is to be done, and then sleep until there is more.
    fn progress(&mut self) -> Option<Event> {
        let now = || Time::from_nanos(self.begun.elapsed().as_nanos() as u64);
        let deadline = self.provider.progress(now());
        let queue = self.queue;
        let done = &mut self.done;
        let polled = self.provider.poll_completion_queue(queue, usize::MAX, done);
        if polled.unwrap() > 0 {
            return None;
        }
        let event = self.provider.poll_event();
        if event.is_none() && self.provider.set_sleeping(true) {
            let wait = deadline.since(now()).as_nanos().min(50_000_000);
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: wait as i64,
            };
            let mut descriptors = Vec::new();
            self.provider.descriptors(&mut descriptors);
            let mut waited: Vec<_> = descriptors
                .iter()
                .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
                .collect();
            let _ = poll(&mut waited, Some(&wait));
            self.provider.set_sleeping(false);
        }
        event
    }

    fn serve(&mut self, over: &Meter) {
        while !over.is_over() {
            if let Some(Event::Connection(ConnectionEvent::Requested { request, .. })) =
                self.progress()
            {
                let mut bytes = [0; 12];
                bytes[..4].copy_from_slice(&self.region.remote_key.0.to_le_bytes());
                bytes[4..].copy_from_slice(&self.region.address.to_le_bytes());
                let accepted = self.provider.accept(request, self.queue_pair, &bytes);
                accepted.unwrap();
            }
        }
    }

    fn connect(&mut self, to: &Address) -> RemoteAddress {
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

    fn run(&mut self, operation: SendOperation, meter: &Meter) {
        let mut under_way = 0;
        while !meter.is_over() {
            while under_way < UNDER_WAY {
                let request = SendRequest {
                    wr_id: WorkRequestId(0),
                    operation,
                    entries: vec![self.region.entry(0, LENGTH)],
                    flags: SendFlags::SIGNALED,
                };
                self.provider.post_send(self.queue_pair, &request).unwrap();
                under_way += 1;
            }
            self.progress();
            for done in self.done.drain(..) {
                done.result.unwrap();
                meter.add(u64::from(LENGTH));
                under_way -= 1;
            }
        }
    }
}

/// What the NICs of both sides counted, and the path as the asking one sees it.
#[allow(dead_code, reason = "the example prints all of it")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) near: Counters,
    pub(crate) far: Counters,
    pub(crate) path: PathState,
}

/// READs or WRITEs until the meter is over.
pub(crate) fn roce(link: &Link, verb: Verb, meter: &Meter) -> Seen {
    let [near, far] = HOSTS[0].map(|host| {
        let place = format!("roce://{host}:{ROCE_PORT}");
        place.parse::<Address>().unwrap()
    });
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let place = far.clone();
        let server = scope.spawn(move || {
            link.enter(true);
            let mut side = Side::new(&place);
            side.provider.listen(&place).unwrap();
            tell.send(()).unwrap();
            side.serve(meter);
            side.provider.congestion_counters()
        });
        told.recv().unwrap();
        link.enter(false);
        let mut side = Side::new(&near);
        let target = side.connect(&far);
        let operation = match verb {
            Verb::Read => SendOperation::RdmaRead(target),
            Verb::Write => SendOperation::RdmaWrite(target),
        };
        side.run(operation, meter);
        let path = side.provider.paths().next().unwrap();
        Seen {
            near: side.provider.congestion_counters(),
            far: server.join().unwrap(),
            path,
        }
    })
}

fn patient<T>(result: std::io::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Bytes in a TCP stream until the meter is over, the same way as those of `verb`.
pub(crate) fn tcp(link: &Link, verb: Verb, algorithm: &str, meter: &Meter) {
    std::thread::scope(|scope| {
        link.enter(true);
        let listener = TcpListener::bind((HOSTS[0][1], TCP_PORT)).unwrap();
        link.enter(false);
        let near = TcpStream::connect((HOSTS[0][1], TCP_PORT)).unwrap();
        let (far, _) = listener.accept().unwrap();
        let (mut sender, mut receiver) = match verb {
            Verb::Read => (far, near),
            Verb::Write => (near, far),
        };
        // SAFETY: the stream stays open as long as this block.
        let descriptor = unsafe { BorrowedFd::borrow_raw(sender.as_raw_fd()) };
        sockopt::set_tcp_congestion(descriptor, algorithm).unwrap();
        let briefly = Some(Duration::from_millis(100));
        sender.set_write_timeout(briefly).unwrap();
        receiver.set_read_timeout(briefly).unwrap();
        let sending = scope.spawn(move || {
            let bytes = vec![7; 64 << 10];
            while !meter.is_over() {
                patient(sender.write(&bytes));
            }
        });
        let mut bytes = vec![0; 256 << 10];
        while !meter.is_over() {
            let received = patient(receiver.read(&mut bytes)).unwrap_or(0);
            meter.add(received as u64);
        }
        // The receiver is closed behind the sender, whose last write would fail otherwise.
        sending.join().unwrap();
    });
}
