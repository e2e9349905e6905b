//! What happens when nothing happens.

use super::super::connection::{ConnectionId, State};
use super::super::event::Event;
use super::super::message::{RejectReason, RejectedMessage};
use super::ConnectionManager;
use legato_base::Time;

impl ConnectionManager {
    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.refusals.forget_until(now);
        while let Some(id) = self.table.first_due(now) {
            self.handle_due(id, now);
        }
    }

    /// Every deadline that is due is moved or taken away: a message is repeated a bounded number
    /// of times, and the other states end.
    fn handle_due(&mut self, id: ConnectionId, now: Time) {
        if self.retransmit(id, now) {
            return;
        }
        match self.table.get(id).map(|connection| &connection.state) {
            Some(State::RequestSent(_)) => {
                self.give_up_request(id);
                self.raise(Event::Unreachable { connection: id });
                self.finish(id);
            }
            Some(State::ReplySent(_)) => {
                self.give_up_reply(id, RejectReason::TIMEOUT, now);
                self.raise(Event::Unreachable { connection: id });
                self.enter_time_wait(id, now);
            }
            Some(State::RequestReceived(_)) => self.expire_request(id, now),
            Some(State::DisconnectSent(_)) => self.end_disconnect(id, false, now),
            Some(State::TimeWait(_)) => self.finish(id),
            Some(State::Established(_)) => self.table.set_deadline(id, Time::NEVER),
            None => {}
        }
    }

    fn retransmit(&mut self, id: ConnectionId, now: Time) -> bool {
        let Some(exchange) = self.table.state_mut(id).and_then(State::exchange_mut) else {
            return false;
        };
        let Some(left) = exchange.retries_left.checked_sub(1) else {
            return false;
        };
        exchange.retries_left = left;
        exchange.acknowledged = false;
        if let Some(repetitions) = exchange.repetitions_left.checked_sub(1) {
            exchange.repetitions_left = repetitions;
            self.counters.retransmissions += 1;
            self.repeat(id);
        }
        let deadline = self.response_deadline(now);
        self.table.set_deadline(id, deadline);
        true
    }

    /// The user has not decided in time.
    fn expire_request(&mut self, id: ConnectionId, now: Time) {
        let Some(connection) = self.table.get(id) else {
            return;
        };
        let State::RequestReceived(state) = &connection.state else {
            return;
        };
        let (peer, origin) = (connection.peer, state.origin);
        let remote = origin.remote.communication_id;
        let reason = RejectReason::TIMEOUT;
        let reject = self.reject_of(id, remote, RejectedMessage::Request, reason);
        self.refuse(now, peer, origin, reject);
        self.raise_rejected(id, reason);
        self.finish(id);
    }
}
