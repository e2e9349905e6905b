//! The active side of a handshake.

use super::connection::{Connection, PeerMemory};
use super::ending::Failure;
use super::envelope::Parameters;
use super::hub::{Hub, Source};
use super::queue_pair::{Pair, Phase};
use super::segment::OwnSegment;
use super::socket::{self, Packet, Received};
use super::wire::{Greeting, Message, PrivateData, WireError};
use alloc::boxed::Box;
use legato_base::{Duration, Time, timeouts};
use legato_verbs::{
    ConnectionEvent, Event, PRIVATE_DATA_MAX, QueuePair, RejectReason, UnreachableReason,
    VerbsError,
};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, SocketAddrUnix};

/// How soon to try again at a listener whose backlog is full.
const RETRY_AFTER: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Connecting {
    socket: OwnedFd,
    address: SocketAddrUnix,
    hello: Message,
    segment: OwnedFd,
    own: OwnSegment,
    /// In the poller, once the socket is connected.
    token: Option<u64>,
    /// Counted from the first turn, because a call without the time started it.
    deadline: Option<Time>,
    retry_at: Time,
}

pub(super) fn private_data(bytes: &[u8]) -> Result<PrivateData, VerbsError> {
    PrivateData::new(bytes).ok_or(VerbsError::LimitExceeded {
        what: "private data",
        asked: bytes.len() as u64,
        limit: PRIVATE_DATA_MAX as u64,
    })
}

fn reason(errno: Errno) -> Result<RejectReason, UnreachableReason> {
    match errno {
        Errno::CONNREFUSED => Ok(RejectReason::InvalidServiceId),
        Errno::NOENT | Errno::NOTDIR => Err(UnreachableReason::NoSuchAddress),
        Errno::ACCESS | Errno::PERM => Err(UnreachableReason::PermissionDenied),
        _ => Err(UnreachableReason::Failed),
    }
}

impl Connecting {
    pub(super) fn new(
        queue_pair: QueuePair,
        name: &str,
        (private, parameters): (PrivateData, Parameters),
    ) -> Result<Self, VerbsError> {
        let address = socket::socket_address(name)?;
        let (segment, own) = OwnSegment::create(parameters)?;
        Ok(Self {
            socket: socket::new_socket()?,
            address,
            hello: Message::Hello(Greeting {
                queue_pair: queue_pair.index,
                generation: queue_pair.generation,
                private,
            }),
            segment,
            own,
            token: None,
            deadline: None,
            retry_at: Time::ZERO,
        })
    }

    pub(super) fn set_parameters(&self, parameters: Parameters) {
        self.own.set_parameters(parameters);
    }

    pub(super) fn close(self, hub: &mut Hub) {
        if let Some(token) = self.token {
            hub.poller.remove(&self.socket, token);
        }
    }

    pub(super) fn next_turn(&self) -> Time {
        let deadline = self.deadline.unwrap_or(Time::ZERO);
        match self.token {
            None => deadline.min(self.retry_at),
            Some(_) => deadline,
        }
    }

    /// Connects and introduces itself, unless the backlog is full.
    fn reach(
        &mut self,
        hub: &mut Hub,
        queue_pair: QueuePair,
    ) -> Result<(), Result<RejectReason, UnreachableReason>> {
        match net::connect(&self.socket, &self.address) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) => {
                self.retry_at = hub.now + RETRY_AFTER;
                return Ok(());
            }
            Err(errno) => return Err(reason(errno)),
        }
        if !socket::is_trusted(&self.socket) {
            hub.counters.peers_refused += 1;
            return Err(Err(UnreachableReason::PermissionDenied));
        }
        let attached = [self.segment.as_fd(), hub.regions.key_segment()];
        socket::send(&self.socket, &self.hello.to_bytes(), &attached)
            .map_err(|_| Err(UnreachableReason::Failed))?;
        let token = hub
            .poller
            .add(&self.socket, Source::QueuePair(queue_pair))
            .map_err(|_| Err(UnreachableReason::Failed))?;
        self.token = Some(token);
        Ok(())
    }
}

