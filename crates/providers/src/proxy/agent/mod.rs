//! The near half: a provider that has its NIC through another process.

mod bounce;
mod inbox;
mod line;
mod objects;
mod pair;
mod posting;
mod provider;
mod regions;

use super::MESSAGE_LENGTH_MAX;
use super::call::{Answer, Call};
use super::message::ENTRIES_MAX;
use crate::{ForeignMemory, Pollable};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use bounce::{Pool, SLOT_BYTES};
use core::cell::RefCell;
use inbox::Ready;
use legato_base::timeouts::PROXY_ANSWER;
use legato_base::{Duration, Time};
use legato_verbs::{
    AccessFlags, AddressVector, CompletionQueue, DeviceAttributes, Event, MemoryRegion,
    ProtectionDomain, QueuePair, VerbsError,
};
use line::{Line, Lost};
use pair::Pair;
use regions::Regions;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// How often the socket is looked at while nobody sleeps on it: only the far half's end comes that
/// way without being asked for.
const LOOK: Duration = Duration::from_millis(1);

/// What a near half has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyCounters {
    /// Calls for which it has waited.
    pub calls: u64,
    /// Requests whose bytes were copied, because the NIC does not know their memory.
    pub requests_carried: u64,
}

/// A NIC that another process has opened.
///
/// No call blocks but those that make, change or end an object, which wait for the far half's answer
/// ([`PROXY_ANSWER`] at most). It starts no thread and keeps no thread-local state.
/// Dropping it ends all that it has made.
#[derive(Debug)]
pub struct ProxyProvider {
    /// The line's own.
    socket: Arc<OwnedFd>,
    line: RefCell<Line>,
    attributes: DeviceAttributes,
    port: AddressVector,
    domains: BTreeSet<ProtectionDomain>,
    regions: Regions,
    queues: BTreeMap<CompletionQueue, VecDeque<Ready>>,
    pairs: BTreeMap<QueuePair, Pair>,
    events: VecDeque<Event>,
    /// Completions in all queues.
    ready: usize,
    /// Pools of queue pairs that are gone, which the far half has not let go of.
    retired: Vec<Pool>,
    /// The far half is gone, and all that was outstanding has been flushed.
    is_gone: bool,
    look_at: Time,
    message: Vec<u8>,
    counters: ProxyCounters,
}

impl ProxyProvider {
    /// The near half of a connection whose other end a [`ProxyServer`](super::ProxyServer) has, or
    /// will have soon.
    ///
    /// # Errors
    /// What kept the far half from opening the NIC; [`VerbsError::System`] if it is not there.
    pub fn open(socket: OwnedFd) -> Result<Self, VerbsError> {
        let socket = Arc::new(socket);
        let (mut line, hello) = Line::open(Arc::clone(&socket), PROXY_ANSWER)?;
        let Answer::Hello(device) = hello else {
            return Err(line.lose(Lost::Misspoke));
        };
        let mut attributes = device.attributes();
        attributes.entries_max = attributes.entries_max.min(ENTRIES_MAX as u32);
        attributes.message_length_max = attributes.message_length_max.min(MESSAGE_LENGTH_MAX);
        attributes.inline_length_max = attributes.inline_length_max.min(SLOT_BYTES);
        Ok(Self {
            socket,
            line: RefCell::new(line),
            attributes,
            port: device.port,
            domains: BTreeSet::new(),
            regions: Regions::default(),
            queues: BTreeMap::new(),
            pairs: BTreeMap::new(),
            events: VecDeque::new(),
            ready: 0,
            retired: Vec::new(),
            is_gone: false,
            look_at: Time::ZERO,
            message: Vec::new(),
            counters: ProxyCounters::default(),
        })
    }

    pub const fn counters(&self) -> ProxyCounters {
        self.counters
    }

    /// Asks the far half, and takes what it had told before it answered.
    fn call(&mut self, call: &Call) -> Result<(Answer, Option<OwnedFd>), VerbsError> {
        self.counters.calls += 1;
        let answered = self.line.get_mut().call(call);
        let answered = match answered {
            Ok(answered) => answered,
            Err(error) => {
                self.flush_if_lost();
                return Err(error);
            }
        };
        while self.line.get_mut().taken_count() < answered.messages {
            if !self.take_one()? {
                return Err(self.misspoke());
            }
        }
        Ok((answered.answer?, answered.descriptor))
    }

    /// A call whose answer says nothing but that it is done.
    fn call_done(&mut self, call: &Call) -> Result<(), VerbsError> {
        match self.call(call)? {
            (Answer::Done, None) => Ok(()),
            _ => Err(self.misspoke()),
        }
    }

    /// A question that changes nothing.
    fn ask(&self, call: &Call) -> Result<Answer, VerbsError> {
        self.line.borrow_mut().call(call)?.answer
    }

    /// The far half has answered what was not asked.
    fn misspoke(&mut self) -> VerbsError {
        let error = self.line.get_mut().lose(Lost::Misspoke);
        self.flush_if_lost();
        error
    }
}

impl ForeignMemory for ProxyProvider {
    unsafe fn register_foreign(
        &mut self,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        if !self.domains.contains(&domain) {
            return Err(VerbsError::UnknownHandle("protection domain"));
        }
        if access.bits() & !AccessFlags::LOCAL_WRITE.bits() != 0 {
            return Err(VerbsError::PermissionDenied);
        }
        let room = u64::MAX - address as u64;
        if length == 0 || length > room {
            return Err(VerbsError::LimitExceeded {
                what: "bytes of a region",
                asked: length,
                limit: room,
            });
        }
        self.regions.add_own(domain, address, length, access)
    }
}

impl Pollable for ProxyProvider {
    /// None when the far half is gone: its end of the socket would wake for ever.
    fn descriptors<'a>(&'a self, into: &mut Vec<BorrowedFd<'a>>) {
        if !self.is_gone {
            into.push(self.socket.as_fd());
        }
    }
}
