//! Asynchronous events of the device.

use super::IbverbsProvider;
use super::abi::{AsyncElement, AsyncEvent as Raw};
use super::create::handle_in;
use super::device::query_port;
use super::devices::port_gids;
use crate::table::Walk;
use core::ffi::c_int;
use legato_base::{Duration, Time};
use legato_verbs::{
    AsyncEvent, CompletionQueue, ConnectionEvent, Event, QueuePair, QueuePairState,
    SharedReceiveQueue,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How often what could not be destroyed is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// `enum ibv_event_type`, those that have more to them than their name.
mod kind {
    pub(super) const CQ_ERR: u32 = 0;
    pub(super) const QP_FATAL: u32 = 1;
    pub(super) const QP_REQ_ERR: u32 = 2;
    pub(super) const QP_ACCESS_ERR: u32 = 3;
    pub(super) const COMM_EST: u32 = 4;
    pub(super) const DEVICE_FATAL: u32 = 8;
    pub(super) const LAST_WQE_REACHED: u32 = 16;
}

impl IbverbsProvider {
    /// All that happened by itself since the last call; returns the next deadline.
    pub(super) fn run(&mut self, now: Time) -> Time {
        if self.something_came() {
            self.take_connection_events();
            self.take_async_events();
            self.take_completion_events();
        }
        let mut next = self.run_timers(now);
        if self.base.undestroyed() > 0 {
            let at = *self.retry_at.get_or_insert(now + RETRY_INTERVAL);
            if at <= now {
                self.base.retry_destructions();
                self.retry_at = Some(now + RETRY_INTERVAL);
            }
            next = next.min(self.retry_at.unwrap_or(Time::NEVER));
        }
        next
    }

    /// One look at the three descriptors, which most of the time have nothing.
    fn something_came(&self) -> bool {
        let descriptors = self.waited_on();
        let mut polled = descriptors
            .each_ref()
            .map(|fd| PollFd::new(fd, PollFlags::IN));
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // If it cannot be said, it is looked for.
        poll(&mut polled, Some(&at_once)).map_or(true, |count| count > 0)
    }

    fn take_async_events(&mut self) {
        let functions = self.base.functions;
        loop {
            let mut raw = Raw {
                element: AsyncElement { port_num: 0 },
                event_type: 0,
            };
            // SAFETY: the device is open, and its descriptor does not block.
            let got = unsafe {
                (functions.ibv_get_async_event)(self.base.context.as_ptr(), &raw mut raw)
            };
            if got != 0 {
                return;
            }
            // SAFETY: what an event is about is alive until it is acknowledged.
            let event = unsafe { event_of(&raw) };
            // SAFETY: acknowledged once, at once: destructions wait for it.
            unsafe { (functions.ibv_ack_async_event)(&raw mut raw) };
            match event {
                Some(event) => self.async_event(event),
                None => self.counters.events_dropped += 1,
            }
        }
    }

    fn async_event(&mut self, event: AsyncEvent) {
        let passes = match event {
            // The device may have others, which other programs use.
            _ if event.subject().is_of_other_port(self.device.opened.port) => false,
            AsyncEvent::AddressChange(_) => {
                self.heed_addresses();
                true
            }
            AsyncEvent::CompletionQueueError(queue) => return self.queue_broke(queue),
            AsyncEvent::DeviceFatal => {
                self.is_fatal = true;
                true
            }
            AsyncEvent::LastWorkRequestReached(queue_pair) => {
                let pair = self.queue_pairs.get_mut(queue_pair);
                pair.is_some_and(|pair| !core::mem::replace(&mut pair.last_was_told, true))
            }
            AsyncEvent::QueuePairFatal(queue_pair)
            | AsyncEvent::QueuePairRequestError(queue_pair)
            | AsyncEvent::QueuePairAccessError(queue_pair) => {
                return self.pair_broke(event, queue_pair);
            }
            AsyncEvent::CommunicationEstablished(queue_pair) => {
                self.notify(queue_pair);
                self.queue_pairs.get(queue_pair).is_some()
            }
            AsyncEvent::SendQueueDrained(queue_pair)
            | AsyncEvent::PathMigrated(queue_pair)
            | AsyncEvent::PathMigrationError(queue_pair) => {
                self.queue_pairs.get(queue_pair).is_some()
            }
            AsyncEvent::SharedReceiveQueueError(queue)
            | AsyncEvent::SharedReceiveQueueLimit(queue) => self.shared.get(queue).is_some(),
            _ => true,
        };
        if passes {
            self.events.push_back(Event::Async(event));
        }
    }

    /// Says so before it says that the connection is over, for which the peer would be blamed.
    fn pair_broke(&mut self, event: AsyncEvent, queue_pair: QueuePair) {
        let is_news = match event {
            AsyncEvent::QueuePairFatal(_) => self.is_first_fatal(queue_pair),
            _ => self.queue_pairs.get(queue_pair).is_some(),
        };
        if is_news {
            self.events.push_back(Event::Async(event));
        }
        self.fail(queue_pair);
    }

    /// The port's table of GIDs has changed: is the own one still there, or there again?
    fn heed_addresses(&mut self) {
        let (functions, context) = (&self.base.functions, self.base.context.as_ptr());
        let port = self.device.opened.port;
        let gids = query_port(functions, context, port)
            .and_then(|attributes| port_gids(functions, context, port, &attributes));
        // If the device does not tell, all is as it was.
        let Ok(gids) = gids else {
            return;
        };
        let own = gids.iter().find(|entry| self.device.is_own(entry));
        if let Some(index) = own.and_then(|own| u8::try_from(own.index).ok()) {
            self.device.gid_index = index;
        }
        let is_missing = own.is_none();
        if core::mem::replace(&mut self.address_is_missing, is_missing) == is_missing {
            return;
        }
        let mut walk = Walk::default();
        while let Some(queue_pair) = walk.next(&self.queue_pairs) {
            let pair = self.queue_pairs.get(queue_pair);
            if pair.is_some_and(|pair| pair.phase.is_connected()) {
                self.raise(if is_missing {
                    ConnectionEvent::AddressRemoved { queue_pair }
                } else {
                    ConnectionEvent::AddressReturned { queue_pair }
                });
            }
        }
    }

    fn is_first_fatal(&mut self, queue_pair: QueuePair) -> bool {
        let pair = self.queue_pairs.get_mut(queue_pair);
        pair.is_some_and(|pair| !core::mem::replace(&mut pair.fatal_was_told, true))
    }

    /// An overrun. Some devices go on with what is left, whose owners would wait for what was lost: the
    /// queue is over, and its queue pairs with it.
    fn queue_broke(&mut self, queue: CompletionQueue) {
        let Some(found) = self.queues.get_mut(queue) else {
            self.counters.events_dropped += 1;
            return;
        };
        if core::mem::replace(&mut found.is_broken, true) {
            return;
        }
        let event = AsyncEvent::CompletionQueueError(queue);
        self.events.push_back(Event::Async(event));
        let mut walk = Walk::default();
        while let Some(queue_pair) = walk.next(&self.queue_pairs) {
            let init = self.queue_pairs.get(queue_pair).map(|pair| pair.init);
            let uses = init.is_some_and(|init| {
                [init.send_completions, init.receive_completions].contains(&queue)
            });
            if uses {
                let state = self.queue_pairs.get(queue_pair).map(|pair| pair.state);
                if state != Some(QueuePairState::Reset) {
                    self.fail(queue_pair);
                }
                if self.is_first_fatal(queue_pair) {
                    let event = AsyncEvent::QueuePairFatal(queue_pair);
                    self.events.push_back(Event::Async(event));
                }
            }
        }
    }

    /// Data came before the word that the connection is there: connection management is told.
    fn notify(&self, queue_pair: QueuePair) {
        use super::queue_pair::Phase;
        let pair = self.queue_pairs.get(queue_pair);
        if let Some(Phase::Accepted { id, .. }) = pair.map(|pair| &pair.phase) {
            // SAFETY: the identifier is alive. If it refuses, the word comes by itself.
            let _ = unsafe { (self.base.functions.rdma_notify)(id.as_ptr(), kind::COMM_EST) };
        }
    }
}

/// What an event is, with the handle of what it is about.
///
/// # Safety
/// The event must not be acknowledged yet.
unsafe fn event_of(raw: &Raw) -> Option<AsyncEvent> {
    let element = raw.element;
    // SAFETY: the kind of the event says which it is, and it is alive, by the caller's promise.
    let context = |of: Of| unsafe {
        match of {
            Of::CompletionQueue => (*element.cq).cq_context,
            Of::QueuePair => (*element.qp).qp_context,
            Of::SharedQueue => (*element.srq).srq_context,
        }
    };
    let queue_pair = || handle_in::<QueuePair>(context(Of::QueuePair));
    let shared = || handle_in::<SharedReceiveQueue>(context(Of::SharedQueue));
    // SAFETY: a number, of the kinds that have one.
    let port = || unsafe { port_of(element.port_num) };
    Some(match raw.event_type {
        kind::CQ_ERR => AsyncEvent::CompletionQueueError(handle_in(context(Of::CompletionQueue))),
        kind::QP_FATAL => AsyncEvent::QueuePairFatal(queue_pair()),
        kind::QP_REQ_ERR => AsyncEvent::QueuePairRequestError(queue_pair()),
        kind::QP_ACCESS_ERR => AsyncEvent::QueuePairAccessError(queue_pair()),
        kind::COMM_EST => AsyncEvent::CommunicationEstablished(queue_pair()),
        5 => AsyncEvent::SendQueueDrained(queue_pair()),
        6 => AsyncEvent::PathMigrated(queue_pair()),
        7 => AsyncEvent::PathMigrationError(queue_pair()),
        kind::DEVICE_FATAL => AsyncEvent::DeviceFatal,
        9 => AsyncEvent::PortActive(port()),
        10 => AsyncEvent::PortError(port()),
        11 => AsyncEvent::LocalIdentifierChange(port()),
        12 => AsyncEvent::PartitionKeyChange(port()),
        13 => AsyncEvent::SubnetManagerChange(port()),
        14 => AsyncEvent::SharedReceiveQueueError(shared()),
        15 => AsyncEvent::SharedReceiveQueueLimit(shared()),
        kind::LAST_WQE_REACHED => AsyncEvent::LastWorkRequestReached(queue_pair()),
        17 => AsyncEvent::ClientReregister(port()),
        18 => AsyncEvent::AddressChange(port()),
        // Work queues of other kinds, speeds, and what is newer.
        _ => return None,
    })
}

enum Of {
    CompletionQueue,
    QueuePair,
    SharedQueue,
}

fn port_of(number: c_int) -> u8 {
    u8::try_from(number).unwrap_or(0)
}
