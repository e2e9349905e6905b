//! A queue pair that is given anything, beside models of what it must make of that.

use super::asked::Asked;
use super::outcomes::{Outcome, Outcomes};
use super::said::{Said, is_request};
use super::served::{Served, needs_receive};
use crate::harness::{ALL_ACCESS, End, Options, TestHost};
use legato_base::{Duration, Time};
use legato_transport::congestion::{Direction, Path};
use legato_transport::rc::{QueuePair, Receives};
use legato_transport::wire::Packet;
use legato_transport::{PacketSequenceNumber, WorkQueue};
use legato_verbs::{
    AccessFlags, QueuePairAttributes, QueuePairState as State, ScatterGatherEntry, SendRequest,
};

/// The peer may do everything with it.
pub(super) const SHARED: u32 = 1;
/// For receives.
pub(super) const RECEIVED: u32 = 2;
/// For the answers to READs and atomics.
pub(super) const FETCHED: u32 = 3;
/// For what is sent.
pub(super) const SENT: u32 = 4;
/// As the first; but it may be ended.
pub(super) const ENDING: u32 = 5;
/// Bytes of each region: five packets.
pub(super) const REGION: u32 = 1280;

pub(super) struct Subject {
    pub(super) end: End,
    /// Memory as it has to be.
    pub(super) memory: TestHost,
    pub(super) served: Served,
    pub(super) asked: Asked,
    pub(super) now: Time,
    own_receives: bool,
    receives_posted: u64,
    receives_completed: u64,
    buffer: Vec<u8>,
}

impl Subject {
    /// In the reset state.
    pub(super) fn new(options: &Options, path: Option<Path>) -> Self {
        let first = PacketSequenceNumber::new(options.first);
        let mut subject = Self {
            end: options.end(1, 2, State::Reset),
            memory: TestHost::default(),
            served: Served::new(options.mtu, first),
            asked: Asked::new(options.mtu, first),
            now: Time::ZERO,
            own_receives: options.receives == Receives::Own,
            receives_posted: 0,
            receives_completed: 0,
            buffer: vec![0; 8192],
        };
        subject.end.host.path = path;
        for (key, access) in [
            (SHARED, ALL_ACCESS),
            (RECEIVED, AccessFlags::LOCAL_WRITE),
            (FETCHED, AccessFlags::LOCAL_WRITE),
            (SENT, AccessFlags::NONE),
            (ENDING, ALL_ACCESS),
        ] {
            subject.add_region(key, access);
        }
        subject
    }

    fn add_region(&mut self, key: u32, access: AccessFlags) {
        for host in [&mut self.end.host, &mut self.memory] {
            host.add(key, REGION as usize, access);
            let bytes = host.bytes_mut(key).iter_mut().enumerate();
            bytes.for_each(|(at, byte)| *byte = (at as u32 * 7 + key) as u8);
        }
    }

