//! The calling side: what its owner can ask of a session, and how calls end.

use super::backoff::Backoff;
use super::call::{Call, CallKind, Place, SessionCallId};
use super::error::{SessionCause, SessionError, connect_blame};
use super::link::{Ended, Link};
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::{Blame, CallId, ConnectionId, Effect, Refused, Turn};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use legato_base::wire::session::SessionClient;
use legato_base::{Duration, Time};
use legato_verbs::{Address, Provider};

/// Limits of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    /// Calls without an outcome, sent or not.
    pub calls_max: usize,
    /// How long one attempt to connect may take.
    pub connect_max: Duration,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            calls_max: 64,
            connect_max: Duration::from_secs(2),
        }
    }
}

/// Counts since the session was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SessionCounters {
    /// `calls_started = calls_replied + calls_failed` when all have ended.
    pub calls_started: u64,
    pub calls_replied: u64,
    /// However they failed: expired and canceled ones as well.
    pub calls_failed: u64,
    /// Sent again, because the answer had not come when the connection ended.
    pub calls_resent: u64,
    /// Ends, at the fabric, of calls that had an outcome already: dropped.
    pub answers_late: u64,
    pub connects_started: u64,
    pub connects_failed: u64,
    pub connections: u64,
    /// Peers that sent what is no reply of a session.
    pub peers_malformed: u64,
}

/// What [`Session::poll_event`] returns.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The peer is reached, for the first time or again. What belongs to an earlier connection
    /// does not belong to this one.
    Connected { connection: ConnectionId },
    /// The peer is not reached any more. The session is connecting again.
    Disconnected { connection: ConnectionId },
    /// The one outcome of a call, at the latest in the turn in which its deadline has passed.
    Ended {
        call: SessionCallId,
        outcome: Result<Vec<u8>, SessionError>,
    },
}

/// Calls to one peer.
#[derive(Debug)]
pub struct Session {
    pub(super) address: Address,
    pub(super) client: SessionClient,
    pub(super) config: SessionConfig,
    pub(super) backoff: Backoff,
    pub(super) link: Link,
    /// How the last connection, or attempt, ended.
    pub(super) ended: Option<Ended>,
    pub(super) now: Time,
    pub(super) next_number: u64,
    /// Given out when a call is first sent.
    pub(super) next_sequence: u64,
    /// By number. Each is in one of the three places below.
    pub(super) calls: BTreeMap<u64, Call>,
    pub(super) queued: BTreeSet<u64>,
    /// By sequence: they go first.
    pub(super) again: BTreeMap<u64, u64>,
    /// Until the fabric says how they ended, also after the caller knows.
    pub(super) posted: BTreeMap<CallId, u64>,
    /// Posted calls that were canceled, and of which the fabric does not know it.
    withdrawn: Vec<CallId>,
    /// Sequence numbers of calls without an outcome.
    pub(super) open: BTreeSet<u64>,
    deadlines: BTreeSet<(Time, u64)>,
    pub(super) events: VecDeque<SessionEvent>,
    pub(super) counters: SessionCounters,
    /// The last turn found the provider unwilling, or too much in quarantine.
    pub(super) is_refused: bool,
}

/// How soon a call that was refused for the moment is tried again.
const RETRY: Duration = Duration::from_millis(1);

impl Session {
    /// A session that connects in its first turn. `number` tells it from the fabric's others, also
    /// from those that were closed; the seed decides its waits. None if the fabric has no
    /// incarnation: then nobody could tell this life's calls from an earlier one's (P-68).
    pub fn new<B: Buffer>(
        fabric: &Fabric<B>,
        number: u32,
        address: Address,
        config: SessionConfig,
        seed: u64,
    ) -> Option<Self> {
        let incarnation = fabric.config().incarnation;
        (incarnation != 0).then(|| Self {
            address,
            client: SessionClient {
                incarnation,
                session: number,
            },
            config,
            backoff: Backoff::from_seed(seed),
            link: Link::Away { due: Time::ZERO },
            ended: None,
            now: Time::ZERO,
            next_number: 0,
            next_sequence: 1,
            calls: BTreeMap::new(),
            queued: BTreeSet::new(),
            again: BTreeMap::new(),
            posted: BTreeMap::new(),
            withdrawn: Vec::new(),
            open: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            events: VecDeque::new(),
            counters: SessionCounters::default(),
            is_refused: false,
        })
    }

    pub const fn counters(&self) -> &SessionCounters {
        &self.counters
    }

    /// The connection, while there is one. Reads and writes may use it.
    pub const fn connection(&self) -> Option<ConnectionId> {
        match self.link {
            Link::Up { connection, .. } => Some(connection),
            _ => None,
        }
    }

    /// Calls without an outcome.
    pub fn calls_open(&self) -> usize {
        self.calls.len()
    }

