//! The passive side of a handshake: listeners, and peers that wait for accept or reject.

use super::ShmProvider;
use super::completion::unknown;
use super::connect::private_data;
use super::connection::{Connection, PeerMemory};
use super::hub::Source;
use super::queue_pair::Phase;
use super::segment::OwnSegment;
use super::socket::{self, ListeningSocket, Packet, Received};
use super::wire::{Greeting, Message, PrivateData, WireError};
use crate::table::Walk;
use alloc::boxed::Box;
use alloc::vec::Vec;
use legato_base::{Time, timeouts};
use legato_verbs::{
    Address, ConnectionEvent, ConnectionRequest, Event, Listener, QueuePair, QueuePairState,
    RejectReason, VerbsError,
};
use rustix::fd::{AsFd, OwnedFd};

/// Peers that can wait at a time, introduced or not. Further ones are dropped.
pub const WAITING_PEERS_MAX: usize = 1024;
/// Peers let in in a turn; the others keep till the next, in the kernel's backlog (P-98).
const ACCEPTED_PER_TURN: usize = 32;

#[derive(Debug)]
pub(super) struct Listening {
    socket: ListeningSocket,
    token: u64,
}

/// A peer on its way in.
#[derive(Debug)]
pub(super) struct Inbound {
    listener: Listener,
    socket: OwnedFd,
    token: u64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// It has to introduce itself until then.
    Greeting { deadline: Time },
    /// Its owner has to accept or reject it.
    Waiting(PeerMemory),
}

impl Inbound {
    pub(super) fn deadline(&self) -> Time {
        match self.stage {
            Stage::Greeting { deadline } => deadline,
            Stage::Waiting(_) => Time::NEVER,
        }
    }

    fn reject(&self, reason: RejectReason, private: PrivateData) {
        // If it is gone it needs no answer.
        let message = Message::Reject { reason, private };
        let _ = socket::send(&self.socket, &message.to_bytes(), &[]);
    }
}

impl ShmProvider {
    pub(super) fn start_listening(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        let Address::Shm(name) = address else {
            return Err(VerbsError::UnsupportedAddress);
        };
        let socket = ListeningSocket::bind(name)?;
        let placeholder = Source::Listener(Listener {
            index: 0,
            generation: 0,
        });
        let token = self.hub.poller.add(socket.socket(), placeholder)?;
        let listener = self.listeners.insert(Listening { socket, token });
        self.hub.poller.change(token, Source::Listener(listener));
        Ok(listener)
    }

    pub(super) fn stop_listening(&mut self, listener: Listener) -> Result<(), VerbsError> {
        // Those still in the kernel's backlog are told as well, instead of finding an end of file. Not those
        // who come meanwhile: there may be no end of them.
        self.let_in(listener, socket::BACKLOG as usize + 1);
        let closed = self.listeners.remove(listener);
        let closed = closed.ok_or_else(|| unknown(listener))?;
        self.hub.poller.remove(closed.socket.socket(), closed.token);
        let none = private_data(&[])?;
        let mut walk = Walk::default();
        while let Some(request) = walk.next(&self.inbound) {
            let waits = self.inbound.get(request);
            if let Some(waiting) = waits.filter(|waiting| waiting.listener == listener) {
                waiting.reject(RejectReason::ConsumerReject, none);
                self.forget(request);
            }
        }
        Ok(())
    }

    /// Closes a waiting peer's socket and takes back the event about it, if still undelivered.
    fn forget(&mut self, gone: ConnectionRequest) {
        if let Some(inbound) = self.inbound.remove(gone) {
            self.hub.poller.remove(&inbound.socket, inbound.token);
        }
        self.hub.events.retain(|event| {
            !matches!(event, Event::Connection(ConnectionEvent::Requested { request, .. })
                if *request == gone)
        });
    }

    pub(super) fn accept_some(&mut self, listener: Listener) {
        self.let_in(listener, ACCEPTED_PER_TURN);
    }

    fn let_in(&mut self, listener: Listener, most: usize) {
        for _ in 0..most {
            let listening = self.listeners.get(listener);
            let Some(socket) = listening.and_then(|listening| listening.socket.accept()) else {
                return;
            };
            if !socket::is_trusted(&socket) {
                self.hub.counters.peers_refused += 1;
                continue;
            }
            if self.inbound.len() >= WAITING_PEERS_MAX {
                self.hub.counters.peers_too_many += 1;
                continue;
            }
            let placeholder = Source::Listener(listener);
            let Ok(token) = self.hub.poller.add(&socket, placeholder) else {
                self.hub.counters.peers_too_many += 1;
                continue;
            };
            let request = self.inbound.insert(Inbound {
                listener,
                socket,
                token,
                stage: Stage::Greeting {
                    deadline: self.hub.now + timeouts::CONNECT,
                },
            });
            self.hub.poller.change(token, Source::Inbound(request));
            // It has usually spoken already.
            self.handle_inbound(request);
        }
    }

