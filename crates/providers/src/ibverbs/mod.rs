//! RDMA devices through the libraries that every distribution has, `libibverbs` and `librdmacm`.
//!
//! The libraries are loaded when the provider is opened. Every descriptor is non-blocking, and all that the
//! device says by itself is taken in [`legato_verbs::Provider::progress`]: each event is copied and acknowledged
//! at once, because the destruction of what an unacknowledged event is about blocks for ever.
//!
//! What devices do otherwise than the trait's rules is evened out here where that is sound:
//!
//! * a request is posted only in a state that allows it, because some user libraries put a refused request
//!   into the queue all the same; its local keys are checked first, because the status for a bad one varies;
//! * completions carry numbers that are never used twice, so that one too many finds nothing and is counted;
//! * a destroyed queue pair is reset, its completions are taken out of the queues, and it is kept until connection
//!   management's time wait is over, so that its number is not another's before;
//! * every failure ends the connection, so that a responder learns of it whose device says nothing;
//! * Last WQE Reached is passed on once for each way into the error state.
//!
//! `docs/ibverbs.md` has the rest.
//!
//! Queue pairs exist before their connections, so connection management is used without them (`rdma_connect(3)` with
//! a queue pair number): the library's identifiers stand on its own opening of the device, everything else on the
//! provider's.

pub mod abi;
mod asynchronous;
mod completion;
mod connect;
mod create;
mod device;
mod devices;
mod endings;
mod identifier;
mod ledger;
mod library;
mod listen;
mod memory;
mod modify;
mod objects;
mod opening;
mod posting;
mod presence;
mod provider;
mod queue_pair;
mod receiving;
mod region;
mod shared_ledger;
mod waiting;

pub use abi::layouts;
pub use device::Opened;
pub use devices::{DevicePort, DevicesError, GidKind, PortGid, PortState, Unusable, devices};
pub use library::{Functions, Library, LoadError, SYMBOLS};
pub use opening::OpenError;

use crate::poll::Pollable;
use crate::table::Table;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use completion::Queue;
use create::{Domain, Shared};
use device::Device;
use endings::Remains;
use identifier::Owner;
use legato_base::Time;
use legato_verbs::{
    CompletionQueue, ConnectionRequest, Event, Listener, ProtectionDomain, QueuePair,
    SharedReceiveQueue,
};
use listen::{Listening, Request};
use objects::Base;
use queue_pair::Pair;
use region::{Regions, Windows};
use rustix::fd::BorrowedFd;

/// A port of an RDMA device.
#[derive(Debug)]
pub struct IbverbsProvider {
    device: Device,
    events: VecDeque<Event>,
    domains: Table<ProtectionDomain, Domain>,
    regions: Regions,
    windows: Windows,
    queues: Table<CompletionQueue, Queue>,
    shared: Table<SharedReceiveQueue, Shared>,
    queue_pairs: Table<QueuePair, Pair>,
    /// Queue pairs by their numbers.
    numbers: BTreeMap<u32, QueuePair>,
    listeners: Table<Listener, Listening>,
    requests: Table<ConnectionRequest, Request>,
    /// What connection management's identifiers are of, by their addresses.
    owners: BTreeMap<usize, Owner>,
    /// Destroyed queue pairs in time wait.
    remains: BTreeMap<u64, Remains>,
    /// Number of the request posted last.
    serial: u64,
    /// Nothing of the device works any more.
    is_fatal: bool,
    /// The port does not have the own GID any more.
    address_is_missing: bool,
    counters: Counters,
    /// When something has taken too long; none if that has to be found out.
    timers_at: Option<Time>,
    retry_at: Option<Time>,
    /// Everything above stands on it.
    base: Arc<Base>,
}

/// What a device did that it should not have, and what was lost by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Completions of requests that were not outstanding.
    pub completions_dropped: u64,
    /// Signaled requests whose completions were passed over: they were completed as flushed.
    pub completions_missing: u64,
    /// Shared receives that destroyed queue pairs have kept, and whose places others have now.
    pub receives_kept: u64,
    /// Events that are about nothing that is known, or of no known kind.
    pub events_dropped: u64,
    /// Destructions that failed the first time.
    pub destructions_failed: u64,
    /// Objects that could not be destroyed until now.
    pub undestroyed: usize,
    /// Connections that were forgotten before their time wait was over.
    pub time_waits_cut: u64,
}

impl IbverbsProvider {
    /// What went wrong so far.
    pub fn counters(&self) -> Counters {
        Counters {
            destructions_failed: self.base.failures(),
            undestroyed: self.base.undestroyed(),
            ..self.counters
        }
    }

    const fn next_serial(&mut self) -> u64 {
        self.serial = self.serial.wrapping_add(1) & ledger::SERIAL_MASK;
        self.serial
    }
}

impl IbverbsProvider {
    /// Of asynchronous events, completions and connection management.
    fn waited_on(&self) -> [BorrowedFd<'_>; 3] {
        // SAFETY: the three objects live as long as the base, which `self` keeps.
        let descriptors = unsafe {
            [
                self.base.context.as_ref().async_fd,
                self.base.completions.as_ref().fd,
                self.base.connections.as_ref().fd,
            ]
        };
        // SAFETY: see above; the library closes them with their objects only.
        descriptors.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

impl Pollable for IbverbsProvider {
    fn descriptors<'a>(&'a self, into: &mut Vec<BorrowedFd<'a>>) {
        into.extend(self.waited_on());
    }
}
