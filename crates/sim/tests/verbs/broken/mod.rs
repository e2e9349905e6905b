//! A simulated NIC with one of many defects: what the suite must be able to find.

mod model;

use legato_base::Time;
use legato_sim::provider::SimProvider;
use legato_verbs::{
    AccessFlags, Arm, Completion, CompletionKind, CompletionQueue, CompletionStatus,
    ConnectionEvent, ConnectionRequest, Event, Listener, MemoryRegion, ProtectionDomain, Provider,
    QueuePair, QueuePairAttributes, QueuePairInit, QueuePairState, ReceiveRequest, RemoteKey,
    ResourceCounts, SendFlags, SendOperation, SendRequest, SharedReceiveQueue, VerbsError,
    WorkRequestId, delegate,
};
use std::collections::BTreeSet;

/// What is wrong with a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    DropsLastFlush,
    CompletesTwice,
    ReversesCompletions,
    IgnoresPermissions,
    IgnoresDomains,
    CorruptsLongReads,
    ReportsFullLength,
    NamesWrongStatus,
    SignalsEverything,
    HidesUnsignaledErrors,
    NeverFull,
    TakesSendsInInit,
    AllowsInitFromAnyState,
    ForgetsLedger,
    ReissuesKeys,
    HidesDisconnects,
    RepeatsDisconnects,
    DropsPrivateData,
    Leaks,
    ForgetsReceives,
    KeepsCompletionsOfTheDestroyed,
    DropsEventsOfTheDestroyed,
    WritesAfterFlush,
    ChecksNoBounds,
    IgnoresDeregistration,
    ClampsLocalAccess,
    ClosesSilently,
    SendsAByteForNothing,
    SleepsOverWork,
    ForgetsImmediates,
    ReadsInlineDataLate,
    IgnoresFences,
    AddsTwice,
    SwapsBytes,
    BindsTooMuch,
    ReissuesWindows,
    TellsNobodyWhenArmed,
    TellsTwiceWhenArmed,
    WakesForAll,
    HidesLimits,
    RepeatsLimits,
    HidesLastWorkRequests,
    LosesSharedReceives,
    HidesOverruns,
    HidesTimeWait,
    TakesForeignAttributes,
    ForgetsAttributes,
    DrainsNothing,
}

/// A simulated NIC with a defect.
pub(crate) struct Broken {
    inner: SimProvider,
    defect: Defect,
    leaked: usize,
    unsignaled: BTreeSet<WorkRequestId>,
    regions: Vec<MemoryRegion>,
    reads: Vec<(WorkRequestId, MemoryRegion, u64)>,
    scribbles: Vec<(MemoryRegion, u64)>,
    kept: Vec<(CompletionQueue, Completion)>,
    destroyed: Vec<QueuePair>,
    repeat: Option<Event>,
    first_domain: Option<ProtectionDomain>,
    first_window: Option<RemoteKey>,
    shared_receives: u32,
}

impl Broken {
    pub(crate) const fn new(inner: SimProvider, defect: Defect) -> Self {
        Self {
            inner,
            defect,
            leaked: 0,
            unsignaled: BTreeSet::new(),
            regions: Vec::new(),
            reads: Vec::new(),
            scribbles: Vec::new(),
            kept: Vec::new(),
            destroyed: Vec::new(),
            repeat: None,
            first_domain: None,
            first_window: None,
            shared_receives: 0,
        }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn spoil(&mut self, queue: CompletionQueue, came: &mut Vec<Completion>) {
        for completion in &mut *came {
            model::spoil_completion(self.defect, completion);
        }
        let flushed = Err(CompletionStatus::WorkRequestFlushed);
        match self.defect {
            Defect::DropsLastFlush => {
                came.pop_if(|last| last.result == flushed);
            }
            Defect::CompletesTwice => {
                if let Some(&last) = came.last() {
                    came.push(last);
                }
            }
            Defect::ReversesCompletions => came.reverse(),
            Defect::ReportsFullLength => {
                for completion in came {
                    if let Ok(CompletionKind::Receive { length }) = &mut completion.result {
                        *length = (*length).next_multiple_of(64);
                    }
                }
            }
            Defect::NamesWrongStatus => {
                for completion in came {
                    if completion.result == Err(CompletionStatus::ReceiverNotReadyRetryExceeded) {
                        completion.result = Err(CompletionStatus::RetryExceeded);
                    }
                }
            }
            Defect::HidesUnsignaledErrors => {
                came.retain(|completion| !self.unsignaled.contains(&completion.wr_id));
            }
            Defect::KeepsCompletionsOfTheDestroyed => {
                let kept = std::mem::take(&mut self.kept);
                for (of, completion) in kept {
                    if of == queue {
                        came.push(completion);
                    } else {
                        self.kept.push((of, completion));
                    }
                }
            }
            Defect::WritesAfterFlush => {
                for (wr_id, region, offset) in &self.reads {
                    let hit = |completion: &Completion| {
                        completion.wr_id == *wr_id && completion.result == flushed
                    };
                    if came.iter().any(hit) {
                        self.scribbles.push((*region, *offset));
                    }
                }
            }
            _ => {}
        }
    }
}

/// Calls the same method of what is inside.
macro_rules! inner {
    ($provider:ident.$method:ident($($argument:expr),*)) => {
        $provider.inner.$method($($argument),*)
    };
}

impl Provider for Broken {
    delegate!(inner:
        attributes destroy_protection_domain destroy_completion_queue query_queue_pair post_receive
        listen disconnect next_window_key deallocate_window create_overcommitted_completion_queue
        create_shared_receive_queue destroy_shared_receive_queue arm_shared_receive_queue
        query_shared_receive_queue queue_pair_number port_address connect reject
    );

