//! The connection of a session, the calls that go over it, and what comes back.

use super::call::{Call, CallKind, Place, Sight};
use super::client::{Session, SessionEvent, effect};
use super::error::{SessionCause, SessionError};
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::{
    Blame, CallId, Cause, ConnectError, ConnectionId, Effect, FabricEvent, OperationError, Refused,
    ResetCause,
};
use alloc::vec::Vec;
use legato_base::Time;
use legato_base::wire::session::{SessionReplyHeader, SessionRequestHeader, SessionStatus};
use legato_verbs::Provider;

/// What a session has to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Nothing; the next attempt is due then.
    Away {
        due: Time,
    },
    Connecting {
        connection: ConnectionId,
    },
    Up {
        connection: ConnectionId,
        /// The peer's incarnation.
        peer: u64,
        /// The first call that was never sent over an earlier connection.
        opened: u64,
    },
    /// It had ended before this side could use it.
    Ending {
        connection: ConnectionId,
    },
    /// The owner has closed the session.
    Closed {
        connection: Option<ConnectionId>,
    },
}

/// How a connection, or an attempt, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Attempt(ConnectError),
    Connection(ResetCause),
}

impl Link {
    pub(super) const fn connection(self) -> Option<ConnectionId> {
        match self {
            Self::Away { .. } => None,
            Self::Connecting { connection }
            | Self::Up { connection, .. }
            | Self::Ending { connection } => Some(connection),
            Self::Closed { connection } => connection,
        }
    }
}

impl Session {
    /// Takes an event of the fabric, and returns it if it is not about this session.
    pub fn handle_event<B: Buffer>(
        &mut self,
        fabric: &mut Fabric<B>,
        provider: &mut dyn Provider,
        event: FabricEvent<B>,
    ) -> Option<FabricEvent<B>> {
        match event {
            FabricEvent::Connected { connection, .. } if self.is_of(connection) => {
                self.handle_connected(fabric, connection);
            }
            FabricEvent::ConnectFailed { connection, error } if self.is_of(connection) => {
                self.counters.connects_failed += 1;
                self.handle_end(fabric, Ended::Attempt(error));
            }
            FabricEvent::Disconnected { connection } if self.is_of(connection) => {
                let cause = fabric.reset_cause(connection);
                let cause = cause.unwrap_or(ResetCause::PeerDisconnected);
                if matches!(self.link, Link::Up { .. }) {
                    self.events
                        .push_back(SessionEvent::Disconnected { connection });
                }
                self.handle_end(fabric, Ended::Connection(cause));
            }
            FabricEvent::Replied { call, outcome } => match self.posted.remove(&call) {
                Some(number) => self.handle_replied(fabric, provider, number, outcome),
                None => return Some(FabricEvent::Replied { call, outcome }),
            },
            other => return Some(other),
        }
        None
    }

    fn is_of(&self, connection: ConnectionId) -> bool {
        self.link.connection() == Some(connection)
    }

    fn handle_connected<B: Buffer>(&mut self, fabric: &Fabric<B>, connection: ConnectionId) {
        if !matches!(self.link, Link::Connecting { .. }) {
            return;
        }
        self.counters.connections += 1;
        self.link = match fabric.peer_incarnation(connection) {
            Some(peer) => {
                self.events
                    .push_back(SessionEvent::Connected { connection });
                let opened = self.next_sequence;
                Link::Up {
                    connection,
                    peer,
                    opened,
                }
            }
            None => Link::Ending { connection },
        };
    }

    /// The connection or the attempt is over. What was sent over it has been said before.
    fn handle_end<B: Buffer>(&mut self, fabric: &Fabric<B>, ended: Ended) {
        self.ended = Some(ended);
        self.link = match self.link {
            Link::Closed { .. } => Link::Closed { connection: None },
            _ => Link::Away {
                due: fabric.now() + self.backoff.next(),
            },
        };
    }

    pub(super) fn connect_when_due<B: Buffer>(
        &mut self,
        fabric: &mut Fabric<B>,
        provider: &mut dyn Provider,
    ) -> bool {
        let Link::Away { due } = self.link else {
            return false;
        };
        if self.now < due {
            return false;
        }
        self.counters.connects_started += 1;
        let deadline = self.now + self.config.connect_max;
        match fabric.connect(provider, &self.address, &[], deadline) {
            Ok(connection) => self.link = Link::Connecting { connection },
            Err(error) => {
                self.counters.connects_failed += 1;
                self.handle_end(fabric, Ended::Attempt(error));
            }
        }
        true
    }

    /// Sends what waits: first what was sent before, in its old order, then the rest.
    pub(super) fn post<B: Buffer>(
        &mut self,
        fabric: &mut Fabric<B>,
        provider: &mut dyn Provider,
    ) -> bool {
        self.is_refused = false;
        let Link::Up {
            connection,
            peer,
            opened,
        } = self.link
        else {
            return false;
        };
        let mut progressed = false;
        loop {
            let again = self.again.first_key_value().map(|(_, &number)| number);
            let Some(number) = again.or(self.queued.first().copied()) else {
                break;
            };
            let Some(call) = self.calls.get(&number) else {
                break;
            };
            let (sequence, earlier) = match call.place {
                Place::Again { sequence, earlier } | Place::Posted { sequence, earlier } => {
                    (sequence, earlier)
                }
                Place::Queued => (self.next_sequence, Sight::Nobody),
            };
            // P-63: an earlier life of the peer may have executed it.
            if !earlier.allows(call.kind, peer) {
                let cause = SessionCause::PeerRestarted;
                let error = SessionError::new(Blame::Peer, Effect::Unknown, cause);
                self.end(number, Err(error));
                progressed = true;
                continue;
            }
            let message = self.message(call, sequence, opened);
            let deadline = call.deadline;
            match fabric.call(provider, connection, &message, deadline) {
                Ok(posted) => self.note_posted(number, sequence, earlier, posted),
                Err(refused) if self.keeps(number, refused) => break,
                Err(_) => {}
            }
            progressed = true;
        }
        progressed
    }

