//! A queue pair, and how far its connection is.

use super::abi::{Cq, Pd, Qp, RdmaCmId, Srq};
use super::connect::{CONNECT_TIMEOUT, Connecting};
use super::endings::TIME_WAIT_MAX;
use super::ledger::Ledger;
use super::objects::Owned;
use alloc::sync::Arc;
use legato_base::Time;
use legato_verbs::{QueuePairAttributes, QueuePairInit, QueuePairState, VerbsError};

#[derive(Debug)]
pub(super) struct Pair {
    pub(super) init: QueuePairInit,
    /// 24 bits, the device's.
    pub(super) number: u32,
    /// As far as is known: a device goes to the error state by itself.
    pub(super) state: QueuePairState,
    pub(super) attributes: QueuePairAttributes,
    pub(super) sends: Ledger,
    pub(super) receives: Ledger,
    pub(super) phase: Phase,
    /// Last WQE Reached was passed on since the queue pair left Reset.
    pub(super) last_was_told: bool,
    /// QP fatal likewise.
    pub(super) fatal_was_told: bool,
    pub(super) objects: Objects,
}

/// The queue pair of the device and what it stands on, which ends after it.
#[derive(Debug)]
#[expect(
    dead_code,
    reason = "what a queue pair stands on is kept, and never looked at"
)]
pub(super) struct Objects {
    pub(super) qp: Owned<Qp>,
    pub(super) queues: [Arc<Owned<Cq>>; 2],
    pub(super) shared: Option<Arc<Owned<Srq>>>,
    pub(super) domain: Arc<Owned<Pd>>,
}

/// What is left of a queue pair that has ended.
#[derive(Debug)]
pub(super) enum Rest {
    Nothing,
    /// The queue pair is reset and kept, for its number may be named by packets that are under way.
    TimeWait {
        id: Owned<RdmaCmId>,
        /// The peer knows of the end.
        is_told: bool,
        objects: Objects,
    },
    /// The queue pair is destroyed.
    Over {
        id: Owned<RdmaCmId>,
    },
}

impl Pair {
    /// Its number may be named by packets that are under way: it is not destroyed yet if it is reset.
    const fn has_time_wait(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. }) || self.phase.is_connected()
    }

    /// Destroys the queue pair, unless it is reset and there is a time wait.
    ///
    /// # Errors
    /// The system's. It is still there then.
    pub(super) fn destroy(&mut self, is_reset: bool) -> Result<(), VerbsError> {
        if is_reset && self.has_time_wait() {
            return Ok(());
        }
        self.objects.qp.destroy()
    }

    /// After [`Self::destroy`].
    pub(super) fn into_rest(self, is_reset: bool) -> Rest {
        match self.phase {
            Phase::Unconnected => Rest::Nothing,
            Phase::Accepted { id, .. } | Phase::Established { id } if is_reset => Rest::TimeWait {
                id,
                is_told: false,
                objects: self.objects,
            },
            Phase::Ending { id, .. } if is_reset => Rest::TimeWait {
                id,
                is_told: true,
                objects: self.objects,
            },
            Phase::Connecting(Connecting { id, .. })
            | Phase::Accepted { id, .. }
            | Phase::Established { id }
            | Phase::Ending { id, .. } => Rest::Over { id },
        }
    }
}

/// How far connection management is.
#[derive(Debug)]
pub(super) enum Phase {
    Unconnected,
    Connecting(Connecting),
    /// The reply is sent; the peer has not said that it came.
    Accepted {
        id: Owned<RdmaCmId>,
        deadline: Deadline,
    },
    Established {
        id: Owned<RdmaCmId>,
    },
    /// The end was said; packets may be under way until the time wait is over.
    Ending {
        id: Owned<RdmaCmId>,
        deadline: Deadline,
    },
}

/// When something has taken too long. It begins with the next progress: calls are not told the time.
pub(super) type Deadline = Option<Time>;

impl Phase {
    /// [`Time::NEVER`] for what may last.
    pub(super) fn deadline(&mut self, now: Time) -> Time {
        let (deadline, most) = match self {
            Self::Unconnected | Self::Established { .. } => return Time::NEVER,
            Self::Connecting(connecting) => (&mut connecting.deadline, CONNECT_TIMEOUT),
            Self::Accepted { deadline, .. } => (deadline, CONNECT_TIMEOUT),
            Self::Ending { deadline, .. } => (deadline, TIME_WAIT_MAX),
        };
        *deadline.get_or_insert(now + most)
    }

    pub(super) const fn is_connected(&self) -> bool {
        matches!(self, Self::Accepted { .. } | Self::Established { .. })
    }
}

/// The state in which the device says that a queue pair is.
pub(super) const fn state_of(number: u32) -> Option<QueuePairState> {
    use super::abi::qp_state;
    Some(match number {
        qp_state::RESET => QueuePairState::Reset,
        qp_state::INIT => QueuePairState::Init,
        qp_state::READY_TO_RECEIVE => QueuePairState::ReadyToReceive,
        qp_state::READY_TO_SEND => QueuePairState::ReadyToSend,
        qp_state::SEND_QUEUE_DRAIN => QueuePairState::SendQueueDrain,
        qp_state::SEND_QUEUE_ERROR => QueuePairState::SendQueueError,
        qp_state::ERROR => QueuePairState::Error,
        _ => return None,
    })
}

/// The reverse of [`state_of`].
pub(super) const fn number_of(state: QueuePairState) -> u32 {
    use super::abi::qp_state;
    match state {
        QueuePairState::Reset => qp_state::RESET,
        QueuePairState::Init => qp_state::INIT,
        QueuePairState::ReadyToReceive => qp_state::READY_TO_RECEIVE,
        QueuePairState::ReadyToSend => qp_state::READY_TO_SEND,
        QueuePairState::SendQueueDrain => qp_state::SEND_QUEUE_DRAIN,
        QueuePairState::SendQueueError => qp_state::SEND_QUEUE_ERROR,
        QueuePairState::Error => qp_state::ERROR,
    }
}
