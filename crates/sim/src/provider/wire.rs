//! The wire and the clock: what is under way, and what happens when it arrives.

use super::machine::Machine;
use super::network::SimNetworkConfig;
use super::queue_pair::{Phase, RequestBody};
use super::trace::Trace;
use legato_base::{Duration, Random, Time};
use legato_verbs::{
    CompletionStatus, ConnectionEvent, Event, QueuePair, RejectReason, UnreachableReason,
};
use std::collections::BTreeMap;

/// A queue pair anywhere on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) machine: usize,
    pub(super) queue_pair: QueuePair,
}

/// Something that will happen on a machine at its time.
#[derive(Debug)]
pub(super) enum Occurrence {
    /// The NIC sends the oldest posted request that has not left yet.
    Transmit {
        from: Place,
    },
    Arrive {
        machine: usize,
        message: Message,
    },
    /// A receiver without receives is tried again.
    RetryReceiver {
        at: Place,
    },
    RetryTimer {
        of: Place,
    },
    ConnectTimeout {
        of: Place,
    },
    /// The silence of a killed peer has lasted long enough.
    PeerLost {
        of: Place,
    },
}

#[derive(Debug)]
pub(super) enum Message {
    ConnectRequest {
        from: Place,
        address: String,
        private_data: Vec<u8>,
    },
    /// The sender of a connect request is no longer there.
    Withdraw {
        from: Place,
    },
    Accepted {
        to: Place,
        peer: Place,
        private_data: Vec<u8>,
    },
    Rejected {
        to: Place,
        reason: RejectReason,
        private_data: Vec<u8>,
    },
    NoSuchAddress {
        to: Place,
    },
    /// The active side is ready too.
    Ready {
        to: Place,
    },
    Request {
        to: Place,
        sequence: u64,
        body: RequestBody,
    },
    Response {
        to: Place,
        sequence: u64,
        result: Result<Vec<u8>, CompletionStatus>,
    },
    Disconnect {
        to: Place,
    },
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) now: Time,
    pub(super) config: SimNetworkConfig,
    pub(super) random: Random,
    pub(super) trace: Trace,
    pub(super) machines: Vec<Machine>,
    /// The latest incarnation of each machine.
    pub(super) names: BTreeMap<String, usize>,
    /// The machine that last listened at each address.
    pub(super) addresses: BTreeMap<String, String>,
    /// By time, then in the order in which they were scheduled.
    pub(super) future: BTreeMap<(Time, u64), Occurrence>,
    pub(super) scheduled: u64,
}

impl Inner {
    /// The machine that answers at an address now, dead or alive.
    pub(super) fn machine_at(&self, address: &str) -> Option<usize> {
        self.names.get(self.addresses.get(address)?).copied()
    }

    pub(super) fn schedule(&mut self, time: Time, occurrence: Occurrence) {
        self.scheduled += 1;
        self.future.insert((time, self.scheduled), occurrence);
    }

    /// Puts a message on the wire; `from` is the queue pair whose messages stay in order, if it
    /// still exists.
    pub(super) fn send(&mut self, from: Place, machine: usize, size: usize, message: Message) {
        let jitter = self.random.below(self.config.jitter.as_nanos() + 1);
        let duration = self.config.bytes_per_second.map_or(0, |rate| {
            (size as u128 * 1_000_000_000 / u128::from(rate.max(1))) as u64
        });
        let sender = &mut self.machines[from.machine];
        let left = sender.link_free.max(self.now) + Duration::from_nanos(duration);
        sender.link_free = left;
        let mut arrival = left + self.config.latency + Duration::from_nanos(jitter);
        if let Some(record) = sender.queue_pair_mut(from.queue_pair) {
            arrival = arrival.max(record.last_arrival);
            record.last_arrival = arrival;
        }
        self.schedule(arrival, Occurrence::Arrive { machine, message });
    }

    pub(super) fn event(&mut self, machine: usize, event: Event) {
        let kind = match &event {
            Event::Async(_) => 2,
            Event::Connection(ConnectionEvent::Requested { .. }) => 3,
            Event::Connection(ConnectionEvent::Established { .. }) => 4,
            Event::Connection(ConnectionEvent::Rejected { .. }) => 5,
            Event::Connection(ConnectionEvent::Unreachable { .. }) => 6,
            Event::Connection(ConnectionEvent::Disconnected { .. }) => 7,
        };
        self.trace.at(self.now, kind, machine);
        self.machines[machine].events.push_back(event);
    }

