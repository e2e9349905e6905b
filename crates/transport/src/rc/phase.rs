//! What a queue pair has in each of its states.

use super::requester::Requester;
use super::responder::Responder;
use crate::wire::BaseHeader;
use crate::{PacketSequenceNumber, PathMtu, QueuePairNumber};
use alloc::boxed::Box;
use legato_verbs::{ModifyError, QueuePairAttributes};

/// Where the peer is, and how long packets to it are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) destination: QueuePairNumber,
    pub(super) mtu: PathMtu,
}

#[derive(Debug)]
pub(super) enum Phase {
    Reset,
    Init,
    ReadyToReceive {
        responder: Box<Responder>,
        /// A packet came, and the event was raised.
        heard: bool,
    },
    Connected {
        responder: Box<Responder>,
        requester: Box<Requester>,
        sending: Sending,
    },
    Error {
        /// It has yet to tell the peer why.
        last_words: Option<Box<Responder>>,
    },
}

/// Do requests start?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    Running,
    /// They may, and will when something else is to be done.
    Dozing,
    /// No; and if an event is wanted, it is raised when those that had started are complete.
    Stopped {
        event: bool,
    },
}

impl Sending {
    pub(super) const fn wake(&mut self) {
        if let Self::Dozing = self {
            *self = Self::Running;
        }
    }
}

impl Path {
    pub(super) fn of(attributes: &QueuePairAttributes) -> Result<Self, ModifyError> {
        Ok(Self {
            destination: attributes
                .destination
                .ok_or(ModifyError::Missing("destination"))?,
            mtu: attributes
                .path_mtu
                .ok_or(ModifyError::Missing("path_mtu"))?,
        })
    }
}

/// The header of a packet to the peer, without flags.
pub(super) const fn header(path: Path, sequence: PacketSequenceNumber) -> BaseHeader {
    BaseHeader {
        destination: path.destination,
        sequence,
        acknowledge: false,
        solicited: false,
        forward_congestion: false,
        backward_congestion: false,
    }
}
