//! What users have.

use super::{Shared, User};
use legato_verbs::{
    CompletionQueue, ConnectionEvent, ConnectionRequest, Event, Listener, MemoryRegion,
    ProtectionDomain, Provider, QueuePair, RemoteKey, Subject,
};

/// An object of the NIC, those that use others before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    Request(ConnectionRequest),
    QueuePair(QueuePair),
    Listener(Listener),
    /// By its key, which no other region ever has.
    Region(RemoteKey),
    CompletionQueue(CompletionQueue),
    Domain(ProtectionDomain),
}

impl Object {
    /// What an event is about; None if it is about the whole NIC.
    pub(super) fn of(event: &Event) -> Option<Self> {
        match event {
            Event::CompletionQueueReady(queue) => Some(Self::CompletionQueue(*queue)),
            Event::Async(event) => match event.subject() {
                Subject::CompletionQueue(queue) => Some(Self::CompletionQueue(queue)),
                Subject::QueuePair(pair) => Some(Self::QueuePair(pair)),
                // No user has a shared receive queue.
                Subject::SharedReceiveQueue(_) | Subject::Port(_) | Subject::Device => None,
            },
            Event::Connection(event) => Some(match event {
                ConnectionEvent::Requested { listener, .. } => Self::Listener(*listener),
                ConnectionEvent::Established { queue_pair, .. }
                | ConnectionEvent::Rejected { queue_pair, .. }
                | ConnectionEvent::Unreachable { queue_pair, .. }
                | ConnectionEvent::Disconnected { queue_pair }
                | ConnectionEvent::DeviceRemoved { queue_pair }
                | ConnectionEvent::AddressRemoved { queue_pair }
                | ConnectionEvent::AddressReturned { queue_pair }
                | ConnectionEvent::TimeWaitExit { queue_pair }
                | ConnectionEvent::AddressChanged { queue_pair } => Self::QueuePair(*queue_pair),
            }),
        }
    }

    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Request(_) => "connection request",
            Self::QueuePair(_) => "queue pair",
            Self::Listener(_) => "listener",
            Self::Region(_) => "region",
            Self::CompletionQueue(_) => "completion queue",
            Self::Domain(_) => "protection domain",
        }
    }
}

impl<P: Provider> Shared<P> {
    pub(super) fn own_region(&mut self, user: User, region: MemoryRegion) {
        self.owners.insert(Object::Region(region.remote_key), user);
        self.regions.insert(region.remote_key, region);
    }

    pub(super) fn is_of(&self, object: Object, user: User) -> bool {
        self.owners.get(&object) == Some(&user)
    }

    /// Ends an object whose user is gone. What cannot be ended is left to the NIC.
    pub(super) fn end(&mut self, object: Object) {
        let nic = self.nic();
        let _ = match object {
            Object::Request(request) => nic.reject(request, &[]),
            Object::QueuePair(pair) => {
                self.entries.remove(&pair);
                self.nic().destroy_queue_pair(pair)
            }
            Object::Listener(listener) => nic.close_listener(listener),
            Object::CompletionQueue(queue) => nic.destroy_completion_queue(queue),
            Object::Domain(domain) => nic.destroy_protection_domain(domain),
            Object::Region(key) => match self.regions.remove(&key) {
                Some(region) => self.nic().deregister_region(&region),
                None => Ok(()),
            },
        };
    }
}
