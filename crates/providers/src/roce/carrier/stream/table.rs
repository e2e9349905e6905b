//! All connections of a carrier, by number and by peer.

use super::super::{CarrierError, step};
use super::connection::{Connection, Stage};
use super::interest;
use alloc::collections::BTreeMap;
use core::net::SocketAddr;
use core::ops::Bound;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::Timespec;

/// Names a connection for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Token(u64);

/// What events of the listening socket name.
pub(super) const LISTENER: Token = Token(0);

#[derive(Debug)]
pub(super) struct Table {
    epoll: OwnedFd,
    connections: BTreeMap<Token, Connection>,
    /// The connection by which packets are sent to a peer.
    peers: BTreeMap<SocketAddr, Token>,
    last: Token,
}

impl Table {
    pub(super) fn new(listener: impl AsFd) -> Result<Self, CarrierError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(step("epoll_create1"))?;
        let data = EventData::new_u64(LISTENER.0);
        epoll::add(&epoll, listener, data, EventFlags::IN).map_err(step("epoll_ctl"))?;
        Ok(Self {
            epoll,
            connections: BTreeMap::new(),
            peers: BTreeMap::new(),
            last: LISTENER,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn count(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn insert(&mut self, connection: Connection) -> Result<Token, Errno> {
        let token = Token(self.last.0 + 1);
        let data = EventData::new_u64(token.0);
        let flags = interest(connection.waits_for_room);
        epoll::add(&self.epoll, &connection.socket, data, flags)?;
        self.last = token;
        self.connections.insert(token, connection);
        Ok(token)
    }

    /// Dropping the connection closes it, and ends the descriptor's interest in it.
    pub(super) fn remove(&mut self, token: Token) -> Option<Connection> {
        let connection = self.connections.remove(&token)?;
        if let Some(peer) = connection.peer()
            && self.peers.get(&peer) == Some(&token)
        {
            self.peers.remove(&peer);
        }
        Some(connection)
    }

    /// Drops what `peer` has connected while our connection to it was on its way.
    pub(super) fn drop_superseded(&mut self, peer: SocketAddr) {
        self.connections
            .retain(|_, connection| connection.stage != Stage::Superseded { peer });
    }

    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut Connection> {
        self.connections.get_mut(&token)
    }

    /// The oldest connection that is younger than `after`.
    pub(super) fn next(&self, after: Option<Token>) -> Option<Token> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut later = self.connections.range((from, Bound::Unbounded));
        later.next().map(|(token, _)| *token)
    }

    /// The oldest connection that nobody has said anything sensible on.
    pub(super) fn oldest_stranger(&self) -> Option<Token> {
        self.connections
            .iter()
            .find(|(_, connection)| connection.peer().is_none())
            .map(|(token, _)| *token)
    }

    pub(super) fn set_peer(&mut self, peer: SocketAddr, token: Token) {
        self.peers.insert(peer, token);
    }

    pub(super) fn token_of(&self, peer: SocketAddr) -> Option<Token> {
        self.peers.get(&peer).copied()
    }

    pub(super) fn of_peer(&self, peer: SocketAddr) -> Option<&Connection> {
        self.connections.get(self.peers.get(&peer)?)
    }

    pub(super) fn of_peer_mut(&mut self, peer: SocketAddr) -> Option<&mut Connection> {
        self.connections.get_mut(self.peers.get(&peer)?)
    }

    /// Makes the descriptor wait for room in a connection, or not any more.
    pub(super) fn wait_for_room(&mut self, token: Token, room: bool) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.waits_for_room != room {
            connection.waits_for_room = room;
            let data = EventData::new_u64(token.0);
            // Both descriptors are ours and were joined when the connection was made.
            let _ = epoll::modify(&self.epoll, &connection.socket, data, interest(room));
        }
    }

    /// Where something has happened, at most as many as `into` has places.
    pub(super) fn ready(&self, into: &mut [(Token, EventFlags)]) -> usize {
        let empty = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [empty; super::receive::EVENTS];
        let count = into.len().min(events.len());
        let now = Timespec::default();
        let found = epoll::wait(&self.epoll, &mut events[..count], Some(&now)).unwrap_or(0);
        for (place, event) in into.iter_mut().zip(&events[..found]) {
            *place = (Token(event.data.u64()), event.flags);
        }
        found
    }
}
