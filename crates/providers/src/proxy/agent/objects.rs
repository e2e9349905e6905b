//! Objects of the far half's provider, and what is kept of them here.

use super::super::call::{Answer, Call};
use super::ProxyProvider;
use super::bounce::Pool;
use super::pair::{Outstanding, Pair};
use crate::memory::{self, Mapping, Protection};
use legato_verbs::{
    AccessFlags, ConnectionEvent, Event, Listener, MemoryRegion, ProtectionDomain, QueuePair,
    QueuePairAttributes, QueuePairInit, QueuePairState, Receives, RemoteKey, VerbsError,
};

use super::super::call::RegionId;

impl ProxyProvider {
    pub(super) fn end_domain(&mut self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        if self.regions.own_count(Some(domain)) > 0 {
            return Err(VerbsError::Busy("protection domain"));
        }
        self.end_retired();
        self.call_done(&Call::DestroyDomain(domain))?;
        self.domains.remove(&domain);
        Ok(())
    }

    /// Memory that the NIC knows, mapped here.
    fn share(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<(RegionId, (RemoteKey, u64), Mapping), VerbsError> {
        let id = self.regions.next_id()?;
        let call = Call::AllocateRegion {
            id,
            domain,
            length,
            access,
        };
        let (Answer::Region { key, address }, Some(segment)) = self.call(&call)? else {
            return Err(self.misspoke());
        };
        match memory::map_segment(&segment, (0, length), Protection::ReadWrite) {
            Ok(mapping) => Ok((id, (key, address), mapping)),
            Err(_) => {
                // Nobody has its name, so it goes.
                self.call_done(&Call::DeregisterRegion(id))?;
                Err(VerbsError::System {
                    call: "mmap",
                    errno: rustix::io::Errno::NOMEM.raw_os_error(),
                })
            }
        }
    }

    pub(super) fn make_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let (id, peer, mapping) = self.share(domain, length, access)?;
        let regions = &mut self.regions;
        Ok(regions.add_shared(id, domain, access, peer, mapping))
    }

    pub(super) fn end_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        let key = region.local_key;
        let is_shared = self.regions.is_shared(key)?;
        // Requests in slots: the far half does not know what they are about.
        self.pump();
        if self.pairs.values().any(|pair| pair.sends.names(key)) {
            return Err(VerbsError::Busy("region"));
        }
        if is_shared {
            self.call_done(&Call::DeregisterRegion(RegionId(key.0)))?;
        }
        self.regions.remove(key);
        Ok(())
    }

    /// Slots for a queue pair that has none.
    pub(super) fn provide_pool(&mut self, handle: QueuePair) -> Result<(), VerbsError> {
        let (domain, requests) = match self.pairs.get(&handle) {
            Some(Pair { pool: None, .. }) => {
                let pair = &self.pairs[&handle];
                (pair.domain, pair.capabilities.send_requests_max)
            }
            _ => return Ok(()),
        };
        let access = AccessFlags::LOCAL_WRITE;
        let (id, _, mapping) = self.share(domain, Pool::bytes(requests), access)?;
        let pool = Pool::new(id, mapping, requests);
        match self.pairs.get_mut(&handle) {
            Some(pair) => pair.pool = Some(pool),
            None => self.retired.push(pool),
        }
        Ok(())
    }

    /// Slots of queue pairs that are gone go when the far half says that nothing uses them.
    fn end_retired(&mut self) {
        for pool in core::mem::take(&mut self.retired) {
            if self
                .call_done(&Call::DeregisterRegion(pool.region))
                .is_err()
            {
                self.retired.push(pool);
            }
        }
    }

    pub(super) fn make_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        if let Receives::Shared(_) = init.receives {
            return Err(VerbsError::Unsupported("shared receive queues"));
        }
        let (asked, limit) = (init.capabilities.entries_max, self.attributes.entries_max);
        if asked > limit {
            return Err(VerbsError::LimitExceeded {
                what: "entries of a request",
                asked: asked.into(),
                limit: limit.into(),
            });
        }
        let call = Call::CreatePair {
            domain: init.domain,
            sends: init.send_completions,
            receives: init.receive_completions,
            capabilities: init.capabilities,
        };
        let (Answer::Pair(handle, number), None) = self.call(&call)? else {
            return Err(self.misspoke());
        };
        let pair = Pair {
            domain: init.domain,
            send_queue: init.send_completions,
            receive_queue: init.receive_completions,
            capabilities: init.capabilities,
            number,
            state: QueuePairState::Reset,
            has_connection: false,
            pool: None,
            sends: Outstanding::default(),
            receives: Outstanding::default(),
        };
        self.pairs.insert(handle, pair);
        Ok(handle)
    }

    pub(super) fn end_pair(&mut self, handle: QueuePair) -> Result<(), VerbsError> {
        self.call_done(&Call::DestroyPair(handle))?;
        if let Some(pair) = self.pairs.remove(&handle) {
            self.retired.extend(pair.pool);
        }
        self.forget_ready(handle);
        self.end_retired();
        Ok(())
    }

    pub(super) fn modify(
        &mut self,
        handle: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        let state = self.call_state(&Call::Modify {
            pair: handle,
            to,
            attributes: *attributes,
        })?;
        let Some(pair) = self.pairs.get_mut(&handle) else {
            return Ok(());
        };
        pair.state = state;
        if to == QueuePairState::Reset {
            pair.sends.clear();
            pair.receives.clear();
            self.retired.extend(pair.pool.take());
            self.forget_ready(handle);
            self.end_retired();
        }
        Ok(())
    }

    /// A call about a queue pair, whose state it may change.
    fn call_state(&mut self, call: &Call) -> Result<QueuePairState, VerbsError> {
        match self.call(call)? {
            (Answer::State(state), None) => Ok(state),
            _ => Err(self.misspoke()),
        }
    }

    /// Starts or ends a connection.
    pub(super) fn change_connection(
        &mut self,
        handle: QueuePair,
        call: &Call,
        begins: bool,
    ) -> Result<(), VerbsError> {
        let state = self.call_state(call)?;
        if let Some(pair) = self.pairs.get_mut(&handle) {
            pair.state = state;
            pair.has_connection |= begins;
        }
        Ok(())
    }

    pub(super) fn end_listener(&mut self, handle: Listener) -> Result<(), VerbsError> {
        self.call_done(&Call::CloseListener(handle))?;
        // Whoever waited has been rejected.
        self.events.retain(|event| {
            !matches!(event, Event::Connection(ConnectionEvent::Requested { listener, .. })
                if *listener == handle)
        });
        Ok(())
    }

    /// Pools, which are regions of nobody.
    pub(super) fn pool_count(&self) -> usize {
        let pools = self.pairs.values().filter(|pair| pair.pool.is_some());
        pools.count() + self.retired.len()
    }
}
