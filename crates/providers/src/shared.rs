//! One NIC for several users who have nothing to do with each other. A RoCE NIC that devices are to reach
//! has UDP port 4791, of which an IP address has one (annex A17.3.2): all who want to talk to devices
//! from there share it.

mod ownership;
mod provider;

use crate::{ForeignMemory, Pollable};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{RefCell, RefMut};
use legato_base::Time;
use legato_verbs::{
    AccessFlags, ConnectionEvent, Event, MemoryRegion, ProtectionDomain, Provider, QueuePair,
    RemoteKey, ResourceCounts, VerbsError,
};
use ownership::Object;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::fcntl_dupfd_cloexec;

/// A NIC that is shared. It is there until this and all its users are gone.
#[derive(Debug)]
pub struct SharedNic<P: Provider> {
    shared: Rc<RefCell<Shared<P>>>,
}

/// What one of the users has: a provider that knows the user's own objects only, and whose events are of
/// those only. Its objects end with it.
///
/// It has neither shared receive queues nor memory windows.
#[derive(Debug)]
pub struct SharedProvider<P: Provider> {
    shared: Rc<RefCell<Shared<P>>>,
    user: User,
    /// Duplicates: those of the NIC cannot be lent out of a cell.
    descriptors: Vec<OwnedFd>,
}

/// Never given twice.
type User = u32;

#[derive(Debug)]
struct Shared<P> {
    nic: P,
    /// Of every object that a user has.
    owners: BTreeMap<Object, User>,
    /// Entries of completion queues that a queue pair has reserved.
    entries: BTreeMap<QueuePair, usize>,
    /// To deregister them when their user goes.
    regions: BTreeMap<RemoteKey, MemoryRegion>,
    /// Of every user, those that it has not polled.
    events: BTreeMap<User, VecDeque<Event>>,
    last: User,
    /// When the NIC was last called for progress, and what it said; None if there was another call since.
    progressed: Option<(Time, Time)>,
}

impl<P: Provider + Pollable> SharedNic<P> {
    pub fn new(nic: P) -> Self {
        let shared = Shared {
            nic,
            owners: BTreeMap::new(),
            entries: BTreeMap::new(),
            regions: BTreeMap::new(),
            events: BTreeMap::new(),
            last: 0,
            progressed: None,
        };
        Self {
            shared: Rc::new(RefCell::new(shared)),
        }
    }

    /// One more user.
    ///
    /// # Errors
    /// [`VerbsError::System`] if there are no descriptors left.
    pub fn share(&self) -> Result<SharedProvider<P>, VerbsError> {
        let mut shared = self.shared.borrow_mut();
        let mut own = Vec::new();
        shared.nic.descriptors(&mut own);
        let descriptors = own
            .into_iter()
            .map(|descriptor| fcntl_dupfd_cloexec(descriptor, 0))
            .collect::<Result<_, _>>()
            .map_err(crate::memory::system("duplicate a descriptor"))?;
        shared.last += 1;
        let user = shared.last;
        shared.events.insert(user, VecDeque::new());
        Ok(SharedProvider {
            shared: Rc::clone(&self.shared),
            user,
            descriptors,
        })
    }

    /// Does what the NIC has to do for nobody in particular, such as ending connections of users
    /// who are gone.
    pub fn progress(&self, now: Time) -> Time {
        self.shared.borrow_mut().progress(now)
    }

    /// Of all users.
    pub fn resource_counts(&self) -> ResourceCounts {
        self.shared.borrow().nic.resource_counts()
    }
}

impl<P: Provider> Shared<P> {
    /// The NIC, for whatever may leave it something to do.
    const fn nic(&mut self) -> &mut P {
        self.progressed = None;
        &mut self.nic
    }

    /// Users take turns at the same time of the clock, and the NIC needs one of them.
    fn progress(&mut self, now: Time) -> Time {
        if let Some((at, deadline)) = self.progressed
            && at == now
        {
            return deadline;
        }
        let deadline = self.nic.progress(now);
        self.progressed = Some((now, deadline));
        deadline
    }

