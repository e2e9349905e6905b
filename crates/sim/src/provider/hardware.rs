//! What an adapter finds around it in the simulator: the network's clock and wire, memory with
//! guards, and all that goes wrong.

use super::environment::{Environment, LateCompletion, Local};
use super::late::Late;
use super::memory::Memory;
use super::personality::{Mishap, Personality};
use super::trace::Kind;
use super::wire::place_of;
use crate::fault::{CompletionFate, EventFate, Events};
use legato_base::{Duration, Random, Time};
use legato_transport::WorkQueue;
use legato_transport::adapter::{Alarm, CompletionToCome, Flow, RegionNumber, Surroundings};
use legato_transport::cm::{ConnectionId, Gid};
use legato_transport::nic::{Posted, QueuedCompletion};
use legato_transport::wire::icrc::ICRC_LENGTH;
use legato_verbs::{
    CompletionQueue, CompletionStatus, Event, LocalKey, QueuePair, ScatterGatherEntry, VerbsError,
    WorkRequestId,
};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// Of one incarnation of a machine's NIC.
#[derive(Debug)]
pub(super) struct Hardware {
    /// Its number among all incarnations, and its place on the wire.
    pub(super) machine: usize,
    pub(super) place: usize,
    pub(super) personality: Personality,
    pub(super) memory: Memory,
    pub(super) random: Random,
    pub(super) late: Late,
    /// Completions that come again.
    pub(super) doubled: Vec<CompletionToCome>,
    orders: Orders,
    /// Changes to the Error state so far.
    error_changes: u32,
}

impl Hardware {
    pub(super) fn new(
        machine: usize,
        place: usize,
        personality: Personality,
        random: Random,
    ) -> Self {
        Self {
            machine,
            place,
            personality,
            memory: Memory::default(),
            random,
            late: Late::default(),
            doubled: Vec::new(),
            orders: Orders::default(),
            error_changes: 0,
        }
    }
}

/// When the last packet of each flow arrives.
#[derive(Debug, Default)]
struct Orders {
    /// By the queue pair's index, with its generation.
    queue_pairs: Vec<(u32, Time)>,
    /// By the place that management datagrams go to.
    management: BTreeMap<usize, Time>,
}

impl Orders {
    fn of(&mut self, flow: Flow, to: usize) -> &mut Time {
        match flow {
            Flow::Management => self.management.entry(to).or_default(),
            Flow::QueuePair { queue_pair, .. } => {
                let index = queue_pair.index as usize;
                if index >= self.queue_pairs.len() {
                    self.queue_pairs.resize(index + 1, (0, Time::ZERO));
                }
                let (generation, order) = &mut self.queue_pairs[index];
                if *generation != queue_pair.generation {
                    (*generation, *order) = (queue_pair.generation, Time::ZERO);
                }
                order
            }
        }
    }
}

/// A NIC's hardware and all that is around it.
pub(super) struct Around<'a> {
    pub(super) environment: &'a mut Environment,
    pub(super) hardware: &'a mut Hardware,
}

impl Around<'_> {
    pub(super) fn schedule(&mut self, at: Time, what: Local) {
        self.environment
            .schedule_at(at, self.hardware.machine, what);
    }
}

