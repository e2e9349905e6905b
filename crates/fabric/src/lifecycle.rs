//! The life of a queue pair, from its making to its release.
//!
//! ```text
//! Connecting --+--> (Confirming) --> Established ---> Draining ---> released
//! Accepting ---+         |                              ^  |
//!      |                 | (nothing of the owner's is   |  +-----> quarantine, if it cannot be destroyed
//!      +-----------------+  posted)                     +--------> released
//! ```
//!
//! A queue pair that drains is in the error state, and is destroyed on whichever proof comes first:
//! everything posted has been given back; or a **marker**, a request posted to each queue after
//! everything else, has come back, so that whatever is still missing will never come; or the drain's
//! time is over. The practice is that of IB spec volume 1, 10.3.1.
//!
//! Where receives are shared there is no marker for them, and what the queue pair has taken of them is
//! not known. There the Last WQE Reached event ends the wait for what was posted, and so does a short
//! time without it: devices omit the event and repeat it. What is missing is found out by the pool.
//!
//! What can be known of an operation is known soon after the error state. Whatever has no outcome by
//! then gets it, though its buffer may have to wait for the end of the drain.

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::event::Buffer;
use crate::fence::{Remains, is_destroyed};
use crate::id::{Key, Kind, Token};
use crate::liveness::Liveness;
use crate::one_sided::Operation;
use crate::receiving::Receives;
use crate::rpc::Call;
use crate::shared::Shared;
use crate::{FabricEvent, OperationError, Proof, ResetCause};
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    CompletionStatus, Provider, ReceiveRequest, SendFlags, SendOperation, SendRequest, VerbsError,
    WorkRequestId,
};

/// Where a connection is in its life. It leaves the table after the last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// This side asked.
    Connecting {
        deadline: Deadline,
    },
    /// The peer asked and was accepted; the owner does not know of it yet.
    Accepting {
        deadline: Deadline,
    },
    /// The queue pair is ready, and the peer has not proved that it knows the secret.
    Confirming {
        deadline: Deadline,
    },
    Established(Liveness),
    Draining(Drain),
}

/// A queue pair on its way to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    pub(crate) cause: ResetCause,
    /// When it is destroyed without a proof.
    pub(crate) deadline: Time,
    /// Until then what it has done may become known.
    pub(crate) settles: Time,
    pub(crate) progress: Progress,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Progress {
    /// The provider has refused the change to the error state, and is asked again.
    NotInError,
    /// In the error state, with a marker in each queue.
    Flushing { send: Marker, receive: Marker },
    /// In the error state without markers, because the provider refused them.
    Unmarked,
}

/// A request posted to see that nothing posted before it is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    Posted(u32),
    Returned,
}

const SEND: u16 = 0;
const RECEIVE: u16 = 1;

impl<B: Buffer> Connection<B> {
    /// To the error state. What is outstanding ends when the queue pair has given it back.
    pub(crate) fn reset(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        cause: ResetCause,
    ) {
        if let State::Draining(Drain { cause: first, .. }) = &mut self.state {
            // This may be what came first.
            if first.may_follow_from(cause) {
                *first = cause;
            }
            return;
        }
        if cause != ResetCause::Closed {
            shared.counters.connections_reset += 1;
        }
        let deadline = shared.now + shared.timeouts.drain;
        let settles = shared.now + shared.timeouts.settling;
        shared.note_deadline(settles);
        shared.draining += 1;
        self.state = State::Draining(Drain {
            cause,
            deadline,
            settles,
            progress: Progress::NotInError,
        });
        shared.waiting_replies -= self.pending_replies.len();
        shared.counters.requests_replied -= self.pending_replies.len() as u64;
        shared.counters.requests_dropped +=
            (self.requests.len() + self.pending_replies.len()) as u64;
        self.pending_replies.clear();
        self.requests.take_all();
        self.start_flush(shared, provider);
    }

    /// Changes to the error state and posts the markers, unless that was done (P-52).
    pub(crate) fn start_flush(&mut self, shared: &mut Shared<B>, provider: &mut dyn Provider) {
        let State::Draining(Drain {
            progress: Progress::NotInError,
            ..
        }) = self.state
        else {
            return;
        };
        if provider.modify_to_error(self.queue_pair).is_err() {
            // A marker that is posted now would be sent.
            shared.counters.error_changes_refused += 1;
            shared.note_deadline(shared.now + shared.timeouts.retry);
            return;
        }
        let markers = self.post_markers(shared, provider);
        shared.counters.markers_refused += u64::from(markers.is_err());
        if let State::Draining(drain) = &mut self.state {
            drain.progress = match markers {
                Ok((send, receive)) => Progress::Flushing { send, receive },
                Err(_) => Progress::Unmarked,
            };
        }
    }

    /// Says the outcome of everything that has none, when it cannot become known any more (P-90). True
    /// if there was anything.
    pub(crate) fn settle(&mut self, shared: &mut Shared<B>) -> bool {
        let State::Draining(Drain { cause, settles, .. }) = self.state else {
            return false;
        };
        if shared.now < settles {
            shared.note_deadline(settles);
            return false;
        }
        let ended = self.calls.len();
        self.end_calls(shared, cause);
        let decided = self.decide_operations(shared, OperationError::reset(cause));
        decided || ended > 0
    }

