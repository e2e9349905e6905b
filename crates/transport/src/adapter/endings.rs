//! How connections and queue pairs end.

use super::objects::NO_QUEUE_PAIR;
use super::queue_pair::{Link, Receives, Stage};
use super::surroundings::Surroundings;
use super::{ChannelAdapter, Owner, PORT, handle, queue_handle};
use crate::cm::{self, ConnectionId, Gid};
use alloc::vec::Vec;
use legato_verbs::{
    AsyncEvent, ConnectionEvent, Event, ModifyError, QueuePair, QueuePairAttributes,
    QueuePairState, RejectReason, Subject, UnreachableReason, VerbsError,
};

impl ChannelAdapter {
    /// The manager says that a connection is over, or does not come to be.
    pub(super) fn ended(
        &mut self,
        surroundings: &mut impl Surroundings,
        connection: ConnectionId,
        event: impl FnOnce(QueuePair) -> ConnectionEvent,
    ) {
        let Some(Owner::QueuePair(name)) = self.connections.get(&connection).copied() else {
            // A peer that waited to be accepted has gone away.
            let waiting = self
                .requests
                .iter()
                .find(|(_, waiting)| waiting.connection == connection);
            if let Some(handle) = waiting.map(|(handle, _)| handle) {
                self.requests.remove(handle);
            }
            return;
        };
        self.tell_ended(surroundings, name, event);
    }

    /// The one event that ends a connection, after which its queue pair is in the error state.
    fn tell_ended(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
        event: impl FnOnce(QueuePair) -> ConnectionEvent,
    ) {
        let Some(link) = self.record_mut(name).and_then(|it| it.link.as_mut()) else {
            return;
        };
        let told = core::mem::replace(&mut link.told, true);
        let local = core::mem::replace(&mut link.stage, Stage::Ending) == Stage::Ending;
        if !(local && self.objects.policy.disconnect_keeps_state) {
            self.enter_error(surroundings, name);
            self.run(surroundings, name);
        }
        if !told {
            let event = Event::Connection(event(name));
            self.objects.raise(surroundings, event);
        }
    }

    pub(super) fn time_wait_exit(
        &mut self,
        surroundings: &mut impl Surroundings,
        connection: ConnectionId,
    ) {
        match self.connections.remove(&connection) {
            Some(Owner::QueuePair(name)) => {
                if let Some(record) = self.record_mut(name) {
                    record.link = None;
                    record.to_send = None;
                    let event = ConnectionEvent::TimeWaitExit { queue_pair: name };
                    self.objects.raise(surroundings, Event::Connection(event));
                }
            }
            Some(Owner::Nobody(number)) => self.numbers.give_back(number.get()),
            None => {}
        }
    }

    /// It was found out that nobody has the address that [`Self::connect`] was asked for.
    pub fn no_such_address(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        let asked = self
            .record(name)
            .and_then(|record| record.link)
            .is_some_and(|link| link.id.is_none());
        if !asked {
            return;
        }
        self.tell_ended(surroundings, name, |queue_pair| {
            ConnectionEvent::Unreachable {
                queue_pair,
                reason: UnreachableReason::NoSuchAddress,
            }
        });
        if let Some(record) = self.record_mut(name) {
            record.link = None;
        }
        let event = ConnectionEvent::TimeWaitExit { queue_pair: name };
        self.objects.raise(surroundings, Event::Connection(event));
    }

    pub(super) fn tell_connected(&self, surroundings: &mut impl Surroundings, name: QueuePair) {
        let link = self.record(name).and_then(|record| record.link);
        if let Some((connection, link)) = link.and_then(|link| Some((link.id?, link))) {
            surroundings.connected(name, link.peer, connection);
        }
    }

    /// A membership service has found that the peer is dead.
    pub fn peer_lost(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
        connection: ConnectionId,
    ) {
        let link = self.record(name).and_then(|record| record.link);
        if link.and_then(|link| link.id) != Some(connection) {
            return;
        }
        self.tell_ended(surroundings, name, |queue_pair| {
            ConnectionEvent::Disconnected { queue_pair }
        });
        // It may have ended by itself meanwhile.
        let _ = self.manager.disconnect(connection, surroundings.now());
        self.drive_manager(surroundings);
    }

