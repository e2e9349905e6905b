//! The NIC of agents that cannot open it themselves: a thread with the supervisor's half of
//! each proxy (`legato_providers::proxy`). Where nodes are at RDMA devices and this machine has none, all
//! agents share one RoCE NIC: devices answer to UDP port 4791 alone.

use super::nodes::Nodes;
use crate::failure::Failure;
use crate::node::provider::device_port_in_use;
use crate::output::tell;
use legato_base::secret::Keyring;
use legato_base::{Duration, Time};
use legato_pager::uffd::agent::now;
use legato_providers::proxy::{self, ProxyEnd, ProxyServer};
use legato_providers::{AnyProvider, Pollable, SharedNic, SharedProvider};
use legato_verbs::{Address, VerbsError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// An aid for tests: if it is set, agents reach every node through the supervisor, which shows without
/// an RDMA device what otherwise only one shows.
const PROXY_VARIABLE: &str = "LEGATO_PROXY";
/// How long the thread looks again and again before it sleeps: as long as an agent does, for whose next
/// request it waits.
const SPIN: Duration = Duration::from_micros(30);
/// The thread sleeps no longer than this; what it waits for has its own deadlines.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The thread, as the supervisor has it. It ends when this is dropped, and so do all proxies.
#[derive(Debug)]
pub(crate) struct Proxies {
    /// None only while it ends.
    connections: Option<Sender<OwnedFd>>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    for_all: bool,
}

impl Proxies {
    /// For nodes that agents cannot reach by themselves; None if they can.
    pub(crate) fn for_nodes(nodes: &Nodes) -> Result<Option<Self>, Failure> {
        let addresses: Vec<Address> = nodes.list.iter().map(|it| it.address.clone()).collect();
        let forced = std::env::var_os(PROXY_VARIABLE).is_some_and(|value| !value.is_empty());
        if !forced && !addresses.iter().any(needs_supervisor) {
            return Ok(None);
        }
        let mut proxies = Self::start(nodes)?;
        proxies.for_all = true;
        Ok(Some(proxies))
    }

    /// For whoever asks.
    pub(crate) fn start(nodes: &Nodes) -> Result<Self, Failure> {
        let addresses = nodes.list.iter().map(|it| it.address.clone()).collect();
        let failed = |error| Failure::system("cannot start the thread of the NIC", error);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|errno| failed(errno.into()))?);
        let (connections, incoming) = channel();
        let order = Order {
            addresses,
            keys: nodes.key.clone().map(Keyring::One),
            incoming,
            bell: Arc::clone(&bell),
        };
        let (opened, result) = channel();
        let thread = std::thread::Builder::new().name("legato-nic".into());
        let thread = thread.spawn(move || {
            // Providers do not leave their thread.
            let server = Server::open(order);
            let error = server.as_ref().err().copied();
            if opened.send(error).is_ok()
                && let Ok(server) = server
            {
                server.run();
            }
        });
        let proxies = Self {
            connections: Some(connections),
            bell,
            thread: Some(thread.map_err(failed)?),
            for_all: false,
        };
        match result.recv() {
            Ok(None) => Ok(proxies),
            Ok(Some(error)) => Err(cannot_open(error)),
            // It has printed why.
            Err(_) => Err(Failure::refused(
                "the thread of the NIC has ended; that is a defect of Legato; please report it",
            )),
        }
    }

    /// Can no agent do without?
    pub(crate) const fn are_for_all(&self) -> bool {
        self.for_all
    }

    /// The near end of a new proxy. None if there is no descriptor for it: the agent says what it lacks.
    pub(crate) fn connect(&self) -> Option<OwnedFd> {
        let (near, far) = match proxy::connection() {
            Ok(ends) => ends,
            Err(error) => {
                tell(format_args!(
                    "cannot connect an agent to the NIC: {error}; its program starts without far memory, or \
                     not at all; raise RLIMIT_NOFILE"
                ));
                return None;
            }
        };
        let connections = self.connections.as_ref()?;
        connections.send(far).ok()?;
        ring(&self.bell);
        Some(near)
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        self.connections = None;
        ring(&self.bell);
        if let Some(thread) = self.thread.take() {
            // It never waits, so it ends in its turn; a panic has been printed.
            let _ = thread.join();
        }
    }
}

/// The library of RDMA devices loads shared objects, which an agent without a C library cannot; and UDP
/// port 4791 can be one process's only.
const fn needs_supervisor(address: &Address) -> bool {
    matches!(
        address,
        Address::Verbs(_) | Address::VerbsPort(_) | Address::RoceService(_)
    )
}

