//! The stack: its objects, and what it does when it is run.

use super::calls::{Asked, BODY_MAX, Slot};
use super::habits::Habits;
use super::header::MESSAGE;
use super::one_sided::Operation;
use super::teardown::Phase;
use legato_base::Time;
use legato_verbs::{
    AccessFlags, Address, AsyncEvent, Completion, CompletionQueue, CompletionStatus,
    ConnectionEvent, ConnectionRequest, Event, MemoryRegion, ProtectionDomain, Provider, QueuePair,
    QueuePairCapabilities, QueuePairInit, Receives, SharedReceiveQueue,
    SharedReceiveQueueCapabilities, VerbsError, WorkRequestId,
};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug)]
pub struct NaiveConfig {
    pub habits: Habits,
    pub connections_max: usize,
    /// Receives of each connection, or of all if they share.
    pub receives: u32,
    /// Calls under way.
    pub slots: usize,
    /// One receive queue for all connections.
    pub shares_receives: bool,
}

impl Default for NaiveConfig {
    fn default() -> Self {
        Self {
            habits: Habits::default(),
            connections_max: 4,
            receives: 8,
            slots: 8,
            shares_receives: false,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NaiveCounters {
    /// Of failed completions, in the order in which they came.
    pub failures: Vec<CompletionStatus>,
    pub replies_dropped: u64,
    /// Buffers read that had no message in them.
    pub unintelligible: u64,
    /// Receives that were refused.
    pub receives_refused: u64,
    /// Events of the completion queue's end.
    pub overruns: u64,
    /// Polls of the queue that the stack made while it could do nothing else.
    pub polls_stuck: u64,
}

#[derive(Clone, Debug)]
pub enum NaiveEvent {
    /// Ready to send, on either side.
    Connected {
        connection: usize,
    },
    Request {
        asked: Asked,
        body: Vec<u8>,
    },
    /// The end of a call; without a body it failed.
    Replied {
        call: u64,
        body: Option<Vec<u8>>,
    },
    /// The end of a one-sided operation, as its caller is told.
    Over {
        operation: u64,
        succeeded: bool,
    },
    /// The caller has its buffer back.
    Returned {
        operation: u64,
    },
    /// The queue pair is destroyed.
    Ended {
        connection: usize,
    },
}

/// What a work request is, as its id says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    Send { connection: usize, buffer: u32 },
    Receive { connection: usize, buffer: u32 },
    OneSided { connection: usize, number: u64 },
    Drain { connection: usize },
}

#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) queue_pair: QueuePair,
    pub(super) phase: Phase,
    /// As the stack believes.
    pub(super) receives_posted: u32,
    /// Buffers of sends that have not completed.
    pub(super) sends: Vec<u32>,
    /// Last Work Request Reached has come, perhaps before the end of the connection was known.
    pub(super) reached_last: bool,
}

#[derive(Debug)]
pub struct NaiveStack {
    pub(super) habits: Habits,
    pub(super) config: NaiveConfig,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    pub(super) shared: Option<SharedReceiveQueue>,
    /// Receive buffers, then send buffers.
    pub(super) region: MemoryRegion,
    pub(super) connections: Vec<Option<Connection>>,
    pub(super) slots: Vec<Slot>,
    pub(super) generation: u32,
    pub(super) operations: BTreeMap<u64, Operation>,
    pub(super) free_sends: Vec<u32>,
    /// The send that everything waits for.
    pub(super) waiting_for: Option<WorkRequestId>,
    /// Completions that came meanwhile.
    backlog: VecDeque<Completion>,
    pub(super) events: VecDeque<NaiveEvent>,
    pub(super) counters: NaiveCounters,
    numbers: u64,
}

impl Work {
    pub(super) const fn id(self) -> WorkRequestId {
        let (kind, connection, rest) = match self {
            Self::Send { connection, buffer } => (1, connection, buffer as u64),
            Self::Receive { connection, buffer } => (2, connection, buffer as u64),
            Self::OneSided { connection, number } => (3, connection, number),
            Self::Drain { connection } => (4, connection, 0),
        };
        WorkRequestId(kind << 56 | (connection as u64) << 40 | rest)
    }