impl Surroundings for Around<'_> {
    type Buffer = Vec<u8>;

    fn now(&self) -> Time {
        self.environment.now
    }

    fn set_alarm(&mut self, at: Time, alarm: Alarm) {
        self.schedule(at, Local::Alarm(alarm));
    }

    fn link_has_room(&mut self) -> bool {
        self.environment.link_has_room(self.hardware.place) <= self.environment.now
    }

    fn watch_link(&mut self) {
        let at = self.environment.link_has_room(self.hardware.place);
        self.schedule(at, Local::LinkFree);
    }

    fn take_buffer(&mut self, room: usize) -> Vec<u8> {
        self.environment.take_buffer(room + ICRC_LENGTH)
    }

    fn give_buffer(&mut self, buffer: Vec<u8>) {
        self.environment.give_buffer(buffer);
    }

    fn send(&mut self, flow: Flow, to: Gid, buffer: Vec<u8>, length: usize) {
        let Some(to) = place_of(to.0, self.environment.places.len()) else {
            // Routers know no such address.
            return self.environment.give_buffer(buffer);
        };
        let order = self.hardware.orders.of(flow, to);
        self.environment
            .send(self.hardware.place, to, order, buffer, length);
    }

    fn allocate_memory(
        &mut self,
        region: RegionNumber,
        key: LocalKey,
        length: u64,
    ) -> Result<(), VerbsError> {
        self.hardware.memory.add(region, key.0, length as usize)
    }

    fn release_memory(&mut self, region: RegionNumber) {
        self.hardware.memory.remove(region);
    }

    fn read_memory(&self, region: RegionNumber, offset: u64, into: &mut [u8]) -> bool {
        self.hardware.memory.read(region, offset, into)
    }

    fn write_memory(&mut self, region: RegionNumber, offset: u64, from: &[u8]) -> bool {
        self.hardware.memory.write(region, offset, from)
    }

    fn update_memory(
        &mut self,
        region: RegionNumber,
        offset: u64,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Option<u64> {
        let memory = &mut self.hardware.memory;
        let mut bytes = [0; 8];
        if !memory.read(region, offset, &mut bytes) {
            return None;
        }
        let old = u64::read_from_bytes(&bytes).ok()?;
        let new = change(old);
        if new != old {
            memory.write(region, offset, new.as_bytes());
        }
        Some(old)
    }

    fn doorbell_delay(&mut self) -> Duration {
        let most = self.environment.config.posting_delay;
        self.environment.some_of(most)
    }

    fn may_post(&mut self, queue: WorkQueue) -> Result<(), VerbsError> {
        let environment = &mut *self.environment;
        let refused = environment
            .faults
            .post(environment.now, self.hardware.place, queue);
        refused.map_or(Ok(()), Err)
    }

    fn may_enter_error(&mut self) -> Result<(), VerbsError> {
        self.hardware.error_changes += 1;
        let each = self.hardware.personality.error_change_fails;
        if each.is_some_and(|each| self.hardware.error_changes.is_multiple_of(each.max(1))) {
            return Err(VerbsError::System {
                call: "modify to error",
                errno: EIO,
            });
        }
        Ok(())
    }

    fn event_raised(&mut self, event: &Event) -> u32 {
        let place = self.hardware.place;
        let times = match self.fate_of_event(event) {
            EventFate::Deliver => 1,
            EventFate::Lose => 0,
            EventFate::Delay(later) => {
                let at = self.environment.now + later;
                self.schedule(at, Local::Event(event.clone()));
                0
            }
            EventFate::Repeat(times) => times,
        };
        for _ in 0..times {
            self.environment.trace_event(place, event);
        }
        times
    }

    fn completion_due(&mut self, completion: &CompletionToCome) -> bool {
        let late = |again| LateCompletion {
            completion: *completion,
            again,
        };
        let now = self.environment.now;
        match self.fate_of(completion) {
            CompletionFate::Deliver => true,
            CompletionFate::Lose => {
                let place = self.hardware.place;
                self.environment.trace.at(now, Kind::Dropped, place);
                false
            }
            CompletionFate::Delay(later) => {
                self.schedule(now + later, Local::Completion(late(false)));
                false
            }
            CompletionFate::Repeat(later) => {
                self.schedule(now + later, Local::Completion(late(true)));
                true
            }
        }
    }

    fn completion_stored(&mut self, to_come: &CompletionToCome, posted: Posted) {
        let lost = matches!(posted, Posted::Overrun | Posted::Lost);
        self.environment
            .trace_completion(self.hardware.place, &to_come.completion, lost);
    }

    fn frees_slot(&mut self, into: CompletionQueue, polled: &QueuedCompletion) -> bool {
        let doubled = &mut self.hardware.doubled;
        let again = doubled.iter().position(|it| {
            it.into == into && it.queue == polled.queue && it.completion == polled.completion
        });
        if let Some(again) = again {
            doubled.swap_remove(again);
        }
        again.is_none()
    }

    fn timer_expired(&mut self) {
        let (now, place) = (self.environment.now, self.hardware.place);
        self.environment.trace.at(now, Kind::Timer, place);
    }

    /// A peer that died while it was being connected to is found like one that dies later.
    fn connected(&mut self, queue_pair: QueuePair, peer: Gid, connection: ConnectionId) {
        let places = &self.environment.places;
        let place = place_of(peer.0, places.len());
        let dead = place.is_some_and(|place| !places[place].alive);
        if let (Some(time), true) = (self.environment.config.detection_time, dead) {
            let what = Local::PeerLost {
                queue_pair,
                connection,
            };
            self.schedule(self.environment.now + time, what);
        }
    }

    fn buffers_lent(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WorkRequestId,
        entries: &[ScatterGatherEntry],
    ) {
        if self.hardware.personality.late_writes.is_some() {
            self.hardware.late.lend(queue_pair, wr_id, entries);
        }
    }

    fn buffers_returned(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WorkRequestId,
        failure: Option<CompletionStatus>,
    ) {
        if self.hardware.personality.late_writes.is_none() {
            return;
        }
        let late = matches!(
            failure,
            Some(CompletionStatus::WorkRequestFlushed | CompletionStatus::RetryExceeded)
        );
        if let Some(entries) = self.hardware.late.take(queue_pair, wr_id)
            && late
        {
            self.hardware.note_late(self.environment, entries);
        }
    }

    fn all_buffers_returned(&mut self, queue_pair: QueuePair) {
        for entries in self.hardware.late.take_all(queue_pair) {
            self.hardware.note_late(self.environment, entries);
        }
    }
}

impl Around<'_> {
    fn fate_of(&mut self, to_come: &CompletionToCome) -> CompletionFate {
        let (environment, hardware) = (&mut *self.environment, &mut *self.hardware);
        let fate = environment.faults.completion(
            environment.now,
            hardware.place,
            to_come.queue,
            &to_come.completion,
        );
        let Some(careless) = hardware.personality.careless else {
            return fate;
        };
        let mishaps = match to_come.queue {
            WorkQueue::Send => careless.sends,
            WorkQueue::Receive => careless.receives,
        };
        match careless.draw(mishaps, &mut hardware.random) {
            _ if fate != CompletionFate::Deliver => fate,
            None => fate,
            Some(Mishap::Lost) => CompletionFate::Lose,
            Some(Mishap::Again(later)) => CompletionFate::Repeat(later),
            Some(Mishap::Late(later)) => CompletionFate::Delay(later),
        }
    }

    /// What becomes of an event. Those that a program waits for come in any case.
    fn fate_of_event(&mut self, event: &Event) -> EventFate {
        let (environment, hardware) = (&mut *self.environment, &mut *self.hardware);
        let now = environment.now;
        let fate = environment.faults.event(now, hardware.place, event);
        let Some(careless) = hardware
            .personality
            .careless
            .filter(|_| Events::All.has(event))
        else {
            return fate;
        };
        match careless.draw(careless.events, &mut hardware.random) {
            _ if fate != EventFate::Deliver => fate,
            None => fate,
            Some(Mishap::Lost) => EventFate::Lose,
            Some(Mishap::Again(_)) => EventFate::Repeat(2),
            Some(Mishap::Late(later)) => EventFate::Delay(later),
        }
    }
}

const EIO: i32 = 5;
