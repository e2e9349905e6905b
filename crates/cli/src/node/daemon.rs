//! The memory node as a process.

use super::READY;
use super::drive::{Clock, Nic, Waiter};
use super::interfaces::{self, NodeInterface};
use crate::args::NodeArguments;
use crate::failure::{Failure, by_name};
use crate::{machine, own_process};
use legato_base::wire::node::NodeStatus;
use legato_base::{Bytes, Duration, Time};
use legato_fabric::Turn;
use legato_verbs::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use tracing::{debug, error};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Selects the log: `debug`, or by modules as in `warn,legato::node=trace`.
const LOG_VARIABLE: &str = "LEGATO_LOG";

/// Serves until SIGINT or SIGTERM, or until the process that embeds it is gone.
pub(crate) fn run(arguments: &NodeArguments) -> Result<u8, Failure> {
    start_log(arguments.embedded)?;
    let Some(memory) = arguments.memory else {
        unreachable!("without --memory the parser takes a subcommand only");
    };
    machine::memory_to_serve("--memory", Some(memory))?;
    let addresses = &arguments.listen;
    let secret = match arguments.embedded {
        true => None,
        false => arguments.secret.load(addresses)?,
    };
    for address in addresses {
        check_exposure(address, arguments.insecure || secret.is_some())?;
    }
    let mut lifelines = Vec::new();
    if arguments.embedded {
        own_process::take_name()?;
        // For when the parent is killed; its death before this line closes standard input.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| Failure::system("cannot watch the parent process", error))?;
        lifelines.push(Lifeline::Parent(std::io::stdin()));
    }
    let signals = termination().map_err(|error| Failure::system("cannot take signals", error))?;
    lifelines.push(Lifeline::Signals(signals));
    let mut interfaces = interfaces::open(addresses, memory, secret.as_ref())?;
    announce(arguments, memory, &interfaces)
        .map_err(|error| Failure::system("cannot say that the node is ready", error))?;
    serve(&mut interfaces, &lifelines);
    // All of them, though one may fail.
    let ended: Vec<_> = interfaces
        .into_iter()
        .map(NodeInterface::shutdown)
        .collect();
    ended.into_iter().collect::<Result<(), _>>()?;
    Ok(0)
}

/// A node that is never idle looks so often for what ends it: a system call each time.
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// When to look for what ends the daemon.
#[derive(Debug, Default)]
struct Lookout {
    last: Time,
}

impl Lookout {
    fn is_due(&mut self, now: Time, idle: bool) -> bool {
        let is_due = idle || now.since(self.last) >= LOOK_AFTER;
        if is_due {
            self.last = now;
        }
        is_due
    }
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

/// A node that others reach has a secret, or must be told to serve all of them.
fn check_exposure(address: &Address, allowed: bool) -> Result<(), Failure> {
    let is_loopback = match address.place() {
        // A device is there for others, whatever its address.
        None if matches!(address, Address::VerbsPort(_)) => false,
        None => return Ok(()),
        Some(place) => {
            let ip = place.ip();
            if ip.is_unspecified() || ip.is_multicast() {
                return Err(Failure::refused(format_args!(
                    "memory node {address}: that is no address of one machine, which is part of every packet; \
                     name one of this machine"
                )));
            }
            ip.is_loopback()
        }
    };
    if !is_loopback && !allowed {
        return Err(Failure::refused(format_args!(
            "memory node {address}: other machines can reach it, and whoever does may use it; name a secret \
             with --secret-file (see legato secret new), or say --insecure if the network is trusted"
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

fn announce(
    arguments: &NodeArguments,
    memory: Bytes,
    interfaces: &[NodeInterface],
) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    if arguments.embedded {
        output.write_all(&READY)?;
    } else if arguments.json {
        let asked = arguments.listen.first().map(Address::to_string);
        let addresses = interfaces.iter().map(|it| it.address().to_string());
        let ready = json!({
            "address": asked,
            "addresses": addresses.collect::<Vec<_>>(),
            "memory_bytes": memory.0,
            "pid": std::process::id(),
        });
        writeln!(output, "{ready}")?;
    }
    output.flush()
}

fn serve(interfaces: &mut [NodeInterface], lifelines: &[Lifeline]) {
    let clock = Clock::start();
    let mut waiter = Waiter::new(clock);
    let others: Vec<_> = lifelines.iter().map(AsFd::as_fd).collect();
    let mut status = NodeStatus::default();
    let mut lookout = Lookout::default();
    loop {
        let now = clock.now();
        let mut turn = Turn {
            progressed: false,
            deadline: Time::NEVER,
        };
        for interface in &mut *interfaces {
            let one = interface.turn(now);
            turn.progressed |= one.progressed;
            turn.deadline = turn.deadline.min(one.deadline);
        }
        let idle = !turn.progressed;
        let mut nics: Vec<&mut dyn Nic> =
            interfaces.iter_mut().map(NodeInterface::provider).collect();
        waiter.wait(&mut nics, turn, &others);
        if lookout.is_due(now, idle) {
            if let Some(first) = interfaces.first() {
                log_changes(&mut status, first.server().status());
            }
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
            error!(error = %by_name(&error.into()), "the node cannot watch its signals");
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

fn start_log(embedded: bool) -> Result<(), Failure> {
    let wanted = std::env::var_os(LOG_VARIABLE).filter(|wanted| !wanted.is_empty());
    let selected = match wanted {
        None if embedded => Targets::new().with_default(LevelFilter::WARN),
        None => Targets::new().with_default(LevelFilter::INFO),
        Some(wanted) => wanted.to_string_lossy().parse().map_err(|error| {
            Failure::refused(format_args!(
                "{LOG_VARIABLE}={}: {error}; name a level (error, warn, info, debug, trace) or \
                 MODULE=LEVEL, several with commas",
                wanted.display()
            ))
        })?,
    };
    let lines = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    tracing_subscriber::registry()
        .with(selected)
        .with(lines)
        .init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_never_idle_looks_for_its_end_now_and_then() {
        let mut lookout = Lookout::default();
        let looks = |lookout: &mut Lookout, idle| {
            let turns = (1..=1000).map(|turn| Time::from_nanos(turn * 100_000));
            turns.filter(|&now| lookout.is_due(now, idle)).count()
        };
        assert_eq!(looks(&mut lookout, false), 5);
        assert_eq!(looks(&mut Lookout::default(), true), 1000);
    }
}
