//! Completion queues: their ledgers, and what the device has put into them.

use super::IbverbsProvider;
use super::abi::{Cq, Wc, wc_flag, wc_opcode};
use super::create::unknown;
use super::device::positive;
use super::ledger::{Name, Outstanding, Queue as Place};
use super::objects::{Owned, check};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_int;
use legato_verbs::{
    Arm, Completion, CompletionKind, CompletionQueue, CompletionStatus, QueuePair, QueuePairInit,
    Receives, RemoteKey, SharedReceiveQueue, VerbsError,
};

/// A completion queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) cq: Arc<Owned<Cq>>,
    /// Entries that its user may reserve; none without a ledger.
    capacity: Option<u32>,
    /// Entries that queue pairs have reserved.
    reserved: u32,
    /// Queue pairs, each once for its sends and once for its receives.
    pub(super) users: usize,
    /// What the receives of shared queues need in the device's queue: as many as can be posted, whatever
    /// the ledger says, with the number of queue pairs that take from each.
    shared: BTreeMap<SharedReceiveQueue, (u32, usize)>,
    /// Entries that sends and own receives need there.
    needed: u32,
    /// Taken from the device and not polled yet.
    pub(super) ready: VecDeque<Completion>,
    /// What its user waits for.
    pub(super) armed: Option<Arm>,
    /// It was overrun.
    pub(super) is_broken: bool,
}

impl Queue {
    pub(super) fn new(cq: Owned<Cq>, has_ledger: bool) -> Self {
        Self {
            capacity: has_ledger.then(|| entries_of(&cq)),
            cq: Arc::new(cq),
            reserved: 0,
            users: 0,
            shared: BTreeMap::new(),
            needed: 0,
            ready: VecDeque::new(),
            armed: None,
            is_broken: false,
        }
    }

    pub(super) fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Entries that the device's queue must have.
    fn depth(&self) -> u32 {
        let shared = self.shared.values().map(|&(depth, _)| depth);
        self.needed + shared.sum::<u32>()
    }
}

fn entries_of(cq: &Owned<Cq>) -> u32 {
    // SAFETY: alive.
    positive(unsafe { (*cq.as_ptr()).cqe })
}

/// Entries that are taken from the device's queue at once.
const BATCH: usize = 32;

impl IbverbsProvider {
    pub(super) fn queue(&mut self, queue: CompletionQueue) -> Result<&mut Queue, VerbsError> {
        self.queues.get_mut(queue).ok_or_else(|| unknown(queue))
    }

    /// Reserves entries for all that a queue pair can have outstanding, and returns the two queues.
    pub(super) fn reserve_completions(
        &mut self,
        init: &QueuePairInit,
        shared: Option<(SharedReceiveQueue, u32)>,
    ) -> Result<[Arc<Owned<Cq>>; 2], VerbsError> {
        let capabilities = init.capabilities;
        let sides = [
            (init.send_completions, capabilities.send_requests_max),
            (init.receive_completions, capabilities.receive_requests_max),
        ];
        for (queue, own) in sides {
            let other = match init.send_completions == init.receive_completions {
                true => capabilities.send_requests_max + capabilities.receive_requests_max - own,
                false => 0,
            };
            let needed = own + other;
            let found = self.queue(queue)?;
            let free = found
                .capacity
                .map_or(u32::MAX, |all| all.saturating_sub(found.reserved));
            if needed > free {
                return Err(VerbsError::CompletionQueueTooSmall { needed, free });
            }
        }
        for (queue, own) in sides {
            let found = self.queue(queue)?;
            found.reserved += own;
            found.users += 1;
        }
        self.queue(init.send_completions)?.needed += capabilities.send_requests_max;
        let receives = self.queue(init.receive_completions)?;
        match shared {
            None => receives.needed += capabilities.receive_requests_max,
            Some((queue, depth)) => receives.shared.entry(queue).or_insert((depth, 0)).1 += 1,
        }
        if let Err(error) = self.deepen(init.receive_completions) {
            self.release_completions(init);
            return Err(error);
        }
        Ok([
            Arc::clone(&self.queue(init.send_completions)?.cq),
            Arc::clone(&self.queue(init.receive_completions)?.cq),
        ])
    }