    fn resource_counts(&self) -> ResourceCounts {
        let mut counts = self.inner.resource_counts();
        counts.connection_state += self.leaked;
        if self.has(Defect::ForgetsReceives) {
            counts.posted_receives = 0;
        }
        counts
    }

    fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        let domain = self.inner.create_protection_domain()?;
        self.first_domain.get_or_insert(domain);
        Ok(domain)
    }

    fn allocate_region(
        &mut self,
        domain: ProtectionDomain,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let access = match self.defect {
            Defect::IgnoresPermissions => AccessFlags::from_bits(7),
            _ => access,
        };
        let domain = match (self.defect, self.first_domain) {
            (Defect::IgnoresDomains, Some(first)) => first,
            _ => domain,
        };
        let room = match self.defect {
            Defect::ChecksNoBounds => length + 65_536,
            _ => length,
        };
        let mut region = self.inner.allocate_region(domain, room, access)?;
        region.length = length;
        if self.has(Defect::ReissuesKeys) {
            region.remote_key = RemoteKey(region.remote_key.0 % 64);
        }
        self.regions.push(region);
        Ok(region)
    }

    fn deregister_region(&mut self, region: &MemoryRegion) -> Result<(), VerbsError> {
        if self.has(Defect::IgnoresDeregistration) {
            return Ok(());
        }
        self.inner.deregister_region(region)
    }

    fn read_region(
        &self,
        region: &MemoryRegion,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), VerbsError> {
        self.inner.read_region(region, offset, into)?;
        if self.has(Defect::CorruptsLongReads) && into.len() >= 4096 {
            into[4095] ^= 1;
        }
        Ok(())
    }

    fn write_region(
        &mut self,
        region: &MemoryRegion,
        offset: u64,
        from: &[u8],
    ) -> Result<(), VerbsError> {
        if self.has(Defect::ClampsLocalAccess) {
            let offset = offset.min(region.length);
            let length = (from.len() as u64).min(region.length - offset);
            return self
                .inner
                .write_region(region, offset, &from[..length as usize]);
        }
        self.inner.write_region(region, offset, from)
    }

    fn allocate_window(&mut self, domain: ProtectionDomain) -> Result<RemoteKey, VerbsError> {
        let window = self.inner.allocate_window(domain)?;
        let first = *self.first_window.get_or_insert(window);
        Ok(if self.has(Defect::ReissuesWindows) {
            first
        } else {
            window
        })
    }

    fn arm_completion_queue(
        &mut self,
        queue: CompletionQueue,
        arm: Arm,
    ) -> Result<bool, VerbsError> {
        let arm = match self.defect {
            Defect::WakesForAll => Arm::Next,
            _ => arm,
        };
        self.inner.arm_completion_queue(queue, arm)
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueue,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        self.shared_receives += 1;
        if self.has(Defect::LosesSharedReceives) && self.shared_receives.is_multiple_of(4) {
            return Ok(());
        }
        self.inner.post_shared_receive(queue, request)
    }

    fn query_attributes(&self, queue_pair: QueuePair) -> Result<QueuePairAttributes, VerbsError> {
        let known = self.inner.query_attributes(queue_pair)?;
        Ok(if self.has(Defect::ForgetsAttributes) {
            QueuePairAttributes::NONE
        } else {
            known
        })
    }

