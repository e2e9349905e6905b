//! A packet that a peer says.

use legato_transport::wire::{BaseHeader, Body, Packet};
use legato_transport::{PacketSequenceNumber, QueuePairNumber};

#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) base: BaseHeader,
    pub(super) body: Body,
    pub(super) payload: Vec<u8>,
}

impl Said {
    pub(super) fn new(sequence: PacketSequenceNumber, body: Body, payload: Vec<u8>) -> Self {
        Self {
            base: BaseHeader {
                destination: QueuePairNumber::new(1),
                sequence,
                acknowledge: false,
                solicited: false,
                forward_congestion: false,
                backward_congestion: false,
            },
            body,
            payload,
        }
    }

    pub(super) fn packet(&self) -> Packet<'_> {
        Packet {
            base: self.base,
            body: self.body,
            payload: &self.payload,
        }
    }
}

/// Is it for the responder?
pub(super) const fn is_request(body: &Body) -> bool {
    matches!(
        body,
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
            | Body::FetchAdd(_)
    )
}

pub(super) const fn is_read_response(body: &Body) -> bool {
    matches!(
        body,
        Body::ReadResponseFirst(_)
            | Body::ReadResponseMiddle
            | Body::ReadResponseLast(_)
            | Body::ReadResponseOnly(_)
    )
}
