//! The memory node as a process.

use super::READY;
use super::drive::{Clock, Waiter};
use crate::args::NodeArguments;
use crate::failure::Failure;
use crate::machine;
use legato_base::Bytes;
use legato_base::wire::node::NodeStatus;
use legato_fabric::FabricConfig;
use legato_memnode::{NodeConfig, NodeServer};
use legato_providers::ShmProvider;
use legato_verbs::{Address, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use tracing::{debug, error, info};
use tracing_subscriber::EnvFilter;

/// Programs, and children of programs, that use one node at the same time.
const CLIENTS_MAX: u32 = 256;
/// Selects the log, for example `LEGATO_LOG=debug`.
const LOG_VARIABLE: &str = "LEGATO_LOG";

/// Serves until SIGINT or SIGTERM, or until the process that embeds it is gone.
pub(crate) fn run(arguments: &NodeArguments) -> Result<u8, Failure> {
    start_log(arguments.embedded);
    let (Some(memory), Some(address)) = (arguments.memory, &arguments.listen) else {
        return Err(Failure::refused(
            "a memory node needs --memory and --listen",
        ));
    };
    check_memory(memory)?;
    let mut lifelines = Vec::new();
    if arguments.embedded {
        // It was started as /proc/self/exe, which would be its name.
        rustix::thread::set_name(c"legato")
            .map_err(|error| Failure::system("cannot set the process's name", error))?;
        // For when the parent is killed; its death before this line closes standard input.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| Failure::system("cannot watch the parent process", error))?;
        lifelines.push(Lifeline::Parent(std::io::stdin()));
    }
    let signals = termination().map_err(|error| Failure::system("cannot take signals", error))?;
    lifelines.push(Lifeline::Signals(signals));
    let refused = |error| refuse(address, error);
    let mut provider = ShmProvider::new().map_err(refused)?;
    let mut server = open(&mut provider, memory, address)?;
    announce(arguments, memory, address)
        .map_err(|error| Failure::system("cannot say that the node is ready", error))?;
    info!(%address, %memory, "the memory node listens");
    serve(&mut server, &mut provider, &lifelines);
    info!(%address, "the memory node ends");
    server.shutdown(&mut provider).map_err(refused)?;
    Ok(0)
}

/// What ends the daemon by becoming readable.
#[derive(Debug)]
enum Lifeline {
    /// A pipe into which the parent never writes.
    Parent(std::io::Stdin),
    Signals(UnixStream),
}

impl AsFd for Lifeline {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Parent(stdin) => stdin.as_fd(),
            Self::Signals(stream) => stream.as_fd(),
        }
    }
}

fn check_memory(memory: Bytes) -> Result<(), Failure> {
    let available = machine::memory_available()
        .map_err(|error| Failure::system("cannot find out how much memory there is", error))?;
    if memory > available {
        return Err(Failure::refused(format_args!(
            "--memory {memory} is more than the {available} that this machine has available"
        )));
    }
    Ok(())
}

/// A stream that a termination signal makes readable.
fn termination() -> std::io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
}

fn open(
    provider: &mut ShmProvider,
    memory: Bytes,
    address: &Address,
) -> Result<NodeServer, Failure> {
    let incarnation = machine::random_bytes()
        .map(u64::from_le_bytes)
        .map_err(|error| Failure::system("cannot draw a random number", error))?;
    let fabric = FabricConfig {
        connections_max: CLIENTS_MAX,
        // A node only answers: it starts no one-sided operation of its own.
        one_sided_max: 1,
        entries_max: 1,
        ..FabricConfig::default()
    };
    let node = NodeConfig {
        incarnation,
        capacity: memory,
    };
    let refused = |error| refuse(address, error);
    let mut server = NodeServer::new(provider, fabric, node).map_err(refused)?;
    server.listen(provider, address).map_err(refused)?;
    Ok(server)
}

fn announce(arguments: &NodeArguments, memory: Bytes, address: &Address) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    if arguments.embedded {
        output.write_all(&READY)?;
    } else if arguments.json {
        let ready = json!({
            "address": address.to_string(),
            "memory_bytes": memory.0,
            "pid": std::process::id(),
        });
        writeln!(output, "{ready}")?;
    }
    output.flush()
}

fn serve(server: &mut NodeServer, provider: &mut ShmProvider, lifelines: &[Lifeline]) {
    let clock = Clock::start();
    let mut waiter = Waiter::new(clock);
    let others: Vec<_> = lifelines.iter().map(AsFd::as_fd).collect();
    let mut status = NodeStatus::default();
    loop {
        let turn = server.turn(provider, clock.now());
        let idle = !turn.progressed;
        waiter.wait(provider, turn, &others);
        // A busy node looks at its signals only when it pauses for a moment.
        if idle {
            log_changes(&mut status, server.node().status());
            if ended(lifelines) {
                return;
            }
        }
    }
}

fn ended(lifelines: &[Lifeline]) -> bool {
    let mut descriptors: Vec<_> = lifelines
        .iter()
        .map(|lifeline| PollFd::new(lifeline, PollFlags::IN))
        .collect();
    match poll(&mut descriptors, Some(&Timespec::default())) {
        Ok(ready) => ready > 0,
        Err(rustix::io::Errno::INTR) => false,
        Err(error) => {
            error!(%error, "the node cannot watch its signals");
            true
        }
    }
}

fn log_changes(old: &mut NodeStatus, new: NodeStatus) {
    if old.clients != new.clients {
        debug!(clients = new.clients, "clients");
    }
    if old.used_bytes != new.used_bytes {
        debug!(used = %Bytes(new.used_bytes), extents = new.extents, "memory in use");
    }
    *old = new;
}

fn refuse(address: &Address, error: VerbsError) -> Failure {
    Failure::refused(format_args!("memory node {address}: {error}"))
}

fn start_log(embedded: bool) {
    let default = if embedded { "warn" } else { "info" };
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}
