//! Making and ending protection domains, queues and queue pairs.

use super::IbverbsProvider;
use super::abi::{Pd, Qp, QpCap, QpInitAttr, Srq, SrqAttr, SrqInitAttr, srq_mask};
use super::completion::Queue;
use super::device::positive;
use super::ledger::{Ledger, PLACES_MAX};
use super::objects::{Owned, check};
use super::queue_pair::{Objects, Pair, Phase};
use super::shared_ledger::SharedLedger;
use crate::table::Handle;
use alloc::sync::Arc;
use core::ffi::{c_int, c_void};
use legato_verbs::{
    CompletionQueue, ProtectionDomain, QueuePair, QueuePairAttributes, QueuePairInit,
    QueuePairState, Receives, SharedReceiveQueue, SharedReceiveQueueCapabilities, VerbsError,
};

/// Bytes that are copied when a request with inline data is posted. Every device has so many.
pub(super) const INLINE_LENGTH_MAX: u32 = 64;

#[derive(Debug)]
pub(super) struct Domain {
    pub(super) pd: Arc<Owned<Pd>>,
    /// Regions, windows, queue pairs and shared receive queues of it.
    pub(super) users: usize,
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) srq: Arc<Owned<Srq>>,
    pub(super) domain: ProtectionDomain,
    pub(super) capabilities: SharedReceiveQueueCapabilities,
    /// Posted and not completed, and by whose queue pairs.
    pub(super) receives: SharedLedger,
}

pub(super) fn unknown<H: Handle>(_handle: H) -> VerbsError {
    VerbsError::UnknownHandle(H::NAME)
}

pub(super) fn limit(what: &'static str, asked: u64, limit: u64) -> Result<(), VerbsError> {
    if asked <= limit {
        return Ok(());
    }
    Err(VerbsError::LimitExceeded { what, asked, limit })
}

/// A handle as the library keeps it for us, in a pointer that it never follows.
pub(super) fn context_of<H: Handle>(handle: H) -> *mut c_void {
    let bits = u64::from(handle.index()) << 32 | u64::from(handle.generation());
    core::ptr::without_provenance_mut(bits as usize)
}

/// The reverse.
pub(super) fn handle_in<H: Handle>(context: *mut c_void) -> H {
    let bits = context.addr() as u64;
    H::new((bits >> 32) as u32, bits as u32)
}