    fn post_markers(
        &self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
    ) -> Result<(Marker, Marker), VerbsError> {
        let mut marker = |index| {
            let generation = shared.generations.next();
            let token = self.token(Kind::Marker, Key { index, generation });
            (WorkRequestId(token.bits()), Marker::Posted(generation))
        };
        let ((send, sent), (receive, received)) = (marker(SEND), marker(RECEIVE));
        let request = SendRequest {
            wr_id: send,
            operation: SendOperation::Send,
            entries: Vec::new(),
            flags: SendFlags::SIGNALED,
        };
        provider.post_send(self.queue_pair, &request)?;
        if let Receives::Shared { .. } = self.receives {
            return Ok((sent, Marker::Returned));
        }
        let request = ReceiveRequest {
            wr_id: receive,
            entries: Vec::new(),
        };
        provider.post_receive(self.queue_pair, &request)?;
        Ok((sent, received))
    }

    pub(crate) fn complete_marker(&mut self, key: Key) -> bool {
        let State::Draining(Drain {
            progress: Progress::Flushing { send, receive },
            ..
        }) = &mut self.state
        else {
            return false;
        };
        let marker = if key.index == SEND { send } else { receive };
        let is_known = *marker == Marker::Posted(key.generation);
        if is_known {
            *marker = Marker::Returned;
        }
        is_known
    }

    /// Has the queue pair given everything back that it ever will?
    pub(crate) fn is_drained(&self, shared: &Shared<B>) -> bool {
        let State::Draining(drain) = self.state else {
            return false;
        };
        let returned = matches!(
            drain.progress,
            Progress::Flushing {
                send: Marker::Returned,
                receive: Marker::Returned,
            }
        );
        let is_empty = self.outstanding() == 0;
        match self.receives {
            // P-53: both markers, or everything; the deadline is the third.
            Receives::Own(_) => returned || is_empty,
            // Those that it has taken must have been seen, as far as they complete (P-92).
            Receives::Shared { reached_last } => {
                let told = reached_last || drain.settles <= shared.now;
                shared.polled_empty && (returned || is_empty && told)
            }
        }
    }

    /// Does the queue pair take nothing more from its peer?
    pub(crate) const fn is_in_error(&self) -> bool {
        matches!(
            self.state,
            State::Draining(Drain {
                progress: Progress::Flushing { .. } | Progress::Unmarked,
                ..
            })
        )
    }

    /// Ends everything that is left, after the queue pair has drained or in place of it.
    pub(crate) fn finish(
        mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
    ) -> ResetCause {
        if !matches!(self.state, State::Draining(_)) {
            self.reset(shared, provider, ResetCause::Closed);
        }
        let cause = match self.state {
            State::Draining(Drain { cause, .. }) => cause,
            _ => ResetCause::Closed,
        };
        if self.is_drained(shared) {
            shared.counters.completions_missing += self.outstanding() as u64;
        }
        self.count_missing_event(shared);
        shared.draining -= 1;
        self.end_calls(shared, cause);
        self.release(shared, provider, cause);
        let connection = self.id;
        shared
            .events
            .push_back(FabricEvent::Disconnected { connection });
        cause
    }

    /// Was it waited for, and did not come?
    fn count_missing_event(&self, shared: &mut Shared<B>) {
        if let (
            State::Draining(drain),
            Receives::Shared {
                reached_last: false,
            },
        ) = (self.state, &self.receives)
            && (self.is_drained(shared) || drain.deadline <= shared.now)
        {
            shared.counters.drain_events_missing += 1;
        }
    }

    fn end_calls(&mut self, shared: &mut Shared<B>, cause: ResetCause) {
        for (key, call) in self.calls.take_all() {
            if matches!(call, Call::Waiting { .. }) {
                let call = self.token(Kind::Call, key);
                shared.end_call(call, Err(OperationError::reset(cause)));
            }
        }
    }

    /// Gives the queue pair and the message buffers back to the provider, and with them the buffers
    /// of operations. What the provider does not take is quarantined.
    pub(crate) fn release(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        cause: ResetCause,
    ) {
        let error = OperationError::reset(cause);
        let mut operations = Vec::new();
        for (key, operation) in self.operations.take_all() {
            operations.push((self.token(Kind::OneSided, key), operation));
        }
        let kept = self.kept(shared, provider);
        let is_destroyed = is_destroyed(provider, self.queue_pair);
        if is_destroyed {
            shared.detach_receives(self.queue_pair, kept);
        }
        self.forget_early(shared, provider);
        self.end_windows(provider);
        if is_destroyed {
            let proof = Proof::QueuePairDestroyed;
            for (token, operation) in operations.drain(..) {
                // Without its queue pair a window allows nothing.
                let _ = operation.is_taken_back(provider);
                shared.end_operation(provider, token, operation, Err(error), proof);
            }
        }
        let taken_back = |it: &mut (Token, Operation<B>)| it.1.is_taken_back(provider);
        let taken_back: Vec<_> = operations.extract_if(.., taken_back).collect();
        for (token, operation) in taken_back {
            let proof = Proof::LocalInvalidation;
            shared.end_operation(provider, token, operation, Err(error), proof);
        }
        let region = (!is_destroyed || provider.deregister_region(&self.region).is_err())
            .then_some(self.region);
        let queue_pair = (!is_destroyed).then_some(self.queue_pair);
        if let Some(own) = self.own_domain.take() {
            shared.retired_domains.push(own);
            shared.destroy_retired(provider);
        }
        if region.is_none() {
            return;
        }
        let remains = Remains {
            peer: self.peer.incarnation,
            epoch: self.epoch,
            is_active: self.is_active,
            queue_pair,
            region,
            operations: Vec::new(),
        };
        shared.quarantine(provider, remains, operations, error);
    }

    /// For an operation that the queue pair gave back unexecuted, as far as it knows.
    pub(crate) const fn flush_error(&self) -> OperationError {
        match self.state {
            State::Draining(Drain { cause, .. }) => OperationError::reset(cause),
            _ => OperationError::completion(CompletionStatus::WorkRequestFlushed),
        }
    }
}