    /// Makes the device's queue as long as it has to be.
    fn deepen(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        let resize = self.base.functions.ibv_resize_cq;
        let found = self.queue(queue)?;
        let (needed, has) = (found.depth(), entries_of(&found.cq));
        if found.capacity.is_none() || needed <= has {
            return Ok(());
        }
        // SAFETY: alive; the library moves what is in it.
        let resized = unsafe { resize(found.cq.as_ptr(), needed as c_int) };
        check("ibv_resize_cq", resized)
    }

    /// The reverse of [`Self::reserve_completions`].
    pub(super) fn release_completions(&mut self, init: &QueuePairInit) {
        let capabilities = init.capabilities;
        if let Some(queue) = self.queues.get_mut(init.send_completions) {
            queue.reserved -= capabilities.send_requests_max;
            queue.needed -= capabilities.send_requests_max;
            queue.users -= 1;
        }
        let Some(queue) = self.queues.get_mut(init.receive_completions) else {
            return;
        };
        queue.reserved -= capabilities.receive_requests_max;
        queue.users -= 1;
        match init.receives {
            Receives::Own => queue.needed -= capabilities.receive_requests_max,
            Receives::Shared(shared) => {
                if let Some((_, users)) = queue.shared.get_mut(&shared) {
                    *users -= 1;
                    if *users == 0 {
                        queue.shared.remove(&shared);
                    }
                }
            }
        }
    }

    pub(super) fn poll(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        let found = self.queue(queue)?;
        if found.is_broken {
            return Err(VerbsError::CompletionQueueOverrun);
        }
        if found.ready.len() < max {
            self.drain(queue)?;
        }
        let found = self.queue(queue)?;
        let count = max.min(found.ready.len());
        into.extend(found.ready.drain(..count));
        Ok(count)
    }

    /// Takes over all that the device has put into a queue.
    pub(super) fn drain(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        let cq = Arc::clone(&self.queue(queue)?.cq);
        // SAFETY: the device is open.
        let poll = unsafe { self.base.context.as_ref().ops.poll_cq };
        let poll = poll.ok_or(VerbsError::Unsupported("completion queues"))?;
        let mut came = Vec::new();
        let mut entries = [Wc::default(); BATCH];
        let status = loop {
            // SAFETY: the queue is alive, and there is room for so many entries.
            let count = unsafe { poll(cq.as_ptr(), BATCH as c_int, entries.as_mut_ptr()) };
            let taken = usize::try_from(count).unwrap_or(0);
            for entry in entries.iter().take(taken) {
                self.complete(entry, &mut came);
            }
            if taken < BATCH {
                break count;
            }
        };
        self.queue(queue)?.ready.extend(came);
        if status < 0 {
            return Err(VerbsError::System {
                call: "ibv_poll_cq",
                errno: -status,
            });
        }
        Ok(())
    }

    /// What an entry says to whom.
    fn complete(&mut self, entry: &Wc, into: &mut Vec<Completion>) {
        let found = match Name::decode(entry.wr_id) {
            Some(Name {
                queue: Place::Shared(place),
                serial,
            }) => self.take_shared(place, serial, entry.qp_num),
            Some(Name {
                queue: Place::Send(place),
                serial,
            }) => self.take_own(place, |pair| pair.sends.take_through(serial)),
            Some(Name {
                queue: Place::Receive(place),
                serial,
            }) => self.take_own(place, |pair| pair.receives.take_through(serial)),
            None => None,
        };
        let Some((queue_pair, mut requests)) = found else {
            self.counters.completions_dropped += 1;
            return;
        };
        let last = requests.pop();
        for request in requests {
            self.regions.release(&request.keys);
            if request.signaled {
                // Whatever became of it, nobody says any more.
                self.counters.completions_missing += 1;
                into.push(Completion {
                    wr_id: request.wr_id,
                    queue_pair,
                    result: Err(CompletionStatus::WorkRequestFlushed),
                    vendor_error: 0,
                });
            }
        }
        let Some(request) = last else {
            return;
        };
        self.regions.release(&request.keys);
        let result = match entry.status {
            0 => Ok(kind_of(entry, &request, self.device.with_invalidate)),
            status => Err(status_of(status)),
        };
        let key = request.window;
        match (&result, request.kind) {
            (Ok(CompletionKind::ReceiveWithInvalidate { key, .. }), _) => {
                self.windows.unbind(*key);
            }
            (Ok(_), CompletionKind::LocalInvalidate) => {
                key.into_iter().for_each(|key| self.windows.unbind(key));
            }
            (Err(_), CompletionKind::BindWindow) => {
                key.into_iter().for_each(|key| self.windows.revert(key));
            }
            _ => {}
        }
        if result.is_err() {
            // Of a reliable connection every failure is the end.
            self.fail(queue_pair);
        }
        into.push(Completion {
            wr_id: request.wr_id,
            queue_pair,
            vendor_error: if result.is_err() { entry.vendor_err } else { 0 },
            result,
        });
    }