    /// The network says that nobody is there: who has asked that peer for a connection and has no
    /// answer gets none. Connections that were answered go on: their own timers know better.
    pub fn nobody_there(&mut self, surroundings: &mut impl Surroundings, peer: Gid) {
        self.end_asking(surroundings, peer, |queue_pair| {
            ConnectionEvent::Unreachable {
                queue_pair,
                reason: UnreachableReason::NoSuchAddress,
            }
        });
    }

    /// What carries packets says that the peer does not take this side: as if the peer had rejected what
    /// it was asked, with this private data.
    pub fn turned_away(
        &mut self,
        surroundings: &mut impl Surroundings,
        peer: Gid,
        private_data: &[u8],
    ) {
        self.end_asking(surroundings, peer, |queue_pair| ConnectionEvent::Rejected {
            queue_pair,
            reason: RejectReason::ConsumerReject,
            private_data: private_data.to_vec(),
        });
    }

    fn end_asking(
        &mut self,
        surroundings: &mut impl Surroundings,
        peer: Gid,
        event: impl Fn(QueuePair) -> ConnectionEvent,
    ) {
        let asked = |link: &Link| link.stage == Stage::Asked && link.peer == peer;
        let asking: Vec<(QueuePair, ConnectionId)> = self
            .queue_pairs
            .iter()
            .filter_map(|(_, record)| {
                let link = record.link.filter(asked)?;
                Some((record.context.handle, link.id?))
            })
            .collect();
        for (name, connection) in asking {
            self.tell_ended(surroundings, name, &event);
            // It may have ended by itself meanwhile.
            let _ = self.manager.disconnect(connection, surroundings.now());
        }
        self.drive_manager(surroundings);
    }

    /// The machine does not have the address any more from which these peers are talked to.
    pub fn address_removed(&mut self, surroundings: &mut impl Surroundings, peers: &[Gid]) {
        let event = |queue_pair| ConnectionEvent::AddressRemoved { queue_pair };
        self.tell_those_with(surroundings, peers, event);
    }

    /// The machine has the address again from which these peers are talked to.
    pub fn address_returned(&mut self, surroundings: &mut impl Surroundings, peers: &[Gid]) {
        let event = |queue_pair| ConnectionEvent::AddressReturned { queue_pair };
        self.tell_those_with(surroundings, peers, event);
    }

    fn tell_those_with(
        &mut self,
        surroundings: &mut impl Surroundings,
        peers: &[Gid],
        event: impl Fn(QueuePair) -> ConnectionEvent,
    ) {
        let is_one = |link: &Link| link.stage != Stage::Ending && peers.contains(&link.peer);
        let records = self.queue_pairs.iter();
        let told = records.filter(|(_, record)| record.link.as_ref().is_some_and(is_one));
        let told: Vec<QueuePair> = told.map(|(_, record)| record.context.handle).collect();
        for queue_pair in told {
            let event = Event::Connection(event(queue_pair));
            self.objects.raise(surroundings, event);
        }
    }

    /// # Errors
    /// As [`legato_verbs::Provider::disconnect`].
    pub fn disconnect(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
    ) -> Result<(), VerbsError> {
        self.check_present()?;
        let record = self.record(name).ok_or(NO_QUEUE_PAIR)?;
        let state = record.engine.state();
        let connected = record
            .link
            .is_some_and(|link| matches!(link.stage, Stage::Accepted | Stage::Established));
        if !connected {
            return Err(VerbsError::InvalidState(state));
        }
        if !self.objects.policy.disconnect_keeps_state {
            self.enter_error(surroundings, name);
            self.run(surroundings, name);
        }
        self.end_connection(surroundings, name);
        Ok(())
    }

    /// Tells the peer, if there is a connection, that it is over.
    pub(super) fn end_connection(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        let Some(link) = self.record_mut(name).and_then(|it| it.link.as_mut()) else {
            return;
        };
        if core::mem::replace(&mut link.stage, Stage::Ending) == Stage::Ending {
            return;
        }
        match link.id {
            // It may have ended by itself meanwhile.
            Some(id) => drop(self.manager.disconnect(id, surroundings.now())),
            None => self.no_such_address(surroundings, name),
        }
        self.drive_manager(surroundings);
    }

