//! Receives that all connections of a fabric take from one shared receive queue, so that what is
//! posted does not grow with the number of peers.
//!
//! **No message finds none.** Each connection has a share of what is posted: one receive for each
//! message that its peer may send (see `credits.rs`), and one for the half of a message that its queue
//! pair may hold when it ends. Its credits follow from its share, and a connection for which there is
//! none is not made. So the shares together are never more than what is posted.
//!
//! **Nothing is lost.** A queue pair that ends may have taken receives that never complete: devices
//! keep the receive of a message that had come half way, and sweep completions that nobody has polled.
//! The queue hands its receives out in the order in which they were posted, and a queue pair completes
//! those that it took in that order. So a receive is lost, and is posted again, when every queue pair
//! that there is has completed a later one. That was so for a while: a completion may come late.
//! Until then a queue pair that is gone counts as having kept one, or its whole share if it did not
//! drain.

use crate::credits::{SHARE_MIN, share_of};
use crate::doubts::{Doubts, Kept};
use crate::id::{Generations, Key, Kind, Token};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use legato_base::{Duration, Time};
use legato_verbs::{
    AccessFlags, MemoryRegion, ProtectionDomain, Provider, QueuePair, ReceiveRequest,
    SharedReceiveQueue, SharedReceiveQueueCapabilities, VerbsError, WorkRequestId,
};

/// The shared receives of a fabric.
#[derive(Debug)]
pub(crate) struct ReceivePool {
    /// None if the last one could not be replaced.
    queue: Option<SharedReceiveQueue>,
    domain: ProtectionDomain,
    region: MemoryRegion,
    /// Bytes of a buffer.
    stride: u64,
    /// By buffer: how it is posted.
    posted: Vec<Option<Posted>>,
    /// The buffers that are posted or taken, by the order in which they were posted.
    order: BTreeMap<u64, u16>,
    /// Of the next post.
    next: u64,
    /// The latest receive that is known to be taken, now and at the last look.
    taken: Seen,
    users: BTreeMap<QueuePair, User>,
    /// The sum of the users' shares.
    granted: u32,
    doubts: Doubts,
    /// Buffers whose post was refused.
    unposted: Vec<u16>,
    /// Since when there are any; zero until that is known.
    unposted_since: Time,
    /// Buffers that were given back in error by a device that writes late.
    held: VecDeque<(Time, u16)>,
    /// When lost receives are looked for.
    look_at: Option<Time>,
    is_armed: bool,
    /// The device has given the queue up.
    pub(crate) has_failed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    generation: u32,
    order: u64,
}

/// The order of a receive, now and at the last look for lost ones.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    now: u64,
    before: u64,
}

/// A queue pair that takes receives.
#[derive(Clone, Copy, Debug)]
struct User {
    /// Of its connection.
    place: u16,
    share: u32,
    /// The latest that it has completed, or that was taken before it existed.
    newest: Seen,
}

/// The receives that the connections of a fabric share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceives {
    /// All of them.
    pub count: u32,
    /// Those that are neither posted nor on their way back: refused, held back for late writes, or
    /// taken before one that has completed.
    pub missing: u32,
    /// The sum of what connections may take at a time.
    pub granted: u32,
    /// What queue pairs that are gone may have kept.
    pub doubtful: u32,
}

/// What a look at the pool has found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    /// Receives that were lost and are posted again.
    pub(crate) reclaimed: u64,
    /// Why a receive is still not posted though its time is over.
    pub(crate) overdue: Option<VerbsError>,
    /// When to look again.
    pub(crate) due: Option<Time>,
}