    /// Gives each event to its user.
    fn deal_events(&mut self) {
        while let Some(event) = self.nic.poll_event() {
            let Some(object) = Object::of(&event) else {
                let all = self.events.values_mut();
                all.for_each(|events| events.push_back(event.clone()));
                continue;
            };
            let user = self.owners.get(&object).copied();
            // Of an object that has just ended there is nobody to tell.
            let Some((user, events)) =
                user.and_then(|user| Some((user, self.events.get_mut(&user)?)))
            else {
                continue;
            };
            if let Event::Connection(ConnectionEvent::Requested { request, .. }) = event {
                self.owners.insert(Object::Request(request), user);
            }
            events.push_back(event);
        }
    }

    /// An object has ended: nothing of it happens any more.
    fn forget(&mut self, object: Object) {
        let user = self.owners.remove(&object);
        if let Object::QueuePair(pair) = object {
            self.entries.remove(&pair);
        }
        if let Some(events) = user.and_then(|user| self.events.get_mut(&user)) {
            events.retain(|event| Object::of(event) != Some(object));
        }
    }
}

impl<P: Provider> SharedProvider<P> {
    /// The NIC, if all these objects are the user's.
    fn with(&self, objects: &[Object]) -> Result<RefMut<'_, Shared<P>>, VerbsError> {
        let shared = self.shared.borrow_mut();
        for object in objects {
            if shared.owners.get(object) != Some(&self.user) {
                return Err(VerbsError::UnknownHandle(object.kind()));
            }
        }
        Ok(shared)
    }

    fn registered_bytes(&self) -> u64 {
        let shared = self.shared.borrow();
        let own = shared.regions.iter();
        let own = own.filter(|(key, _)| shared.is_of(Object::Region(**key), self.user));
        own.map(|(_, region)| region.length).sum()
    }

    fn completion_entries(&self) -> usize {
        let shared = self.shared.borrow();
        let own = shared.entries.iter();
        let own = own.filter(|(pair, _)| shared.is_of(Object::QueuePair(**pair), self.user));
        own.map(|(_, entries)| entries).sum()
    }

    fn count(&self, is_one: impl Fn(&Object) -> bool) -> usize {
        let shared = self.shared.borrow();
        let own = shared.owners.iter().filter(|(_, user)| **user == self.user);
        own.filter(|(object, _)| is_one(object)).count()
    }
}

impl<P: Provider> Drop for SharedProvider<P> {
    /// What the NIC does not let go of stays its own: there is nobody any more who could use it.
    fn drop(&mut self) {
        let mut shared = self.shared.borrow_mut();
        shared.events.remove(&self.user);
        let of_user = |(object, user): (&Object, &User)| (*user == self.user).then_some(*object);
        // In an order in which nothing is used by what comes behind it.
        let own: Vec<Object> = shared.owners.iter().filter_map(of_user).collect();
        for object in own {
            shared.forget(object);
            shared.end(object);
        }
    }
}

impl<P: Provider> Pollable for SharedProvider<P> {
    fn descriptors<'a>(&'a self, into: &mut Vec<BorrowedFd<'a>>) {
        into.extend(self.descriptors.iter().map(AsFd::as_fd));
    }
}

impl<P: Provider + ForeignMemory> ForeignMemory for SharedProvider<P> {
    unsafe fn register_foreign(
        &mut self,
        domain: ProtectionDomain,
        address: *mut u8,
        length: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, VerbsError> {
        let mut shared = self.with(&[Object::Domain(domain)])?;
        // SAFETY: the caller's promise is the one asked for.
        let region = unsafe {
            shared
                .nic()
                .register_foreign(domain, address, length, access)
        }?;
        shared.own_region(self.user, region);
        Ok(region)
    }
}
