//! Receives, of queue pairs and of shared queues: checked and handed over as sends are.

use super::IbverbsProvider;
use super::abi::RecvWr;
use super::create::{limit, unknown};
use super::ledger::{Name, Outstanding, Queue};
use super::objects::check;
use super::posting::{entries_of, is_full, keys_of};
use core::ffi::c_int;
use legato_verbs::{
    CompletionKind, ProtectionDomain, QueuePair, QueuePairState, ReceiveRequest, Receives,
    SharedReceiveQueue, VerbsError,
};

impl IbverbsProvider {
    pub(super) fn receive(
        &mut self,
        queue_pair: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        let pair = self
            .queue_pairs
            .get(queue_pair)
            .ok_or_else(|| unknown(queue_pair))?;
        let capabilities = pair.init.capabilities;
        if pair.init.receives != Receives::Own {
            return Err(VerbsError::Unsupported(
                "receives of its own for a queue pair with a shared receive queue",
            ));
        }
        if pair.state == QueuePairState::Reset {
            return Err(VerbsError::InvalidState(pair.state));
        }
        if pair.receives.len() >= capabilities.receive_requests_max as usize {
            return Err(VerbsError::QueueFull("receive"));
        }
        self.check_receive(pair.init.domain, request, capabilities.entries_max)?;
        let (queue, qp) = (Queue::Receive(queue_pair.index), pair.objects.qp.as_ptr());
        // SAFETY: the device is open.
        let post = unsafe { self.base.context.as_ref().ops.post_recv };
        let post = post.ok_or(VerbsError::Unsupported("receive queues"))?;
        let taken = self.post_receive_with(queue, request, "ibv_post_recv", |work| {
            let mut refused = core::ptr::null_mut();
            // SAFETY: the queue pair is alive; the request and its entries are the caller's until the call
            // returns, and what it names is registered and stays so while it is outstanding.
            unsafe { post(qp, work, &raw mut refused) }
        })?;
        let mut is_over = false;
        if let Some(pair) = self.queue_pairs.get_mut(queue_pair) {
            pair.receives.push(taken);
            is_over = pair.state == QueuePairState::Error;
        }
        if is_over {
            // Where receives are posted without the kernel (rxe), nothing else would flush it. A failure leaves
            // it to the flush that the state itself promises.
            let _ = self.modify_plainly(queue_pair, QueuePairState::Error);
        }
        Ok(())
    }

    pub(super) fn receive_shared(
        &mut self,
        queue: SharedReceiveQueue,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        let shared = self.shared.get_mut(queue).ok_or_else(|| unknown(queue))?;
        if shared.receives.is_full() {
            let kept = shared.receives.take_kept();
            self.counters.receives_kept += kept.len() as u64;
            kept.iter().for_each(|it| self.regions.release(&it.keys));
            if shared.receives.is_full() {
                return Err(VerbsError::QueueFull("shared receive"));
            }
        }
        let shared = self.shared.get(queue).ok_or_else(|| unknown(queue))?;
        self.check_receive(shared.domain, request, shared.capabilities.entries_max)?;
        let srq = shared.srq.as_ptr();
        // SAFETY: the device is open.
        let post = unsafe { self.base.context.as_ref().ops.post_srq_recv };
        let post = post.ok_or(VerbsError::Unsupported("shared receive queues"))?;
        let place = Queue::Shared(queue.index);
        let taken = self.post_receive_with(place, request, "ibv_post_srq_recv", |work| {
            let mut refused = core::ptr::null_mut();
            // SAFETY: as for a queue pair's own receives.
            unsafe { post(srq, work, &raw mut refused) }
        })?;
        if let Some(shared) = self.shared.get_mut(queue) {
            shared.receives.push(taken);
        }
        Ok(())
    }

    fn check_receive(
        &self,
        domain: ProtectionDomain,
        request: &ReceiveRequest,
        entries_max: u32,
    ) -> Result<(), VerbsError> {
        let entries = &request.entries;
        limit("entries", entries.len() as u64, u64::from(entries_max))?;
        entries
            .iter()
            .try_for_each(|entry| self.regions.check(entry, domain, true))
    }

    fn post_receive_with(
        &mut self,
        queue: Queue,
        request: &ReceiveRequest,
        call: &'static str,
        post: impl FnOnce(*mut RecvWr) -> c_int,
    ) -> Result<Outstanding, VerbsError> {
        let serial = self.next_serial();
        let mut list = entries_of(&request.entries);
        let mut work = RecvWr {
            wr_id: Name { queue, serial }.encode(),
            next: core::ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: request.entries.len() as c_int,
        };
        check(call, post(&raw mut work)).map_err(|error| match error {
            VerbsError::System { errno, .. } if is_full(errno) => VerbsError::QueueFull("receive"),
            other => other,
        })?;
        let keys = keys_of(&request.entries);
        self.regions.acquire(&keys);
        Ok(Outstanding {
            serial,
            wr_id: request.wr_id,
            kind: CompletionKind::Receive { length: 0 },
            signaled: true,
            window: None,
            keys,
        })
    }
}
