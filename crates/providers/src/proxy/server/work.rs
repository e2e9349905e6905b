//! Requests to the provider, and its completions and events back.

use super::super::event::pair_of;
use super::super::message::{
    COMPLETED_BYTES_MAX, Completed, Direction, NOTICE_BYTES_MAX, Notice, Part, Post, Told, Work,
};
use super::served::{Refused, named, request_id};
use super::{ProxyEnd, ProxyServer};
use crate::proxy::codec::Decoder;
use crate::{ForeignMemory, Pollable};
use alloc::vec::Vec;
use legato_verbs::{
    Completion, CompletionQueue, CompletionStatus, Provider, QueuePair, ReceiveRequest,
    ScatterGatherEntry, SendRequest, VerbsError,
};

/// Requests of one near half that are taken in a turn: others want their turn too.
const POSTS_PER_TURN: usize = 256;
/// Completions and events that are taken from the provider before there is space for them.
const TOLD_MAX: usize = 64;
const _: () = assert!(TOLD_MAX * (COMPLETED_BYTES_MAX + NOTICE_BYTES_MAX) < 64 << 10);

impl<P: Provider + ForeignMemory + Pollable> ProxyServer<P> {
    pub(super) fn take_posts(&mut self) -> Result<bool, ProxyEnd> {
        for taken in 0..POSTS_PER_TURN {
            if !self.take_post()? {
                return Ok(taken > 0);
            }
        }
        Ok(true)
    }

    /// Takes the messages that were there before a call.
    pub(super) fn take_posts_until(&mut self, messages: u64) -> Result<(), ProxyEnd> {
        let taken = |this: &Self| this.rings.as_ref().map_or(0, |rings| rings.taken_count());
        while taken(self) < messages {
            if !self.take_post()? {
                return Err(ProxyEnd::Breach(
                    "a call behind messages that are not there",
                ));
            }
        }
        Ok(())
    }

    fn take_post(&mut self) -> Result<bool, ProxyEnd> {
        let Some(rings) = &mut self.rings else {
            return Ok(false);
        };
        let mut bytes = core::mem::take(&mut self.bytes);
        let taken = rings.take(&mut bytes);
        let post = matches!(taken, Ok(true)).then(|| Post::decode(Decoder(&bytes)));
        self.bytes = bytes;
        let Some(post) = post else {
            return Ok(taken?);
        };
        self.post(&post?)?;
        Ok(true)
    }

    fn post(&mut self, post: &Post) -> Result<(), ProxyEnd> {
        let direction = match post.work {
            Work::Send(..) => Direction::Send,
            Work::Receive => Direction::Receive,
        };
        let pair = self.pairs.get_mut(&post.pair);
        let pair = pair.ok_or(ProxyEnd::Breach("a request to no queue pair"))?;
        if !pair.queue(direction).expects(post.number) {
            return Err(ProxyEnd::Breach("a request out of turn, or one too many"));
        }
        let entries = self.entries(post)?;
        let wr_id = request_id(direction, post.number);
        let posted = match post.work {
            Work::Receive => {
                let request = ReceiveRequest { wr_id, entries };
                self.provider.post_receive(post.pair, &request)
            }
            Work::Send(operation, flags) => {
                let request = SendRequest {
                    wr_id,
                    operation,
                    entries,
                    flags,
                };
                self.provider.post_send(post.pair, &request)
            }
        };
        let refused = posted.err().map(status_of);
        if refused.is_some() {
            // As after any request that has failed. Where it cannot go to the error state it does
            // not execute requests either.
            let _ = self.provider.modify_to_error(post.pair);
        }
        if let Some(pair) = self.pairs.get_mut(&post.pair) {
            pair.queue(direction).push(post.number, refused);
        }
        self.tell_refused(post.pair, direction, None);
        Ok(())
    }

    fn entries(&self, post: &Post) -> Result<Vec<ScatterGatherEntry>, ProxyEnd> {
        let entry = |part: &Part| {
            let region = self.regions.get(&part.region);
            let region = region.ok_or(ProxyEnd::Breach("a request on no region"))?;
            let entry = region.entry(part);
            entry.ok_or(ProxyEnd::Breach(
                "a request on memory outside of its region",
            ))
        };
        post.parts.iter().map(entry).collect()
    }