impl ReceivePool {
    /// A queue with `count` receives of `stride` bytes posted.
    ///
    /// # Errors
    /// When the provider has no shared receive queues, or no room.
    pub(crate) fn new(
        provider: &mut dyn Provider,
        domain: ProtectionDomain,
        count: u32,
        stride: u64,
        generations: &mut Generations,
    ) -> Result<Self, VerbsError> {
        let length = u64::from(count) * stride;
        let region = provider.allocate_region(domain, length, AccessFlags::LOCAL_WRITE)?;
        let mut pool = Self {
            queue: None,
            domain,
            region,
            stride,
            posted: vec![None; count as usize],
            order: BTreeMap::new(),
            next: 1,
            taken: Seen::default(),
            users: BTreeMap::new(),
            granted: 0,
            doubts: Doubts::default(),
            unposted: Vec::new(),
            unposted_since: Time::ZERO,
            held: VecDeque::new(),
            look_at: None,
            is_armed: false,
            has_failed: false,
        };
        if let Err(error) = pool.open(provider, generations) {
            let _ = pool.end(provider);
            return Err(error);
        }
        Ok(pool)
    }

    fn count(&self) -> u32 {
        self.posted.len() as u32
    }

    /// Makes the queue and posts everything.
    fn open(
        &mut self,
        provider: &mut dyn Provider,
        generations: &mut Generations,
    ) -> Result<(), VerbsError> {
        let capabilities = SharedReceiveQueueCapabilities {
            // A receive whose completion was lost holds its place until its queue pair is gone.
            requests_max: 2 * self.count(),
            entries_max: 1,
        };
        self.queue = Some(provider.create_shared_receive_queue(self.domain, capabilities)?);
        self.unposted_since = Time::ZERO;
        for index in 0..self.posted.len() as u16 {
            match self.post(provider, generations, index) {
                Ok(()) => {}
                // It passes: until then there are fewer.
                Err(VerbsError::QueueFull(_) | VerbsError::System { .. }) => {
                    self.unposted.push(index);
                }
                Err(error) => return Err(error),
            }
        }
        self.arm(provider);
        Ok(())
    }

    /// Some are to be posted again.
    pub(crate) const fn has_unposted(&self) -> bool {
        !self.unposted.is_empty()
    }

    /// Gives queue and buffers back.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while there is a queue pair that uses them.
    pub(crate) fn end(&mut self, provider: &mut dyn Provider) -> Result<(), VerbsError> {
        if let Some(queue) = self.queue {
            provider.destroy_shared_receive_queue(queue)?;
            self.queue = None;
        }
        provider.deregister_region(&self.region)
    }

    pub(crate) const fn queue(&self) -> Option<SharedReceiveQueue> {
        self.queue
    }

    /// The bytes of a buffer: their region, and where in it.
    pub(crate) fn place(&self, index: u16) -> (MemoryRegion, u64) {
        (self.region, u64::from(index) * self.stride)
    }

    /// The credits of one more connection, of at most `wanted`, where there may be `places`. Where a
    /// fresh queue is needed for it, and nobody uses the old one, it is made.
    ///
    /// # Errors
    /// [`VerbsError::LimitExceeded`] if there is nothing left for it, [`VerbsError::Busy`] while a
    /// queue that has failed is still used.
    pub(crate) fn grant(
        &mut self,
        provider: &mut dyn Provider,
        generations: &mut Generations,
        (wanted, places): (u32, u32),
    ) -> Result<u32, VerbsError> {
        let is_doubtful = self.doubts.count() > 0 || self.missing() > 0;
        if self.users.is_empty() && (self.has_failed || self.queue.is_none() || is_doubtful) {
            self.renew(provider, generations)?;
        }
        if self.has_failed || self.queue.is_none() {
            return Err(VerbsError::Busy("shared receive queue"));
        }
        let places = places.saturating_sub(self.users.len() as u32).max(1);
        // P-91: all shares together are never more than what is posted.
        let reserved = self.granted + self.doubts.count() + self.missing();
        let free = self.count().saturating_sub(reserved);
        let Some(surplus) = free.checked_sub(places * SHARE_MIN) else {
            return Err(VerbsError::LimitExceeded {
                what: "receives that connections share",
                asked: u64::from(reserved + places * SHARE_MIN),
                limit: u64::from(self.count()),
            });
        };
        // Its even part, or a quarter of what is left when all others have the least.
        let even = (free / places - SHARE_MIN) / 2;
        Ok(wanted.min(1 + even.max(surplus / 8)))
    }

