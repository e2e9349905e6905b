//! Receiving.

use super::super::inbox::{Congestion, Framing, Inbox, Load, PIECE};
use super::super::name::canonical;
use super::super::system::{
    Envelope, IP_TOS, IPV6_TCLASS, MESSAGES, SOL_IP, SOL_IPV6, SOL_UDP, UDP_GRO, receive_many,
    receive_one,
};
use super::DatagramCarrier;
use core::net::SocketAddr;
use rustix::io::Errno;
use zerocopy::FromBytes;

/// How often a call is repeated that failed for what happened before.
const TRIES: usize = 4;

impl DatagramCarrier {
    /// Receives what there is room for into an inbox that has been read to its end.
    /// Returns whether there may be something in it now.
    pub fn receive(&mut self, inbox: &mut Inbox) -> bool {
        if !inbox.is_empty() {
            return true;
        }
        inbox.restart();
        for _ in 0..TRIES {
            match self.receive_expected(inbox) {
                Ok(count) => {
                    let local = self.local_address();
                    let envelopes = self.envelopes.get(..count).unwrap_or_default();
                    take_in(inbox, envelopes, local);
                    inbox.perhaps_more = self.expect_after(count, inbox.pieces());
                    break;
                }
                Err(Errno::AGAIN) => {
                    self.expected = 1;
                    break;
                }
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.take_errors(0);
                }
            }
        }
        !inbox.is_empty()
    }

    /// Receives as many messages as are expected. The kernel looks for each that it is asked for, so
    /// one that comes alone comes faster if it was asked for alone.
    fn receive_expected(&mut self, inbox: &mut Inbox) -> Result<usize, Errno> {
        let main = self.sockets.descriptor(0);
        let envelopes = self.envelopes.get_mut(..self.expected);
        match envelopes.unwrap_or_default() {
            [envelope] => {
                let piece = inbox.piece().unwrap_or_default();
                receive_one(main, piece, envelope).map(|()| 1)
            }
            envelopes => receive_many(main, inbox.room(), PIECE, envelopes),
        }
    }

    /// Twice as many are expected when all have come that were asked for. Returns whether they have.
    fn expect_after(&mut self, count: usize, pieces: usize) -> bool {
        let asked = self.expected.min(pieces);
        self.expected = match count == asked {
            true => (2 * asked).min(MESSAGES),
            false => 1,
        };
        count == asked
    }
}

/// Makes loads of what was received into the pieces, one after the other.
fn take_in(inbox: &mut Inbox, envelopes: &[Envelope], local: SocketAddr) {
    inbox.counters.receives += 1;
    for (piece, envelope) in envelopes.iter().enumerate() {
        let from = envelope.from.address().map(canonical);
        let (Some(from), false) = (from, envelope.cut || envelope.length == 0) else {
            inbox.counters.malformed += 1;
            continue;
        };
        let mut segment = envelope.length;
        let mut congestion = Congestion::NotTold;
        for control in envelope.controls() {
            match control {
                (SOL_UDP, UDP_GRO, data) => segment = number(data).max(1),
                (SOL_IP, IP_TOS, &[class, ..]) => {
                    congestion = Congestion::from_traffic_class(class);
                }
                (SOL_IPV6, IPV6_TCLASS, data) => {
                    congestion = Congestion::from_traffic_class(number(data) as u8);
                }
                _ => {}
            }
        }
        inbox.counters.joined_messages += u64::from(segment < envelope.length);
        inbox.fill_from(piece, envelope.length, |end| Load {
            from,
            to: local,
            start: 0,
            end,
            congestion,
            framing: Framing::Datagrams(segment),
        });
    }
}

/// The number that an ancillary message carries (`int`), or 0.
fn number(data: &[u8]) -> usize {
    u32::read_from_prefix(data).map_or(0, |(number, _)| number as usize)
}