impl IbverbsProvider {
    pub(super) fn add_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        // SAFETY: the device is open, and what it makes is ours.
        let pd = unsafe {
            let made = (self.base.functions.ibv_alloc_pd)(self.base.context.as_ptr());
            Owned::adopt(&self.base, made, "ibv_alloc_pd")?
        };
        Ok(self.domains.insert(Domain {
            pd: Arc::new(pd),
            users: 0,
        }))
    }

    pub(super) fn remove_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        let found = self.domains.get(domain).ok_or_else(|| unknown(domain))?;
        if found.users > 0 {
            return Err(VerbsError::Busy("protection domain"));
        }
        let ended = self.domains.remove(domain).map(|domain| end(domain.pd));
        ended.unwrap_or(Ok(()))
    }

    /// One object fewer belongs to a domain.
    pub(super) fn leave_domain(&mut self, domain: ProtectionDomain) {
        if let Some(domain) = self.domains.get_mut(domain) {
            domain.users -= 1;
        }
    }

    /// The library's domain, which one object more belongs to if what is made is kept.
    pub(super) fn domain_ptr(&self, domain: ProtectionDomain) -> Result<*mut Pd, VerbsError> {
        let found = self.domains.get(domain).ok_or_else(|| unknown(domain))?;
        Ok(found.pd.as_ptr())
    }

    pub(super) fn add_completion_queue(
        &mut self,
        entries: u32,
        has_ledger: bool,
    ) -> Result<CompletionQueue, VerbsError> {
        let most = positive(self.device.attributes.max_cqe);
        limit(
            "completion queue entries",
            u64::from(entries),
            u64::from(most),
        )?;
        // Its place is known before it is made: the library is told it.
        let handle = self.queues.next_handle();
        // SAFETY: the device and the channel are open; the context is never followed.
        let cq = unsafe {
            let made = (self.base.functions.ibv_create_cq)(
                self.base.context.as_ptr(),
                entries.max(1) as c_int,
                context_of(handle),
                self.base.completions.as_ptr(),
                0,
            );
            Owned::adopt(&self.base, made, "ibv_create_cq")?
        };
        Ok(self.queues.insert(Queue::new(cq, has_ledger)))
    }

    pub(super) fn remove_completion_queue(
        &mut self,
        queue: CompletionQueue,
    ) -> Result<(), VerbsError> {
        let found = self.queues.get(queue).ok_or_else(|| unknown(queue))?;
        if found.users > 0 {
            return Err(VerbsError::Busy("completion queue"));
        }
        // An event of it that nobody has fetched goes with it; one that was fetched is acknowledged.
        let ended = self.queues.remove(queue).map(|queue| end(queue.cq));
        ended.unwrap_or(Ok(()))
    }

    pub(super) fn add_shared_queue(
        &mut self,
        domain: ProtectionDomain,
        capabilities: SharedReceiveQueueCapabilities,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        let device = &self.device.attributes;
        let requests = positive(device.max_srq_wr);
        let entries = positive(device.max_srq_sge).min(self.device.entries_max());
        if device.max_srq <= 0 {
            return Err(VerbsError::Unsupported("shared receive queues"));
        }
        limit(
            "shared receive requests",
            u64::from(capabilities.requests_max),
            u64::from(requests),
        )?;
        limit(
            "entries",
            u64::from(capabilities.entries_max),
            u64::from(entries),
        )?;
        let handle = self.shared.next_handle();
        limit(
            "shared receive queues",
            u64::from(handle.index) + 1,
            u64::from(PLACES_MAX),
        )?;
        let mut init = SrqInitAttr {
            srq_context: context_of(handle),
            attr: SrqAttr {
                max_wr: capabilities.requests_max.max(1),
                max_sge: capabilities.entries_max.max(1),
                srq_limit: 0,
            },
        };
        let pd = self.domain_ptr(domain)?;
        // SAFETY: the domain is alive, and what is made is ours.
        let srq = unsafe {
            let made = (self.base.functions.ibv_create_srq)(pd, &raw mut init);
            Owned::adopt(&self.base, made, "ibv_create_srq")?
        };
        if let Some(domain) = self.domains.get_mut(domain) {
            domain.users += 1;
        }
        Ok(self.shared.insert(Shared {
            srq: Arc::new(srq),
            domain,
            capabilities,
            receives: SharedLedger::new(capabilities.requests_max as usize),
        }))
    }

    pub(super) fn remove_shared_queue(
        &mut self,
        queue: SharedReceiveQueue,
    ) -> Result<(), VerbsError> {
        let found = self.shared.get(queue).ok_or_else(|| unknown(queue))?;
        if found.receives.users() > 0 {
            return Err(VerbsError::Busy("shared receive queue"));
        }
        let Some(shared) = self.shared.remove(queue) else {
            return Ok(());
        };
        for receive in shared.receives.all() {
            self.regions.release(&receive.keys);
        }
        self.leave_domain(shared.domain);
        end(shared.srq)
    }

    pub(super) fn set_shared_limit(
        &mut self,
        queue: SharedReceiveQueue,
        least: u32,
    ) -> Result<(), VerbsError> {
        let found = self.shared.get(queue).ok_or_else(|| unknown(queue))?;
        let most = found.capabilities.requests_max;
        limit(
            "shared receive queue limit",
            u64::from(least),
            u64::from(most),
        )?;
        let mut attributes = SrqAttr {
            srq_limit: least,
            ..SrqAttr::default()
        };
        // SAFETY: the queue is alive, and only the limit is set.
        let set = unsafe {
            (self.base.functions.ibv_modify_srq)(
                found.srq.as_ptr(),
                &raw mut attributes,
                srq_mask::LIMIT,
            )
        };
        check("ibv_modify_srq", set)
    }

    pub(super) fn shared_limit(&self, queue: SharedReceiveQueue) -> Result<u32, VerbsError> {
        let found = self.shared.get(queue).ok_or_else(|| unknown(queue))?;
        let mut attributes = SrqAttr::default();
        // SAFETY: the queue is alive.
        let queried =
            unsafe { (self.base.functions.ibv_query_srq)(found.srq.as_ptr(), &raw mut attributes) };
        check("ibv_query_srq", queried)?;
        Ok(attributes.srq_limit)
    }

    pub(super) fn add_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        self.check_capabilities(init)?;
        let handle = self.queue_pairs.next_handle();
        limit(
            "queue pairs",
            u64::from(handle.index) + 1,
            u64::from(PLACES_MAX),
        )?;
        let capabilities = init.capabilities;
        let shared = match init.receives {
            Receives::Own => None,
            Receives::Shared(queue) => {
                let found = self.shared.get(queue).ok_or_else(|| unknown(queue))?;
                Some((
                    queue,
                    Arc::clone(&found.srq),
                    found.capabilities.requests_max,
                ))
            }
        };
        let domain = self
            .domains
            .get(init.domain)
            .ok_or_else(|| unknown(init.domain))?;
        let domain = Arc::clone(&domain.pd);
        let depth = shared.as_ref().map(|&(queue, _, depth)| (queue, depth));
        let queues = self.reserve_completions(init, depth)?;
        let receives = if shared.is_some() {
            0
        } else {
            capabilities.receive_requests_max
        };
        let mut attributes = QpInitAttr {
            qp_context: context_of(handle),
            send_cq: queues[0].as_ptr(),
            recv_cq: queues[1].as_ptr(),
            srq: shared
                .as_ref()
                .map_or(core::ptr::null_mut(), |(_, srq, _)| srq.as_ptr()),
            cap: QpCap {
                max_send_wr: capabilities.send_requests_max.max(1),
                max_recv_wr: receives,
                max_send_sge: capabilities.entries_max.max(1),
                max_recv_sge: if receives == 0 {
                    0
                } else {
                    capabilities.entries_max.max(1)
                },
                max_inline_data: INLINE_LENGTH_MAX,
            },
            qp_type: QpInitAttr::RELIABLE_CONNECTION,
            sq_sig_all: 0,
        };
        // SAFETY: what it names is alive; what is made is ours.
        let made = unsafe {
            let made = (self.base.functions.ibv_create_qp)(domain.as_ptr(), &raw mut attributes);
            Owned::<Qp>::adopt(&self.base, made, "ibv_create_qp")
        };
        let qp = match made {
            Ok(qp) => qp,
            Err(error) => {
                self.release_completions(init);
                return Err(error);
            }
        };
        // SAFETY: just made.
        let number = unsafe { (*qp.as_ptr()).qp_num };
        let pair = Pair {
            init: *init,
            number,
            state: QueuePairState::Reset,
            attributes: QueuePairAttributes::NONE,
            sends: Ledger::default(),
            receives: Ledger::default(),
            phase: Phase::Unconnected,
            last_was_told: false,
            fatal_was_told: false,
            objects: Objects {
                qp,
                queues,
                shared: shared.map(|(_, srq, _)| srq),
                domain,
            },
        };
        let queue_pair = self.queue_pairs.insert(pair);
        self.numbers.insert(number, queue_pair);
        if let Some(domain) = self.domains.get_mut(init.domain) {
            domain.users += 1;
        }
        if let Receives::Shared(queue) = init.receives
            && let Some(shared) = self.shared.get_mut(queue)
        {
            shared.receives.attach(queue_pair);
        }
        Ok(queue_pair)
    }

    fn check_capabilities(&self, init: &QueuePairInit) -> Result<(), VerbsError> {
        let capabilities = init.capabilities;
        let most = u64::from(positive(self.device.attributes.max_qp_wr));
        limit(
            "send requests",
            u64::from(capabilities.send_requests_max),
            most,
        )?;
        limit(
            "receive requests",
            u64::from(capabilities.receive_requests_max),
            most,
        )?;
        let entries = u64::from(self.device.entries_max());
        limit("entries", u64::from(capabilities.entries_max), entries)
    }
}

/// Ends an object now, unless a queue pair in time wait stands on it: then it ends with that.
fn end<T: super::objects::Kind>(object: Arc<Owned<T>>) -> Result<(), VerbsError> {
    match Arc::try_unwrap(object) {
        Ok(object) => object.end(),
        Err(_) => Ok(()),
    }
}
