//! Traffic of an established queue pair.

use super::connection::{ControlFault, Step};
use super::hub::Hub;
use super::queue_pair::{Failure, Pair, Phase};
use super::ring::{LinkState, Malformed};
use super::socket::{self, Received};
use alloc::boxed::Box;
use legato_base::{Duration, Time};
use legato_verbs::{AsyncEvent, CompletionKind, CompletionStatus, Event, QueuePairState};

/// How long a message waits for a receive before its sender is told
/// `ReceiverNotReadyRetryExceeded`. The receiving side measures it, on its own clock, because only
/// it can say that the message was not and never will be delivered. About 7 retries at an RNR
/// timer of 15 ms would be the same on InfiniBand.
pub const RECEIVER_NOT_READY_WAIT: Duration = Duration::from_millis(100);
/// Control messages of one connection handled in a turn; the others keep till the next.
const PACKETS_PER_TURN: usize = 64;

impl Pair {
    fn connection(&mut self) -> Option<&mut super::connection::Connection> {
        match &mut self.phase {
            Phase::Established(connection) => Some(connection),
            Phase::Unconnected | Phase::Connecting(_) => None,
        }
    }

    /// Executes posted send requests in order, as far as that is possible now. A SEND may follow
    /// a SEND into the ring; a one-sided request waits until everything before it is over, so
    /// that it has not happened if something before it fails.
    pub(super) fn execute(&mut self, hub: &mut Hub) {
        let mut sent = false;
        while let Phase::Established(connection) = &mut self.phase {
            let Some(next) = self.sends.get(self.in_ring) else {
                break;
            };
            let (entries, length) = (&next.entries, next.length);
            let step = match next.one_sided() {
                None => match connection.send(&hub.regions, self.domain, entries, length) {
                    Ok(true) => {
                        self.in_ring += 1;
                        sent = true;
                        continue;
                    }
                    Ok(false) => break,
                    Err(_) => return self.malformed(hub),
                },
                Some(_) if self.in_ring > 0 => break,
                Some(request) => connection.one_sided(&hub.regions, self.domain, &request),
            };
            match step {
                Step::Done => self.finish_first_send(hub),
                Step::Wait => break,
                Step::Fault(status) => {
                    let failure = Failure {
                        send: Some(status),
                        receive: None,
                    };
                    let state = match status {
                        CompletionStatus::RemoteAccess => LinkState::AccessViolated,
                        _ => LinkState::Closed,
                    };
                    return self.enter_error(hub, failure, state);
                }
            }
        }
        if sent && let Some(connection) = self.connection() {
            connection.wake(hub);
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
    fn collect_answers(&mut self, hub: &mut Hub) -> Result<(), Malformed> {
        let Some(connection) = self.connection() else {
            return Ok(());
        };
        let refusal = connection.link.peer_refusal();
        let delivered = connection.link.take_acknowledged()?;
        for _ in 0..delivered {
            self.in_ring = self.in_ring.checked_sub(1).ok_or(Malformed)?;
            self.finish_first_send(hub);
        }
        if refusal == 0 {
            return Ok(());
        }
        let known = [
            CompletionStatus::RemoteInvalidRequest,
            CompletionStatus::ReceiverNotReadyRetryExceeded,
        ];
        let status = known
            .into_iter()
            .find(|status| u32::from(status.code()) == refusal);
        let (Some(status), true) = (status, self.in_ring > 0) else {
            return Err(Malformed);
        };
        let failure = Failure {
            send: Some(status),
            receive: None,
        };
        self.enter_error(hub, failure, LinkState::Closed);
        Ok(())
    }

    /// Moves messages from the peer's ring into posted receives.
    fn deliver(&mut self, hub: &mut Hub) -> Result<(), Malformed> {
        let mut published = false;
        while let Phase::Established(connection) = &mut self.phase {
            if connection.refused {
                break;
            }
            let Some(length) = connection.link.next_length()? else {
                break;
            };
            let Some(receive) = self.receives.front() else {
                let since = *connection.not_ready_since.get_or_insert(hub.now);
                if hub.now >= since + RECEIVER_NOT_READY_WAIT {
                    let status = CompletionStatus::ReceiverNotReadyRetryExceeded;
                    connection.link.refuse(status.code());
                    connection.refused = true;
                    connection.not_ready_since = None;
                    published = true;
                }
                break;
            };
            connection.not_ready_since = None;
            if length > receive.length {
                let status = CompletionStatus::RemoteInvalidRequest;
                connection.link.refuse(status.code());
                let failure = Failure {
                    send: None,
                    receive: Some(CompletionStatus::LocalLength),
                };
                self.enter_error(hub, failure, LinkState::Closed);
                return Ok(());
            }
            connection.take(&hub.regions, self.domain, &receive.entries, length);
            published = true;
            if let Some(receive) = self.take_first_receive(hub) {
                let received = Ok(CompletionKind::Receive { length });
                self.complete_receive(hub, receive.wr_id, received);
            }
        }
        if published && let Some(connection) = self.connection() {
            connection.wake(hub);
        }
        Ok(())
    }

    /// When the wait of the peer's next message for a receive ends.
    pub(super) fn deadline(&self) -> Time {
        match &self.phase {
            Phase::Unconnected => Time::NEVER,
            Phase::Connecting(connecting) => connecting.next_turn(),
            Phase::Established(connection) => connection
                .not_ready_since
                .map_or(Time::NEVER, |since| since + RECEIVER_NOT_READY_WAIT),
        }
    }

    /// Handles what came on the socket of an established connection.
    pub(super) fn handle_socket(&mut self, hub: &mut Hub) {
        for _ in 0..PACKETS_PER_TURN {
            let Phase::Established(connection) = &mut self.phase else {
                return;
            };
            let packet = match socket::receive(&connection.socket) {
                Received::Packet(packet) => packet,
                Received::Nothing => return,
                Received::TooMuch => return self.malformed(hub),
                Received::Closed => return self.handle_end(hub),
            };
            let handled = connection.handle_packet(&hub.regions, self.domain, packet);
            match handled {
                Ok(()) => self.execute(hub),
                Err(ControlFault::Malformed) => self.malformed(hub),
                Err(ControlFault::Refused) => self.refuse_access(hub),
                Err(ControlFault::Unmappable) => {
                    let failure = Failure {
                        send: Some(CompletionStatus::LocalQueuePairOperation),
                        receive: None,
                    };
                    self.enter_error(hub, failure, LinkState::Closed);
                }
            }
        }
    }

    /// The socket is at its end: the peer closed it, or died.
    fn handle_end(&mut self, hub: &mut Hub) {
        let Phase::Established(connection) = &self.phase else {
            return;
        };
        let state = connection.link.peer_state().unwrap_or(LinkState::Closed);
        // What it had acknowledged before is still true.
        if self.collect_answers(hub).is_err() {
            return self.malformed(hub);
        }
        if self.state != QueuePairState::Error {
            self.peer_gone(hub, state);
        }
    }

    fn refuse_access(&mut self, hub: &mut Hub) {
        self.enter_error(hub, Failure::default(), LinkState::AccessRefused);
        let queue_pair = self.handle;
        let refused = AsyncEvent::QueuePairAccessError { queue_pair };
        hub.events.push_back(Event::Async(refused));
    }

    /// Whether a sleeper would sleep over something in the rings.
    pub(super) fn has_work(&self) -> bool {
        let Phase::Established(connection) = &self.phase else {
            return false;
        };
        let link = &connection.link;
        let message = link.has_message()
            && !connection.refused
            && (!self.receives.is_empty() || connection.not_ready_since.is_none());
        let space = match self.sends.get(self.in_ring) {
            Some(next) if next.one_sided().is_none() => {
                link.has_space(u64::from(next.length)) != Ok(false)
            }
            _ => false,
        };
        message || space || link.has_answer() || !link.peer_is_open()
    }

    pub(super) fn establish(&mut self, hub: &Hub, connection: Box<super::connection::Connection>) {
        connection.link.set_sleeping(hub.sleeping);
        self.state = QueuePairState::ReadyToSend;
        self.phase = Phase::Established(connection);
    }
}
