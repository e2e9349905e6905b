//! The process whose memory `legato bench read` reads.

use crate::args::BenchTargetArguments;
use crate::failure::Failure;
use crate::node::READY;
use crate::node::drive::{Clock, Waiter};
use legato_fabric::Turn;
use legato_providers::ShmProvider;
use legato_verbs::{
    AccessFlags, ConnectionEvent, Event, MemoryRegion, Provider as _, QueuePair,
    QueuePairCapabilities, QueuePairInit, VerbsError,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::io::Write as _;
use std::os::fd::AsFd as _;

/// Written before it is served, so that reads find memory and not holes.
pub(super) const PATTERN: u8 = 0xA5;
const CHUNK: u64 = 1 << 20;

/// Serves one reader until standard input ends.
pub(crate) fn run(arguments: &BenchTargetArguments) -> Result<u8, Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::system("cannot watch the parent process", error))?;
    serve(arguments).map_err(|error| {
        Failure::refused(format_args!(
            "shared memory cannot be used: {error}; see legato doctor"
        ))
    })?;
    Ok(0)
}

fn serve(arguments: &BenchTargetArguments) -> Result<(), VerbsError> {
    let mut provider = ShmProvider::new()?;
    let (region, queue_pair) = open(&mut provider, arguments.memory.0)?;
    provider.listen(&arguments.listen)?;
    let mut output = std::io::stdout();
    if output
        .write_all(&READY)
        .and_then(|()| output.flush())
        .is_err()
    {
        return Ok(());
    }
    let clock = Clock::start();
    let mut waiter = Waiter::new(clock);
    let stdin = std::io::stdin();
    loop {
        let deadline = provider.progress(clock.now());
        let mut progressed = false;
        while let Some(event) = provider.poll_event() {
            progressed = true;
            if let Event::Connection(ConnectionEvent::Requested { request, .. }) = event {
                provider.accept(request, queue_pair, &region.remote_key.0.to_le_bytes())?;
            }
        }
        let turn = Turn {
            deadline,
            progressed,
        };
        waiter.wait(&mut [&mut provider], turn, &[stdin.as_fd()]);
        let mut lifeline = [PollFd::new(&stdin, PollFlags::IN)];
        if poll(&mut lifeline, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return Ok(());
        }
    }
}

fn open(provider: &mut ShmProvider, length: u64) -> Result<(MemoryRegion, QueuePair), VerbsError> {
    let domain = provider.create_protection_domain()?;
    let region = provider.allocate_region(domain, length, AccessFlags::REMOTE_READ)?;
    let bytes = vec![PATTERN; CHUNK as usize];
    for offset in (0..length).step_by(CHUNK as usize) {
        let chunk = CHUNK.min(length - offset) as usize;
        provider.write_region(&region, offset, &bytes[..chunk])?;
    }
    let queue = provider.create_completion_queue(2)?;
    let capabilities = QueuePairCapabilities {
        send_requests_max: 1,
        receive_requests_max: 1,
        entries_max: 1,
    };
    let queue_pair =
        provider.create_queue_pair(&QueuePairInit::new(domain, queue, capabilities))?;
    provider.modify_to_init(queue_pair)?;
    Ok((region, queue_pair))
}
