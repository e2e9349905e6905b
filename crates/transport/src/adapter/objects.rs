//! Objects come and go.

use super::queue_pair::{Context, QueuePairRecord, Receives, Stage};
use super::{ChannelAdapter, QUEUE_PAIRS_MAX, QueueRecord, SHARED_MAX, handle, queue_handle};
use crate::nic::{CompletionQueue as Queue, Handle, ReceiveQueue, ReceiveQueueSize};
use crate::{QueuePairNumber, rc};
use alloc::collections::VecDeque;
use legato_base::Time;
use legato_verbs::{
    self as verbs, CompletionQueue, DeviceAttributes, ProtectionDomain, QueuePair, QueuePairInit,
    ResourceCounts, SharedReceiveQueue, SharedReceiveQueueCapabilities, Subject, VerbsError,
};

pub(super) const NO_QUEUE_PAIR: VerbsError = VerbsError::UnknownHandle("queue pair");
const NO_QUEUE: VerbsError = VerbsError::UnknownHandle("completion queue");
const NO_DOMAIN: VerbsError = VerbsError::UnknownHandle("protection domain");
const QUEUE_ENTRIES_MAX: u32 = 1 << 20;
const REQUESTS_MAX: u32 = 1 << 14;
const ENTRIES_MAX: u32 = 64;
const WINDOWS_MAX: u32 = 1 << 20;

pub(super) const fn limit(what: &'static str, asked: u64, limit: u64) -> Result<(), VerbsError> {
    if asked <= limit {
        return Ok(());
    }
    Err(VerbsError::LimitExceeded { what, asked, limit })
}

const fn full(what: &'static str, limit: u32) -> VerbsError {
    VerbsError::LimitExceeded {
        what,
        asked: limit as u64 + 1,
        limit: limit as u64,
    }
}

const fn domain_handle(domain: ProtectionDomain) -> Handle {
    Handle {
        index: domain.index,
        generation: domain.generation,
    }
}

impl Context {
    /// Receives of its own that no message has taken.
    fn posted(&self) -> u32 {
        match &self.receives {
            Receives::Own(queue) => queue.posted(),
            Receives::Shared(_) => 0,
        }
    }

    /// Is a receive that no message has taken to go to memory of this key?
    pub(super) fn uses(&self, key: verbs::LocalKey) -> bool {
        match &self.receives {
            Receives::Own(queue) => queue.uses(key),
            Receives::Shared(_) => false,
        }
    }
}