    fn message(&self, call: &Call, sequence: u64, opened: u64) -> Vec<u8> {
        let header = SessionRequestHeader {
            client: self.client,
            is_idempotent: call.kind == CallKind::Idempotent,
            sequence,
            oldest: self.open.first().copied().unwrap_or(sequence).min(sequence),
            opened,
        };
        [&header.to_bytes()[..], &call.body].concat()
    }

    fn note_posted(&mut self, number: u64, sequence: u64, earlier: Sight, posted: CallId) {
        let Some(call) = self.calls.get_mut(&number) else {
            return;
        };
        if call.place == Place::Queued {
            self.queued.remove(&number);
            self.open.insert(sequence);
            self.next_sequence += 1;
        } else {
            self.again.remove(&sequence);
            self.counters.calls_resent += 1;
        }
        call.place = Place::Posted { sequence, earlier };
        self.posted.insert(posted, number);
    }

    /// A call was not sent. True if it waits on; otherwise it has ended.
    fn keeps(&mut self, number: u64, refused: Refused) -> bool {
        match refused {
            // A reply, or the end of the connection, is what it waits for.
            Refused::WouldBlock | Refused::NotConnected => return true,
            Refused::Provider(_) | Refused::QuarantineFull => {
                self.is_refused = true;
                return true;
            }
            _ => {}
        }
        let place = self.calls.get(&number).map(|call| call.place);
        let effect = place.map_or(Effect::NotExecuted, effect);
        let cause = SessionCause::Refused(refused);
        let error = SessionError::new(Blame::Local, effect, cause);
        self.end(number, Err(error));
        false
    }

    fn handle_replied<B: Buffer>(
        &mut self,
        fabric: &mut Fabric<B>,
        provider: &mut dyn Provider,
        number: u64,
        outcome: Result<Vec<u8>, OperationError>,
    ) {
        let place = self.calls.get(&number).map(|call| call.place);
        let Some(Place::Posted { sequence, earlier }) = place else {
            self.counters.answers_late += 1;
            return;
        };
        match outcome {
            Ok(body) => match answer(&body, sequence, earlier) {
                Ok(body) => {
                    self.backoff.reset();
                    self.end(number, Ok(body));
                }
                Err(error) => {
                    self.end(number, Err(error));
                    let cause = error.cause;
                    if matches!(cause, SessionCause::Malformed(_) | SessionCause::WrongReply) {
                        self.counters.peers_malformed += 1;
                        if let Link::Up { connection, .. } = self.link {
                            fabric.close(provider, connection);
                        }
                    }
                }
            },
            Err(error) => self.handle_failed(number, sequence, earlier, error),
        }
    }

    fn handle_failed(&mut self, number: u64, sequence: u64, earlier: Sight, error: OperationError) {
        let seen = match (error.effect, self.link) {
            (Effect::NotExecuted, _) => earlier,
            (_, Link::Up { peer, .. }) => Sight::Peer(peer),
            _ => Sight::Peer(0),
        };
        let place = Place::Again {
            sequence,
            earlier: seen,
        };
        let is_final = error.cause == Cause::DeadlineExpired || error.effect == Effect::Executed;
        if is_final {
            let effect = match error.effect {
                Effect::Executed => Effect::Executed,
                _ => effect(place),
            };
            let cause = match error.cause {
                Cause::DeadlineExpired => SessionCause::DeadlineExpired,
                _ => SessionCause::Operation(error),
            };
            let error = SessionError::new(error.blame, effect, cause);
            self.end(number, Err(error));
        } else if let Some(call) = self.calls.get_mut(&number) {
            call.place = place;
            self.again.insert(sequence, number);
        }
    }
}

/// What the peer says about the call of this sequence.
fn answer(bytes: &[u8], sequence: u64, earlier: Sight) -> Result<Vec<u8>, SessionError> {
    let wrong = |cause| SessionError::new(Blame::Peer, Effect::Unknown, cause);
    let (header, body) =
        SessionReplyHeader::parse(bytes).map_err(|error| wrong(SessionCause::Malformed(error)))?;
    // This copy was not executed; one that was sent before may be.
    let effect = match earlier {
        Sight::Nobody => Effect::NotExecuted,
        Sight::Peer(_) => Effect::Unknown,
    };
    let refused = |cause| Err(SessionError::new(Blame::Peer, effect, cause));
    match header.status {
        SessionStatus::Malformed | SessionStatus::Version => refused(SessionCause::NotUnderstood),
        _ if header.sequence != sequence => Err(wrong(SessionCause::WrongReply)),
        SessionStatus::Done => Ok(body.to_vec()),
        SessionStatus::Busy => refused(SessionCause::PeerBusy),
        SessionStatus::Forgotten => Err(SessionError::new(
            Blame::Unknown,
            Effect::Unknown,
            SessionCause::Forgotten,
        )),
    }
}
