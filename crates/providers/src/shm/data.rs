//! Traffic of an established queue pair.

use super::connection::{Connection, Step};
use super::ending::Failure;
use super::envelope::{Envelope, Kind};
use super::hub::Hub;
use super::queue_pair::{Pair, Phase};
use super::ring::{LinkState, Malformed};
use legato_base::Time;
use legato_verbs::{AccessFlags, AsyncEvent, CompletionKind, CompletionStatus, QueuePairState};

impl Pair {
    pub(super) fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.phase {
            Phase::Established(connection) => Some(connection),
            Phase::Unconnected | Phase::Connecting(_) => None,
        }
    }

    /// Executes posted send requests in order, as far as that is possible now. A SEND may follow
    /// a SEND into the ring; a one-sided request waits until everything before it is over, so
    /// that it has not happened if something before it fails. So every request is fenced.
    pub(super) fn execute(&mut self, hub: &mut Hub) {
        if self.state != QueuePairState::ReadyToSend {
            return;
        }
        if matches!(self.phase, Phase::Unconnected) {
            // Nobody has connected it: all are under way to nowhere.
            self.started = self.sends.len();
            return;
        }
        let mut sent = false;
        loop {
            match self.execute_next(hub) {
                Step::Started => sent = true,
                Step::Sent => {
                    sent = true;
                    self.finish_first_send(hub);
                }
                Step::Done => self.finish_first_send(hub),
                Step::Wait => break,
                Step::Malformed => return self.malformed(hub),
                Step::Fault(status) => {
                    return self.enter_error(hub, Failure::as_initiator(status));
                }
            }
        }
        if sent && let Some(connection) = self.connection() {
            connection.wake(hub);
        }
        self.tell(hub);
    }

    fn execute_next(&mut self, hub: &Hub) -> Step {
        let Phase::Established(connection) = &mut self.phase else {
            return Step::Wait;
        };
        let Some(next) = self.sends.get(self.started) else {
            return Step::Wait;
        };
        let envelope = next.envelope();
        if let Some(one_sided) = next.one_sided() {
            if self.started > 0 {
                return Step::Wait;
            }
            // Room for the immediate first: what is written is written.
            match envelope.map_or(Ok(true), |_| connection.link.has_space(0)) {
                Ok(true) => {}
                Ok(false) => return Step::Wait,
                Err(Malformed) => return Step::Malformed,
            }
            let step = connection.one_sided(&hub.regions, self.init.domain, &one_sided);
            if step != Step::Done || envelope.is_none() {
                return step;
            }
        }
        let Some(envelope) = envelope else {
            // Refused when posted.
            return Step::Fault(CompletionStatus::LocalQueuePairOperation);
        };
        match connection.send(&hub.regions, self.init.domain, envelope, next.bytes()) {
            // P-99: it is over, and holds nothing up.
            // What was written may be refused until its number is delivered.
            Ok(true)
                if self.started == 0
                    && !matches!(envelope.kind, Kind::WrittenWithImmediate(_))
                    && connection.link.is_certain(envelope.length) =>
            {
                Step::Sent
            }
            Ok(true) => {
                self.started += 1;
                Step::Started
            }
            Ok(false) => Step::Wait,
            Err(Malformed) => Step::Malformed,
        }
    }

    /// Looks at the rings. No system call if there is nothing to do.
    pub(super) fn progress_rings(&mut self, hub: &mut Hub) {
        let Phase::Established(connection) = &self.phase else {
            return;
        };
        // Before the acknowledgements, which the peer publishes first.
        let state = connection.link.peer_state();
        if self.collect_answers(hub).is_err() {
            return self.malformed(hub);
        }
        if self.state == QueuePairState::Error {
            return;
        }
        match state {
            Ok(LinkState::Open) => {}
            Ok(state) => return self.peer_gone(hub, state),
            Err(Malformed) => return self.malformed(hub),
        }
        if self.deliver(hub).is_err() {
            return self.malformed(hub);
        }
        if !self.sends.is_empty() {
            self.execute(hub);
        }
    }

    /// Completes what the peer has delivered, and fails what it has refused.
    pub(super) fn collect_answers(&mut self, hub: &mut Hub) -> Result<(), Malformed> {
        let Some(connection) = self.connection() else {
            return Ok(());
        };
        let refusal = connection.link.peer_refusal();
        let delivered = connection.link.take_acknowledged()?;
        for _ in 0..delivered {
            self.started = self.started.checked_sub(1).ok_or(Malformed)?;
            self.finish_first_send(hub);
        }
        if refusal == 0 {
            self.settle(hub);
            return Ok(());
        }
        let known = [
            CompletionStatus::RemoteInvalidRequest,
            CompletionStatus::ReceiverNotReadyRetryExceeded,
        ];
        let status = known
            .into_iter()
            .find(|status| u32::from(status.code()) == refusal);
        let (Some(status), true) = (status, self.started > 0) else {
            return Err(Malformed);
        };
        self.enter_error(hub, Failure::of_send(status));
        Ok(())
    }

    /// Moves messages from the peer's ring into posted receives.
    fn deliver(&mut self, hub: &mut Hub) -> Result<(), Malformed> {
        let mut published = false;
        while let Phase::Established(connection) = &self.phase {
            if connection.refused {
                break;
            }
            let Some(envelope) = connection.link.next()? else {
                break;
            };
            match self.deliver_one(hub, envelope) {
                Ok(true) => published = true,
                Ok(false) => {
                    published |= self.wait_for_receive(hub)?;
                    break;
                }
                Err(failure) => {
                    if let Some(connection) = self.connection() {
                        let status = CompletionStatus::RemoteInvalidRequest;
                        connection.link.refuse(status.code());
                    }
                    self.enter_error(hub, failure);
                    return Ok(());
                }
            }
        }
        if published && let Some(connection) = self.connection() {
            connection.wake(hub);
        }
        Ok(())
    }

    /// The link is closed: what the peer may take for delivered is delivered (P-99).
    pub(super) fn deliver_rest(&mut self, hub: &mut Hub) {
        if self.receives.shared().is_some() {
            return;
        }
        while let Some(connection) = self.connection()
            && !connection.refused
            && let Ok(Some(envelope)) = connection.link.next()
            && let Ok(true) = self.deliver_one(hub, envelope)
        {}
    }

    /// Moves a message into a receive; false if there is none.
    ///
    /// # Errors
    /// It is not one that this queue pair takes.
    #[inline]
    fn deliver_one(&mut self, hub: &mut Hub, envelope: Envelope) -> Result<bool, Failure> {
        if let Kind::WrittenWithImmediate(_) = envelope.kind
            && !self.parameters().access.contains(AccessFlags::REMOTE_WRITE)
        {
            return Err(Failure::with(AsyncEvent::QueuePairRequestError));
        }
        if !self.has_receive_slot() {
            return Ok(false);
        }
        let Phase::Established(connection) = &mut self.phase else {
            return Ok(false);
        };
        let Some(receive) = self.receives.first(&hub.shared) else {
            return Ok(false);
        };
        if envelope.payload() > receive.length {
            // The receive's completion tells of it, so there is no event.
            return Err(Failure {
                receive: Some(CompletionStatus::LocalLength),
                ..Failure::NONE
            });
        }
        connection.not_ready_since = None;
        connection.take(&hub.regions, receive, envelope);
        let length = envelope.length;
        let kind = match envelope.kind {
            Kind::Send => CompletionKind::Receive { length },
            Kind::SendWithImmediate(immediate) => {
                CompletionKind::ReceiveWithImmediate { length, immediate }
            }
            Kind::WrittenWithImmediate(immediate) => {
                CompletionKind::ReceiveRdmaWithImmediate { length, immediate }
            }
        };
        if let Some(receive) = self.take_first_receive(hub) {
            self.complete_receive(hub, receive.wr_id, Ok(kind), envelope.solicited);
        }
        Ok(true)
    }

    /// There is no receive for the peer's next message. The receiving side measures how long it
    /// waits, on its own clock, because only it can say that the message was not and never will be
    /// delivered. Says whether it is refused now.
    fn wait_for_receive(&mut self, hub: &Hub) -> Result<bool, Malformed> {
        let Some(deadline) = self.not_ready_deadline(hub.now)? else {
            return Ok(false);
        };
        let Some(connection) = self.connection() else {
            return Ok(false);
        };
        connection.not_ready_since.get_or_insert(hub.now);
        if hub.now < deadline {
            return Ok(false);
        }
        let status = CompletionStatus::ReceiverNotReadyRetryExceeded;
        connection.link.refuse(status.code());
        connection.refused = true;
        connection.not_ready_since = None;
        Ok(true)
    }

    /// When the wait of the peer's next message for a receive ends, if it waits or begins to.
    fn not_ready_deadline(&self, begin: Time) -> Result<Option<Time>, Malformed> {
        let Phase::Established(connection) = &self.phase else {
            return Ok(None);
        };
        let rnr_retry = connection.link.peer_parameters()?.rnr_retry;
        let since = connection.not_ready_since.unwrap_or(begin);
        Ok(Some(
            self.receiver_not_ready_wait(rnr_retry)
                .map_or(Time::NEVER, |wait| since + wait),
        ))
    }

    /// When the next turn is due though nothing happens.
    pub(super) fn deadline(&self) -> Time {
        match &self.phase {
            Phase::Unconnected => self.overdue.unwrap_or(Time::NEVER),
            Phase::Connecting(connecting) => connecting.next_turn(),
            Phase::Established(connection) => {
                let told = connection.control.next_turn();
                let Some(since) = connection.not_ready_since else {
                    return told;
                };
                // If it cannot be known the next turn ends the connection.
                let deadline = self.not_ready_deadline(since);
                let deadline = deadline.map_or(Time::ZERO, |at| at.unwrap_or(Time::NEVER));
                deadline.min(told)
            }
        }
    }

    /// Whether a sleeper would sleep over something in the rings.
    pub(super) fn has_work(&self, hub: &Hub) -> bool {
        let Phase::Established(connection) = &self.phase else {
            return self.wants_a_clock();
        };
        let link = &connection.link;
        let can_receive = self.has_receive_slot() && self.receives.first(&hub.shared).is_some();
        let message = link.has_message()
            && !connection.refused
            && (can_receive || connection.not_ready_since.is_none());
        let next = match self.state {
            QueuePairState::ReadyToSend => self.sends.get(self.started),
            _ => None,
        };
        let space = match next {
            Some(next) if next.one_sided().is_none() => {
                link.has_space(u64::from(next.length)) != Ok(false)
            }
            _ => false,
        };
        message || space || link.has_answer() || !link.peer_is_open()
    }
}
