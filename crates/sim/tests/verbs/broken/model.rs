//! Defects of requests, events and completions, as they pass by.

use super::Defect;
use legato_verbs::{
    AsyncEvent, Completion, CompletionKind, ConnectionEvent, Event, SendFlags, SendOperation,
    SendRequest,
};

/// What a broken NIC makes of a request.
pub(super) fn spoil_request(defect: Defect, request: &mut SendRequest) {
    let drop = |flags: &mut SendFlags, flag| *flags = flags.without(flag);
    match (defect, &mut request.operation) {
        (Defect::ReadsInlineDataLate, _) => drop(&mut request.flags, SendFlags::INLINE),
        (Defect::IgnoresFences, _) => drop(&mut request.flags, SendFlags::FENCE),
        (Defect::AddsTwice, SendOperation::FetchAndAdd { add, .. }) => *add = add.wrapping_mul(2),
        (Defect::SwapsBytes, SendOperation::CompareAndSwap { swap, .. }) => {
            *swap = swap.swap_bytes();
        }
        (Defect::BindsTooMuch, SendOperation::BindWindow(binding)) => {
            // The rules bind the second half of a region.
            binding.address -= binding.length;
            binding.length *= 2;
        }
        _ => {}
    }
}

pub(super) fn spoil_completion(defect: Defect, completion: &mut Completion) {
    if defect == Defect::ForgetsImmediates
        && let Ok(
            CompletionKind::ReceiveWithImmediate { immediate, .. }
            | CompletionKind::ReceiveRdmaWithImmediate { immediate, .. },
        ) = &mut completion.result
    {
        *immediate = 0;
    }
}

/// How often an event comes that comes once.
pub(super) const fn times(defect: Defect, event: &Event) -> usize {
    match (defect, event) {
        (Defect::TellsNobodyWhenArmed, Event::CompletionQueueReady(_))
        | (Defect::HidesLimits, Event::Async(AsyncEvent::SharedReceiveQueueLimit(_)))
        | (Defect::HidesLastWorkRequests, Event::Async(AsyncEvent::LastWorkRequestReached(_)))
        | (Defect::HidesOverruns, Event::Async(AsyncEvent::CompletionQueueError(_)))
        | (Defect::HidesTimeWait, Event::Connection(ConnectionEvent::TimeWaitExit { .. })) => 0,
        (Defect::TellsTwiceWhenArmed, Event::CompletionQueueReady(_))
        | (Defect::RepeatsLimits, Event::Async(AsyncEvent::SharedReceiveQueueLimit(_)))
        | (Defect::RepeatsDisconnects, Event::Connection(ConnectionEvent::Disconnected { .. })) => {
            2
        }
        _ => 1,
    }
}