impl Pair {
    /// Starts connecting, or goes on with it.
    pub(super) fn progress_connecting(&mut self, hub: &mut Hub) {
        let Phase::Connecting(connecting) = &mut self.phase else {
            return;
        };
        let late = connecting
            .deadline
            .is_some_and(|deadline| hub.now >= deadline);
        if late {
            return self.unreachable(hub, UnreachableReason::TimedOut);
        }
        if connecting.token.is_none()
            && let Err(why) = connecting.reach(hub, self.handle)
        {
            match why {
                Ok(reason) => self.rejected(hub, reason, &[]),
                Err(reason) => self.unreachable(hub, reason),
            }
        }
    }

    /// Gives the handshake its deadline. Not when it is started: the clock of the last turn may
    /// be long ago.
    pub(super) fn start_deadline(&mut self, now: Time) {
        if let Phase::Connecting(connecting) = &mut self.phase {
            connecting.deadline.get_or_insert(now + timeouts::CONNECT);
        }
    }

    /// Handles what came on the socket before the connection is established.
    pub(super) fn handle_answer(&mut self, hub: &mut Hub) {
        let Phase::Connecting(connecting) = &self.phase else {
            return;
        };
        let packet = match socket::receive(&connecting.socket) {
            Received::Packet(packet) => packet,
            Received::Nothing => return,
            Received::TooMuch | Received::Closed => {
                return self.unreachable(hub, UnreachableReason::Failed);
            }
        };
        match Message::parse(packet.bytes()) {
            Ok(Message::Accept(greeting)) => self.accepted(hub, &greeting, packet),
            Ok(Message::Reject { reason, private }) => {
                self.rejected(hub, reason, private.as_slice());
            }
            Err(WireError::Version(_)) => {
                self.rejected(hub, RejectReason::IncompatibleVersion, &[]);
            }
            Ok(_) | Err(WireError::Malformed) => {
                hub.counters.peers_malformed += 1;
                self.unreachable(hub, UnreachableReason::Failed);
            }
        }
    }

    fn accepted(&mut self, hub: &mut Hub, greeting: &Greeting, packet: Packet) {
        let Ok(peer) = PeerMemory::from_packet(greeting, packet) else {
            hub.counters.peers_malformed += 1;
            return self.unreachable(hub, UnreachableReason::Failed);
        };
        match core::mem::replace(&mut self.phase, Phase::Unconnected) {
            Phase::Connecting(connecting) => {
                let Connecting {
                    socket, own, token, ..
                } = *connecting;
                // A token exists: the answer came through the poller.
                let token = token.unwrap_or_default();
                let connection = Connection::new(socket, token, own, peer);
                self.establish(hub, Box::new(connection));
                let established = ConnectionEvent::Established {
                    queue_pair: self.handle,
                    private_data: greeting.private.as_slice().to_vec(),
                };
                hub.events.push_back(Event::Connection(established));
            }
            other => self.phase = other,
        }
    }

    fn rejected(&mut self, hub: &mut Hub, reason: RejectReason, private_data: &[u8]) {
        let rejected = ConnectionEvent::Rejected {
            queue_pair: self.handle,
            reason,
            private_data: private_data.to_vec(),
        };
        self.not_connected(hub, rejected);
    }

    fn unreachable(&mut self, hub: &mut Hub, reason: UnreachableReason) {
        let unreachable = ConnectionEvent::Unreachable {
            queue_pair: self.handle,
            reason,
        };
        self.not_connected(hub, unreachable);
    }

    fn not_connected(&mut self, hub: &mut Hub, ending: ConnectionEvent) {
        let failure = Failure {
            ending: Some(ending),
            ..Failure::NONE
        };
        self.enter_error(hub, failure);
    }
}