    /// Receives that are neither posted nor taken, and those that were overtaken.
    fn missing(&self) -> u32 {
        let overtaken = self.order.range(..self.taken.now).count();
        (self.unposted.len() + self.held.len() + overtaken) as u32
    }

    pub(crate) fn describe(&self) -> SharedReceives {
        SharedReceives {
            count: self.count(),
            missing: self.missing(),
            granted: self.granted,
            doubtful: self.doubts.count(),
        }
    }

    /// A new queue and new buffers, all posted. Nobody uses the old ones.
    fn renew(
        &mut self,
        provider: &mut dyn Provider,
        generations: &mut Generations,
    ) -> Result<(), VerbsError> {
        if let Some(queue) = self.queue {
            match provider.destroy_shared_receive_queue(queue) {
                Ok(()) | Err(VerbsError::UnknownHandle(_)) => self.queue = None,
                Err(error) => return Err(error),
            }
        }
        // Whatever a device still does to the old buffers, the new ones are other memory.
        let (length, access) = (self.region.length, AccessFlags::LOCAL_WRITE);
        let region = provider.allocate_region(self.domain, length, access)?;
        if let Err(error) = provider.deregister_region(&self.region) {
            // Nothing is in it.
            let _ = provider.deregister_region(&region);
            return Err(error);
        }
        self.region = region;
        self.posted.fill(None);
        self.order.clear();
        self.unposted.clear();
        self.held.clear();
        self.taken = Seen {
            now: self.next,
            before: self.next,
        };
        self.next += 1;
        self.doubts.forget();
        self.has_failed = false;
        self.is_armed = false;
        self.open(provider, generations)
    }

    /// A connection takes part, with this many credits.
    pub(crate) fn attach(&mut self, queue_pair: QueuePair, place: u16, credits: u32) {
        let share = share_of(credits);
        self.granted += share;
        let user = User {
            place,
            share,
            newest: self.taken,
        };
        self.users.insert(queue_pair, user);
    }

    /// A queue pair is destroyed.
    pub(crate) fn detach(&mut self, queue_pair: QueuePair, kept: Kept) {
        let Some(user) = self.users.remove(&queue_pair) else {
            return;
        };
        self.granted -= user.share;
        self.doubts.note(kept, user.share);
    }

    /// Everything that has completed was seen.
    pub(crate) fn note_polled_empty(&mut self) {
        self.doubts.note_polled_empty(self.users.len());
    }

    /// A receive has completed: the place of the connection that had taken it, if there is one. None
    /// if it is not posted as this one.
    pub(crate) fn complete(&mut self, key: Key, queue_pair: QueuePair) -> Option<Option<u16>> {
        let slot = self.posted.get_mut(usize::from(key.index))?;
        let posted = slot.filter(|posted| posted.generation == key.generation)?;
        *slot = None;
        self.order.remove(&posted.order);
        self.taken.now = self.taken.now.max(posted.order);
        self.doubts.note_completed();
        let user = self.users.get_mut(&queue_pair);
        Some(user.map(|user| {
            user.newest.now = user.newest.now.max(posted.order);
            user.place
        }))
    }

    /// A buffer is free. It is posted again, or that is tried again; one that was given back in error
    /// only after `late`.
    pub(crate) fn give_back(
        &mut self,
        provider: &mut dyn Provider,
        generations: &mut Generations,
        index: u16,
        (now, late): (Time, Duration),
    ) -> Result<(), VerbsError> {
        if late > Duration::ZERO {
            self.held.push_back((now + late, index));
            return Ok(());
        }
        let posted = self.post(provider, generations, index);
        if posted.is_err() {
            if self.unposted.is_empty() {
                self.unposted_since = now;
            }
            self.unposted.push(index);
        }
        posted
    }