    /// Tells of refused requests whose turn has come: those older than `number`, which has completed,
    /// and those that are the oldest.
    fn tell_refused(&mut self, handle: QueuePair, direction: Direction, number: Option<u64>) {
        let Some(pair) = self.pairs.get_mut(&handle) else {
            return;
        };
        let queue = pair.queue(direction);
        while let Some(Refused { number, status }) = queue.next_refused(number) {
            let state = self.provider.query_queue_pair(handle).ok();
            let completed = Completed {
                queue: queue.completions,
                pair: handle,
                direction,
                number,
                result: Err(status),
                vendor_error: 0,
            };
            self.told.push_back(Told {
                notice: Notice::Completed(completed),
                state,
            });
        }
    }

    /// Takes completions and events from the provider. An event is told behind the completions that
    /// were there before it.
    pub(super) fn gather(&mut self) -> bool {
        let before = self.told.len();
        while self.told.len() + self.events.len() < TOLD_MAX {
            match self.provider.poll_event() {
                Some(event) => self.events.push_back(event),
                None => break,
            }
        }
        let queues: Vec<CompletionQueue> = self.queues.iter().copied().collect();
        let mut all = true;
        for queue in queues {
            all &= self.gather_completions(queue);
        }
        if all {
            while let Some(event) = self.events.pop_front() {
                let pair = pair_of(&event);
                let state = pair.and_then(|pair| self.provider.query_queue_pair(pair).ok());
                self.told.push_back(Told {
                    notice: Notice::Event(event),
                    state,
                });
            }
        }
        self.told.len() > before
    }

    /// True if the queue is empty by now.
    fn gather_completions(&mut self, queue: CompletionQueue) -> bool {
        let mut batch = Vec::new();
        while self.told.len() < TOLD_MAX {
            let room = TOLD_MAX - self.told.len();
            let polled = self.provider.poll_completion_queue(queue, room, &mut batch);
            for completion in batch.drain(..) {
                self.tell_completion(queue, &completion);
            }
            // A queue that cannot be polled is over, and an event says so.
            if !polled.is_ok_and(|count| count == room) {
                return true;
            }
        }
        false
    }

    /// Whether completions of the queue wait to be told.
    pub(super) fn tells_of(&self, queue: CompletionQueue) -> bool {
        let of_queue = |told: &Told| matches!(&told.notice, Notice::Completed(completed) if completed.queue == queue);
        self.told.iter().any(of_queue)
    }

    /// Forgets the completions that are not told yet of a queue pair in Reset, or gone.
    pub(super) fn forget_completions(&mut self, pair: QueuePair) {
        self.told.retain(
            |told| !matches!(&told.notice, Notice::Completed(completed) if completed.pair == pair),
        );
    }

    fn tell_completion(&mut self, queue: CompletionQueue, completion: &Completion) {
        let handle = completion.queue_pair;
        // Some devices leave the completions of destroyed queue pairs.
        if !self.pairs.contains_key(&handle) {
            return;
        }
        let (direction, number) = named(completion.wr_id);
        // Those before it that were refused, in their places.
        self.tell_refused(handle, direction, number.checked_sub(1));
        let state = match completion.result {
            Ok(_) => None,
            Err(_) => self.provider.query_queue_pair(handle).ok(),
        };
        let completed = Completed {
            queue,
            pair: handle,
            direction,
            number,
            result: completion.result,
            vendor_error: completion.vendor_error,
        };
        self.told.push_back(Told {
            notice: Notice::Completed(completed),
            state,
        });
        self.tell_refused(handle, direction, Some(number));
    }
}

/// How a request fails that the provider refuses though the near half has let it pass.
const fn status_of(error: VerbsError) -> CompletionStatus {
    match error {
        VerbsError::LocalProtection => CompletionStatus::LocalProtection,
        VerbsError::InvalidState(_) | VerbsError::DeviceRemoved => {
            CompletionStatus::WorkRequestFlushed
        }
        _ => CompletionStatus::LocalQueuePairOperation,
    }
}
