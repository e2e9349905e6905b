//! What all NICs share: the clock, what will happen, the machines' places on the wire, chance.

use super::config::SimNetworkConfig;
use super::patience::Spared;
use super::trace::{Kind, Trace};
use super::wire::Packet;
use crate::fault::{Delivery, Faults};
use legato_base::{Duration, Random, Time};
use legato_transport::adapter::{Alarm, CompletionToCome};
use legato_transport::cm::ConnectionId;
use legato_verbs::{Completion, ConnectionEvent, Event, QueuePair};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

/// Something that will happen at its time.
#[derive(Debug)]
pub(super) enum Occurrence {
    /// A packet arrives at whichever incarnation of the machine is there.
    Arrive(Packet),
    At {
        machine: usize,
        what: Local,
    },
}

/// On one incarnation of a machine.
#[derive(Debug)]
pub(super) enum Local {
    Alarm(Alarm),
    /// The link has room again.
    LinkFree,
    /// The silence of a killed peer has lasted long enough.
    PeerLost {
        queue_pair: QueuePair,
        connection: ConnectionId,
    },
    /// The name that was to be connected to belongs to nobody.
    NoSuchAddress {
        queue_pair: QueuePair,
    },
    Completion(LateCompletion),
    Event(Event),
    LateWrite {
        number: u64,
    },
    /// A peer that had no receive has posted one.
    PeerMayReceive {
        queue_pair: QueuePair,
    },
}

/// A completion that a fault has held back or doubled.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateCompletion {
    pub(super) completion: CompletionToCome,
    /// It came before: it frees no slot.
    pub(super) again: bool,
}

/// A place on the wire: a machine by its name, whatever its incarnation.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) name: String,
    /// The latest incarnation.
    pub(super) machine: usize,
    pub(super) alive: bool,
    pub(super) link_is_up: bool,
    /// When the link has sent what it was given.
    pub(super) link_free: Time,
}

#[derive(Debug)]
pub(super) struct Environment {
    pub(super) now: Time,
    pub(super) config: SimNetworkConfig,
    pub(super) random: Random,
    pub(super) trace: Trace,
    pub(super) faults: Faults,
    pub(super) places: Vec<Place>,
    /// The place of the machine that last listened at each address.
    pub(super) addresses: BTreeMap<String, usize>,
    future: BinaryHeap<Scheduled>,
    scheduled: u64,
    spare: Vec<Vec<u8>>,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) spared: Vec<Spared>,
}

#[derive(Debug)]
struct Scheduled {
    time: Time,
    number: u64,
    occurrence: Occurrence,
}

impl Environment {
    pub(super) fn new(seed: u64, config: SimNetworkConfig) -> Self {
        Self {
            now: Time::ZERO,
            config,
            random: Random::from_seed(seed),
            trace: Trace::default(),
            faults: Faults::default(),
            places: Vec::new(),
            addresses: BTreeMap::new(),
            future: BinaryHeap::new(),
            scheduled: 0,
            spare: Vec::new(),
            deliveries: Vec::new(),
            spared: Vec::new(),
        }
    }

    pub(super) fn schedule(&mut self, time: Time, occurrence: Occurrence) {
        self.scheduled += 1;
        self.future.push(Scheduled {
            time: time.max(self.now),
            number: self.scheduled,
            occurrence,
        });
    }

    pub(super) fn schedule_at(&mut self, time: Time, machine: usize, what: Local) {
        if time != Time::NEVER {
            self.schedule(time, Occurrence::At { machine, what });
        }
    }

    pub(super) fn next_time(&self) -> Option<Time> {
        self.future.peek().map(|next| next.time)
    }

    /// What happens next, if it does until `time`; the clock goes there.
    pub(super) fn take_until(&mut self, time: Time) -> Option<Occurrence> {
        if self.next_time()? > time {
            return None;
        }
        let next = self.future.pop()?;
        self.now = self.now.max(next.time);
        Some(next.occurrence)
    }

    /// Time in `0..=limit`.
    pub(super) fn some_of(&mut self, limit: Duration) -> Duration {
        match limit.as_nanos() {
            0 => Duration::ZERO,
            nanos => Duration::from_nanos(self.random.below(nanos + 1)),
        }
    }

    /// Room for a packet; what is in it is left over.
    pub(super) fn take_buffer(&mut self, room: usize) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        if buffer.len() < room {
            buffer.resize(room, 0);
        }
        buffer
    }

    pub(super) fn give_buffer(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }

    pub(super) fn trace_completion(&mut self, place: usize, completion: &Completion, lost: bool) {
        self.trace.at(self.now, Kind::Completion, place);
        self.trace.word(completion.wr_id.0);
        let status = completion.result.map_or_else(|status| status.code(), |_| 0);
        self.trace.word(u64::from(status));
        let name = &self.places[place].name;
        self.trace.line(self.now, || {
            format!(
                "{name} completes {:#x} of {:?}: {:?}{}",
                completion.wr_id.0,
                completion.queue_pair,
                completion.result,
                if lost { ", lost" } else { "" }
            )
        });
    }

    pub(super) fn trace_event(&mut self, place: usize, event: &Event) {
        self.trace.at(self.now, Kind::Event, place);
        let word = match event {
            Event::Async(event) => 0x100 + u64::from(event.code()),
            Event::CompletionQueueReady(queue) => 0x200 + u64::from(queue.index),
            Event::Connection(event) => match event {
                ConnectionEvent::Requested { .. } => 0,
                ConnectionEvent::Established { .. } => 1,
                ConnectionEvent::Rejected { .. } => 2,
                ConnectionEvent::Unreachable { .. } => 3,
                ConnectionEvent::Disconnected { .. } => 4,
                ConnectionEvent::DeviceRemoved { .. } => 5,
                ConnectionEvent::TimeWaitExit { .. } => 6,
                ConnectionEvent::AddressChanged { .. } => 7,
                ConnectionEvent::AddressRemoved { .. } => 8,
                ConnectionEvent::AddressReturned { .. } => 9,
            },
        };
        self.trace.word(word);
        let name = &self.places[place].name;
        self.trace.line(self.now, || format!("{name} {event:?}"));
    }
}

/// Buffers kept for packets to come.
const SPARE_MAX: usize = 4096;

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The greatest is the earliest, and of equal times the one that was scheduled first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.number).cmp(&(self.time, self.number))
    }
}
