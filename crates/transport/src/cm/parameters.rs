//! What a manager is told: once about itself, and for each connection.

use super::message::{
    AdditionalInformation, Bits, CaGuid, Gid, PrivateData, RejectReason, ServiceId, TimeoutCode,
};
use crate::{PacketSequenceNumber, PathMtu, QueuePairNumber};
use legato_base::Duration;

/// Times and limits. The default times are those of `rdma_cm` over RoCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// How long either side is said to take for an answer, in requests.
    pub response_code: TimeoutCode,
    /// After which a message is repeated.
    pub response_timeout: Duration,
    /// How often a message is repeated before its receiver is given up: 15 at most.
    pub retries_max: u8,
    /// What a repeated request is told that its answer may take.
    pub service_code: TimeoutCode,
    /// Most that a peer may say that its answer takes.
    pub service_timeout_max: Duration,
    /// How long the user has to decide about a request.
    pub decision_timeout: Duration,
    /// How long a queue pair is not used again after its connection has ended, because packets may
    /// still be on their way.
    pub time_wait: Duration,
    /// How long a refusal is remembered, so that a repeated request gets the same answer. Longer
    /// than the peers' response timeouts.
    pub refusal_memory: Duration,
    /// Must a request name this port and its sender as they are known here? A network that tells by
    /// itself whom a datagram is from and for need not ask, and may know ports by other names.
    pub checks_gids: bool,
    /// Connections in all states: 65535 at most.
    pub connections_max: u32,
    /// Requests of peers that are not connections yet.
    pub half_open_max: u32,
    pub refusals_max: usize,
    /// Messages that wait to be taken. More are lost, as they may be on the wire.
    pub transmits_max: usize,
    /// With so many events waiting to be taken, requests of peers are refused.
    pub events_max: usize,
}

/// Of `cma.c`: `CMA_CM_RESPONSE_TIMEOUT`.
const RESPONSE_CODE: TimeoutCode = TimeoutCode::new(20);
/// Of `cma.c`: `CMA_CM_MRA_SETTING`.
const SERVICE_CODE: TimeoutCode = TimeoutCode::new(24);
/// The response timeout and two packet lifetimes, as Linux rounds them: codes 20 and 16 become 2^12
/// and 2^8 ms.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis((1 << 12) + 2 * (1 << 8));
/// A packet lifetime there and back: code 16, and one more.
const TIME_WAIT: Duration = TimeoutCode::new(16 + 1).duration();

impl Default for Parameters {
    fn default() -> Self {
        Self {
            response_code: RESPONSE_CODE,
            response_timeout: RESPONSE_TIMEOUT,
            retries_max: 15,
            service_code: SERVICE_CODE,
            service_timeout_max: SERVICE_CODE.duration(),
            decision_timeout: SERVICE_CODE.duration(),
            time_wait: TIME_WAIT,
            refusal_memory: Duration::from_nanos(2 * RESPONSE_TIMEOUT.as_nanos()),
            checks_gids: true,
            connections_max: 4096,
            half_open_max: 128,
            refusals_max: 64,
            transmits_max: 1024,
            events_max: 8192,
        }
    }
}

/// The port that a manager is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPort {
    pub ca_guid: CaGuid,
    pub gid: Gid,
}

/// A connection to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParameters {
    pub peer: Gid,
    pub service: ServiceId,
    pub queue_pair: QueuePairNumber,
    /// With which the peer begins to send.
    pub starting_sequence: PacketSequenceNumber,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: Bits<3>,
    pub rnr_retry_count: Bits<3>,
    pub path_mtu: PathMtu,
    pub ack_timeout: TimeoutCode,
    pub traffic_class: u8,
    pub shared_receive_queue: bool,
    pub private_data: PrivateData<92>,
}

/// What a request is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptParameters {
    pub queue_pair: QueuePairNumber,
    /// With which the peer begins to send.
    pub starting_sequence: PacketSequenceNumber,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub target_ack_delay: TimeoutCode,
    pub rnr_retry_count: Bits<3>,
    pub shared_receive_queue: bool,
    pub private_data: PrivateData<196>,
}

/// What a request is refused with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectParameters {
    pub reason: RejectReason,
    pub information: AdditionalInformation,
    pub private_data: PrivateData<148>,
}

impl RejectParameters {
    pub const fn new(reason: RejectReason) -> Self {
        Self {
            reason,
            information: AdditionalInformation::NONE,
            private_data: PrivateData::EMPTY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_times_are_those_of_rdma_cm() {
        let parameters = Parameters::default();
        assert_eq!(parameters.response_timeout.as_millis(), 4_608);
        assert_eq!(parameters.time_wait.as_millis(), 536);
        // What an unreachable peer takes.
        let total = parameters.response_timeout.as_millis() * 16;
        assert_eq!(total, 73_728);
        assert_eq!(parameters.service_timeout_max.as_millis(), 68_719);
    }
}
