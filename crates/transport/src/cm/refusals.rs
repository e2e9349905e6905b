//! What peers were told no, for a while: a request that comes again gets the same answer, and does
//! not reach the user a second time.

use super::connection::Origin;
use super::message::{Gid, Mad};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use legato_base::Time;

#[derive(Debug)]
pub(super) struct Refusals {
    /// The oldest first. There are few.
    known: VecDeque<Refusal>,
    limit: usize,
}

#[derive(Debug)]
struct Refusal {
    peer: Gid,
    origin: Origin,
    mad: Box<Mad>,
    until: Time,
}

impl Refusals {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            known: VecDeque::new(),
            limit,
        }
    }

    pub(super) fn remember(&mut self, peer: Gid, origin: Origin, mad: Mad, until: Time) {
        if self.limit == 0 {
            return;
        }
        if self.known.len() >= self.limit {
            self.known.pop_front();
        }
        self.known.push_back(Refusal {
            peer,
            origin,
            mad: Box::new(mad),
            until,
        });
    }

    pub(super) fn find(&self, peer: Gid, origin: &Origin) -> Option<&Mad> {
        self.known
            .iter()
            .find(|refusal| refusal.peer == peer && refusal.origin == *origin)
            .map(|refusal| &*refusal.mad)
    }

    pub(super) fn forget_until(&mut self, now: Time) {
        while self.known.front().is_some_and(|first| first.until <= now) {
            self.known.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        self.known.clear();
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.known.front().map(|first| first.until)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}