    const fn of(id: WorkRequestId) -> Option<Self> {
        let connection = (id.0 >> 40 & 0xFFFF) as usize;
        let number = id.0 & 0xFF_FFFF_FFFF;
        let buffer = number as u32;
        match id.0 >> 56 {
            1 => Some(Self::Send { connection, buffer }),
            2 => Some(Self::Receive { connection, buffer }),
            3 => Some(Self::OneSided { connection, number }),
            4 => Some(Self::Drain { connection }),
            _ => None,
        }
    }
}

impl NaiveStack {
    /// # Errors
    /// As the provider's.
    pub fn new(provider: &mut dyn Provider, config: NaiveConfig) -> Result<Self, VerbsError> {
        let domain = provider.create_protection_domain()?;
        let sends = 4 * config.slots as u32;
        let one = sends + 2 * config.receives + 1;
        let queue = if config.habits.undersized_completion_queue {
            provider.create_overcommitted_completion_queue(config.receives)?
        } else {
            provider.create_completion_queue(one * config.connections_max as u32)?
        };
        let capabilities = SharedReceiveQueueCapabilities {
            requests_max: 2 * config.receives,
            entries_max: 1,
        };
        let shared = match config.shares_receives {
            true => Some(provider.create_shared_receive_queue(domain, capabilities)?),
            false => None,
        };
        let buffers = config.connections_max as u32 * config.receives + sends;
        let length = u64::from(buffers) * u64::from(MESSAGE);
        let region = provider.allocate_region(domain, length, AccessFlags::LOCAL_WRITE)?;
        let mut stack = Self {
            habits: config.habits,
            config,
            domain,
            queue,
            shared,
            region,
            connections: vec![None; config.connections_max],
            slots: vec![Slot::Free; config.slots],
            generation: 0,
            operations: BTreeMap::new(),
            free_sends: (0..sends).rev().collect(),
            waiting_for: None,
            backlog: VecDeque::new(),
            events: VecDeque::new(),
            counters: NaiveCounters::default(),
            numbers: 0,
        };
        if shared.is_some() {
            for buffer in 0..config.receives {
                stack.post_receive(provider, 0, buffer);
            }
        }
        Ok(stack)
    }

    /// Where the memory of one-sided operations is to be registered.
    pub const fn domain(&self) -> ProtectionDomain {
        self.domain
    }

    pub const fn counters(&self) -> &NaiveCounters {
        &self.counters
    }

    /// Longest body of a request or reply.
    pub const fn body_max() -> u32 {
        BODY_MAX
    }

    /// Does it wait for one completion, and for nothing else?
    pub const fn is_stuck(&self) -> bool {
        self.waiting_for.is_some()
    }

    pub fn poll_event(&mut self) -> Option<NaiveEvent> {
        self.events.pop_front()
    }

    /// None when there is no place, or the provider has none.
    pub fn connect(&mut self, provider: &mut dyn Provider, address: &Address) -> Option<usize> {
        let index = self.open(provider)?;
        let queue_pair = self.connections.get(index)?.as_ref()?.queue_pair;
        provider.connect(queue_pair, address, &[]).ok()?;
        Some(index)
    }

    fn accept(&mut self, provider: &mut dyn Provider, request: ConnectionRequest) {
        let opened = self.open(provider);
        let queue_pair = opened
            .and_then(|index| self.connections.get(index)?.as_ref())
            .map(|it| it.queue_pair);
        // A peer that went away meanwhile needs no answer.
        let _ = match queue_pair {
            Some(queue_pair) => provider.accept(request, queue_pair, &[]),
            None => provider.reject(request, &[]),
        };
    }

    fn open(&mut self, provider: &mut dyn Provider) -> Option<usize> {
        let index = self.connections.iter().position(Option::is_none)?;
        let capabilities = QueuePairCapabilities {
            send_requests_max: 4 * self.config.slots as u32 + 1,
            receive_requests_max: 2 * self.config.receives,
            entries_max: 1,
        };
        let init = QueuePairInit {
            receives: self.shared.map_or(Receives::Own, Receives::Shared),
            ..QueuePairInit::new(self.domain, self.queue, capabilities)
        };
        let queue_pair = provider.create_queue_pair(&init).ok()?;
        provider.modify_to_init(queue_pair).ok()?;
        self.connections[index] = Some(Connection {
            queue_pair,
            phase: Phase::Connecting,
            receives_posted: 0,
            sends: Vec::new(),
            reached_last: false,
        });
        if self.shared.is_none() {
            for buffer in 0..self.config.receives {
                self.post_receive(provider, index, buffer);
            }
        }
        Some(index)
    }