    /// The region that may be ended is there again.
    pub(super) fn restore(&mut self) {
        if !self.memory.regions.contains_key(&ENDING) {
            self.add_region(ENDING, ALL_ACCESS);
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(
            self.end.state(),
            State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrain
        )
    }

    /// Calls the queue pair, and says to its path what is under way, as an adapter does.
    fn call<R>(&mut self, call: impl FnOnce(&mut QueuePair, &mut TestHost, Time) -> R) -> R {
        let End { queue_pair, host } = &mut self.end;
        let before = queue_pair.flight();
        let result = call(queue_pair, host, self.now);
        if let Some(path) = &mut host.path {
            let after = queue_pair.flight();
            path.account(before, after);
            for direction in [Direction::Requests, Direction::Answers] {
                assert_eq!(path.in_flight(direction), after.of(direction));
            }
        }
        result
    }

    pub(super) fn modify(&mut self, to: State, attributes: &QueuePairAttributes) {
        let modified = self.call(|engine, host, _| engine.modify(to, attributes, host));
        assert_eq!(modified, Ok(()));
    }

    pub(super) fn post(&mut self, request: SendRequest) {
        let posted = self.call(|engine, host, _| engine.post_send(&request, host));
        assert_eq!(posted, Ok(()));
        self.asked.posted(request);
    }

    pub(super) fn post_receive(&mut self, entries: Vec<ScatterGatherEntry>) {
        self.end.post_receive(self.receives_posted, entries);
        self.receives_posted += 1;
    }

    /// Gives it a packet.
    pub(super) fn input(&mut self, said: &Said, reached: &mut Outcomes) {
        let packet = said.packet();
        if !self.is_connected() {
            let state = self.end.state();
            self.call(|engine, host, now| engine.input(now, &packet, host));
            assert_eq!(self.end.state(), state);
            reached.add(Outcome::Ignored);
        } else if is_request(&packet.body) {
            self.request(&packet, reached);
        } else {
            self.answer(&packet, reached);
        }
        self.settle(reached);
    }

    fn request(&mut self, packet: &Packet<'_>, reached: &mut Outcomes) {
        let receives = &self.end.host.receives;
        let receive = receives.front().filter(|_| needs_receive(&packet.body));
        let receive = receive.cloned();
        let waits = needs_receive(&packet.body) && receive.is_none();
        self.call(|engine, host, now| engine.input(now, packet, host));
        self.served.heard(packet);
        let is_next = packet.base.sequence == self.served.expected;
        let has_ended = !self.is_connected();
        assert!(is_next || !has_ended, "{packet:?} ended it");
        if is_next && !has_ended && !waits {
            let executed = self.served.execute(packet, receive, &mut self.memory);
            assert_eq!(executed, Ok(()), "{packet:?} was executed");
            reached.add(Outcome::Executed);
        } else if has_ended && !self.is_memory_right() {
            // What came with the last packet of a message may be there though its end failed.
            let _ = self.served.execute(packet, receive, &mut self.memory);
            self.served.received = None;
        }
        if has_ended {
            reached.add(Outcome::EndedByPeer);
        }
    }

    fn answer(&mut self, packet: &Packet<'_>, reached: &mut Outcomes) {
        let state = |subject: &Self| {
            let engine = &subject.end.queue_pair;
            let waits = (engine.waiting_since(), engine.next_deadline());
            let completions = subject.end.host.completions.len();
            (engine.state(), engine.flight(), waits, completions)
        };
        let before = state(self);
        let was_sent = packet.base.sequence.is_before(self.asked.sent);
        let brought = self.asked.said(packet);
        self.call(|engine, host, now| engine.input(now, packet, host));
        let is_same = state(self) == before;
        if !self.is_memory_right() {
            let brought = brought.expect("bytes of an answer that is expected");
            self.asked.took(&brought, &mut self.memory);
            reached.add(Outcome::AnswerTaken);
        } else if is_same {
            reached.add(Outcome::AnswerDropped);
        }
        assert!(is_same || was_sent, "{packet:?} answers nothing");
        if !self.is_connected() {
            reached.add(Outcome::EndedByPeer);
        }
    }

    /// Takes all packets that there are.
    pub(super) fn drain(&mut self, reached: &mut Outcomes) {
        let mut buffer = core::mem::take(&mut self.buffer);
        while let Some(sent) =
            self.call(|engine, host, now| engine.transmit(now, host, &mut buffer))
        {
            let packet = Packet::parse(&buffer[..sent.length]).unwrap();
            if is_request(&packet.body) {
                self.asked.heard(&packet, &self.memory, reached);
            } else {
                self.served.said(&packet, &self.memory, reached);
            }
            self.settle(reached);
        }
        self.buffer = buffer;
        self.served.drained();
        self.settle(reached);
    }

    /// Time passes, up to the next deadline at most if that is to be met.
    pub(super) fn wait(&mut self, time: Duration, reached: &mut Outcomes) {
        self.now = self.now + time;
        if self.end.queue_pair.next_deadline() <= self.now {
            self.asked.may_go_back = true;
            self.call(|engine, host, now| engine.expire(now, host));
            self.settle(reached);
        }
    }

    pub(super) fn wait_for_deadline(&mut self, reached: &mut Outcomes) {
        let deadline = self.end.queue_pair.next_deadline();
        if deadline != Time::NEVER {
            self.wait(deadline.since(self.now), reached);
        }
    }

    /// A router on the way has marked a packet.
    pub(super) fn congest(&mut self, is_answer: bool) {
        if let Some(path) = &mut self.end.host.path {
            path.mark_seen(self.now, is_answer);
            path.notified(self.now);
        }
    }

    fn is_memory_right(&self) -> bool {
        let regions = &self.end.host.regions;
        let right = &self.memory.regions;
        let mut both = regions.iter().zip(right);
        regions.len() == right.len()
            && both.all(|(one, other)| one.0 == other.0 && one.1.bytes == other.1.bytes)
    }

    /// What completed may, and nothing else is in memory than what has to be.
    fn settle(&mut self, reached: &mut Outcomes) {
        let is_over = self.end.state() == State::Error;
        for completion in core::mem::take(&mut self.end.host.completions) {
            assert!(is_over || completion.result.is_ok(), "{completion:?}");
            if completion.queue == WorkQueue::Send {
                self.asked.completed(&completion, &mut self.memory, reached);
                self.end.queue_pair.send_polled();
                continue;
            }
            let id = completion.wr_id.0;
            assert!(self.receives_completed <= id && id < self.receives_posted);
            assert!(!self.own_receives || id == self.receives_completed);
            self.receives_completed = id + 1;
            if let Ok(kind) = completion.result {
                assert_eq!(self.served.received.take(), Some((id, kind)));
                reached.add(Outcome::Received);
            }
        }
        assert!(is_over || self.served.received.is_none());
        assert!(self.is_memory_right());
        let flight = self.end.queue_pair.flight();
        assert!(flight.requests + flight.answers <= self.asked.unanswered());
    }

    /// It has ended, or ends now: nothing that was posted is left.
    pub(super) fn finish(mut self, reached: &mut Outcomes) {
        if self.end.state() != State::Error {
            self.modify(State::Error, &QueuePairAttributes::NONE);
        }
        self.settle(reached);
        self.asked.finish(&mut self.memory);
        let left = self.end.host.receives.len() as u64;
        let completed = self.receives_completed;
        if self.own_receives {
            assert_eq!((completed, left), (self.receives_posted, 0));
        } else {
            // The one in use is lost with some.
            let lost = self.receives_posted - completed - left;
            assert!(lost <= 1, "{lost} receives");
        }
    }
}
