//! What a packet is for: each opcode with the headers that it has, and no others.

use super::header::{AtomicHeader, DatagramHeader, RemoteHeader};
use super::opcode::Opcode;
use super::syndrome::Acknowledgement;
use legato_verbs::RemoteKey;

/// What comes after the base transport header, except for the payload (IB spec 9.2, 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    SendFirst,
    SendMiddle,
    SendLast(Extra),
    SendOnly(Extra),
    WriteFirst(RemoteHeader),
    WriteMiddle,
    /// The number is immediate data.
    WriteLast(Option<u32>),
    WriteOnly(RemoteHeader, Option<u32>),
    ReadRequest(RemoteHeader),
    ReadResponseFirst(Acknowledgement),
    ReadResponseMiddle,
    ReadResponseLast(Acknowledgement),
    ReadResponseOnly(Acknowledgement),
    Acknowledge(Acknowledgement),
    /// The value that was there before.
    AtomicAcknowledge(Acknowledgement, u64),
    CompareSwap(AtomicHeader),
    FetchAdd(AtomicHeader),
    /// A message of an unreliable datagram queue pair; the number is immediate data.
    Datagram(DatagramHeader, Option<u32>),
    /// The peer's packets met congestion (RoCEv2, annex A17.9.3).
    CongestionNotification,
}

/// What comes with the last packet of a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    Nothing,
    Immediate(u32),
    /// A key of the receiver that ends before the receive completes.
    Invalidate(RemoteKey),
}

impl Body {
    pub const fn opcode(&self) -> Opcode {
        match self {
            Self::SendFirst => Opcode::SendFirst,
            Self::SendMiddle => Opcode::SendMiddle,
            Self::SendLast(Extra::Nothing) => Opcode::SendLast,
            Self::SendLast(Extra::Immediate(_)) => Opcode::SendLastImmediate,
            Self::SendLast(Extra::Invalidate(_)) => Opcode::SendLastInvalidate,
            Self::SendOnly(Extra::Nothing) => Opcode::SendOnly,
            Self::SendOnly(Extra::Immediate(_)) => Opcode::SendOnlyImmediate,
            Self::SendOnly(Extra::Invalidate(_)) => Opcode::SendOnlyInvalidate,
            Self::WriteFirst(_) => Opcode::WriteFirst,
            Self::WriteMiddle => Opcode::WriteMiddle,
            Self::WriteLast(None) => Opcode::WriteLast,
            Self::WriteLast(Some(_)) => Opcode::WriteLastImmediate,
            Self::WriteOnly(_, None) => Opcode::WriteOnly,
            Self::WriteOnly(_, Some(_)) => Opcode::WriteOnlyImmediate,
            Self::ReadRequest(_) => Opcode::ReadRequest,
            Self::ReadResponseFirst(_) => Opcode::ReadResponseFirst,
            Self::ReadResponseMiddle => Opcode::ReadResponseMiddle,
            Self::ReadResponseLast(_) => Opcode::ReadResponseLast,
            Self::ReadResponseOnly(_) => Opcode::ReadResponseOnly,
            Self::Acknowledge(_) => Opcode::Acknowledge,
            Self::AtomicAcknowledge(..) => Opcode::AtomicAcknowledge,
            Self::CompareSwap(_) => Opcode::CompareSwap,
            Self::FetchAdd(_) => Opcode::FetchAdd,
            Self::Datagram(_, None) => Opcode::DatagramOnly,
            Self::Datagram(_, Some(_)) => Opcode::DatagramOnlyImmediate,
            Self::CongestionNotification => Opcode::CongestionNotification,
        }
    }
}
