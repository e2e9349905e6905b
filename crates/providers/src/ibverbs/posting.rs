//! Send requests: checked here, because what devices do with wrong ones differs, and handed over.

use super::IbverbsProvider;
use super::abi::{
    AtomicTarget, BindMw, MwBindInfo, OperationTarget, RdmaTarget, SendWr, Sge, opcode, send_flag,
};
use super::create::{INLINE_LENGTH_MAX, limit, unknown};
use super::device::ENTRIES_MAX;
use super::ledger::{Name, Outstanding, Queue};
use super::objects::check;
use alloc::vec::Vec;
use core::ffi::c_int;
use legato_verbs::{
    AccessFlags, CompletionKind, LocalKey, ProtectionDomain, QueuePair, QueuePairState, RemoteKey,
    ScatterGatherEntry, SendFlags, SendOperation, SendRequest, VerbsError, WindowBinding,
};
use rustix::io::Errno;

/// The entries of a request as the library takes them.
type Entries = [Sge; ENTRIES_MAX as usize];

const NO_TARGET: OperationTarget = OperationTarget {
    atomic: AtomicTarget {
        remote_addr: 0,
        compare_add: 0,
        swap: 0,
        rkey: 0,
    },
};

const NO_WINDOW: BindMw = BindMw {
    mw: core::ptr::null_mut(),
    rkey: 0,
    bind_info: MwBindInfo {
        mr: core::ptr::null_mut(),
        addr: 0,
        length: 0,
        mw_access_flags: 0,
    },
};

pub(super) fn entries_of(entries: &[ScatterGatherEntry]) -> Entries {
    let mut list = [Sge::default(); ENTRIES_MAX as usize];
    for (place, entry) in list.iter_mut().zip(entries) {
        *place = Sge {
            addr: entry.address,
            length: entry.length,
            lkey: entry.local_key.0,
        };
    }
    list
}

pub(super) fn keys_of(entries: &[ScatterGatherEntry]) -> Vec<LocalKey> {
    entries.iter().map(|entry| entry.local_key).collect()
}

fn length_of(entries: &[ScatterGatherEntry]) -> u64 {
    entries.iter().map(|entry| u64::from(entry.length)).sum()
}

