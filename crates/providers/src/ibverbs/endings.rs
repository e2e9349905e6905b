//! How connections and queue pairs end.

use super::IbverbsProvider;
use super::abi::{RdmaCmId, cm_event};
use super::connect::Connecting;
use super::create::unknown;
use super::identifier::{Owner, Said};
use super::objects::{Owned, check};
use super::queue_pair::{Deadline, Objects, Phase, Rest};
use crate::table::Walk;
use alloc::vec::Vec;
use legato_base::{Duration, Time};
use legato_verbs::{
    ConnectionEvent, QueuePair, QueuePairState, Receives, UnreachableReason, VerbsError,
};

/// A connection's time wait is over by then, even if the peer has not answered: it is twice the longest
/// packet lifetime that connection management has for RoCE (1 s), and the answer to a disconnect, which the
/// kernel waits for much longer.
pub(super) const TIME_WAIT_MAX: Duration = Duration::from_secs(10);

/// A destroyed queue pair whose number nobody else is to have yet.
#[derive(Debug)]
pub(super) struct Remains {
    id: Owned<RdmaCmId>,
    /// Ends after the identifier, before what it stands on.
    objects: Objects,
    deadline: Deadline,
}

impl IbverbsProvider {
    /// To the error state, by the owner's wish.
    pub(super) fn enter_error(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let pair = self
            .queue_pairs
            .get(queue_pair)
            .ok_or_else(|| unknown(queue_pair))?;
        if pair.state != QueuePairState::Error {
            let init = pair.init;
            self.wake_for_failure(&init);
            self.modify_plainly(queue_pair, QueuePairState::Error)?;
            if let Some(pair) = self.queue_pairs.get_mut(queue_pair) {
                pair.state = QueuePairState::Error;
            }
        }
        self.fail(queue_pair);
        Ok(())
    }

    /// A queue pair is in the error state, or goes there now; its peer learns of it.
    pub(super) fn fail(&mut self, queue_pair: QueuePair) {
        let Some(pair) = self.queue_pairs.get_mut(queue_pair) else {
            return;
        };
        if pair.state != QueuePairState::Error {
            pair.state = QueuePairState::Error;
            let init = pair.init;
            self.wake_for_failure(&init);
            // Some failures leave a device's queue pair as it is. One that is in the state stays there.
            let _ = self.modify_plainly(queue_pair, QueuePairState::Error);
        }
        self.end_connection(queue_pair);
    }

    /// Says that the connection is over, to the peer and to the owner.
    pub(super) fn end_connection(&mut self, queue_pair: QueuePair) {
        self.timers_at = None;
        let Some(pair) = self.queue_pairs.get_mut(queue_pair) else {
            return;
        };
        match core::mem::replace(&mut pair.phase, Phase::Unconnected) {
            Phase::Accepted { id, .. } | Phase::Established { id } => {
                let pointer = id.as_ptr();
                pair.phase = Phase::Ending { id, deadline: None };
                self.say_disconnect(pointer);
                self.raise(ConnectionEvent::Disconnected { queue_pair });
            }
            Phase::Connecting(Connecting { id, .. }) => {
                self.end_id(id);
                self.raise(ConnectionEvent::Disconnected { queue_pair });
                self.raise(ConnectionEvent::TimeWaitExit { queue_pair });
            }
            other => pair.phase = other,
        }
    }

    /// A request to end, or the answer to the peer's: the kernel knows which. If it can say neither, the
    /// time wait ends at its deadline.
    fn say_disconnect(&self, id: *mut RdmaCmId) {
        // SAFETY: the identifier is alive, by the callers.
        let said = unsafe { (self.base.functions.rdma_disconnect)(id) };
        let _ = check("rdma_disconnect", said);
    }

    pub(super) fn hang_up(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let pair = self
            .queue_pairs
            .get(queue_pair)
            .ok_or_else(|| unknown(queue_pair))?;
        if !pair.phase.is_connected() {
            return Err(VerbsError::InvalidState(pair.state));
        }
        self.enter_error(queue_pair)
    }

    /// The peer has ended the connection, or answered that it has learnt of its end.
    pub(super) fn disconnected(&mut self, queue_pair: QueuePair) {
        let connected = self.queue_pairs.get(queue_pair);
        if connected.is_some_and(|pair| pair.phase.is_connected()) {
            self.fail(queue_pair);
        }
    }

    pub(super) fn time_wait_over(&mut self, queue_pair: QueuePair) {
        let Some(pair) = self.queue_pairs.get_mut(queue_pair) else {
            return;
        };
        match core::mem::replace(&mut pair.phase, Phase::Unconnected) {
            Phase::Ending { id, .. } => {
                self.end_id(id);
                self.raise(ConnectionEvent::TimeWaitExit { queue_pair });
            }
            // The peer's and this side's knowledge of a connection may differ in how far it is.
            other => pair.phase = other,
        }
    }