    fn create_completion_queue(&mut self, entries: u32) -> Result<CompletionQueue, VerbsError> {
        let entries = match self.defect {
            Defect::ForgetsLedger => entries * 1000,
            Defect::NeverFull => entries * 400,
            _ => entries,
        };
        self.inner.create_completion_queue(entries)
    }

    fn poll_completion_queue(
        &mut self,
        queue: CompletionQueue,
        max: usize,
        into: &mut Vec<Completion>,
    ) -> Result<usize, VerbsError> {
        let mut came = Vec::new();
        self.inner.poll_completion_queue(queue, max, &mut came)?;
        self.spoil(queue, &mut came);
        into.extend_from_slice(&came);
        Ok(came.len())
    }

    fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        let mut init = *init;
        if self.has(Defect::NeverFull) {
            init.capabilities.send_requests_max *= 300;
        }
        self.inner.create_queue_pair(&init)
    }

    fn modify_queue_pair(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        if to == QueuePairState::SendQueueDrain && self.has(Defect::DrainsNothing) {
            return Ok(());
        }
        let modified = self.inner.modify_queue_pair(queue_pair, to, attributes);
        match modified {
            Err(VerbsError::Attributes(_)) if self.has(Defect::TakesForeignAttributes) => Ok(()),
            Err(VerbsError::InvalidState(_))
                if to == QueuePairState::Init && self.has(Defect::AllowsInitFromAnyState) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        self.leaked += usize::from(self.has(Defect::Leaks));
        self.destroyed.push(queue_pair);
        if self.has(Defect::KeepsCompletionsOfTheDestroyed) {
            // The first queue is the only one that the rule in question uses.
            let queue = CompletionQueue {
                index: 0,
                generation: 1,
            };
            let mut left = Vec::new();
            self.inner.poll_completion_queue(queue, 100, &mut left).ok();
            self.kept
                .extend(left.into_iter().map(|completion| (queue, completion)));
        }
        self.inner.destroy_queue_pair(queue_pair)
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        let mut request = request.clone();
        model::spoil_request(self.defect, &mut request);
        if !request.flags.contains(SendFlags::SIGNALED) {
            self.unsignaled.insert(request.wr_id);
        }
        if self.has(Defect::SignalsEverything) {
            request.flags = request.flags | SendFlags::SIGNALED;
        }
        if self.has(Defect::SendsAByteForNothing) && request.entries.is_empty() {
            let region = self.regions[0];
            request.entries.push(region.entry(0, 1));
        }
        if matches!(request.operation, SendOperation::RdmaRead(_)) {
            for entry in &request.entries {
                let of_entry = |region: &&MemoryRegion| region.local_key == entry.local_key;
                if let Some(region) = self.regions.iter().find(of_entry) {
                    let offset = entry.address - region.address;
                    self.reads.push((request.wr_id, *region, offset));
                }
            }
        }
        match self.inner.post_send(queue_pair, &request) {
            Err(VerbsError::InvalidState(QueuePairState::Init))
                if self.has(Defect::TakesSendsInInit) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    fn close_listener(&mut self, listener: Listener) -> Result<(), VerbsError> {
        if self.has(Defect::ClosesSilently) {
            return Ok(());
        }
        self.inner.close_listener(listener)
    }

    fn accept(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let private_data = match self.defect {
            Defect::DropsPrivateData => &[],
            _ => private_data,
        };
        self.inner.accept(request, queue_pair, private_data)
    }

    fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.repeat.take() {
            return Some(event);
        }
        let event = self.inner.poll_event()?;
        if let Event::Connection(ConnectionEvent::Disconnected { queue_pair }) = &event {
            let destroyed = self.destroyed.contains(queue_pair);
            match self.defect {
                Defect::HidesDisconnects => return self.poll_event(),
                Defect::DropsEventsOfTheDestroyed if destroyed => return self.poll_event(),
                _ => {}
            }
        }
        match model::times(self.defect, &event) {
            0 => return self.poll_event(),
            1 => {}
            _ => self.repeat = Some(event.clone()),
        }
        Some(event)
    }

    fn progress(&mut self, now: Time) -> Time {
        for (region, offset) in std::mem::take(&mut self.scribbles) {
            self.inner.write_region(&region, offset, &[0x66]).ok();
        }
        self.inner.progress(now)
    }

    fn set_sleeping(&mut self, sleeping: bool) -> bool {
        self.has(Defect::SleepsOverWork) || self.inner.set_sleeping(sleeping)
    }
}
