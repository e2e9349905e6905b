//! A queue pair of an adapter: the engine, and what the adapter knows of it besides.

use super::{Configuration, NumberOrder};
use crate::cm::{ConnectionId, Gid};
use crate::nic::ReceiveQueue;
use crate::permutation::{self, Permutation};
use crate::{PacketSequenceNumber, PathMtu, rc};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    CompletionQueue, ProtectionDomain, QueuePair, QueuePairAttributes, QueuePairCapabilities,
    SendRequest, SharedReceiveQueue,
};

#[derive(Debug)]
pub(super) struct QueuePairRecord {
    pub(super) engine: rc::QueuePair,
    pub(super) context: Context,
    pub(super) link: Option<Link>,
    /// Of an accepted connection: what makes it ready to send when the peer is.
    pub(super) to_send: Option<QueuePairAttributes>,
    /// When its timer is scheduled.
    pub(super) timer_at: Time,
    /// A kick is scheduled.
    pub(super) kicked: bool,
    /// It is among those who wait for the link.
    pub(super) waits_for_link: bool,
    /// When the peer was told last that its packets meet congestion.
    pub(super) notified_at: Option<Time>,
}

/// What the engine's host needs of it.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) handle: QueuePair,
    pub(super) domain: ProtectionDomain,
    pub(super) send_queue: CompletionQueue,
    pub(super) receive_queue: CompletionQueue,
    pub(super) receives: Receives,
    pub(super) capabilities: QueuePairCapabilities,
    /// Receives of a shared queue whose completions are not polled.
    pub(super) held: u32,
    /// Sends that were refused and stay in the queue all the same.
    pub(super) refused: VecDeque<SendRequest>,
    /// A receive was flushed since the error state was entered.
    pub(super) flushed_receive: bool,
}

#[derive(Debug)]
pub(super) enum Receives {
    Own(ReceiveQueue),
    Shared(SharedReceiveQueue),
}

/// A connection that is made by connection management.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// `None` if the address belongs to nobody.
    pub(super) id: Option<ConnectionId>,
    pub(super) stage: Stage,
    /// With which the peer begins to send.
    pub(super) receive_sequence: PacketSequenceNumber,
    pub(super) peer: Gid,
    /// That the connection was asked for with, if it is not the adapter's.
    pub(super) path_mtu: Option<PathMtu>,
    /// The owner has had the one event that ends it.
    pub(super) told: bool,
}

impl Link {
    pub(super) fn path_mtu(&self, configuration: &Configuration) -> PathMtu {
        let most = configuration.path_mtu;
        self.path_mtu.map_or(most, |path| path.min(most))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Asked,
    Accepted,
    Established,
    /// One of the two sides has ended it.
    Ending,
}

impl Context {
    /// Entries reserved in its completion queues, for sends and for receives.
    pub(super) const fn reserved(&self) -> (u32, u32) {
        (
            self.capabilities.send_requests_max,
            self.capabilities.receive_requests_max,
        )
    }

    pub(super) const fn is_shared(&self) -> bool {
        matches!(self.receives, Receives::Shared(_))
    }
}

/// Numbers of queue pairs.
#[derive(Debug)]
pub(super) struct Numbers {
    order: Order,
    next: u32,
    reuses: bool,
    free: Vec<u32>,
    used: BTreeSet<u32>,
}

/// Numbers that queue pairs may have: 0 and 1 are the management queue pairs, and the last number
/// stands for multicast.
pub const QUEUE_PAIR_NUMBERS: core::ops::Range<u32> = 2..0x00FF_FFFF;

#[derive(Debug)]
enum Order {
    Counted,
    Drawn(Permutation),
}

impl Numbers {
    pub(super) fn new(order: NumberOrder, reuses: bool) -> Self {
        let (order, next) = match order {
            NumberOrder::From(first) => (Order::Counted, first),
            NumberOrder::Drawn(mut random) => (Order::Drawn(Permutation::new(&mut random)), 0),
        };
        Self {
            order,
            next,
            reuses,
            free: Vec::new(),
            used: BTreeSet::new(),
        }
    }

    /// One that nobody has. The caller limits how many there are.
    pub(super) fn take(&mut self) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            loop {
                let number = self.step();
                if QUEUE_PAIR_NUMBERS.contains(&number) && !self.used.contains(&number) {
                    break number;
                }
            }
        });
        self.used.insert(number);
        number
    }

    /// One after the other comes once in 2^24 steps.
    fn step(&mut self) -> u32 {
        let place = self.next;
        self.next = (place + 1) & ((1 << permutation::BITS) - 1);
        match &self.order {
            Order::Counted => place,
            Order::Drawn(permutation) => permutation.value(place),
        }
    }

    pub(super) fn give_back(&mut self, number: u32) {
        if self.used.remove(&number) && self.reuses {
            self.free.push(number);
        }
    }

    /// Numbers in use, those of ended connections included.
    pub(super) fn count(&self) -> usize {
        self.used.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::Random;

    // P-82
    #[test]
    fn numbers_of_queue_pairs_follow_from_nothing() {
        let order = NumberOrder::Drawn(Random::from_seed(7));
        let mut numbers = Numbers::new(order, false);
        let mut seen = BTreeSet::new();
        let mut steps = BTreeSet::new();
        let mut last = numbers.take();
        for _ in 0..1000 {
            let number = numbers.take();
            assert!(QUEUE_PAIR_NUMBERS.contains(&number) && seen.insert(number));
            steps.insert(number.wrapping_sub(last));
            numbers.give_back(last);
            last = number;
        }
        assert!(steps.len() > 990, "{}", steps.len());
    }

    #[test]
    fn counted_numbers_go_round_and_leave_out_those_of_management() {
        let mut numbers = Numbers::new(NumberOrder::From(0x00FF_FFFD), false);
        let taken = [(); 4].map(|()| numbers.take());
        assert_eq!(taken, [0x00FF_FFFD, 0x00FF_FFFE, 2, 3]);
    }
}