fn cannot_open(error: VerbsError) -> Failure {
    match error {
        VerbsError::AddressInUse => Failure::refused(device_port_in_use()),
        error => Failure::refused(format_args!(
            "cannot open a NIC towards the nodes: {error}; see what this machine has (legato net devices)"
        )),
    }
}

fn ring(bell: &OwnedFd) {
    // Any number but 0 and 2^64 - 1 will do. It fails only when the sum has reached that.
    let _ = rustix::io::write(bell, &1u64.to_le_bytes());
}

/// What the thread is told.
struct Order {
    addresses: Vec<Address>,
    keys: Option<Keyring>,
    incoming: Receiver<OwnedFd>,
    bell: Arc<OwnedFd>,
}

impl Order {
    fn new_nic(&self) -> Result<SharedNic<AnyProvider>, VerbsError> {
        AnyProvider::reaching(&self.addresses, self.keys.as_ref()).map(SharedNic::new)
    }
}

/// What the thread has.
struct Server {
    order: Order,
    /// The NIC of all agents; None if each has its own.
    common: Option<SharedNic<AnyProvider>>,
    proxies: Vec<ProxyServer<SharedProvider<AnyProvider>>>,
}

impl Server {
    fn open(order: Order) -> Result<Self, VerbsError> {
        let is_service = |address: &Address| matches!(address, Address::RoceService(_));
        let common = match order.addresses.iter().any(is_service) {
            true => Some(order.new_nic()?),
            false => None,
        };
        Ok(Self {
            order,
            common,
            proxies: Vec::new(),
        })
    }

    fn run(mut self) {
        // Whoever waits for a page waits for this thread too. Without the right it is one like others.
        let _ = rustix::process::setpriority_process(None, -20);
        let mut active_at = now();
        while self.take_connections() {
            let (worked, deadline) = self.turn();
            let time = now();
            if worked {
                active_at = time;
            } else if time.since(active_at) > SPIN {
                self.sleep(deadline.min(time + SLEEP_MAX));
            }
        }
    }

    /// False when there will be none any more.
    fn take_connections(&mut self) -> bool {
        loop {
            match self.order.incoming.try_recv() {
                Ok(socket) => self.serve(socket),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn serve(&mut self, socket: OwnedFd) {
        let opened = match &self.common {
            Some(common) => common.share(),
            None => self.order.new_nic().and_then(|nic| nic.share()),
        };
        match opened {
            Ok(provider) => self.proxies.push(ProxyServer::new(socket, provider)),
            // The agent says it, and whose it is.
            Err(error) => proxy::refuse(socket, error),
        }
    }

    fn turn(&mut self) -> (bool, Time) {
        let (mut worked, mut deadline) = (false, Time::NEVER);
        let time = now();
        if let Some(common) = &self.common {
            deadline = common.progress(time);
        }
        for proxy in &mut self.proxies {
            let turn = proxy.turn(time);
            worked |= turn.worked;
            deadline = deadline.min(turn.deadline);
            if let Some(end @ ProxyEnd::Breach(_)) = proxy.ended() {
                tell(format_args!(
                    "an agent has lost its NIC: {end}; please report it"
                ));
            }
            if proxy.leaked() > 0 {
                let count = proxy.leaked();
                tell(format_args!(
                    "the NIC has not let go of {count} regions of an agent; they stay in quarantine; please \
                     report it"
                ));
            }
        }
        self.proxies.retain(|proxy| proxy.ended().is_none());
        (worked, deadline)
    }

    fn sleep(&mut self, until: Time) {
        // Each is asked, though one may be enough: all are told that they are not waited for below.
        let quiet = self.proxies.iter_mut().map(|it| it.set_sleeping(true));
        if quiet.filter(|quiet| !quiet).count() == 0 {
            let mut waits = vec![self.order.bell.as_fd()];
            self.proxies
                .iter()
                .for_each(|it| it.descriptors(&mut waits));
            let mut polled: Vec<PollFd<'_>> = waits
                .into_iter()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let left = until.since(now()).as_nanos();
            let timeout = Timespec {
                tv_sec: (left / 1_000_000_000).cast_signed(),
                tv_nsec: (left % 1_000_000_000).cast_signed(),
            };
            // Errors (EINTR) are like a wake-up: everything is looked at again.
            let _ = poll(&mut polled, Some(&timeout));
        }
        for proxy in &mut self.proxies {
            proxy.set_sleeping(false);
        }
        // Nothing to read means that it was not rung.
        let _ = rustix::io::read(&*self.order.bell, &mut [0u8; 8]);
    }
}
