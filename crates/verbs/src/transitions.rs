//! Which state follows which, and what a change needs (IB spec 10.3.1, 11.2.5.2; the masks are
//! those that Linux checks).

use crate::QueuePairState as State;
use crate::attributes::{AttributeSet, QueuePairAttributes};

/// Why a change was refused. It changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    #[error("a queue pair in state {from:?} cannot go to {to:?}")]
    Transition { from: State, to: State },
    #[error("the queue pair is in state {0:?}")]
    OtherState(State),
    #[error("the attribute {0} is needed")]
    Missing(&'static str),
    #[error("the attribute {0} cannot be given here")]
    Foreign(&'static str),
    #[error("the attribute {attribute} is limited to {limit}")]
    OutOfRange { attribute: &'static str, limit: u8 },
}

/// What a change must have, and what it may have besides.
struct Masks {
    required: AttributeSet,
    optional: AttributeSet,
}

const INIT: AttributeSet = AttributeSet::PARTITION_INDEX
    .and(AttributeSet::PORT)
    .and(AttributeSet::ACCESS_FLAGS);

const READY_TO_RECEIVE: AttributeSet = AttributeSet::ADDRESS_VECTOR
    .and(AttributeSet::PATH_MTU)
    .and(AttributeSet::DESTINATION)
    .and(AttributeSet::RECEIVE_SEQUENCE)
    .and(AttributeSet::RESPONDER_RESOURCES)
    .and(AttributeSet::RNR_TIMER);

const READY_TO_SEND: AttributeSet = AttributeSet::TIMEOUT
    .and(AttributeSet::RETRY_COUNT)
    .and(AttributeSet::RNR_RETRY)
    .and(AttributeSet::SEND_SEQUENCE)
    .and(AttributeSet::INITIATOR_DEPTH);

/// What may change while requests are processed.
const RUNNING: AttributeSet = AttributeSet::CURRENT_STATE
    .and(AttributeSet::ACCESS_FLAGS)
    .and(AttributeSet::RNR_TIMER);

/// What may change while the send queue is stopped.
const STOPPED: AttributeSet = AttributeSet::PORT
    .and(AttributeSet::ADDRESS_VECTOR)
    .and(AttributeSet::TIMEOUT)
    .and(AttributeSet::RETRY_COUNT)
    .and(AttributeSet::RNR_RETRY)
    .and(AttributeSet::INITIATOR_DEPTH)
    .and(AttributeSet::RESPONDER_RESOURCES)
    .and(AttributeSet::ACCESS_FLAGS)
    .and(AttributeSet::PARTITION_INDEX)
    .and(AttributeSet::RNR_TIMER);

/// The table for reliable connections, which are never in the state of a failed send queue.
const fn masks(from: State, to: State) -> Option<Masks> {
    let none = AttributeSet::NONE;
    let (required, optional) = match (from, to) {
        (_, State::Reset) => (none, none),
        (State::Reset, State::Init) => (INIT, none),
        (State::Init, State::Init) => (none, INIT),
        (State::Init, State::ReadyToReceive) => (
            READY_TO_RECEIVE,
            AttributeSet::ACCESS_FLAGS.and(AttributeSet::PARTITION_INDEX),
        ),
        (State::ReadyToReceive, State::ReadyToSend) => (READY_TO_SEND, RUNNING),
        (State::ReadyToSend | State::SendQueueDrain, State::ReadyToSend) => (none, RUNNING),
        (State::ReadyToSend, State::SendQueueDrain) => (none, AttributeSet::DRAINED_EVENT),
        (State::SendQueueDrain, State::SendQueueDrain) => (none, STOPPED),
        (State::Reset, State::Error) => return None,
        (_, State::Error) => (none, none),
        _ => return None,
    };
    Some(Masks { required, optional })
}

impl QueuePairAttributes {
    /// Do these attributes take a queue pair from one state to the other?
    ///
    /// # Errors
    /// If the state does not follow, or an attribute is missing, is too many or out of its range.
    pub fn check(&self, from: State, to: State) -> Result<(), ModifyError> {
        let Masks { required, optional } =
            masks(from, to).ok_or(ModifyError::Transition { from, to })?;
        if let Some(name) = required.without(self.present()).first_name() {
            return Err(ModifyError::Missing(name));
        }
        let foreign = self.present().without(required.and(optional));
        if let Some(name) = foreign.first_name() {
            return Err(ModifyError::Foreign(name));
        }
        if self.current_state.is_some_and(|state| state != from) {
            return Err(ModifyError::OtherState(from));
        }
        self.check_ranges()
    }

    fn check_ranges(&self) -> Result<(), ModifyError> {
        let limits = [
            ("timeout", self.timeout, 31),
            ("rnr_retry", self.rnr_retry, 7),
        ];
        for (attribute, value, limit) in limits {
            if value.is_some_and(|value| value > limit) {
                return Err(ModifyError::OutOfRange { attribute, limit });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 7] = [
        State::Reset,
        State::Init,
        State::ReadyToReceive,
        State::ReadyToSend,
        State::SendQueueDrain,
        State::SendQueueError,
        State::Error,
    ];

    #[test]
    fn v_01_the_table_has_these_pairs_and_no_others() {
        // Rows: from; columns: to; in the order of STATES.
        let table = [
            "xx-----", "xxx---x", "x--x--x", "x--xx-x", "x--xx-x", "x-----x", "x-----x",
        ];
        for (from, row) in STATES.into_iter().zip(table) {
            for (to, cell) in STATES.into_iter().zip(row.chars()) {
                assert_eq!(masks(from, to).is_some(), cell == 'x', "{from:?} {to:?}");
            }
        }
    }
}
