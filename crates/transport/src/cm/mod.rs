//! Connection management (IB spec volume 1, chapter 12): the messages by which two NICs agree to
//! connect a pair of queue pairs, and to part.
//!
//! [`Message`] is a management datagram as a value; [`ConnectionManager`] owns all connections of
//! a port. It speaks what Linux' `rdma_cm` speaks over RoCE: REQ, MRA, REJ, REP, RTU, DREQ, DREP.
//! There are no alternate paths (LAP, APR), and no service resolution (SIDR).

mod connection;
mod datagram;
mod event;
mod ip;
mod manager;
mod message;
mod parameters;
mod refusals;
mod table;

pub use connection::{ConnectionId, ConnectionState};
pub use datagram::{
    DATAGRAM_BUFFER, DatagramError, GENERAL_SERVICE_QUEUE_KEY, encode_datagram, open_datagram,
};
pub use event::{Counters, DisconnectCause, Event, ManagerCounts, ManagerError, Transmit};
pub use ip::{IP_HEADER_LENGTH, IpAddresses, IpHeader, IpHeaderError, IpPrivateData};
pub use manager::ConnectionManager;
pub use message::{
    AcknowledgedMessage, AdditionalInformation, Bits, CaGuid, CommunicationId, ConnectReject,
    ConnectReply, ConnectRequest, DisconnectReply, DisconnectRequest, Gid, MAD_LENGTH, Mad,
    Message, MessageBody, MessageError, MessageReceiptAcknowledgment, Path, PrivateData,
    PrivateDataTooLong, ReadyToUse, RejectReason, RejectedMessage, ServiceId, TimeoutCode,
    TransactionId, UnsupportedRequest,
};
pub use parameters::{
    AcceptParameters, ConnectParameters, LocalPort, Parameters, RejectParameters,
};
