//! A READ of a page against a plain copy of one.
//!
//! Rounds of both alternate, over the same random places, so that whatever else the machine does
//! meets both alike; the ratio is between the medians of the rounds. The percentiles come from
//! rounds in which each operation is timed by itself, and hold the cost of the clock twice.

use crate::args::BenchReadArguments;
use crate::failure::{Failure, advised};
use crate::machine;
use crate::node::READY;
use crate::node::drive::Clock;
use crate::output::print;
use legato_base::{Bytes, Duration, Random};
use legato_providers::ShmProvider;
use legato_verbs::{
    AccessFlags, Address, CompletionQueue, ConnectionEvent, Event, MemoryRegion, Provider as _,
    QueuePair, QueuePairCapabilities, QueuePairInit, RemoteAddress, RemoteKey, SendFlags,
    SendOperation, SendRequest, VerbsError, WorkRequestId,
};
use serde_json::json;
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Operations of one round: long enough that reading the clock does not count.
const ROUND: u32 = 1_000;
/// How long the other process may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Why there is no figure.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error("shared memory cannot be used: {0}; see legato doctor")]
    Verbs(#[from] VerbsError),
    #[error("the process that is read from could not be started: {}", advised(.0))]
    Target(#[from] std::io::Error),
    #[error("the process that is read from does not answer; it has said why before; see there")]
    NoAnswer,
    #[error("a read failed: {0}; that is a defect of Legato; please report it")]
    Read(legato_verbs::CompletionStatus),
    #[error(
        "a read took bytes that were never written; that is a defect of Legato; please report it"
    )]
    WrongBytes,
    #[error("--size must be at least 1 B, at most 1 GiB and at most --memory; give another")]
    Size,
}

pub(crate) fn run(arguments: &BenchReadArguments) -> Result<u8, Failure> {
    let result = measure(arguments).map_err(Failure::refused)?;
    let ratio = result.read.median_ns / result.copy.median_ns;
    if arguments.json {
        let value = json!({
            "size_bytes": arguments.size.0,
            "memory_bytes": arguments.memory.0,
            "count": arguments.count,
            "read_ns": result.read.json(),
            "copy_ns": result.copy.json(),
            "ratio": ratio,
        });
        print(format_args!("{value:#}"))?;
    } else {
        print(format_args!(
            "{} at random places of {}:\n  \
             RDMA READ, post to completion: {}\n  \
             plain copy:                    {}\n  \
             ratio of the medians:          {ratio:.2}",
            arguments.size,
            arguments.memory,
            result.read.text(),
            result.copy.text()
        ))?;
    }
    Ok(0)
}

/// The median time of one read of a page, in nanoseconds.
pub(crate) fn quick() -> Result<u64, Failure> {
    let arguments = BenchReadArguments {
        size: Bytes::kib(4),
        count: 8 * ROUND,
        memory: Bytes::mib(16),
        json: false,
    };
    let result = measure(&arguments).map_err(Failure::refused)?;
    Ok(result.read.p50_ns)
}

#[derive(Debug)]
struct Figures {
    /// Of the rounds, per operation.
    median_ns: f64,
    /// Of single operations.
    p50_ns: u64,
    p99_ns: u64,
}

#[derive(Debug)]
struct Comparison {
    read: Figures,
    copy: Figures,
}

/// What was measured of one of the two.
#[derive(Debug, Default)]
struct Samples {
    /// Nanoseconds per operation.
    rounds: Vec<f64>,
    single: Vec<u64>,
}

impl Samples {
    fn end_round(&mut self, round: u32, begin: Instant) {
        if !timed_singly(round) {
            self.rounds.push(nanos(begin) as f64 / f64::from(ROUND));
        }
    }

    fn figures(mut self) -> Figures {
        self.rounds.sort_by(f64::total_cmp);
        self.single.sort_unstable();
        Figures {
            median_ns: self.rounds[self.rounds.len() / 2],
            p50_ns: self.single[self.single.len() / 2],
            p99_ns: self.single[self.single.len() * 99 / 100],
        }
    }
}