    /// The oldest event not yet taken.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Asks the peer. [`SessionEvent::Ended`] follows, at the latest in the turn in which the
    /// deadline has passed. For a call on behalf of a request the deadline is no later than that
    /// of the request. The call is sent in the next turn.
    ///
    /// # Errors
    /// [`Refused`], with the body: no place, no time or no session any more.
    pub fn call(
        &mut self,
        body: Vec<u8>,
        kind: CallKind,
        deadline: Time,
    ) -> Result<SessionCallId, (Refused, Vec<u8>)> {
        let refused = if matches!(self.link, Link::Closed { .. }) {
            Refused::NotConnected
        } else if deadline <= self.now {
            Refused::DeadlinePassed
        } else if self.calls.len() >= self.config.calls_max {
            Refused::WouldBlock
        } else {
            let number = self.next_number;
            self.next_number += 1;
            self.queued.insert(number);
            self.deadlines.insert((deadline, number));
            let call = Call {
                body,
                kind,
                deadline,
                place: Place::Queued,
            };
            self.calls.insert(number, call);
            self.counters.calls_started += 1;
            return Ok(self.id(number));
        };
        Err((refused, body))
    }

    /// Gives a call up: its outcome follows at once. Not executed if it was never sent, and then
    /// it never is; otherwise perhaps executed. False if it had its outcome already.
    pub fn cancel(&mut self, call: SessionCallId) -> bool {
        if call.session != self.client.session {
            return false;
        }
        let Some(place) = self.calls.get(&call.number).map(|call| call.place) else {
            return false;
        };
        if matches!(place, Place::Posted { .. }) {
            let mut posted = self.posted.iter();
            let posted = posted.find(|&(_, &number)| number == call.number);
            self.withdrawn.extend(posted.map(|(&posted, _)| posted));
        }
        let error = SessionError::new(Blame::Local, effect(place), SessionCause::Canceled);
        self.end(call.number, Err(error));
        true
    }

    /// Ends all calls and the connection. The events are still to be taken, and the fabric's still
    /// to be given to [`Self::handle_event`].
    pub fn close<B: Buffer>(&mut self, fabric: &mut Fabric<B>, provider: &mut dyn Provider) {
        let connection = self.link.connection();
        self.link = Link::Closed { connection };
        if let Some(connection) = connection {
            fabric.close(provider, connection);
        }
        while let Some((&number, call)) = self.calls.first_key_value() {
            let effect = effect(call.place);
            let error = SessionError::new(Blame::Local, effect, SessionCause::Closed);
            self.end(number, Err(error));
        }
    }

    /// Ends what is overdue, connects if it is time to, and sends what can be sent. Comes after the
    /// fabric's turn and its events, with the same time.
    pub fn turn<B: Buffer>(
        &mut self,
        fabric: &mut Fabric<B>,
        provider: &mut dyn Provider,
        now: Time,
    ) -> Turn {
        self.now = now;
        let mut progressed = self.expire();
        // Its credit is missed from now on, and not only from its deadline (P-71).
        for call in self.withdrawn.drain(..) {
            progressed |= fabric.cancel_call(call);
        }
        progressed |= self.connect_when_due(fabric, provider);
        progressed |= self.post(fabric, provider);
        let mut deadline = self.deadlines.first().map_or(Time::NEVER, |&(at, _)| at);
        if let Link::Away { due } = self.link {
            deadline = deadline.min(due);
        }
        if self.is_refused {
            deadline = deadline.min(now + RETRY);
        }
        Turn {
            deadline,
            progressed,
        }
    }

    /// P-66: in the turn in which the deadline has passed, whatever the fabric says later.
    fn expire(&mut self) -> bool {
        let mut progressed = false;
        while let Some(&(deadline, number)) = self.deadlines.first()
            && deadline <= self.now
        {
            progressed = true;
            let place = self.calls.get(&number).map(|call| call.place);
            let place = place.unwrap_or(Place::Queued);
            let (blame, cause) = self.blame_for_lateness(place);
            let error = SessionError::new(blame, effect(place), cause);
            self.end(number, Err(error));
            self.deadlines.remove(&(deadline, number));
        }
        progressed
    }

    /// Whose fault it is that a call in this place has had no answer.
    const fn blame_for_lateness(&self, place: Place) -> (Blame, SessionCause) {
        if matches!(self.link, Link::Up { .. }) || matches!(place, Place::Posted { .. }) {
            return (Blame::Unknown, SessionCause::DeadlineExpired);
        }
        match self.ended {
            Some(Ended::Attempt(error)) => {
                (connect_blame(error), SessionCause::NotConnected(error))
            }
            Some(Ended::Connection(cause)) => (cause.blame(), SessionCause::Disconnected(cause)),
            None => (Blame::Unknown, SessionCause::DeadlineExpired),
        }
    }

    /// The one end of a call (P-66).
    pub(super) fn end(&mut self, number: u64, outcome: Result<Vec<u8>, SessionError>) {
        let Some(call) = self.calls.remove(&number) else {
            return;
        };
        self.deadlines.remove(&(call.deadline, number));
        self.queued.remove(&number);
        if let Some(sequence) = call.place.sequence() {
            self.again.remove(&sequence);
            self.open.remove(&sequence);
        }
        match outcome {
            Ok(_) => self.counters.calls_replied += 1,
            Err(_) => self.counters.calls_failed += 1,
        }
        let call = self.id(number);
        self.events.push_back(SessionEvent::Ended { call, outcome });
    }

    const fn id(&self, number: u64) -> SessionCallId {
        SessionCallId {
            session: self.client.session,
            number,
        }
    }
}

/// What a call that is given up now may have done.
pub(super) const fn effect(place: Place) -> Effect {
    if place.is_perhaps_executed() {
        Effect::Unknown
    } else {
        Effect::NotExecuted
    }
}
