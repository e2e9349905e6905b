//! What the far half knows of a near half's objects.

use super::super::message::{Direction, Part};
use crate::memory::Mapping;
use alloc::collections::VecDeque;
use legato_verbs::{
    CompletionQueue, CompletionStatus, MemoryRegion, QueuePairCapabilities, ScatterGatherEntry,
    WorkRequestId,
};

/// A region, registered with the NIC and mapped by both halves.
#[derive(Debug)]
pub(super) struct ServedRegion {
    pub(super) region: MemoryRegion,
    pub(super) mapping: Mapping,
}

impl ServedRegion {
    /// The entry for a part, if it is inside.
    pub(super) fn entry(&self, part: &Part) -> Option<ScatterGatherEntry> {
        self.mapping.at(part.offset, part.length.into())?;
        Some(self.region.entry(part.offset, part.length))
    }
}

#[derive(Debug)]
pub(super) struct ServedPair {
    pub(super) sends: ServedQueue,
    pub(super) receives: ServedQueue,
}

/// One of the queues of a queue pair.
#[derive(Debug)]
pub(super) struct ServedQueue {
    pub(super) completions: CompletionQueue,
    limit: u32,
    /// The number of the next request.
    next: u64,
    outstanding: VecDeque<Outstanding>,
}

/// A request that has not completed. What the provider has refused completes too, in its place.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    number: u64,
    refused: Option<CompletionStatus>,
}

/// A refused request whose turn has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) number: u64,
    pub(super) status: CompletionStatus,
}

impl ServedPair {
    pub(super) fn new(
        (sends, receives): (CompletionQueue, CompletionQueue),
        capabilities: &QueuePairCapabilities,
    ) -> Self {
        let queue = |completions, limit| ServedQueue {
            completions,
            limit,
            next: 0,
            outstanding: VecDeque::new(),
        };
        Self {
            sends: queue(sends, capabilities.send_requests_max),
            receives: queue(receives, capabilities.receive_requests_max),
        }
    }

    pub(super) const fn queue(&mut self, direction: Direction) -> &mut ServedQueue {
        match direction {
            Direction::Send => &mut self.sends,
            Direction::Receive => &mut self.receives,
        }
    }

    /// Into Reset all is forgotten. Numbers go on.
    pub(super) fn clear(&mut self) {
        self.sends.outstanding.clear();
        self.receives.outstanding.clear();
    }
}

impl ServedQueue {
    /// Whether a request of this number may be posted now.
    pub(super) fn expects(&self, number: u64) -> bool {
        number == self.next && (self.outstanding.len() as u64) < u64::from(self.limit)
    }

    pub(super) fn push(&mut self, number: u64, refused: Option<CompletionStatus>) {
        self.outstanding.push_back(Outstanding { number, refused });
        self.next = number + 1;
    }

    /// The next refused request, if it is the oldest that has not completed, or one that is older
    /// than `number`, which has.
    pub(super) fn next_refused(&mut self, number: Option<u64>) -> Option<Refused> {
        while let Some(oldest) = self.outstanding.front() {
            let is_over = number.is_some_and(|number| oldest.number <= number);
            if let Some(status) = oldest.refused {
                let number = oldest.number;
                self.outstanding.pop_front();
                return Some(Refused { number, status });
            }
            if !is_over {
                return None;
            }
            self.outstanding.pop_front();
        }
        None
    }
}

/// The name of a request at the provider: on failure a completion does not say which queue it is of.
pub(super) const fn request_id(direction: Direction, number: u64) -> WorkRequestId {
    let bit = match direction {
        Direction::Send => 0,
        Direction::Receive => 1,
    };
    WorkRequestId(number << 1 | bit)
}

pub(super) const fn named(id: WorkRequestId) -> (Direction, u64) {
    let direction = match id.0 & 1 {
        0 => Direction::Send,
        _ => Direction::Receive,
    };
    (direction, id.0 >> 1)
}
