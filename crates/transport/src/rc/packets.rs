//! Packets and the time: who gets what comes in, and who says something next.

use super::ending::Cause;
use super::phase::{Phase, Sending};
use super::queue_pair::QueuePair;
use crate::congestion::{Flight, RoundTrip};
use crate::wire::{Body, HEADERS_MAX, Packet};
use crate::{Host, PathMtu, QueuePairEvent};
use legato_base::Time;

/// A packet was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes, from the base transport header to before the invariant CRC.
    pub length: usize,
}

impl QueuePair {
    /// Takes a packet that came from the peer for this queue pair.
    pub fn input(&mut self, now: Time, packet: &Packet<'_>, host: &mut impl Host) {
        let request = is_request(&packet.body);
        let done = match &mut self.phase {
            Phase::ReadyToReceive { responder, heard } if request => {
                let first = !core::mem::replace(heard, true);
                if first && self.policy.established_events {
                    host.raise(QueuePairEvent::CommunicationEstablished);
                }
                responder.input(now, packet, host).map_err(Cause::Refused)
            }
            Phase::Connected { responder, .. } if request => {
                responder.input(now, packet, host).map_err(Cause::Refused)
            }
            Phase::Connected {
                requester, sending, ..
            } => {
                sending.wake();
                requester
                    .input(now, packet, &mut self.sends, host)
                    .map_err(Cause::Request)
            }
            _ => Ok(()),
        };
        self.finish(done, host);
    }

    /// Writes the next packet that is to be sent now: answers first, then requests. There is none
    /// if `into` has not room for the headers and a full payload, [`Self::packet_max`] bytes.
    pub fn transmit(
        &mut self,
        now: Time,
        host: &mut impl Host,
        into: &mut [u8],
    ) -> Option<Transmit> {
        if into.len() < self.packet_max() {
            return None;
        }
        let written = match self.write_packet(now, host, into) {
            Ok(length) => length,
            Err(cause) => {
                self.enter_error(cause, host);
                // The peer is told why, if it is to blame.
                self.write_packet(now, host, into).unwrap_or(None)
            }
        };
        self.settle(host);
        written.map(|length| Transmit { length })
    }

    fn write_packet(
        &mut self,
        now: Time,
        host: &mut impl Host,
        into: &mut [u8],
    ) -> Result<Option<usize>, Cause> {
        match &mut self.phase {
            Phase::Reset | Phase::Init => Ok(None),
            Phase::ReadyToReceive { responder, .. } => {
                responder.transmit(now, host, into).map_err(Cause::Refused)
            }
            Phase::Connected {
                responder,
                requester,
                sending,
            } => {
                let answer = responder
                    .transmit(now, host, into)
                    .map_err(Cause::Refused)?;
                if answer.is_some() {
                    return Ok(answer);
                }
                let may_start = *sending == Sending::Running;
                requester
                    .transmit(now, may_start, &mut self.sends, host, into)
                    .map_err(Cause::Request)
            }
            Phase::Error { last_words } => {
                let Some(responder) = last_words else {
                    return Ok(None);
                };
                let written = responder.transmit(now, host, into).or_else(|_refused| {
                    // A READ before the refused request ends so too: that is said instead.
                    responder.transmit(now, host, into)
                });
                if !responder.has_last_words() {
                    *last_words = None;
                }
                Ok(written.unwrap_or(None))
            }
        }
    }

    /// Bytes of the longest packet that it sends.
    pub fn packet_max(&self) -> usize {
        let mtu = self.attributes.path_mtu.unwrap_or(PathMtu::Bytes4096);
        HEADERS_MAX + mtu.bytes() as usize + 3
    }

    /// When [`Self::expire`] or [`Self::transmit`] has something to do though nothing came in.
    pub fn next_deadline(&self) -> Time {
        match &self.phase {
            Phase::Reset | Phase::Init | Phase::Error { .. } => Time::NEVER,
            Phase::ReadyToReceive { responder, .. } => responder.next_deadline(),
            Phase::Connected {
                responder,
                requester,
                ..
            } => responder.next_deadline().min(requester.next_deadline()),
        }
    }

    /// Since when the peer has answered nothing new though a request is under way: what a watchdog
    /// looks at, for a peer may keep a request waiting without end.
    pub const fn waiting_since(&self) -> Option<Time> {
        match &self.phase {
            Phase::Connected { requester, .. } => requester.waiting_since(),
            _ => None,
        }
    }

    /// Packets under way, for whoever shares a path among queue pairs.
    pub fn flight(&self) -> Flight {
        match &self.phase {
            Phase::Connected { requester, .. } => requester.flight(),
            _ => Flight::default(),
        }
    }

    /// Round trips to the peer, as measured with [`super::Recovery::Measured`].
    pub fn round_trip(&self) -> Option<RoundTrip> {
        match &self.phase {
            Phase::Connected { requester, .. } => Some(requester.round_trip()),
            _ => None,
        }
    }

    /// Until when the peer, which had no receive, is left alone, if it is asked without end.
    pub const fn waits_for_receive(&self) -> Option<Time> {
        match &self.phase {
            Phase::Connected { requester, .. } => requester.waits_for_receive(),
            _ => None,
        }
    }

    /// Leaves the peer alone until then, if it had no receive: for a caller who knows that it has
    /// none still.
    pub const fn wait_for_receive(&mut self, until: Time) {
        if let Phase::Connected { requester, .. } = &mut self.phase {
            requester.wait_for_receive(until);
        }
    }

    /// The time has come that [`Self::next_deadline`] said.
    pub fn expire(&mut self, now: Time, host: &mut impl Host) {
        let done = match &mut self.phase {
            Phase::Connected {
                requester, sending, ..
            } => {
                sending.wake();
                requester
                    .expire(now, &self.sends, host)
                    .map_err(Cause::Request)
            }
            _ => Ok(()),
        };
        self.finish(done, host);
    }

    fn finish(&mut self, done: Result<(), Cause>, host: &mut impl Host) {
        if let Err(cause) = done {
            self.enter_error(cause, host);
        }
        self.settle(host);
    }
}

/// Is it for the responder?
const fn is_request(body: &Body) -> bool {
    match body {
        Body::SendFirst
        | Body::SendMiddle
        | Body::SendLast(_)
        | Body::SendOnly(_)
        | Body::WriteFirst(_)
        | Body::WriteMiddle
        | Body::WriteLast(_)
        | Body::WriteOnly(..)
        | Body::ReadRequest(_)
        | Body::CompareSwap(_)
        | Body::FetchAdd(_) => true,
        Body::ReadResponseFirst(_)
        | Body::ReadResponseMiddle
        | Body::ReadResponseLast(_)
        | Body::ReadResponseOnly(_)
        | Body::Acknowledge(_)
        | Body::AtomicAcknowledge(..)
        | Body::Datagram(..)
        | Body::CongestionNotification => false,
    }
}
