//! The queue pair: its state, and who gets what comes in.

use super::ending::Cause;
use super::phase::{Path, Phase, Sending};
use super::policy::{Drain, Flush, LastWorkRequest, Policy};
use super::requester::Requester;
use super::responder::Responder;
use super::send_queue::SendQueue;
use crate::{Host, QueuePairEvent, QueuePairNumber};
use alloc::boxed::Box;
use legato_verbs::{
    LocalKey, ModifyError, QueuePairAttributes, QueuePairCapabilities, QueuePairState, SendRequest,
    VerbsError,
};

/// A reliable connected queue pair.
#[derive(Debug)]
pub struct QueuePair {
    number: QueuePairNumber,
    pub(super) receives: Receives,
    pub(super) policy: Policy,
    pub(super) attributes: QueuePairAttributes,
    pub(super) sends: SendQueue,
    pub(super) phase: Phase,
}

/// What is fixed when a queue pair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub capabilities: QueuePairCapabilities,
    pub receives: Receives,
    pub policy: Policy,
}

/// Whose the posted receives are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receives {
    /// The queue pair's: they are flushed with it.
    Own,
    /// A shared receive queue's, which outlives the queue pair.
    Shared,
}

impl QueuePair {
    /// A queue pair in the reset state.
    pub const fn new(number: QueuePairNumber, configuration: &Configuration) -> Self {
        Self {
            number,
            receives: configuration.receives,
            policy: configuration.policy,
            attributes: QueuePairAttributes::NONE,
            sends: SendQueue::new(configuration.capabilities, &configuration.policy),
            phase: Phase::Reset,
        }
    }

    pub const fn number(&self) -> QueuePairNumber {
        self.number
    }

    pub const fn state(&self) -> QueuePairState {
        match self.phase {
            Phase::Reset => QueuePairState::Reset,
            Phase::Init => QueuePairState::Init,
            Phase::ReadyToReceive { .. } => QueuePairState::ReadyToReceive,
            Phase::Connected {
                sending: Sending::Running | Sending::Dozing,
                ..
            } => QueuePairState::ReadyToSend,
            Phase::Connected {
                sending: Sending::Stopped { .. },
                ..
            } => QueuePairState::SendQueueDrain,
            Phase::Error { .. } => QueuePairState::Error,
        }
    }

    /// The attributes that it was given since the reset state.
    pub const fn query(&self) -> &QueuePairAttributes {
        &self.attributes
    }

    /// Goes to a state, and takes over attributes.
    ///
    /// Into the error state all posted requests complete; those of a shared receive queue stay.
    /// Into the reset state all is forgotten without a completion: completions of before, which
    /// wait to be polled, must not be given to [`Self::send_polled`] any more.
    ///
    /// # Errors
    /// If the state does not follow, or an attribute is missing, is too many or out of its range.
    /// Then nothing has changed.
    pub fn modify(
        &mut self,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
        host: &mut impl Host,
    ) -> Result<(), ModifyError> {
        let from = self.state();
        attributes.check(from, to)?;
        let mut merged = self.attributes;
        merged.merge(attributes);
        // These two are about this call alone.
        let event = merged.drained_event.take().unwrap_or(false);
        merged.current_state = None;
        match to {
            QueuePairState::Reset => {
                self.sends.reset();
                self.phase = Phase::Reset;
                merged = QueuePairAttributes::NONE;
            }
            QueuePairState::Init => self.phase = Phase::Init,
            QueuePairState::ReadyToReceive => self.phase = self.ready_to_receive(&merged)?,
            QueuePairState::ReadyToSend => self.ready_to_send(&merged)?,
            QueuePairState::SendQueueDrain => self.stop_sending(event),
            QueuePairState::Error => self.enter_error(Cause::Asked, host),
            QueuePairState::SendQueueError => return Err(ModifyError::Transition { from, to }),
        }
        self.attributes = merged;
        if let Phase::Connected {
            responder,
            requester,
            ..
        } = &mut self.phase
        {
            responder.configure(&merged);
            requester.configure(&merged);
        }
        self.settle(host);
        Ok(())
    }

    fn ready_to_receive(&self, attributes: &QueuePairAttributes) -> Result<Phase, ModifyError> {
        let path = Path::of(attributes)?;
        let first = attributes
            .receive_sequence
            .ok_or(ModifyError::Missing("receive_sequence"))?;
        let responder = Responder::new(path, first, attributes, &self.policy);
        Ok(Phase::ReadyToReceive {
            responder: Box::new(responder),
            heard: false,
        })
    }

