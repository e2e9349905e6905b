//! Waiting for completions.

use super::IbverbsProvider;
use super::abi::Cq;
use super::create::handle_in;
use super::objects::check;
use crate::table::Walk;
use alloc::collections::BTreeMap;
use core::ffi::c_int;
use legato_verbs::{Arm, CompletionQueue, Event, QueuePairInit, VerbsError};

impl IbverbsProvider {
    pub(super) fn arm(&mut self, queue: CompletionQueue, arm: Arm) -> Result<bool, VerbsError> {
        let found = self.queue(queue)?;
        if found.is_broken {
            return Err(VerbsError::CompletionQueueOverrun);
        }
        let arm = match found.armed {
            Some(Arm::Next) => Arm::Next,
            _ => arm,
        };
        self.ask_for_event(queue, arm)?;
        self.queue(queue)?.armed = Some(arm);
        // What came before the device was asked raises no event.
        self.drain(queue)?;
        Ok(!self.queue(queue)?.ready.is_empty())
    }

    fn ask_for_event(&mut self, queue: CompletionQueue, arm: Arm) -> Result<(), VerbsError> {
        // SAFETY: the device is open.
        let ask = unsafe { self.base.context.as_ref().ops.req_notify_cq };
        let ask = ask.ok_or(VerbsError::Unsupported("completion events"))?;
        let cq = self.queue(queue)?.cq.as_ptr();
        // SAFETY: alive.
        let asked = unsafe { ask(cq, c_int::from(arm == Arm::Solicited)) };
        check("ibv_req_notify_cq", asked)
    }

    /// A queue pair fails now. Who waits for solicited completions is to learn of failures too, which some
    /// devices (rxe) do not take for such: from here on the next completion wakes it.
    pub(super) fn wake_for_failure(&mut self, init: &QueuePairInit) {
        for queue in [init.send_completions, init.receive_completions] {
            let armed = self.queues.get(queue).and_then(|it| it.armed);
            if armed == Some(Arm::Solicited) {
                // If it cannot be asked, the device's own idea of failures has to do.
                let _ = self.ask_for_event(queue, Arm::Next);
            }
        }
    }

    /// Before the caller sleeps: what is not armed is, so that a completion wakes it, and false if something
    /// waits already.
    pub(super) fn may_sleep(&mut self) -> bool {
        let mut may = self.events.is_empty();
        let mut walk = Walk::default();
        while let Some(queue) = walk.next(&self.queues) {
            let is_armed = self.queues.get(queue).is_some_and(|it| it.armed.is_some());
            let armed = is_armed || self.ask_for_event(queue, Arm::Next).is_ok();
            let drained = self.drain(queue).is_ok();
            let found = self.queues.get(queue);
            // A queue that is over wakes nobody, and has nothing to wake for.
            may &= found.is_none_or(|it| it.is_broken || (armed && drained && it.ready.is_empty()));
        }
        may
    }

    /// Takes the events of the completion channel; they are acknowledged together for each queue.
    pub(super) fn take_completion_events(&mut self) {
        let functions = self.base.functions;
        let mut taken: BTreeMap<usize, (*mut Cq, u32)> = BTreeMap::new();
        loop {
            let (mut cq, mut context) = (core::ptr::null_mut(), core::ptr::null_mut());
            // SAFETY: the channel is open, and does not block.
            let got = unsafe {
                (functions.ibv_get_cq_event)(
                    self.base.completions.as_ptr(),
                    &raw mut cq,
                    &raw mut context,
                )
            };
            if got != 0 {
                break;
            }
            taken.entry(cq.addr()).or_insert((cq, 0)).1 += 1;
            let handle = handle_in::<CompletionQueue>(context);
            if let Some(queue) = self.queues.get_mut(handle)
                && queue.armed.take().is_some()
            {
                self.events.push_back(Event::CompletionQueueReady(handle));
            }
        }
        for (cq, count) in taken.into_values() {
            // SAFETY: a queue is alive as long as an event of it is not acknowledged.
            unsafe { (functions.ibv_ack_cq_events)(cq, count) };
        }
    }
}
