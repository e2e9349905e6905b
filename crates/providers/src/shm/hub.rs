//! What all queue pairs of a provider share.

use super::completion::{Entry, Queues};
use super::region::Regions;
use super::shared_receive::SharedQueues;
use crate::memory::system;
use crate::table::Table;
use alloc::collections::{BTreeMap, VecDeque};
use core::mem::MaybeUninit;
use legato_base::Time;
use legato_verbs::{
    AsyncEvent, CompletionQueue, ConnectionRequest, Event, Listener, QueuePair, VerbsError,
};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// What happened that no caller sees otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmCounters {
    /// Connections dropped because the peer runs as somebody else.
    pub peers_refused: u64,
    /// Connections that ended because a peer broke the protocol.
    pub peers_malformed: u64,
    /// Connections dropped because too many were half open.
    pub peers_too_many: u64,
    /// Wake-ups sent to sleeping peers.
    pub wake_ups: u64,
}

#[derive(Debug)]
pub(super) struct Hub {
    pub(super) regions: Regions,
    pub(super) queues: Queues,
    pub(super) shared: SharedQueues,
    pub(super) events: VecDeque<Event>,
    pub(super) poller: Poller,
    pub(super) counters: ShmCounters,
    pub(super) now: Time,
    pub(super) sleeping: bool,
}

impl Hub {
    pub(super) fn new() -> Result<Self, VerbsError> {
        Ok(Self {
            regions: Regions::new()?,
            queues: Table::new(),
            shared: Table::new(),
            events: VecDeque::new(),
            poller: Poller::new()?,
            counters: ShmCounters::default(),
            now: Time::ZERO,
            sleeping: false,
        })
    }

    /// Puts a completion into a queue that stays as long as a queue pair uses it.
    #[inline(always)]
    pub(super) fn complete(&mut self, queue: CompletionQueue, entry: Entry, solicited: bool) {
        let wakes = match self.queues.get_mut(queue) {
            Some(found) => found.push(entry, solicited),
            None => false,
        };
        if wakes {
            self.events.push_back(Event::CompletionQueueReady(queue));
        }
    }

    pub(super) fn raise(&mut self, event: AsyncEvent) {
        self.events.push_back(Event::Async(event));
    }
}

/// Whose socket it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Listener(Listener),
    Inbound(ConnectionRequest),
    QueuePair(QueuePair),
}

/// One epoll descriptor over all sockets. Tokens never repeat, so a late event finds nothing.
#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    sources: BTreeMap<u64, Source>,
    token_last: u64,
}

const WANTED: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);
/// Sockets looked at in one turn; the others keep till the next.
pub(super) const READY_MAX: usize = 32;

impl Poller {
    fn new() -> Result<Self, VerbsError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        Ok(Self {
            epoll,
            sources: BTreeMap::new(),
            token_last: 0,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn add(&mut self, socket: impl AsFd, source: Source) -> Result<u64, VerbsError> {
        let token = self.token_last + 1;
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, socket, data, WANTED).map_err(system("epoll_ctl"))?;
        self.token_last = token;
        self.sources.insert(token, source);
        Ok(token)
    }

    pub(super) fn change(&mut self, token: u64, source: Source) {
        self.sources.insert(token, source);
    }

    /// Whether it is also of interest that the socket takes more.
    pub(super) fn watch(&self, socket: impl AsFd, token: u64, is_full: bool) {
        let wanted = match is_full {
            true => WANTED | epoll::EventFlags::OUT,
            false => WANTED,
        };
        let data = epoll::EventData::new_u64(token);
        // Of a socket that is there already the kernel needs no memory.
        let _ = epoll::modify(&self.epoll, socket, data, wanted);
    }

    /// To be called before the socket is closed.
    pub(super) fn remove(&mut self, socket: impl AsFd, token: u64) {
        self.sources.remove(&token);
        // Explicitly, because a descriptor that was passed on or inherited keeps the entry alive.
        let _ = epoll::delete(&self.epoll, socket);
    }

    pub(super) fn source(&self, token: u64) -> Option<Source> {
        self.sources.get(&token).copied()
    }

    /// Tokens of sockets with something to read; 0 is no token.
    pub(super) fn ready(&self) -> [u64; READY_MAX] {
        let mut tokens = [0; READY_MAX];
        if self.sources.is_empty() {
            return tokens;
        }
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); READY_MAX];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A failure (EINTR) is as good as nothing ready: the next turn asks again.
        if let Ok((ready, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&at_once)) {
            for (token, event) in tokens.iter_mut().zip(ready.iter()) {
                *token = event.data.u64();
            }
        }
        tokens
    }
}