/// Two rounds in eight: one with the reads first, and one with the copies.
const fn timed_singly(round: u32) -> bool {
    round % 8 >= 6
}

fn offsets(round: u32, places: u64, size: u32) -> impl Iterator<Item = u64> {
    let mut random = Random::from_seed(round.into());
    (0..ROUND).map(move |_| random.below(places) * u64::from(size))
}

impl Figures {
    fn json(&self) -> serde_json::Value {
        json!({"median": self.median_ns, "p50": self.p50_ns, "p99": self.p99_ns})
    }

    fn text(&self) -> String {
        let Self {
            median_ns,
            p50_ns,
            p99_ns,
        } = self;
        format!("{median_ns:.0} ns (timed one by one: p50 {p50_ns} ns, p99 {p99_ns} ns)")
    }
}

fn measure(arguments: &BenchReadArguments) -> Result<Comparison, BenchError> {
    let size = u32::try_from(arguments.size.0).map_err(|_| BenchError::Size)?;
    if size == 0 || size > 1 << 30 || arguments.size > arguments.memory {
        return Err(BenchError::Size);
    }
    let places = arguments.memory.0 / u64::from(size);
    let (mut target, address) = start_target(arguments.memory)?;
    let reader = Reader::connect(&address, size);
    let result = reader.and_then(|mut reader| {
        // Every page is mapped and the segment known before anything is measured.
        for place in 0..places {
            reader.read(place * u64::from(size))?;
        }
        reader.check()?;
        reader.compare(arguments.count, places)
    });
    // The end of its standard input ends it.
    drop(target.stdin.take());
    target.wait()?;
    result
}