    fn ready_to_send(&mut self, attributes: &QueuePairAttributes) -> Result<(), ModifyError> {
        if let Phase::Connected { sending, .. } = &mut self.phase {
            *sending = match (*sending, self.policy.drain) {
                (Sending::Stopped { .. }, Drain::Untidy) => Sending::Dozing,
                (awake @ (Sending::Running | Sending::Dozing), _) => awake,
                (Sending::Stopped { .. }, Drain::AsAsked) => Sending::Running,
            };
            return Ok(());
        }
        let path = Path::of(attributes)?;
        let first = attributes
            .send_sequence
            .ok_or(ModifyError::Missing("send_sequence"))?;
        let requester = Requester::new(path, first, attributes, &self.policy, &self.sends);
        self.phase = match core::mem::replace(&mut self.phase, Phase::Reset) {
            Phase::ReadyToReceive { responder, .. } => Phase::Connected {
                responder,
                requester: Box::new(requester),
                sending: Sending::Running,
            },
            other => other,
        };
        Ok(())
    }

    const fn stop_sending(&mut self, wanted: bool) {
        if let Phase::Connected { sending, .. } = &mut self.phase {
            *sending = match *sending {
                Sending::Running | Sending::Dozing => Sending::Stopped {
                    event: wanted || matches!(self.policy.drain, Drain::Untidy),
                },
                Sending::Stopped { event } => Sending::Stopped {
                    event: event || matches!(self.policy.drain, Drain::Untidy),
                },
            };
        }
    }

    /// Posts to the send queue. Its slot is free again as [`Policy::slot_reclaim`] says.
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`] before it is ready to send, [`VerbsError::QueueFull`],
    /// [`VerbsError::LimitExceeded`], [`VerbsError::Unsupported`] for inline data that is not to be
    /// sent, and [`VerbsError::LocalProtection`] if inline data cannot be read.
    pub fn post_send(
        &mut self,
        request: &SendRequest,
        host: &mut impl Host,
    ) -> Result<(), VerbsError> {
        match &self.phase {
            Phase::Reset | Phase::Init | Phase::ReadyToReceive { .. } => {
                return Err(VerbsError::InvalidState(self.state()));
            }
            Phase::Connected { .. } | Phase::Error { .. } => self.sends.post(request, host)?,
        }
        if let Phase::Connected { sending, .. } = &mut self.phase {
            sending.wake();
        }
        if let Phase::Error { .. } = self.phase {
            match self.policy.flush {
                Flush::Everything => self.sends.flush(host),
                Flush::LaterReceivesWait => {
                    self.sends.flush(host);
                    self.flush_receives(host);
                }
                Flush::NotLaterPosts | Flush::Nothing => {}
            }
            if self.policy.last_work_request == LastWorkRequest::Repeatedly {
                self.raise_last_work_request(host);
            }
        }
        self.settle(host);
        Ok(())
    }

    /// The oldest completion of the send queue that was not polled so far, is now.
    pub fn send_polled(&mut self) {
        self.sends.polled();
    }

    /// Does a request that is not complete, or the message that is arriving, use memory of a key?
    pub fn uses(&self, key: LocalKey) -> bool {
        let responder = match &self.phase {
            Phase::ReadyToReceive { responder, .. } | Phase::Connected { responder, .. } => {
                Some(responder)
            }
            Phase::Reset | Phase::Init | Phase::Error { .. } => None,
        };
        self.sends.uses(key) || responder.is_some_and(|responder| responder.uses(key))
    }

    /// May a receive be posted to its own queue now?
    ///
    /// # Errors
    /// [`VerbsError::InvalidState`] in the reset state.
    pub const fn check_post_receive(&self) -> Result<(), VerbsError> {
        match self.phase {
            Phase::Reset => Err(VerbsError::InvalidState(QueuePairState::Reset)),
            _ => Ok(()),
        }
    }

    /// A receive was posted to its own queue: in the error state it completes at once.
    pub fn receive_posted(&mut self, host: &mut impl Host) {
        if let (Phase::Error { .. }, Flush::Everything) = (&self.phase, self.policy.flush) {
            self.flush_receives(host);
        }
    }

    /// Says when the send queue has come to rest.
    pub(super) fn settle(&mut self, host: &mut impl Host) {
        if let Phase::Connected {
            sending: Sending::Stopped { event },
            ..
        } = &mut self.phase
            && *event
            && self.sends.completed() == self.sends.started()
        {
            *event = false;
            host.raise(QueuePairEvent::SendQueueDrained);
        }
    }
}