    fn take_own(
        &mut self,
        place: u32,
        take: impl FnOnce(&mut super::queue_pair::Pair) -> Option<Vec<Outstanding>>,
    ) -> Option<(QueuePair, Vec<Outstanding>)> {
        let handle = self.queue_pairs.at(place)?;
        let taken = take(self.queue_pairs.get_mut(handle)?)?;
        Some((handle, taken))
    }

    fn take_shared(
        &mut self,
        place: u32,
        serial: u64,
        number: u32,
    ) -> Option<(QueuePair, Vec<Outstanding>)> {
        let handle = self.shared.at(place)?;
        let of = self.numbers.get(&number).copied();
        let request = self.shared.get_mut(handle)?.receives.take(serial, of)?;
        match of {
            Some(queue_pair) => Some((queue_pair, Vec::from([request]))),
            None => {
                // Of a queue pair that was destroyed: the receive is free again.
                self.regions.release(&request.keys);
                None
            }
        }
    }

    /// Takes the completions of a queue pair out of its queues, for it is gone, or all is forgotten.
    pub(super) fn sweep(&mut self, queue_pair: QueuePair, init: &QueuePairInit) {
        for queue in [init.send_completions, init.receive_completions] {
            // What a broken queue does not give out is not its user's either.
            let _ = self.drain(queue);
            if let Some(queue) = self.queues.get_mut(queue) {
                queue
                    .ready
                    .retain(|completion| completion.queue_pair != queue_pair);
            }
        }
    }
}

/// What a success was. Of a receive the device says it.
fn kind_of(entry: &Wc, request: &Outstanding, with_invalidate: u32) -> CompletionKind {
    if !matches!(request.kind, CompletionKind::Receive { .. }) {
        return request.kind;
    }
    let length = entry.byte_len;
    let immediate = u32::from_be(entry.immediate_or_key);
    if entry.opcode == wc_opcode::RECV_RDMA_WITH_IMM {
        CompletionKind::ReceiveRdmaWithImmediate { length, immediate }
    } else if entry.wc_flags & wc_flag::WITH_IMM != 0 {
        CompletionKind::ReceiveWithImmediate { length, immediate }
    } else if entry.wc_flags & with_invalidate != 0 {
        CompletionKind::ReceiveWithInvalidate {
            length,
            key: RemoteKey(entry.immediate_or_key),
        }
    } else {
        CompletionKind::Receive { length }
    }
}

/// `enum ibv_wc_status`; those that a reliable connection does not know are said by the nearest that it does.
const fn status_of(status: u32) -> CompletionStatus {
    match status {
        1 => CompletionStatus::LocalLength,
        // Local protection, and local access.
        4 | 8 => CompletionStatus::LocalProtection,
        5 => CompletionStatus::WorkRequestFlushed,
        7 => CompletionStatus::BadResponse,
        // Invalid request, and invalid request for a READ.
        9 | 15 => CompletionStatus::RemoteInvalidRequest,
        10 => CompletionStatus::RemoteAccess,
        // Operation, and abort.
        11 | 16 => CompletionStatus::RemoteOperation,
        // Retries, and response timeout.
        12 | 20 => CompletionStatus::RetryExceeded,
        13 => CompletionStatus::ReceiverNotReadyRetryExceeded,
        // Queue pair operation, window binding, and whatever is a fault on this side.
        _ => CompletionStatus::LocalQueuePairOperation,
    }
}