fn start_target(memory: Bytes) -> Result<(Child, Address), BenchError> {
    let address = Address::Shm(format!("@legato-bench-{}", machine::random_name()?));
    let mut target = Command::new("/proc/self/exe")
        .args(["bench", "read-target"])
        .arg(format!("--memory={}", memory.0))
        .arg(format!("--listen={address}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = [0; READY.len()];
    let output = target.stdout.as_mut().ok_or(BenchError::NoAnswer)?;
    if output.read_exact(&mut line).is_err() {
        target.wait()?;
        return Err(BenchError::NoAnswer);
    }
    Ok((target, address))
}

/// The reading end.
#[derive(Debug)]
struct Reader {
    provider: ShmProvider,
    queue: CompletionQueue,
    queue_pair: QueuePair,
    into: MemoryRegion,
    key: RemoteKey,
    size: u32,
    request: SendRequest,
    completions: Vec<legato_verbs::Completion>,
}

impl Reader {
    fn connect(address: &Address, size: u32) -> Result<Self, BenchError> {
        let mut provider = ShmProvider::new()?;
        let domain = provider.create_protection_domain()?;
        let into = provider.allocate_region(domain, size.into(), AccessFlags::LOCAL_WRITE)?;
        let queue = provider.create_completion_queue(2)?;
        let capabilities = QueuePairCapabilities {
            send_requests_max: 1,
            receive_requests_max: 1,
            entries_max: 1,
        };
        let queue_pair =
            provider.create_queue_pair(&QueuePairInit::new(domain, queue, capabilities))?;
        provider.modify_to_init(queue_pair)?;
        provider.connect(queue_pair, address, &[])?;
        let key = await_key(&mut provider)?;
        let operation = SendOperation::RdmaRead(RemoteAddress { key, address: 0 });
        let request = SendRequest {
            wr_id: WorkRequestId(0),
            operation,
            entries: vec![into.entry(0, size)],
            flags: SendFlags::SIGNALED,
        };
        Ok(Self {
            provider,
            queue,
            queue_pair,
            into,
            key,
            size,
            request,
            completions: Vec::with_capacity(1),
        })
    }

    /// From post to completion.
    fn read(&mut self, address: u64) -> Result<(), BenchError> {
        let remote = RemoteAddress {
            key: self.key,
            address,
        };
        self.request.operation = SendOperation::RdmaRead(remote);
        self.provider.post_send(self.queue_pair, &self.request)?;
        self.completions.clear();
        let polled = self
            .provider
            .poll_completion_queue(self.queue, 1, &mut self.completions)?;
        if polled == 0 {
            self.await_completion()?;
        }
        match self.completions[0].result {
            Ok(_) => Ok(()),
            Err(status) => Err(BenchError::Read(status)),
        }
    }

    /// The first read waits until the other process has sent its segment.
    fn await_completion(&mut self) -> Result<(), BenchError> {
        let clock = Clock::start();
        while self.completions.is_empty() {
            self.provider.progress(clock.now());
            self.provider
                .poll_completion_queue(self.queue, 1, &mut self.completions)?;
            if clock.now().as_nanos() > ANSWER_MAX.as_nanos() {
                return Err(BenchError::NoAnswer);
            }
        }
        Ok(())
    }

    /// The last read brought what the other process has written.
    fn check(&self) -> Result<(), BenchError> {
        let mut bytes = vec![0; self.size as usize];
        self.provider.read_region(&self.into, 0, &mut bytes)?;
        match bytes.iter().all(|&byte| byte == super::target::PATTERN) {
            true => Ok(()),
            false => Err(BenchError::WrongBytes),
        }
    }

    fn compare(&mut self, count: u32, places: u64) -> Result<Comparison, BenchError> {
        let (mut reads, mut copies) = (Samples::default(), Samples::default());
        for round in 0..count / ROUND {
            // Who comes second finds the bytes in the processor's cache: they take turns.
            for second in [false, true] {
                if (round % 2 == 0) == second {
                    self.read_round(round, places, &mut reads)?;
                } else {
                    self.copy_round(round, places, &mut copies)?;
                }
            }
        }
        Ok(Comparison {
            read: reads.figures(),
            copy: copies.figures(),
        })
    }

    fn read_round(
        &mut self,
        round: u32,
        places: u64,
        samples: &mut Samples,
    ) -> Result<(), BenchError> {
        let begin = Instant::now();
        for offset in offsets(round, places, self.size) {
            let single = timed_singly(round).then(Instant::now);
            self.read(offset)?;
            samples.single.extend(single.map(nanos));
        }
        samples.end_round(round, begin);
        Ok(())
    }

    fn copy_round(&self, round: u32, places: u64, samples: &mut Samples) -> Result<(), BenchError> {
        let copy = self.plain_copy()?;
        let begin = Instant::now();
        for offset in offsets(round, places, self.size) {
            let single = timed_singly(round).then(Instant::now);
            assert!(
                copy.copy(offset),
                "invariant: the places are in the segment"
            );
            samples.single.extend(single.map(nanos));
        }
        samples.end_round(round, begin);
        Ok(())
    }

    fn plain_copy(&self) -> Result<legato_providers::shm::PlainCopy<'_>, VerbsError> {
        let entry = self.into.entry(0, self.size);
        self.provider.plain_copy(self.queue_pair, self.key, &entry)
    }
}

fn nanos(begin: Instant) -> u64 {
    begin.elapsed().as_nanos() as u64
}

/// Waits for the connection; the other side's private data is the key of its region.
fn await_key(provider: &mut ShmProvider) -> Result<RemoteKey, BenchError> {
    let clock = Clock::start();
    while clock.now().as_nanos() < ANSWER_MAX.as_nanos() {
        provider.progress(clock.now());
        match provider.poll_event() {
            Some(Event::Connection(ConnectionEvent::Established { private_data, .. })) => {
                let bytes = private_data.try_into().map_err(|_| BenchError::NoAnswer)?;
                return Ok(RemoteKey(u32::from_le_bytes(bytes)));
            }
            Some(_) => return Err(BenchError::NoAnswer),
            None => std::thread::yield_now(),
        }
    }
    Err(BenchError::NoAnswer)
}
