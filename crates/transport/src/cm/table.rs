//! All connections of a manager, and what they are found by.

use super::connection::{Connection, ConnectionId, Keys, State};
use super::event::ManagerCounts;
use super::message::{CaGuid, CommunicationId, Gid};
use crate::QueuePairNumber;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use legato_base::{Random, Time};

/// A connection changes its state and its deadline only through [`Self::replace`], which keeps
/// everything that it is found by.
#[derive(Debug)]
pub(super) struct Table {
    places: Vec<Place>,
    /// Those that were left first are taken first, so that names come back late.
    free: VecDeque<u32>,
    places_max: u32,
    requests: BTreeMap<(CaGuid, CommunicationId), ConnectionId>,
    remote_queue_pairs: BTreeMap<(CaGuid, QueuePairNumber), ConnectionId>,
    local_queue_pairs: BTreeMap<QueuePairNumber, ConnectionId>,
    deadlines: BTreeSet<(Time, ConnectionId)>,
    half_open: u32,
    /// Where generations begin, so that a manager that starts anew does not use the same names.
    random: Random,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    connection: Option<Connection>,
}

impl Table {
    pub(super) fn new(places_max: u32, random: Random) -> Self {
        Self {
            places: Vec::new(),
            free: VecDeque::new(),
            places_max: places_max.min(ConnectionId::PLACES),
            requests: BTreeMap::new(),
            remote_queue_pairs: BTreeMap::new(),
            local_queue_pairs: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            half_open: 0,
            random,
        }
    }

    pub(super) const fn places_max(&self) -> u32 {
        self.places_max
    }

    pub(super) const fn half_open(&self) -> u32 {
        self.half_open
    }

    pub(super) fn counts(&self) -> ManagerCounts {
        ManagerCounts {
            connections: self.places.len() - self.free.len(),
            half_open: self.half_open as usize,
            queue_pairs: self.local_queue_pairs.len(),
            timers: self.deadlines.len(),
            refusals: 0,
        }
    }

    /// The name that the next connection gets, if there is room for one.
    pub(super) fn next_id(&mut self) -> Option<ConnectionId> {
        if self.free.is_empty() {
            let index = u32::try_from(self.places.len()).ok()?;
            if index >= self.places_max {
                return None;
            }
            let generation = self.random.next_u64() as u32;
            self.places.push(Place {
                generation,
                connection: None,
            });
            self.free.push_back(index);
        }
        let index = *self.free.front()?;
        let generation = self.places.get(index as usize)?.generation;
        Some(ConnectionId { index, generation })
    }

    /// Puts a connection into the place that [`Self::next_id`] has just given it.
    pub(super) fn insert(&mut self, id: ConnectionId, peer: Gid, state: State, deadline: Time) {
        debug_assert_eq!(self.free.front(), Some(&id.index));
        self.free.pop_front();
        self.link(id, Keys::default(), &state, deadline);
        if let Some(place) = self.places.get_mut(id.index as usize) {
            place.connection = Some(Connection {
                id,
                peer,
                deadline,
                state,
            });
        }
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        let connection = self.places.get(id.index as usize)?.connection.as_ref()?;
        (connection.id == id).then_some(connection)
    }

    fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let connection = self
            .places
            .get_mut(id.index as usize)?
            .connection
            .as_mut()?;
        (connection.id == id).then_some(connection)
    }

    /// The state may change what it is not found by.
    pub(super) fn state_mut(&mut self, id: ConnectionId) -> Option<&mut State> {
        self.get_mut(id).map(|connection| &mut connection.state)
    }

    pub(super) fn by_communication_id(&self, id: CommunicationId) -> Option<&Connection> {
        let index = ConnectionId::index_of(id)?;
        let connection = self.places.get(index as usize)?.connection.as_ref()?;
        (connection.id.communication_id() == id).then_some(connection)
    }

    pub(super) fn by_request(&self, key: (CaGuid, CommunicationId)) -> Option<&Connection> {
        self.requests.get(&key).and_then(|&id| self.get(id))
    }

    pub(super) fn by_remote_queue_pair(
        &self,
        key: (CaGuid, QueuePairNumber),
    ) -> Option<&Connection> {
        self.remote_queue_pairs
            .get(&key)
            .and_then(|&id| self.get(id))
    }

    pub(super) fn by_local_queue_pair(&self, queue_pair: QueuePairNumber) -> Option<&Connection> {
        self.local_queue_pairs
            .get(&queue_pair)
            .and_then(|&id| self.get(id))
    }

    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.places
            .iter()
            .filter_map(|place| place.connection.as_ref())
            .map(|connection| connection.id)
            .collect()
    }

    /// The other side of each.
    pub(super) fn peers(&self) -> impl Iterator<Item = Gid> {
        let connections = self.places.iter();
        connections.filter_map(|place| Some(place.connection.as_ref()?.peer))
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|&(time, _)| time)
    }

    pub(super) fn first_due(&self, now: Time) -> Option<ConnectionId> {
        self.deadlines
            .first()
            .filter(|&&(time, _)| time <= now)
            .map(|&(_, id)| id)
    }

    /// Replaces a connection's state. `deadline` is [`Time::NEVER`] if there is none.
    pub(super) fn replace(&mut self, id: ConnectionId, state: State, deadline: Time) {
        let Some(connection) = self.get(id) else {
            return;
        };
        let before = connection.state.keys();
        self.unlink_time(id);
        self.half_open -= u32::from(self.is_half_open(id));
        self.link(id, before, &state, deadline);
        if let Some(connection) = self.get_mut(id) {
            connection.state = state;
            connection.deadline = deadline;
        }
    }

    pub(super) fn set_deadline(&mut self, id: ConnectionId, deadline: Time) {
        self.unlink_time(id);
        if let Some(connection) = self.get_mut(id) {
            connection.deadline = deadline;
            self.link_time(id, deadline);
        }
    }

    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<Connection> {
        self.get(id)?;
        self.unlink_time(id);
        self.half_open -= u32::from(self.is_half_open(id));
        let place = self.places.get_mut(id.index as usize)?;
        let connection = place.connection.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push_back(id.index);
        self.unlink(id, connection.state.keys());
        Some(connection)
    }

    fn is_half_open(&self, id: ConnectionId) -> bool {
        self.get(id)
            .is_some_and(|connection| connection.state.is_half_open())
    }

    fn unlink_time(&mut self, id: ConnectionId) {
        if let Some(deadline) = self.get(id).map(|connection| connection.deadline) {
            self.deadlines.remove(&(deadline, id));
        }
    }

    fn link_time(&mut self, id: ConnectionId, deadline: Time) {
        if deadline != Time::NEVER {
            self.deadlines.insert((deadline, id));
        }
    }

    fn link(&mut self, id: ConnectionId, before: Keys, state: &State, deadline: Time) {
        let after = state.keys();
        if before != after {
            self.unlink(id, before);
            if let Some(key) = after.request {
                self.requests.insert(key, id);
            }
            if let Some(key) = after.remote_queue_pair {
                self.remote_queue_pairs.insert(key, id);
            }
            if let Some(key) = after.local_queue_pair {
                self.local_queue_pairs.insert(key, id);
            }
        }
        self.half_open += u32::from(state.is_half_open());
        self.link_time(id, deadline);
    }

    /// Leaves alone what has become another's: a peer that has started anew may use an old name
    /// while the connection that had it still ends.
    fn unlink(&mut self, id: ConnectionId, keys: Keys) {
        if let Some(key) = keys.request
            && self.requests.get(&key) == Some(&id)
        {
            self.requests.remove(&key);
        }
        if let Some(key) = keys.remote_queue_pair
            && self.remote_queue_pairs.get(&key) == Some(&id)
        {
            self.remote_queue_pairs.remove(&key);
        }
        if let Some(key) = keys.local_queue_pair
            && self.local_queue_pairs.get(&key) == Some(&id)
        {
            self.local_queue_pairs.remove(&key);
        }
    }
}
