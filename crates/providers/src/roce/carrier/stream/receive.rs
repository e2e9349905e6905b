//! Receiving: packets, and everything else that happens at sockets.

use super::super::inbox::{Congestion, Framing, Inbox, Load};
use super::super::system::MESSAGES;
use super::connection::{Read, Stage};
use super::{LISTENER, StreamCarrier, Token};
use core::net::SocketAddr;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::sockopt;

/// Sockets looked at by one call at most.
pub(super) const EVENTS: usize = MESSAGES;

impl StreamCarrier {
    /// Receives what there is room for into an inbox that has been read to its end.
    /// Returns whether there may be something in it now.
    pub fn receive(&mut self, inbox: &mut Inbox) -> bool {
        if !inbox.is_empty() {
            return true;
        }
        inbox.restart();
        let mut ready = [(LISTENER, EventFlags::empty()); EVENTS];
        let places = inbox.pieces().min(EVENTS);
        let count = self.table.ready(&mut ready[..places]);
        inbox.counters.receives += u64::from(count > 0);
        for &(token, flags) in &ready[..count] {
            if token == LISTENER {
                self.accept();
            } else {
                self.serve(token, flags, inbox);
            }
        }
        inbox.perhaps_more = count > 0;
        !inbox.is_empty()
    }

    fn serve(&mut self, token: Token, flags: EventFlags, inbox: &mut Inbox) {
        // An event that came earlier in the same call may have ended the connection.
        let Some(connection) = self.table.get_mut(token) else {
            return;
        };
        match connection.stage {
            Stage::Connecting { peer } => match sockopt::socket_error(&connection.socket) {
                Ok(Ok(())) if flags.contains(EventFlags::OUT) => {
                    connection.stage = Stage::Greeting { peer };
                    self.write(token);
                }
                Ok(Ok(())) => {}
                Ok(Err(errno)) | Err(errno) => self.lose(token, errno),
            },
            Stage::Greeting { peer } => self.hear_answer(token, peer),
            Stage::Accepted { from } => self.hear_caller(token, from),
            Stage::Unproved { peer, preamble } => self.hear_proof(token, peer, &preamble),
            // It says nothing before it is answered, so this is its end.
            Stage::Superseded { .. } => {
                self.table.remove(token);
            }
            Stage::Open { peer, .. } => self.read(token, peer, inbox),
        }
        if flags.contains(EventFlags::OUT) {
            self.write(token);
        }
    }

    fn read(&mut self, token: Token, peer: SocketAddr, inbox: &mut Inbox) {
        let Some(connection) = self.table.get_mut(token) else {
            return;
        };
        let Some(piece) = inbox.piece() else {
            return;
        };
        let read = connection.read(piece);
        if let Read::Packets(end @ 1..) | Read::Garbage(end @ 1..) = read {
            inbox.fill(Load {
                from: peer,
                to: self.local_address(),
                start: 0,
                end,
                congestion: Congestion::NotTold,
                framing: Framing::Stream,
            });
        }
        match read {
            Read::Nothing | Read::Packets(_) => {}
            Read::Garbage(_) => self.drop_as_garbage(token),
            Read::Closed(errno) => self.lose(token, errno),
        }
    }

    pub(super) fn drop_as_garbage(&mut self, token: Token) {
        self.counters.garbage += 1;
        self.lose(token, Errno::CONNRESET);
    }
}