    pub(super) fn happen(&mut self, occurrence: Occurrence) {
        let machine = match &occurrence {
            Occurrence::Arrive { machine, .. } => *machine,
            Occurrence::Transmit { from: place }
            | Occurrence::RetryReceiver { at: place }
            | Occurrence::RetryTimer { of: place }
            | Occurrence::ConnectTimeout { of: place }
            | Occurrence::PeerLost { of: place } => place.machine,
        };
        if !self.machines[machine].alive {
            return;
        }
        if self.machines[machine].frozen {
            self.machines[machine].held.push(occurrence);
            return;
        }
        match occurrence {
            Occurrence::Transmit { from } => self.transmit(from),
            Occurrence::Arrive { message, .. } => self.arrive(machine, message),
            Occurrence::RetryReceiver { at } => self.retry_receiver(at),
            Occurrence::RetryTimer { of } => self.retry_timer(of),
            Occurrence::ConnectTimeout { of } => self.connect_timeout(of),
            Occurrence::PeerLost { of } => {
                self.fail(of, CompletionStatus::RetryExceeded);
                self.tell_disconnected(of);
            }
        }
    }

    fn arrive(&mut self, machine: usize, message: Message) {
        self.trace_message(machine, &message);
        match message {
            Message::ConnectRequest {
                from,
                address,
                private_data,
            } => self.connect_requested(machine, from, &address, private_data),
            Message::Withdraw { from } => self.withdraw(machine, from),
            Message::Accepted {
                to,
                peer,
                private_data,
            } => self.accepted(to, peer, private_data),
            Message::Rejected {
                to,
                reason,
                private_data,
            } => self.connect_failed(to, |queue_pair| ConnectionEvent::Rejected {
                queue_pair,
                reason,
                private_data,
            }),
            Message::NoSuchAddress { to } => {
                self.connect_failed(to, |queue_pair| ConnectionEvent::Unreachable {
                    queue_pair,
                    reason: UnreachableReason::NoSuchAddress,
                });
            }
            Message::Ready { to } => self.ready(to),
            Message::Request { to, sequence, body } => self.request_arrived(to, sequence, body),
            Message::Response {
                to,
                sequence,
                result,
            } => self.response_arrived(to, sequence, result),
            Message::Disconnect { to } => {
                self.fail(to, CompletionStatus::WorkRequestFlushed);
                self.tell_disconnected(to);
            }
        }
    }

    fn trace_message(&mut self, machine: usize, message: &Message) {
        let (kind, word, bytes): (u64, u64, &[u8]) = match message {
            Message::ConnectRequest { private_data, .. } => (10, 0, private_data),
            Message::Withdraw { .. } => (11, 0, &[]),
            Message::Accepted { private_data, .. } => (12, 0, private_data),
            Message::Rejected { private_data, .. } => (13, 0, private_data),
            Message::NoSuchAddress { .. } => (14, 0, &[]),
            Message::Ready { .. } => (15, 0, &[]),
            Message::Request { sequence, body, .. } => match body {
                RequestBody::Send(bytes) => (16, *sequence, bytes),
                RequestBody::Write { at, bytes } => (17, at.address, bytes),
                RequestBody::Read { at, .. } => (18, at.address, &[]),
            },
            Message::Response {
                sequence, result, ..
            } => match result {
                Ok(bytes) => (19, *sequence, bytes),
                Err(status) => (20, u64::from(status.code()), &[]),
            },
            Message::Disconnect { .. } => (21, 0, &[]),
        };
        self.trace.at(self.now, kind, machine);
        self.trace.word(word);
        self.trace.bytes(bytes);
    }

    /// The connection of `at` is over: its owner hears of it once.
    pub(super) fn tell_disconnected(&mut self, at: Place) {
        let Some(record) = self.machines[at.machine].queue_pair_mut(at.queue_pair) else {
            return;
        };
        record.phase = Phase::Error { peer: None };
        if std::mem::replace(&mut record.told, true) {
            return;
        }
        let queue_pair = at.queue_pair;
        let event = ConnectionEvent::Disconnected { queue_pair };
        self.event(at.machine, Event::Connection(event));
    }
}