impl ChannelAdapter {
    pub const fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            name: self.configuration.name,
            queue_pairs_max: QUEUE_PAIRS_MAX,
            completion_queue_entries_max: QUEUE_ENTRIES_MAX,
            queue_pair_requests_max: REQUESTS_MAX,
            entries_max: ENTRIES_MAX,
            message_length_max: self.configuration.message_length_max,
            inline_length_max: self.objects.policy.transport.inline_max,
            shared_receive_queues_max: SHARED_MAX,
            memory_windows_max: WINDOWS_MAX,
        }
    }

    /// Ended connections that only wait, because their queue pair is gone, do not count.
    pub fn resource_counts(&self) -> ResourceCounts {
        let connecting = self
            .queue_pairs
            .iter()
            .filter(|(_, record)| record.link.is_some_and(|link| link.stage == Stage::Asked));
        let objects = &self.objects;
        let own = self
            .queue_pairs
            .iter()
            .map(|(_, record)| record.context.posted());
        let entries = objects
            .queues
            .iter()
            .map(|(_, it)| it.queue.reserved() as usize);
        ResourceCounts {
            protection_domains: self.domains.count() as usize,
            memory_regions: objects.regions.len(),
            registered_bytes: objects.regions.values().map(|it| it.length).sum(),
            memory_windows: objects.windows.len(),
            completion_queues: objects.queues.count() as usize,
            completion_entries: entries.sum(),
            shared_receive_queues: objects.shared.count() as usize,
            posted_receives: own.sum::<u32>() as usize + objects.shared.posted() as usize,
            queue_pairs: self.queue_pairs.count() as usize,
            listeners: self.listeners.count() as usize,
            connection_state: self.requests.count() as usize + connecting.count(),
        }
    }

    pub(super) fn check_domain(&self, domain: ProtectionDomain) -> Result<(), VerbsError> {
        let found = self.domains.get(domain_handle(domain));
        found.map(|&()| ()).ok_or(NO_DOMAIN)
    }

    pub fn create_protection_domain(&mut self) -> Result<ProtectionDomain, VerbsError> {
        self.check_present()?;
        let made = self.domains.insert(());
        let Handle { index, generation } = made.ok_or(full("protection domains", u32::MAX - 1))?;
        Ok(ProtectionDomain { index, generation })
    }

    pub fn destroy_protection_domain(
        &mut self,
        domain: ProtectionDomain,
    ) -> Result<(), VerbsError> {
        self.check_domain(domain)?;
        let objects = &self.objects;
        let used = objects.regions.values().any(|it| it.domain == domain)
            || objects.windows.values().any(|&it| it == domain)
            || objects.shared.has_domain(domain)
            || self
                .queue_pairs
                .iter()
                .any(|(_, record)| record.context.domain == domain);
        if used {
            return Err(VerbsError::Busy("protection domain"));
        }
        self.domains.remove(domain_handle(domain));
        Ok(())
    }

    pub fn create_completion_queue(
        &mut self,
        entries: u32,
        ledger: bool,
    ) -> Result<CompletionQueue, VerbsError> {
        self.check_present()?;
        let (asked, most) = (u64::from(entries), u64::from(QUEUE_ENTRIES_MAX));
        limit("entries of a completion queue", asked, most)?;
        let record = QueueRecord {
            queue: Queue::new(entries, self.objects.policy.completion_queue),
            ledger,
            attached: 0,
        };
        let made = self.objects.queues.insert(record);
        let Handle { index, generation } = made.ok_or(full("completion queues", u32::MAX - 1))?;
        Ok(CompletionQueue { index, generation })
    }

    pub fn destroy_completion_queue(&mut self, queue: CompletionQueue) -> Result<(), VerbsError> {
        let record = self.objects.queues.get(queue_handle(queue));
        if record.ok_or(NO_QUEUE)?.attached > 0 {
            return Err(VerbsError::Busy("completion queue"));
        }
        self.objects.queues.remove(queue_handle(queue));
        self.objects.forget(Subject::CompletionQueue(queue));
        let ready = verbs::Event::CompletionQueueReady(queue);
        self.objects.events.retain(|event| *event != ready);
        Ok(())
    }

    pub fn create_shared_receive_queue(
        &mut self,
        domain: ProtectionDomain,
        capabilities: SharedReceiveQueueCapabilities,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        self.check_present()?;
        self.check_domain(domain)?;
        let (asked, most) = (
            u64::from(capabilities.requests_max),
            u64::from(REQUESTS_MAX),
        );
        limit("receives of a shared receive queue", asked, most)?;
        let asked = u64::from(capabilities.entries_max);
        limit("entries", asked, u64::from(ENTRIES_MAX))?;
        let size = ReceiveQueueSize {
            depth: capabilities.requests_max,
            entries_max: capabilities.entries_max,
            reclaim: self.objects.policy.receive_reclaim,
        };
        self.objects.shared.create(domain, size)
    }

    pub fn destroy_shared_receive_queue(
        &mut self,
        queue: SharedReceiveQueue,
    ) -> Result<(), VerbsError> {
        self.objects.shared.destroy(queue)?;
        self.objects.forget(Subject::SharedReceiveQueue(queue));
        Ok(())
    }

    /// Is it within the limits, and is everything there that it names?
    fn check_init(&self, init: &QueuePairInit) -> Result<(), VerbsError> {
        self.check_present()?;
        let wanted = init.capabilities;
        let most = u64::from(REQUESTS_MAX);
        limit("send requests", u64::from(wanted.send_requests_max), most)?;
        let receives = u64::from(wanted.receive_requests_max);
        limit("receive requests", receives, most)?;
        let entries = u64::from(wanted.entries_max);
        limit("entries", entries, u64::from(ENTRIES_MAX))?;
        let count = u64::from(self.queue_pairs.count()) + 1;
        limit("queue pairs", count, u64::from(QUEUE_PAIRS_MAX))?;
        self.check_domain(init.domain)?;
        for queue in [init.send_completions, init.receive_completions] {
            self.objects
                .queues
                .get(queue_handle(queue))
                .ok_or(NO_QUEUE)?;
        }
        Ok(())
    }

    pub fn create_queue_pair(&mut self, init: &QueuePairInit) -> Result<QueuePair, VerbsError> {
        self.check_init(init)?;
        let wanted = init.capabilities;
        let (receives, kind) = match init.receives {
            verbs::Receives::Own => {
                let queue = ReceiveQueue::new(ReceiveQueueSize {
                    depth: wanted.receive_requests_max,
                    entries_max: wanted.entries_max,
                    reclaim: self.objects.policy.receive_reclaim,
                });
                (Receives::Own(queue), rc::Receives::Own)
            }
            verbs::Receives::Shared(shared) => {
                self.objects.shared.queue(shared)?;
                (Receives::Shared(shared), rc::Receives::Shared)
            }
        };
        self.reserve(init)?;
        if let Receives::Shared(shared) = receives {
            self.objects.shared.attach(shared)?;
        }
        let number = QueuePairNumber::new(self.numbers.take());
        let configuration = rc::Configuration {
            capabilities: wanted,
            receives: kind,
            policy: self.objects.policy.transport,
        };
        let record = QueuePairRecord {
            engine: rc::QueuePair::new(number, &configuration),
            context: Context {
                handle: QueuePair {
                    index: 0,
                    generation: 0,
                },
                domain: init.domain,
                send_queue: init.send_completions,
                receive_queue: init.receive_completions,
                receives,
                capabilities: wanted,
                held: 0,
                refused: VecDeque::new(),
                flushed_receive: false,
            },
            link: None,
            to_send: None,
            timer_at: Time::NEVER,
            kicked: false,
            waits_for_link: false,
            notified_at: None,
        };
        let made = self.queue_pairs.insert(record);
        let Handle { index, generation } = made.ok_or(full("queue pairs", QUEUE_PAIRS_MAX))?;
        let name = QueuePair { index, generation };
        if let Some(record) = self.queue_pairs.get_mut(handle(name)) {
            record.context.handle = name;
        }
        self.by_number.insert(number, name);
        Ok(name)
    }

    /// Reserves what a queue pair needs of its completion queues: all of it, or nothing.
    fn reserve(&mut self, init: &QueuePairInit) -> Result<(), VerbsError> {
        let (sends, receives) = (
            init.capabilities.send_requests_max,
            init.capabilities.receive_requests_max,
        );
        let (first, second) = (init.send_completions, init.receive_completions);
        if first == second {
            self.attach(first, sends.saturating_add(receives))?;
        } else {
            self.attach(first, sends)?;
            if let Err(error) = self.attach(second, receives) {
                self.detach_queue(first, NOBODY, sends);
                return Err(error);
            }
        }
        Ok(())
    }

    fn attach(&mut self, queue: CompletionQueue, needed: u32) -> Result<(), VerbsError> {
        let record = self.objects.queues.get_mut(queue_handle(queue));
        let record = record.ok_or(NO_QUEUE)?;
        if record.queue.is_dead() {
            return Err(VerbsError::CompletionQueueOverrun);
        }
        if record.ledger {
            record.queue.reserve(needed)?;
        }
        record.attached += 1;
        Ok(())
    }

    fn detach_queue(&mut self, queue: CompletionQueue, name: QueuePair, reserved: u32) {
        if let Some(record) = self.objects.queues.get_mut(queue_handle(queue)) {
            let reserved = if record.ledger { reserved } else { 0 };
            record.queue.detach(name, reserved);
            record.attached = record.attached.saturating_sub(1);
        }
    }

    /// A queue pair is gone: what it used is others'.
    pub(super) fn detach(&mut self, context: &Context) {
        let (sends, receives) = context.reserved();
        let (first, second) = (context.send_queue, context.receive_queue);
        if first == second {
            let all = sends.saturating_add(receives);
            self.detach_queue(first, context.handle, all);
        } else {
            self.detach_queue(first, context.handle, sends);
            self.detach_queue(second, context.handle, receives);
        }
        if let Receives::Shared(shared) = &context.receives {
            // It is attached, so it is there.
            let _ = self.objects.shared.detach(*shared, context.held);
        }
    }
}

/// Has no completions.
const NOBODY: QueuePair = QueuePair {
    index: u32::MAX,
    generation: 0,
};
