//! Changes of a queue pair's state and attributes (`ibv_modify_qp(3)`), and what a queue pair does
//! that nobody has connected.

use super::connection::Connection;
use super::ending::Failure;
use super::envelope::Parameters;
use super::hub::Hub;
use super::queue_pair::{Pair, Phase};
use alloc::boxed::Box;
use legato_base::Duration;
use legato_verbs::{
    AddressVector, AsyncEvent, CompletionQueue, CompletionStatus, ModifyError,
    PacketSequenceNumber, PathMtu, QueuePairAttributes, QueuePairNumber, QueuePairState,
    RetryCount, RnrTimer, VerbsError,
};

/// How long a message waits for a receive by default before its sender is told
/// `ReceiverNotReadyRetryExceeded`: as long as a connection's default attributes say.
pub const RECEIVER_NOT_READY_WAIT: Duration =
    Duration::from_nanos(RNR_RETRY as u64 * RNR_TIMER.duration().as_nanos());
const RNR_RETRY: u8 = 5;
/// 20.48 ms.
const RNR_TIMER: RnrTimer = RnrTimer::new(22);
/// "Without end" (IB spec 9.7.5.2.8).
const RNR_RETRY_INFINITE: u8 = 7;
/// The unit of the timeout attribute (IB spec 9.7.6.1.3).
const TIMEOUT_UNIT_NANOS: u64 = 4_096;

/// The one port leads nowhere: who wants to reach a queue pair connects to a listener.
pub(super) const PORT: AddressVector = AddressVector {
    destination: [0; 16],
};

/// What a connection sets, besides what the queue pair had in Init. The kernel tells of a peer's
/// death, so there is no timeout.
const fn connected(peer: QueuePairNumber) -> QueuePairAttributes {
    QueuePairAttributes {
        address_vector: Some(PORT),
        path_mtu: Some(PathMtu::Bytes4096),
        destination: Some(peer),
        receive_sequence: Some(PacketSequenceNumber::new(0)),
        responder_resources: Some(1),
        rnr_timer: Some(RNR_TIMER),
        timeout: Some(0),
        retry_count: RetryCount::new(0),
        rnr_retry: Some(RNR_RETRY),
        send_sequence: Some(PacketSequenceNumber::new(0)),
        initiator_depth: Some(1),
        ..QueuePairAttributes::NONE
    }
}

impl Pair {
    /// What the ledgers of the completion queues reserve.
    pub(super) fn ledger(&self) -> [(CompletionQueue, u32); 2] {
        let capabilities = &self.init.capabilities;
        [
            (self.init.send_completions, capabilities.send_requests_max),
            (
                self.init.receive_completions,
                capabilities.receive_requests_max,
            ),
        ]
    }

    pub(super) fn modify(
        &mut self,
        hub: &mut Hub,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        use QueuePairState::{
            Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError,
        };
        let from = self.state;
        attributes.check(from, to)?;
        let connecting = matches!(self.phase, Phase::Connecting(_));
        if to == SendQueueError || (to == ReadyToReceive && connecting) {
            // Connection management takes it there.
            return Err(ModifyError::Transition { from, to }.into());
        }
        let mut merged = self.attributes;
        merged.merge(attributes);
        // These two are about this call alone.
        let drained_wanted = merged.drained_event.take().unwrap_or(false);
        merged.current_state = None;
        self.attributes = merged;
        self.overdue = None;
        match to {
            Reset => self.reset(hub),
            Error => self.enter_error(hub, Failure::NONE),
            Init | ReadyToReceive | SendQueueError => self.state = to,
            ReadyToSend => {
                self.state = to;
                self.drained_wanted = false;
            }
            SendQueueDrain => {
                self.state = to;
                self.drained_wanted |= drained_wanted;
            }
        }
        self.tell_parameters();
        self.execute(hub);
        self.settle(hub);
        Ok(())
    }

    pub(super) fn parameters(&self) -> Parameters {
        Parameters {
            access: self.attributes.access_flags.unwrap_or_default(),
            rnr_retry: self.attributes.rnr_retry.unwrap_or(RNR_RETRY),
        }
    }

    fn tell_parameters(&self) {
        let parameters = self.parameters();
        match &self.phase {
            Phase::Unconnected => {}
            Phase::Connecting(connecting) => connecting.set_parameters(parameters),
            Phase::Established(connection) => connection.link.set_parameters(parameters),
        }
    }

    /// The connection exists.
    pub(super) fn establish(&mut self, hub: &Hub, mut connection: Box<Connection>) {
        connection.link.set_sleeping(hub.sleeping);
        for receive in self.receives.own() {
            connection.link.note_receive(receive.length);
        }
        self.attributes.merge(&connected(connection.peer));
        self.state = QueuePairState::ReadyToSend;
        self.phase = Phase::Established(connection);
        self.tell_parameters();
    }

    /// Says when the stopped send queue is at rest.
    pub(super) fn settle(&mut self, hub: &mut Hub) {
        let at_rest = self.state == QueuePairState::SendQueueDrain && self.started == 0;
        if at_rest && core::mem::take(&mut self.drained_wanted) {
            hub.raise(AsyncEvent::SendQueueDrained(self.handle));
        }
    }

    /// How long a message of a peer that tries so often waits for a receive; `None` for ever.
    pub(super) fn receiver_not_ready_wait(&self, rnr_retry: u8) -> Option<Duration> {
        let timer = self.attributes.rnr_timer.unwrap_or(RNR_TIMER).duration();
        let wait = timer.as_nanos() * u64::from(rnr_retry);
        (rnr_retry != RNR_RETRY_INFINITE).then_some(Duration::from_nanos(wait))
    }

    /// How long requests wait for an answer where there is nobody; `None` for ever.
    fn patience(&self) -> Option<Duration> {
        let timeout = self.attributes.timeout.filter(|&timeout| timeout > 0)?;
        let attempts = u64::from(self.attributes.retry_count.map_or(0, RetryCount::get)) + 1;
        Some(Duration::from_nanos(
            (TIMEOUT_UNIT_NANOS << timeout) * attempts,
        ))
    }

    /// Fails requests that were started without a connection. Their time begins at the first turn
    /// that sees them: the clock of the turn before may be long ago.
    pub(super) fn progress_unreachable(&mut self, hub: &mut Hub) {
        if self.started == 0 || !matches!(self.phase, Phase::Unconnected) {
            return;
        }
        let Some(patience) = self.patience() else {
            self.overdue = None;
            return;
        };
        let overdue = *self.overdue.get_or_insert(hub.now + patience);
        if hub.now >= overdue {
            let failure = Failure::of_send(CompletionStatus::RetryExceeded);
            self.enter_error(hub, failure);
        }
    }

    /// Requests have started and no clock runs for them yet.
    pub(super) fn wants_a_clock(&self) -> bool {
        let reaches_nobody = self.started > 0 && matches!(self.phase, Phase::Unconnected);
        reaches_nobody && self.overdue.is_none() && self.patience().is_some()
    }
}
