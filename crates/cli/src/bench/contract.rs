//! What the fabric's promises cost: calls and reads between two fabrics in this process, over shared
//! memory. `scripts/contract-cost` compares this build with one that promises nothing.

use crate::args::BenchContractArguments;
use crate::failure::Failure;
use crate::node::drive::Clock;
use crate::output::print;
use legato_base::{Duration, Time};
use legato_fabric::{
    Buffer, CONTRACT, ConnectError, ConnectionId, Fabric, FabricConfig, FabricEvent,
    OperationError, Refused, ReplyError,
};
use legato_providers::ShmProvider;
use legato_verbs::{
    AccessFlags, Address, MemoryRegion, Provider as _, RemoteAddress, ScatterGatherEntry,
    VerbsError,
};
use serde_json::json;
use std::time::Instant;

/// Operations of one round.
const ROUND: u32 = 1_000;
const BODY: [u8; 64] = [7; 64];
const PAGE: u32 = 4096;
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error("shared memory cannot be used: {0}; see legato doctor")]
    Verbs(#[from] VerbsError),
    #[error("the two sides do not connect: {0}; please report it")]
    Connect(#[from] ConnectError),
    #[error("an operation was refused: {0}; please report it")]
    Refused(#[from] Refused),
    #[error("a reply was refused: {0}; please report it")]
    Reply(#[from] ReplyError),
    #[error("an operation failed: {0}; please report it")]
    Failed(#[from] OperationError),
    #[error("the two sides do not reach each other; please report it")]
    NoAnswer,
}

/// A page of memory.
#[derive(Debug)]
struct Page(MemoryRegion);

impl Buffer for Page {
    fn entries(&self) -> Vec<ScatterGatherEntry> {
        vec![self.0.entry(0, PAGE)]
    }
}

#[derive(Debug)]
struct Side {
    provider: ShmProvider,
    fabric: Fabric<Page>,
    region: MemoryRegion,
}

#[derive(Debug)]
struct Pair {
    clock: Clock,
    asks: Side,
    answers: Side,
    connection: ConnectionId,
}

pub(crate) fn run(arguments: &BenchContractArguments) -> Result<u8, Failure> {
    let (call, read) = measure(arguments.count).map_err(Failure::refused)?;
    if arguments.json {
        let value = json!({ "contract": CONTRACT, "call_ns": call, "read_ns": read });
        print(format_args!("{value:#}"))?;
    } else {
        let promises = if CONTRACT { "with" } else { "without" };
        print(format_args!(
            "{promises} generation checks, fences and liveness, medians of {ROUND} at a time:\n  \
             call of 64 B, reply of 64 B: {call:.0} ns\n  \
             READ of 4 KiB:               {read:.0} ns"
        ))?;
    }
    Ok(0)
}

/// Nanoseconds of a call and of a read.
fn measure(count: u32) -> Result<(f64, f64), BenchError> {
    let mut pair = Pair::connected()?;
    let from = RemoteAddress {
        key: pair.answers.region.remote_key,
        address: pair.answers.region.address,
    };
    let (mut calls, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..count.div_ceil(ROUND) {
        let begin = Instant::now();
        for _ in 0..ROUND {
            pair.call()?;
        }
        calls.push(per_operation(begin));
        let begin = Instant::now();
        for _ in 0..ROUND {
            pair.read(from)?;
        }
        reads.push(per_operation(begin));
    }
    Ok((median(calls), median(reads)))
}

fn per_operation(begin: Instant) -> f64 {
    begin.elapsed().as_nanos() as f64 / f64::from(ROUND)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Side {
    fn new(incarnation: u64) -> Result<Self, BenchError> {
        let mut provider = ShmProvider::new()?;
        let config = FabricConfig {
            connections_max: 1,
            incarnation,
            ..FabricConfig::default()
        };
        let fabric = Fabric::new(&mut provider, config)?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
        let region = provider.allocate_region(fabric.domain(), u64::from(PAGE), access)?;
        Ok(Self {
            provider,
            fabric,
            region,
        })
    }

    fn turn(&mut self, now: Time) -> Option<FabricEvent<Page>> {
        self.fabric.turn(&mut self.provider, now);
        self.fabric.poll_event()
    }
}

impl Pair {
    fn connected() -> Result<Self, BenchError> {
        let clock = Clock::start();
        let (mut asks, mut answers) = (Side::new(1)?, Side::new(2)?);
        let address = Address::Shm(format!("@legato-contract-{}", std::process::id()));
        answers.fabric.listen(&mut answers.provider, &address)?;
        let deadline = clock.now() + PATIENCE;
        let connection = asks
            .fabric
            .connect(&mut asks.provider, &address, &[], deadline)?;
        let mut pair = Self {
            clock,
            asks,
            answers,
            connection,
        };
        pair.until(|event| match event {
            FabricEvent::Connected { .. } => Some(Ok(())),
            FabricEvent::ConnectFailed { error, .. } => Some(Err(error.into())),
            _ => None,
        })?;
        Ok(pair)
    }

    /// Turns both sides until the asking one hears what is waited for.
    fn until<T>(
        &mut self,
        mut pick: impl FnMut(FabricEvent<Page>) -> Option<Result<T, BenchError>>,
    ) -> Result<T, BenchError> {
        let end = self.clock.now() + PATIENCE;
        loop {
            let now = self.clock.now();
            if let Some(FabricEvent::Request { request, .. }) = self.answers.turn(now) {
                let answers = &mut self.answers;
                answers
                    .fabric
                    .reply(&mut answers.provider, request, &BODY)?;
            }
            let mut event = self.asks.turn(now);
            while let Some(heard) = event {
                if let Some(picked) = pick(heard) {
                    return picked;
                }
                event = self.asks.fabric.poll_event();
            }
            if now > end {
                return Err(BenchError::NoAnswer);
            }
        }
    }

    fn call(&mut self) -> Result<(), BenchError> {
        let deadline = self.clock.now() + PATIENCE;
        let asks = &mut self.asks;
        asks.fabric
            .call(&mut asks.provider, self.connection, &BODY, deadline)?;
        self.until(|event| match event {
            FabricEvent::Replied { outcome, .. } => {
                Some(outcome.map(|_| ()).map_err(BenchError::from))
            }
            _ => None,
        })
    }

    fn read(&mut self, from: RemoteAddress) -> Result<(), BenchError> {
        let deadline = self.clock.now() + PATIENCE;
        let asks = &mut self.asks;
        let page = Page(asks.region);
        asks.fabric
            .read(&mut asks.provider, self.connection, from, page, deadline)
            .map_err(|(refused, _)| refused)?;
        let mut failed = Ok(());
        self.until(|event| match event {
            FabricEvent::Outcome { outcome, .. } => {
                failed = outcome;
                None
            }
            FabricEvent::Quiesced { .. } => Some(failed.map_err(BenchError::from)),
            _ => None,
        })
    }
}