    pub(super) fn handle_inbound(&mut self, request: ConnectionRequest) {
        let Some(inbound) = self.inbound.get_mut(request) else {
            return;
        };
        let packet = match socket::receive(&inbound.socket) {
            Received::Nothing => return,
            Received::Packet(packet) => packet,
            Received::TooMuch => return self.drop_malformed(request),
            Received::Closed => return self.forget(request),
        };
        match Message::parse(packet.bytes()) {
            Ok(Message::Hello(greeting)) => self.introduced(request, &greeting, packet),
            Err(WireError::Version(_)) => {
                // P-34: whatever it speaks, it is told.
                if let Ok(none) = private_data(&[]) {
                    inbound.reject(RejectReason::IncompatibleVersion, none);
                }
                self.forget(request);
            }
            Ok(_) | Err(WireError::Malformed) => self.drop_malformed(request),
        }
    }

    fn introduced(&mut self, request: ConnectionRequest, greeting: &Greeting, packet: Packet) {
        let peer = PeerMemory::from_packet(greeting, packet);
        let inbound = self.inbound.get_mut(request);
        let (Ok(peer), Some(inbound)) = (peer, inbound) else {
            return self.drop_malformed(request);
        };
        if matches!(inbound.stage, Stage::Waiting(_)) {
            return self.drop_malformed(request);
        }
        inbound.stage = Stage::Waiting(peer);
        let requested = ConnectionEvent::Requested {
            listener: inbound.listener,
            request,
            private_data: greeting.private.as_slice().to_vec(),
        };
        self.hub.events.push_back(Event::Connection(requested));
    }

    fn drop_malformed(&mut self, request: ConnectionRequest) {
        self.hub.counters.peers_malformed += 1;
        self.forget(request);
    }

    pub(super) fn accept_peer(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        bytes: &[u8],
    ) -> Result<(), VerbsError> {
        let private = private_data(bytes)?;
        let pair = self.queue_pairs.get_mut(queue_pair);
        let pair = pair.ok_or_else(|| unknown(queue_pair))?;
        if pair.state != QueuePairState::Init || !matches!(pair.phase, Phase::Unconnected) {
            return Err(VerbsError::InvalidState(pair.state));
        }
        let inbound = self.inbound.get(request);
        let inbound = inbound.ok_or_else(|| unknown(request))?;
        if matches!(inbound.stage, Stage::Greeting { .. }) {
            return Err(unknown(request));
        }
        let (segment, own) = OwnSegment::create(pair.parameters())?;
        let accept = Message::Accept(Greeting {
            queue_pair: queue_pair.index,
            generation: queue_pair.generation,
            private,
        });
        let attached = [segment.as_fd(), self.hub.regions.key_segment()];
        if socket::send(&inbound.socket, &accept.to_bytes(), &attached).is_err() {
            self.forget(request);
            return Err(unknown(request));
        }
        let Some(Inbound {
            socket,
            token,
            stage: Stage::Waiting(peer),
            ..
        }) = self.inbound.remove(request)
        else {
            return Err(unknown(request));
        };
        self.hub.poller.change(token, Source::QueuePair(queue_pair));
        let connection = Connection::new(socket, token, own, peer);
        pair.establish(&self.hub, Box::new(connection));
        pair.ending_owed = true;
        let established = ConnectionEvent::Established {
            queue_pair,
            private_data: Vec::new(),
        };
        self.hub.events.push_back(Event::Connection(established));
        Ok(())
    }

    pub(super) fn reject_peer(
        &mut self,
        request: ConnectionRequest,
        bytes: &[u8],
    ) -> Result<(), VerbsError> {
        let private = private_data(bytes)?;
        let inbound = self.inbound.get(request);
        let inbound = inbound.ok_or_else(|| unknown(request))?;
        inbound.reject(RejectReason::ConsumerReject, private);
        self.forget(request);
        Ok(())
    }

    /// Drops strangers who did not introduce themselves in time (P-34).
    pub(super) fn drop_late(&mut self) {
        let mut walk = Walk::default();
        while let Some(request) = walk.next(&self.inbound) {
            let late = self.inbound.get(request).map(Inbound::deadline);
            if late.is_some_and(|deadline| self.hub.now >= deadline) {
                self.forget(request);
            }
        }
    }
}