    /// The NIC is gone, and its identifiers have to go.
    pub(super) fn device_removed(&mut self, queue_pair: QueuePair) {
        self.is_fatal = true;
        let Some(pair) = self.queue_pairs.get_mut(queue_pair) else {
            return;
        };
        let was = core::mem::replace(&mut pair.phase, Phase::Unconnected);
        pair.state = QueuePairState::Error;
        let (id, is_news) = match was {
            Phase::Unconnected => return,
            Phase::Ending { id, .. } => (id, false),
            Phase::Connecting(Connecting { id, .. })
            | Phase::Accepted { id, .. }
            | Phase::Established { id } => (id, true),
        };
        self.end_id(id);
        if is_news {
            self.raise(ConnectionEvent::DeviceRemoved { queue_pair });
        }
    }

    /// What is not destroyed is still there, and can be destroyed again: nobody may take it for ended.
    pub(super) fn remove_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let pair = self
            .queue_pairs
            .get(queue_pair)
            .ok_or_else(|| unknown(queue_pair))?;
        let (init, number) = (pair.init, pair.number);
        // Nothing is executed any more. If that fails, the destruction is what ends it.
        let is_reset = pair.state == QueuePairState::Reset
            || self
                .modify_plainly(queue_pair, QueuePairState::Reset)
                .is_ok();
        self.windows.end_of(queue_pair);
        if let Some(pair) = self.queue_pairs.get_mut(queue_pair) {
            pair.destroy(is_reset)?;
        }
        self.forget(queue_pair);
        self.numbers.remove(&number);
        let pair = self.queue_pairs.remove(queue_pair);
        match pair.map(|pair| pair.into_rest(is_reset)) {
            None | Some(Rest::Nothing) => {}
            Some(Rest::TimeWait {
                id,
                is_told,
                objects,
            }) => {
                if !is_told {
                    self.say_disconnect(id.as_ptr());
                }
                self.keep_remains(id, objects);
            }
            Some(Rest::Over { id }) => self.end_id(id),
        }
        // Behind its end nothing of it comes into the queues.
        self.sweep(queue_pair, &init);
        self.release_completions(&init);
        self.leave_domain(init.domain);
        if let Receives::Shared(shared) = init.receives
            && let Some(shared) = self.shared.get_mut(shared)
        {
            shared.receives.detach(queue_pair);
        }
        Ok(())
    }

    fn keep_remains(&mut self, id: Owned<RdmaCmId>, objects: Objects) {
        let key = self.next_serial();
        self.own(&id, Owner::Remains(key));
        self.timers_at = None;
        self.remains.insert(
            key,
            Remains {
                id,
                objects,
                deadline: None,
            },
        );
    }

    pub(super) fn remains_event(&mut self, key: u64, said: &Said) {
        match said.kind {
            cm_event::TIMEWAIT_EXIT | cm_event::DEVICE_REMOVAL => self.bury_remains(key),
            // Both ended at once: the peer waits for the answer.
            cm_event::DISCONNECTED => {
                if let Some(remains) = self.remains.get(&key) {
                    self.say_disconnect(remains.id.as_ptr());
                }
            }
            _ => {}
        }
    }

    fn bury_remains(&mut self, key: u64) {
        if let Some(remains) = self.remains.remove(&key) {
            self.end_id(remains.id);
            drop(remains.objects);
        }
    }

    /// Ends what has taken too long; the next time when something will have.
    pub(super) fn run_timers(&mut self, now: Time) -> Time {
        if let Some(at) = self.timers_at
            && at > now
        {
            return at;
        }
        let mut next = Time::NEVER;
        let mut walk = Walk::default();
        while let Some(queue_pair) = walk.next(&self.queue_pairs) {
            let pair = self.queue_pairs.get_mut(queue_pair);
            let Some(phase) = pair.map(|pair| &mut pair.phase) else {
                continue;
            };
            let deadline = phase.deadline(now);
            if deadline > now {
                next = next.min(deadline);
            } else if matches!(phase, Phase::Ending { .. }) {
                self.counters.time_waits_cut += 1;
                self.time_wait_over(queue_pair);
            } else {
                self.unreachable(queue_pair, UnreachableReason::TimedOut);
            }
        }
        next = next.min(self.bury_overdue(now));
        self.timers_at = Some(next);
        next
    }

    fn bury_overdue(&mut self, now: Time) -> Time {
        let mut overdue = Vec::new();
        let mut next = Time::NEVER;
        for (&key, remains) in &mut self.remains {
            let deadline = *remains.deadline.get_or_insert(now + TIME_WAIT_MAX);
            if deadline > now {
                next = next.min(deadline);
            } else {
                overdue.push(key);
            }
        }
        self.counters.time_waits_cut += overdue.len() as u64;
        overdue.into_iter().for_each(|key| self.bury_remains(key));
        next
    }
}
