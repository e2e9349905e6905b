//! How the engine of a queue pair is run: calls, the link, the timer, packets that arrive.

use super::alarms::Alarm;
use super::host::QueuePairHost;
use super::queue_pair::QueuePairRecord;
use super::surroundings::{Flow, Surroundings};
use super::{ChannelAdapter, Deferred, handle};
use crate::cm::{Gid, open_datagram};
use crate::{QueuePairNumber, rc, wire};
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    AsyncEvent, CompletionQueue, Event, QueuePair, QueuePairAttributes, QueuePairState,
};

/// Room for the longest packet, less its invariant CRC.
const PACKET_ROOM: usize = wire::HEADERS_MAX + 4096 + 3;

impl ChannelAdapter {
    /// An alarm is due.
    pub fn alarm(&mut self, surroundings: &mut impl Surroundings, alarm: Alarm) {
        match alarm {
            Alarm::Doorbell(name) => {
                if let Some(record) = self.record_mut(name) {
                    record.kicked = false;
                    self.run(surroundings, name);
                }
            }
            Alarm::QueuePairTimer(name) => self.queue_pair_timer(surroundings, name),
            Alarm::ConnectionManager => self.manager_timer(surroundings),
        }
    }

    /// Calls the engine of a queue pair. Afterwards it is to be [`Self::run`].
    pub(super) fn with<S: Surroundings, R>(
        &mut self,
        surroundings: &mut S,
        name: QueuePair,
        call: impl FnOnce(&mut rc::QueuePair, &mut QueuePairHost<'_, S>) -> R,
    ) -> Option<R> {
        let is_controlled = self.controls_congestion();
        let QueuePairRecord {
            engine, context, ..
        } = self.queue_pairs.get_mut(handle(name))?;
        let path = match is_controlled {
            true => self.paths.of(engine, surroundings),
            false => None,
        };
        let before = engine.flight();
        let mut host = QueuePairHost {
            objects: &mut self.objects,
            surroundings,
            context,
            path,
            flush_given_up: [false; 2],
        };
        let result = call(engine, &mut host);
        if let Some(path) = host.path {
            path.account(before, engine.flight());
        }
        Some(result)
    }

    /// Sends what a queue pair has to say, and does what its completions led to.
    pub(super) fn run(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        // Who lost a receive's completion does not acknowledge the message.
        let lost = Deferred::EndReceiver(name);
        if self.objects.deferred.contains(&lost) {
            self.objects.deferred.retain(|deferred| *deferred != lost);
            self.enter_error(surroundings, name);
        }
        self.transmit(surroundings, name);
        self.settle(surroundings);
    }

    /// Does what was put off while an engine was at work.
    pub(super) fn settle(&mut self, surroundings: &mut impl Surroundings) {
        while let Some(deferred) = self.objects.deferred.pop() {
            match deferred {
                Deferred::EndAttached(queue) => self.end_attached(surroundings, queue),
                Deferred::EndReceiver(name) => {
                    self.enter_error(surroundings, name);
                    self.transmit(surroundings, name);
                }
                Deferred::DataArrived(name) => {
                    if let Some(record) = self.record(name) {
                        let number = record.engine.number();
                        self.manager.data_arrived(number);
                        self.drive_manager(surroundings);
                    }
                }
            }
        }
    }

    fn end_attached(&mut self, surroundings: &mut impl Surroundings, queue: CompletionQueue) {
        let attached: Vec<QueuePair> = self
            .queue_pairs
            .iter()
            .map(|(_, record)| &record.context)
            .filter(|context| context.send_queue == queue || context.receive_queue == queue)
            .map(|context| context.handle)
            .collect();
        for name in attached {
            self.enter_error(surroundings, name);
            let event = Event::Async(AsyncEvent::QueuePairFatal(name));
            self.objects.raise(surroundings, event);
            self.transmit(surroundings, name);
        }
    }

    /// To the error state by itself, whatever the surroundings do to those who ask.
    pub(super) fn enter_error(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        let state = self.record(name).map(|record| record.engine.state());
        if !matches!(
            state,
            None | Some(QueuePairState::Reset | QueuePairState::Error)
        ) {
            let none = QueuePairAttributes::NONE;
            self.with(surroundings, name, |engine, host| {
                engine.modify(QueuePairState::Error, &none, host)
            });
            self.flush_refused(surroundings, name);
        }
    }

    /// Sends, unless the link is busy or others wait for it.
    fn transmit(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        if self.link_waiters.is_empty() {
            self.transmit_now(surroundings, name);
        } else {
            self.wait_for_link(surroundings, name);
        }
        self.set_timer(surroundings, name);
    }

    fn transmit_now(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        loop {
            if !surroundings.link_has_room() {
                return self.wait_for_link(surroundings, name);
            }
            let mut buffer = surroundings.take_buffer(PACKET_ROOM);
            let now = surroundings.now();
            let sent = self.with(surroundings, name, |engine, host| {
                let length = engine.transmit(now, host, buffer.as_mut())?.length;
                let to = Gid(engine.query().address_vector?.destination);
                let flow = Flow::QueuePair {
                    queue_pair: name,
                    number: engine.number(),
                };
                Some((flow, to, length))
            });
            let Some(Some((flow, to, length))) = sent else {
                return surroundings.give_buffer(buffer);
            };
            surroundings.send(flow, to, buffer, length);
        }
    }

    /// Queue pairs get the link one after the other.
    fn wait_for_link(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        let Some(record) = self.queue_pairs.get_mut(handle(name)) else {
            return;
        };
        if !core::mem::replace(&mut record.waits_for_link, true) {
            self.link_waiters.push_back(name);
        }
        if !core::mem::replace(&mut self.link_watched, true) {
            surroundings.watch_link();
        }
    }

    /// The link has room: for those who waited for it.
    pub fn link_free(&mut self, surroundings: &mut impl Surroundings) {
        self.link_watched = false;
        for _ in 0..self.link_waiters.len() {
            if !surroundings.link_has_room() {
                self.link_watched = true;
                surroundings.watch_link();
                return;
            }
            let Some(name) = self.link_waiters.pop_front() else {
                return;
            };
            if let Some(record) = self.record_mut(name) {
                record.waits_for_link = false;
                self.transmit_now(surroundings, name);
                self.set_timer(surroundings, name);
                self.settle(surroundings);
            }
        }
    }

    /// The adapter looks at a queue pair then.
    pub(super) fn kick(&mut self, surroundings: &mut impl Surroundings, name: QueuePair, at: Time) {
        if let Some(record) = self.record_mut(name)
            && !core::mem::replace(&mut record.kicked, true)
        {
            surroundings.set_alarm(at, Alarm::Doorbell(name));
        }
    }

    /// One timer is scheduled for a queue pair at a time; a later deadline waits for it.
    pub(super) fn set_timer(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        if let Some(record) = self.record_mut(name) {
            let deadline = record.engine.next_deadline();
            // What is due already waits for the link: the kick will see to it.
            let waits = (record.kicked || record.waits_for_link) && deadline <= surroundings.now();
            if deadline < record.timer_at && !waits {
                record.timer_at = deadline;
                surroundings.set_alarm(deadline, Alarm::QueuePairTimer(name));
            }
        }
    }

    fn queue_pair_timer(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        let now = surroundings.now();
        let Some(record) = self.record_mut(name) else {
            return;
        };
        if record.timer_at > now {
            // A timer of before, in place of which an earlier one was set.
            return;
        }
        record.timer_at = Time::NEVER;
        if record.engine.next_deadline() > now {
            return self.set_timer(surroundings, name);
        }
        surroundings.timer_expired();
        self.with(surroundings, name, |engine, host| engine.expire(now, host));
        self.run(surroundings, name);
    }

    /// A packet has come, from its base transport header to before its invariant CRC, which was
    /// right.
    pub fn receive(&mut self, surroundings: &mut impl Surroundings, from: Gid, packet: &[u8]) {
        self.receive_packet(surroundings, from, packet, false);
    }

    /// The same for a packet that a router on the way had marked, because it met congestion (CE, RFC
    /// 3168, 5).
    pub fn receive_marked(
        &mut self,
        surroundings: &mut impl Surroundings,
        from: Gid,
        packet: &[u8],
    ) {
        self.receive_packet(surroundings, from, packet, true);
    }

    fn receive_packet(
        &mut self,
        surroundings: &mut impl Surroundings,
        from: Gid,
        packet: &[u8],
        is_marked: bool,
    ) {
        let Ok(parsed) = wire::Packet::parse(packet) else {
            self.packets_discarded += 1;
            return;
        };
        let now = surroundings.now();
        if parsed.base.destination == QueuePairNumber::GENERAL_SERVICE {
            match open_datagram(&parsed) {
                Ok(mad) => {
                    self.manager.handle_message(from, mad, now);
                    self.drive_manager(surroundings);
                }
                Err(_) => self.packets_discarded += 1,
            }
            return;
        }
        let found = self.by_number.get(&parsed.base.destination).copied();
        let known = found.filter(|&name| {
            let attributes = self.record(name).map(|record| record.engine.query());
            let peer = attributes.and_then(|attributes| attributes.address_vector);
            peer.is_some_and(|peer| peer.destination == from.0)
        });
        let Some(name) = known else {
            self.packets_discarded += 1;
            return;
        };
        if self.controls_congestion() {
            self.heed_congestion(surroundings, name, &parsed, is_marked);
        }
        self.with(surroundings, name, |engine, host| {
            engine.input(now, &parsed, host);
        });
        self.flush_refused(surroundings, name);
        self.run(surroundings, name);
    }
}