    fn post(
        &mut self,
        provider: &mut dyn Provider,
        generations: &mut Generations,
        index: u16,
    ) -> Result<(), VerbsError> {
        let queue = self.queue.ok_or(VerbsError::Busy("shared receive queue"))?;
        let generation = generations.next();
        let token = Token::new(Kind::SharedReceive, 0, Key { index, generation });
        let (region, offset) = self.place(index);
        let request = ReceiveRequest {
            wr_id: WorkRequestId(token.bits()),
            entries: vec![region.entry(offset, self.stride as u32)],
        };
        provider.post_shared_receive(queue, &request)?;
        let order = self.next;
        self.next += 1;
        self.order.insert(order, index);
        self.posted[usize::from(index)] = Some(Posted { generation, order });
        Ok(())
    }

    /// Fewer are posted than a quarter: something is missing, or much comes at once.
    fn is_low(&self) -> bool {
        self.order.len() as u32 <= self.count() / 4
    }

    /// Asks to be told when few are left.
    fn arm(&mut self, provider: &mut dyn Provider) {
        if let Some(queue) = self.queue
            && !self.is_armed
            && !self.is_low()
        {
            self.is_armed = true;
            // What it would say is looked for in any case.
            let _ = provider.arm_shared_receive_queue(queue, (self.count() / 4).max(1));
        }
    }

    /// The queue has said that few are left.
    pub(crate) const fn note_low(&mut self) {
        self.is_armed = false;
    }

    /// Posts what was refused or held, and every `interval` looks for what is lost. A buffer that was
    /// lost is held for `late`.
    pub(crate) fn look(
        &mut self,
        provider: &mut dyn Provider,
        generations: &mut Generations,
        now: Time,
        (interval, retry, late): (Duration, Duration, Duration),
    ) -> Looked {
        let mut looked = Looked::default();
        if self.unposted_since == Time::ZERO {
            self.unposted_since = now;
        }
        let mut again = core::mem::take(&mut self.unposted);
        while let Some((_, index)) = self.held.pop_front_if(|(until, _)| *until <= now) {
            if again.is_empty() {
                self.unposted_since = now;
            }
            again.push(index);
        }
        for index in again {
            if let Err(error) = self.post(provider, generations, index) {
                self.unposted.push(index);
                if self.unposted_since + interval <= now {
                    looked.overdue = Some(error);
                }
            }
        }
        if self.look_at.is_some_and(|due| due <= now) {
            self.look_at = None;
            looked.reclaimed = self.reclaim(provider, generations, (now, late));
        }
        self.arm(provider);
        self.plan_look(now + interval);
        let held = self.held.front().map(|(until, _)| *until);
        let refused = (!self.unposted.is_empty()).then_some(now + retry);
        looked.due = [self.look_at, held, refused].into_iter().flatten().min();
        looked
    }

    /// Gives back what every queue pair that there is has passed before the last look (P-93).
    fn reclaim(
        &mut self,
        provider: &mut dyn Provider,
        generations: &mut Generations,
        (now, late): (Time, Duration),
    ) -> u64 {
        let passed = self.users.values().map(|user| user.newest.before).min();
        let passed = passed.unwrap_or(self.taken.before).min(self.taken.before);
        let lost: Vec<(u64, u16)> = self
            .order
            .range(..passed)
            .map(|(&order, &index)| (order, index))
            .collect();
        for &(order, index) in &lost {
            self.order.remove(&order);
            self.posted[usize::from(index)] = None;
            // A refusal leaves it among those that are tried again.
            let _ = self.give_back(provider, generations, index, (now, late));
        }
        for user in self.users.values_mut() {
            user.newest.before = user.newest.now;
        }
        self.taken.before = self.taken.now;
        lost.len() as u64
    }

    /// When to look for what is missing, if anything may be and no look is planned.
    pub(crate) fn plan_look(&mut self, at: Time) -> Option<Time> {
        let is_overtaken = self.order.range(..self.taken.now).next().is_some();
        let is_wanted = is_overtaken || !self.is_armed && !self.is_low();
        if is_wanted && self.look_at.is_none() {
            self.look_at = Some(at);
            return self.look_at;
        }
        None
    }
}
