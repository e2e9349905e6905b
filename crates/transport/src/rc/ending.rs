//! The way into the error state.

use super::phase::Phase;
use super::policy::{Flush, LastWorkRequest};
use super::queue_pair::{QueuePair, Receives};
use super::responder::Refusal;
use crate::{Host, QueueCompletion, QueuePairEvent, WorkQueue};
use legato_verbs::{CompletionStatus, ReceiveRequest};

/// Why the error state is entered.
pub(super) enum Cause {
    Asked,
    /// The oldest request failed.
    Request(CompletionStatus),
    /// The peer's request failed.
    Refused(Refusal),
}

impl QueuePair {
    /// Completes all that is posted: what failed with its status, the rest as flushed (IB spec
    /// 10.3.1.7, 10.8.6.2).
    pub(super) fn enter_error(&mut self, cause: Cause, host: &mut impl Host) {
        let phase = core::mem::replace(&mut self.phase, Phase::Error { last_words: None });
        let again = matches!(phase, Phase::Error { .. });
        let mut responder = match phase {
            Phase::ReadyToReceive { responder, .. } | Phase::Connected { responder, .. } => {
                Some(responder)
            }
            Phase::Error { last_words } => last_words,
            Phase::Reset | Phase::Init => None,
        };
        if let Cause::Request(status) = cause {
            self.sends.complete(Err(status), host);
        }
        if self.policy.flush != Flush::Nothing {
            self.sends.flush(host);
        }
        let half_received = responder.as_mut().and_then(|own| own.take_half_received());
        let (status, event) = match cause {
            Cause::Refused(refusal) => (refusal.receive, refusal.event),
            Cause::Asked | Cause::Request(_) => (None, None),
        };
        if let Some(receive) = half_received {
            self.complete_half_received(&receive, status, host);
        }
        self.flush_receives(host);
        if let (Some(event), true) = (event, self.policy.refusal_events) {
            host.raise(event);
        }
        if !again || self.policy.last_work_request == LastWorkRequest::Repeatedly {
            self.raise_last_work_request(host);
        }
        // Who asks for the error state twice does not take back what the peer is to be told.
        if again || matches!(cause, Cause::Refused(_)) {
            self.phase = Phase::Error {
                last_words: responder,
            };
        }
    }

    fn complete_half_received(
        &self,
        receive: &ReceiveRequest,
        status: Option<CompletionStatus>,
        host: &mut impl Host,
    ) {
        let lost = (self.receives == Receives::Shared && !self.policy.completes_half_received)
            || self.policy.flush == Flush::Nothing;
        if lost && status.is_none() {
            return;
        }
        complete_receive(
            receive,
            status.unwrap_or(CompletionStatus::WorkRequestFlushed),
            host,
        );
    }

    /// Those of a shared queue stay for others (IB spec 10.2.9.4).
    pub(super) fn flush_receives(&self, host: &mut impl Host) {
        if self.receives == Receives::Own && self.policy.flush != Flush::Nothing {
            while let Some(receive) = host.take_receive() {
                complete_receive(&receive, CompletionStatus::WorkRequestFlushed, host);
            }
        }
    }

    /// No receive of the shared queue is this queue pair's any more (IB spec C11-5.2.5).
    pub(super) fn raise_last_work_request(&self, host: &mut impl Host) {
        let wanted = self.policy.last_work_request != LastWorkRequest::Never;
        if wanted && self.receives == Receives::Shared {
            host.raise(QueuePairEvent::LastWorkRequestReached);
        }
    }
}

fn complete_receive(receive: &ReceiveRequest, status: CompletionStatus, host: &mut impl Host) {
    host.complete(QueueCompletion {
        queue: WorkQueue::Receive,
        wr_id: receive.wr_id,
        result: Err(status),
        solicited: true,
    });
}
