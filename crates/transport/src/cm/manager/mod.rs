//! The state machine of all connections of a port.

mod calls;
mod endings;
mod incoming;
mod outgoing;
mod requests;
mod timers;

use super::connection::{Connection, ConnectionId, ConnectionState, State};
use super::event::{Counters, Event, ManagerCounts, ManagerError, Transmit};
use super::message::{
    AdditionalInformation, Gid, PrivateData, RejectReason, ServiceId, TransactionId,
};
use super::parameters::{LocalPort, Parameters};
use super::refusals::Refusals;
use super::table::Table;
use crate::QueuePairNumber;
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use legato_base::{Random, Time};

/// Owns the connections of a port. Calls, messages and the time go in; after each of them the
/// user takes all events, brings the queue pairs into the states that they ask for, and then takes
/// what is to be sent: a peer may use a queue pair as soon as it has the message.
///
/// A message from a peer is answered with one message at most. A connection that turns out to be
/// forgotten by its peer also begins, once, to be disconnected.
#[derive(Debug)]
pub struct ConnectionManager {
    parameters: Parameters,
    port: LocalPort,
    /// Cleared when the NIC is gone.
    present: bool,
    listeners: BTreeSet<ServiceId>,
    table: Table,
    refusals: Refusals,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    next_transaction: u64,
    counters: Counters,
}

impl ConnectionManager {
    /// `random` is where names begin. A port whose manager starts anew needs other ones than
    /// before, because its peers may still have the old connections.
    pub fn new(port: LocalPort, mut parameters: Parameters, mut random: Random) -> Self {
        // Four bits of a request say it to the peer.
        parameters.retries_max = parameters.retries_max.min(15);
        let next_transaction = random.next_u64();
        Self {
            parameters,
            port,
            present: true,
            listeners: BTreeSet::new(),
            table: Table::new(parameters.connections_max, random),
            refusals: Refusals::new(parameters.refusals_max),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            next_transaction,
            counters: Counters::default(),
        }
    }

    /// The next message to send. To be taken after the events.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        let times = [self.table.next_deadline(), self.refusals.next_deadline()];
        times.into_iter().flatten().min()
    }

    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn counts(&self) -> ManagerCounts {
        ManagerCounts {
            refusals: self.refusals.len(),
            ..self.table.counts()
        }
    }

    /// `None` once it has ended for good.
    pub fn state(&self, connection: ConnectionId) -> Option<ConnectionState> {
        self.table.get(connection).map(|it| it.state.seen())
    }

    /// All that have not ended for good.
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.table.ids()
    }

    /// The other sides of those that have not ended for good. To each there may be something to say.
    pub fn peers(&self) -> impl Iterator<Item = Gid> {
        self.table.peers()
    }

    /// Whether a queue pair has no connection, and none that ended a moment ago.
    pub fn is_free(&self, queue_pair: QueuePairNumber) -> bool {
        self.table.by_local_queue_pair(queue_pair).is_none()
    }

    fn live(&self, id: ConnectionId) -> Result<&Connection, ManagerError> {
        self.table.get(id).ok_or(ManagerError::UnknownConnection)
    }

    fn check_present(&self) -> Result<(), ManagerError> {
        if self.present {
            Ok(())
        } else {
            Err(ManagerError::DeviceRemoved)
        }
    }

    /// 0 and 1 are the management queue pairs, and the last number stands for multicast.
    fn check_queue_pair(&self, queue_pair: QueuePairNumber) -> Result<(), ManagerError> {
        match queue_pair.get() {
            0 | 1 | 0x00FF_FFFF => Err(ManagerError::ReservedQueuePair(queue_pair)),
            _ if self.is_free(queue_pair) => Ok(()),
            _ => Err(ManagerError::QueuePairInUse(queue_pair)),
        }
    }

    fn new_transaction(&mut self) -> TransactionId {
        self.next_transaction = self.next_transaction.wrapping_add(1);
        TransactionId(self.next_transaction)
    }

    fn raise(&mut self, event: Event) {
        self.events.push_back(event);
    }

    fn raise_rejected(&mut self, connection: ConnectionId, reason: RejectReason) {
        self.raise(Event::Rejected {
            connection,
            reason,
            information: AdditionalInformation::NONE,
            private_data: Box::new(PrivateData::EMPTY),
        });
    }

    /// Ends a connection at once. Its queue pair, if it has one, is free.
    fn finish(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.remove(id) else {
            return;
        };
        if let Some(queue_pair) = connection.state.keys().local_queue_pair {
            self.raise(Event::TimeWaitExit {
                connection: id,
                queue_pair,
            });
        }
    }

    /// Ends a connection whose packets may still be on their way.
    fn enter_time_wait(&mut self, id: ConnectionId, now: Time) {
        let Some(connection) = self.table.get(id) else {
            return;
        };
        let origin = connection.state.origin();
        let Some(queue_pair) = connection.state.keys().local_queue_pair else {
            return self.finish(id);
        };
        let state = State::TimeWait(super::connection::TimeWait { queue_pair, origin });
        self.table
            .replace(id, state, now + self.parameters.time_wait);
    }
}