    /// Runs the stack, and says when it wants to be run again at the latest.
    pub fn turn(&mut self, provider: &mut dyn Provider, now: Time) -> Time {
        let next = provider.progress(now);
        while let Some(event) = provider.poll_event() {
            self.handle_event(provider, &event);
        }
        let mut came: Vec<Completion> = Vec::new();
        // Of a queue that is over there is nothing more to poll.
        let _ = provider.poll_completion_queue(self.queue, usize::MAX, &mut came);
        self.backlog.extend(came);
        if let Some(awaited) = self.waiting_for {
            self.counters.polls_stuck += 1;
            if !self.backlog.iter().any(|it| it.wr_id == awaited) {
                return now;
            }
            self.waiting_for = None;
        }
        while let Some(completion) = self.backlog.pop_front() {
            self.handle_completion(provider, &completion);
        }
        self.end_calls(|_, deadline| deadline <= now);
        self.expire_operations(now);
        let waiting = self.slots.iter().filter_map(|slot| match slot {
            Slot::Waiting { deadline, .. } => Some(*deadline),
            _ => None,
        });
        match waiting.chain(self.earliest_operation()).min() {
            Some(_) if self.habits.spins_while_waiting => now,
            Some(deadline) => next.min(deadline),
            None => next,
        }
    }

    fn handle_event(&mut self, provider: &mut dyn Provider, event: &Event) {
        match *event {
            Event::Connection(ConnectionEvent::Requested { request, .. }) => {
                self.accept(provider, request);
            }
            Event::Connection(ConnectionEvent::Established { queue_pair, .. }) => {
                let Some(connection) = self.index_of(queue_pair) else {
                    return;
                };
                if let Some(it) = &mut self.connections[connection] {
                    it.phase = Phase::Up;
                }
                self.events.push_back(NaiveEvent::Connected { connection });
            }
            Event::Connection(
                ConnectionEvent::Rejected { queue_pair, .. }
                | ConnectionEvent::Unreachable { queue_pair, .. }
                | ConnectionEvent::Disconnected { queue_pair }
                | ConnectionEvent::DeviceRemoved { queue_pair },
            ) => {
                if let Some(connection) = self.index_of(queue_pair) {
                    self.take_down(provider, connection);
                }
            }
            Event::Async(AsyncEvent::LastWorkRequestReached(queue_pair)) => {
                if let Some(connection) = self.index_of(queue_pair) {
                    self.last_work_request_reached(provider, connection);
                }
            }
            Event::Async(AsyncEvent::CompletionQueueError(_)) => self.counters.overruns += 1,
            _ => {}
        }
    }

    fn handle_completion(&mut self, provider: &mut dyn Provider, completion: &Completion) {
        if let Err(status) = completion.result {
            self.counters.failures.push(status);
        }
        let ignores = self.habits.reads_failed_completions;
        let failed = completion.result.is_err();
        let Some(work) = Work::of(completion.wr_id) else {
            return;
        };
        let connection = match work {
            Work::Send { connection, buffer } => {
                if let Some(Some(it)) = self.connections.get_mut(connection) {
                    it.sends.retain(|&sent| sent != buffer);
                }
                self.free_sends.push(buffer);
                connection
            }
            Work::Receive { buffer, .. } => {
                let Some(connection) = self.index_of(completion.queue_pair) else {
                    return;
                };
                self.complete_receive(provider, connection, buffer, failed);
                connection
            }
            Work::OneSided { connection, number } => {
                self.end_operation(number, !failed);
                connection
            }
            Work::Drain { connection } => {
                self.drained(provider, connection);
                return;
            }
        };
        if failed && !ignores {
            self.take_down(provider, connection);
        }
    }

    pub(super) fn send_offset(&self, buffer: u32) -> u64 {
        let receives = self.config.connections_max as u64 * u64::from(self.config.receives);
        (receives + u64::from(buffer)) * u64::from(MESSAGE)
    }

    pub(super) const fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Queue pairs that are not destroyed.
    pub fn queue_pairs(&self) -> usize {
        self.connections.iter().flatten().count()
    }
}