    /// # Errors
    /// As [`legato_verbs::Provider::modify_queue_pair`].
    pub fn modify_queue_pair(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        self.check_present()?;
        let record = self.record(name).ok_or(NO_QUEUE_PAIR)?;
        let from = record.engine.state();
        attributes.check(from, to)?;
        if attributes.port.is_some_and(|port| port != PORT) {
            let (attribute, limit) = ("port", PORT);
            return Err(ModifyError::OutOfRange { attribute, limit }.into());
        }
        if to == QueuePairState::Error {
            surroundings.may_enter_error()?;
        }
        let done = self.with(surroundings, name, |engine, host| {
            host.context.flushed_receive = false;
            engine.modify(to, attributes, host)
        });
        done.ok_or(NO_QUEUE_PAIR)??;
        match to {
            QueuePairState::Reset => self.forget_posted(surroundings, name),
            QueuePairState::Error => self.flush_refused(surroundings, name),
            _ => {}
        }
        self.run(surroundings, name);
        if matches!(to, QueuePairState::Reset | QueuePairState::Error) {
            self.end_connection(surroundings, name);
        }
        Ok(())
    }

    /// The way to Reset: what was posted is its poster's again, and completes no more.
    fn forget_posted(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        let Some(record) = self.queue_pairs.get_mut(handle(name)) else {
            return;
        };
        let context = &mut record.context;
        context.refused.clear();
        match &mut context.receives {
            Receives::Own(queue) => queue.clear(),
            Receives::Shared(shared) => {
                let held = core::mem::take(&mut context.held);
                if let Ok(queue) = self.objects.shared.queue_mut(*shared) {
                    queue.release(held);
                }
            }
        }
        let queues = [context.send_queue, context.receive_queue];
        for queue in queues {
            if let Some(record) = self.objects.queues.get_mut(queue_handle(queue)) {
                record.queue.detach(name, 0);
            }
        }
        self.objects.keys.unbind_queue_pair(name);
        surroundings.all_buffers_returned(name);
    }

    /// # Errors
    /// [`VerbsError::UnknownHandle`].
    pub fn destroy_queue_pair(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
    ) -> Result<(), VerbsError> {
        let record = self.record(name).ok_or(NO_QUEUE_PAIR)?;
        let (link, number) = (record.link, record.engine.number());
        if let Some(id) = link.and_then(|link| link.id) {
            // From now on nobody is told.
            self.connections.insert(id, Owner::Nobody(number));
            let _ = self.manager.disconnect(id, surroundings.now());
        } else {
            self.numbers.give_back(number.get());
        }
        self.forget_posted(surroundings, name);
        self.by_number.remove(&number);
        let Some(record) = self.queue_pairs.remove(handle(name)) else {
            return Err(NO_QUEUE_PAIR);
        };
        self.detach(&record.context);
        self.leave_path(&record);
        self.objects.forget(Subject::QueuePair(name));
        self.drive_manager(surroundings);
        Ok(())
    }

    /// The device is taken out of its machine, where the link is down already. Its owner hears of
    /// it, and nothing but destroying works from now on.
    pub fn remove_device(&mut self, surroundings: &mut impl Surroundings) {
        if self.gone.is_some() {
            return;
        }
        // The engines end while the NIC still works: nothing is sent any more, because nothing
        // is taken from them.
        let all: Vec<QueuePair> = self
            .queue_pairs
            .iter()
            .map(|(_, record)| record.context.handle)
            .collect();
        for name in all {
            self.enter_error(surroundings, name);
            self.run(surroundings, name);
        }
        self.objects
            .raise(surroundings, Event::Async(AsyncEvent::DeviceFatal));
        self.manager.remove_device();
        self.drive_manager(surroundings);
        self.gone = Some(VerbsError::DeviceRemoved);
    }

    /// Nobody hears of it, and whatever but destroying is asked for fails so.
    pub const fn fail(&mut self, why: VerbsError) {
        self.gone = Some(why);
    }

    /// Whatever an adapter that is gone is asked for, except to destroy.
    ///
    /// # Errors
    /// Why it is gone.
    pub const fn check_present(&self) -> Result<(), VerbsError> {
        match self.gone {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }
}

pub(super) const fn reason_of(reason: cm::RejectReason) -> RejectReason {
    match reason {
        cm::RejectReason(1..=3) => RejectReason::NoResources,
        cm::RejectReason::TIMEOUT => RejectReason::Timeout,
        cm::RejectReason::INVALID_SERVICE_ID => RejectReason::InvalidServiceId,
        cm::RejectReason::STALE_CONNECTION => RejectReason::StaleConnection,
        cm::RejectReason::CONSUMER => RejectReason::ConsumerReject,
        other => RejectReason::Other(other.0),
    }
}