impl IbverbsProvider {
    pub(super) fn send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        self.check_send(queue_pair, request)?;
        let mut list = entries_of(&request.entries);
        let mut work = self.work_of(request)?;
        work.sg_list = list.as_mut_ptr();
        let serial = self.next_serial();
        work.wr_id = Name {
            queue: Queue::Send(queue_pair.index),
            serial,
        }
        .encode();
        self.hand_over(queue_pair, &mut work)?;
        let is_inline = request.flags.contains(SendFlags::INLINE);
        let (mut keys, mut window) = (Vec::new(), None);
        if let SendOperation::LocalInvalidate(key) = request.operation {
            window = Some(key);
        }
        if !is_inline {
            keys = keys_of(&request.entries);
        }
        if let SendOperation::BindWindow(binding) = request.operation {
            keys.push(binding.region);
            window = Some(binding.next);
            self.regions.issue(binding.next.0);
            self.windows
                .advance(binding.window, binding.next, queue_pair);
        }
        self.regions.acquire(&keys);
        if let Some(pair) = self.queue_pairs.get_mut(queue_pair) {
            pair.sends.push(Outstanding {
                serial,
                wr_id: request.wr_id,
                kind: request.operation.completion_kind(),
                signaled: request.flags.contains(SendFlags::SIGNALED),
                window,
                keys,
            });
        }
        Ok(())
    }

    /// The device may have taken a request that it refuses for another reason than want of room: it is
    /// stopped, or it might execute it with the next one.
    fn hand_over(&mut self, queue_pair: QueuePair, work: &mut SendWr) -> Result<(), VerbsError> {
        let pair = self
            .queue_pairs
            .get(queue_pair)
            .ok_or_else(|| unknown(queue_pair))?;
        // SAFETY: the device is open.
        let post = unsafe { self.base.context.as_ref().ops.post_send };
        let post = post.ok_or(VerbsError::Unsupported("send queues"))?;
        let mut refused = core::ptr::null_mut();
        // SAFETY: the queue pair is alive; the request and its entries are ours until the call returns,
        // and the memory that it names was checked to be of registered regions, which stay so while it
        // is outstanding. Inline bytes are copied out of such regions now.
        let status = unsafe { post(pair.objects.qp.as_ptr(), work, &raw mut refused) };
        let posted = check("ibv_post_send", status);
        match posted {
            Err(VerbsError::System { errno, .. }) if is_full(errno) => {
                Err(VerbsError::QueueFull("send"))
            }
            Err(error) => {
                // If that fails too, the error says enough.
                let _ = self.enter_error(queue_pair);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    fn check_send(&self, queue_pair: QueuePair, request: &SendRequest) -> Result<(), VerbsError> {
        use QueuePairState::{Error, ReadyToSend, SendQueueDrain};
        let pair = self
            .queue_pairs
            .get(queue_pair)
            .ok_or_else(|| unknown(queue_pair))?;
        if !matches!(pair.state, ReadyToSend | SendQueueDrain | Error) {
            return Err(VerbsError::InvalidState(pair.state));
        }
        let capabilities = pair.init.capabilities;
        if pair.sends.len() >= capabilities.send_requests_max as usize {
            return Err(VerbsError::QueueFull("send"));
        }
        let count = request.entries.len() as u64;
        limit("entries", count, u64::from(capabilities.entries_max))?;
        let length = length_of(&request.entries);
        if request.flags.contains(SendFlags::INLINE) {
            if !matches!(
                request.operation.completion_kind(),
                CompletionKind::Send | CompletionKind::RdmaWrite
            ) {
                return Err(VerbsError::Unsupported("inline data for that operation"));
            }
            limit("bytes of inline data", length, u64::from(INLINE_LENGTH_MAX))?;
            return request
                .entries
                .iter()
                .try_for_each(|entry| self.regions.check_inline(entry));
        }
        limit(
            "bytes of a message",
            length,
            u64::from(self.device.message_length_max),
        )?;
        self.check_operation(pair.init.domain, &request.operation, length)?;
        let is_written = request.operation.writes_locally();
        request
            .entries
            .iter()
            .try_for_each(|entry| self.regions.check(entry, pair.init.domain, is_written))
    }

    fn check_operation(
        &self,
        domain: ProtectionDomain,
        operation: &SendOperation,
        length: u64,
    ) -> Result<(), VerbsError> {
        match operation {
            SendOperation::CompareAndSwap { .. } | SendOperation::FetchAndAdd { .. }
                if length != 8 =>
            {
                Err(VerbsError::LocalProtection)
            }
            // The specification has the peer refuse it; some libraries do at once, as if it were malformed.
            SendOperation::CompareAndSwap { target, .. }
            | SendOperation::FetchAndAdd { target, .. }
                if target.address % 8 != 0 =>
            {
                Err(VerbsError::Unsupported(
                    "atomics at addresses that are no multiple of 8",
                ))
            }
            // A region's own key ends with the region; devices end keys of windows only.
            SendOperation::LocalInvalidate(key) => self.windows.get(*key).map(|_| ()),
            SendOperation::BindWindow(binding) => self.check_binding(domain, binding),
            _ => Ok(()),
        }
    }

    fn check_binding(
        &self,
        domain: ProtectionDomain,
        binding: &WindowBinding,
    ) -> Result<(), VerbsError> {
        let window = self.windows.get(binding.window)?;
        let is_next = binding.next.0 >> 8 == binding.window.0 >> 8
            && !self.regions.was_issued(binding.next.0);
        let length = u32::try_from(binding.length).unwrap_or(u32::MAX);
        let covered = ScatterGatherEntry {
            local_key: binding.region,
            address: binding.address,
            length,
        };
        let region = self.regions.get(binding.region);
        let may_bind = region.is_some_and(|it| it.access.contains(AccessFlags::WINDOW_BIND));
        if !is_next || !may_bind || window.domain != domain || binding.length > length.into() {
            return Err(VerbsError::LocalProtection);
        }
        self.regions.check(&covered, domain, false)
    }

    fn work_of(&self, request: &SendRequest) -> Result<SendWr, VerbsError> {
        let mut work = SendWr {
            wr_id: 0,
            next: core::ptr::null_mut(),
            sg_list: core::ptr::null_mut(),
            num_sge: request.entries.len() as c_int,
            opcode: opcode::SEND,
            send_flags: flags_of(request.flags),
            immediate_or_key: 0,
            wr: NO_TARGET,
            remote_srqn: 0,
            bind_mw: NO_WINDOW,
        };
        let rdma = |at: legato_verbs::RemoteAddress| OperationTarget {
            rdma: RdmaTarget {
                remote_addr: at.address,
                rkey: at.key.0,
            },
        };
        let atomic = |target: legato_verbs::RemoteAddress, compare_add, swap| OperationTarget {
            atomic: AtomicTarget {
                remote_addr: target.address,
                compare_add,
                swap,
                rkey: target.key.0,
            },
        };
        match request.operation {
            SendOperation::Send => {}
            SendOperation::RdmaWrite(at) => {
                (work.opcode, work.wr) = (opcode::RDMA_WRITE, rdma(at));
            }
            SendOperation::RdmaRead(at) => {
                (work.opcode, work.wr) = (opcode::RDMA_READ, rdma(at));
            }
            SendOperation::SendWithImmediate(number) => {
                (work.opcode, work.immediate_or_key) = (opcode::SEND_WITH_IMM, number.to_be());
            }
            SendOperation::SendWithInvalidate(RemoteKey(key)) => {
                (work.opcode, work.immediate_or_key) = (opcode::SEND_WITH_INV, key);
            }
            SendOperation::RdmaWriteWithImmediate(at, number) => {
                (work.opcode, work.wr) = (opcode::RDMA_WRITE_WITH_IMM, rdma(at));
                work.immediate_or_key = number.to_be();
            }
            SendOperation::CompareAndSwap {
                target,
                compare,
                swap,
            } => {
                (work.opcode, work.wr) =
                    (opcode::ATOMIC_CMP_AND_SWP, atomic(target, compare, swap));
            }
            SendOperation::FetchAndAdd { target, add } => {
                (work.opcode, work.wr) = (opcode::ATOMIC_FETCH_AND_ADD, atomic(target, add, 0));
            }
            SendOperation::LocalInvalidate(RemoteKey(key)) => {
                (work.opcode, work.immediate_or_key) = (opcode::LOCAL_INV, key);
            }
            SendOperation::BindWindow(binding) => {
                work.opcode = opcode::BIND_MW;
                work.bind_mw = self.binding_of(&binding)?;
            }
        }
        Ok(work)
    }

    fn binding_of(&self, binding: &WindowBinding) -> Result<BindMw, VerbsError> {
        let region = self
            .regions
            .get(binding.region)
            .ok_or(VerbsError::LocalProtection)?;
        let window = self.windows.get(binding.window)?.mw.as_ref();
        let window = window.ok_or(VerbsError::UnknownHandle("memory window"))?;
        Ok(BindMw {
            // A window has its next key as soon as the binding is posted: later requests name it by that.
            mw: window.as_ptr(),
            rkey: binding.next.0,
            bind_info: MwBindInfo {
                mr: region.mr.as_ptr(),
                addr: binding.address,
                length: binding.length,
                mw_access_flags: u32::from(binding.access.bits()),
            },
        })
    }
}

pub(super) fn is_full(errno: i32) -> bool {
    // The older calls say ENOMEM, the newer ones ENOSPC.
    [Errno::NOMEM, Errno::NOSPC]
        .map(Errno::raw_os_error)
        .contains(&errno)
}

fn flags_of(flags: SendFlags) -> u32 {
    [
        (SendFlags::FENCE, send_flag::FENCE),
        (SendFlags::SIGNALED, send_flag::SIGNALED),
        (SendFlags::SOLICITED, send_flag::SOLICITED),
        (SendFlags::INLINE, send_flag::INLINE),
    ]
    .into_iter()
    .filter(|&(flag, _)| flags.contains(flag))
    .fold(0, |all, (_, bit)| all | bit)
}
