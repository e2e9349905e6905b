//! The send queue: slots from post to poll.

use super::policy::{Policy, SlotReclaim};
use crate::congestion::Direction;
use crate::{AccessRefused, Host, PacketSequenceNumber, PathMtu, QueueCompletion, WorkQueue};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_verbs::{
    CompletionStatus, LocalKey, QueuePairCapabilities, ScatterGatherEntry, SendFlags,
    SendOperation, SendRequest, VerbsError,
};

/// Bytes of the longest message. The specification allows 2^31 (IB spec 9.7.3); half of that keeps
/// every message within a quarter of the sequence numbers, so that two can be told apart.
pub const MESSAGE_LENGTH_MAX: u32 = 1 << 30;

/// Requests in the order in which they were posted. Each has a number that counts up from 0:
///
/// ```text
/// reclaimed <= completed <= started <= posted
/// ```
#[derive(Debug)]
pub(super) struct SendQueue {
    /// From `reclaimed` on.
    slots: VecDeque<Slot>,
    reclaimed: u64,
    completed: u64,
    started: u64,
    capabilities: QueuePairCapabilities,
    inline_max: u32,
    checks_atomics: bool,
    reclaim: SlotReclaim,
    /// Buffers of inline bytes that are in no slot.
    spare: Vec<Vec<u8>>,
    /// The same for entries.
    spare_entries: Vec<Vec<ScatterGatherEntry>>,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) request: SendRequest,
    /// Bytes of the message.
    pub(super) length: u32,
    inline: Vec<u8>,
    /// Of its first packet, once it has started.
    pub(super) first: PacketSequenceNumber,
    /// Sequence numbers that it takes, once it has started.
    pub(super) packets: u32,
    /// Its completion went to the host.
    reported: bool,
}

impl Slot {
    /// Does the responder answer with more than an acknowledgement?
    pub(super) const fn awaits_response(&self) -> bool {
        self.request.operation.writes_locally()
    }

    pub(super) const fn is_atomic(&self) -> bool {
        matches!(
            self.request.operation,
            SendOperation::CompareAndSwap { .. } | SendOperation::FetchAndAdd { .. }
        )
    }

    /// Which way its payload goes. An atomic's is in its headers.
    pub(super) const fn direction(&self) -> Direction {
        match self.request.operation {
            SendOperation::RdmaRead(_) => Direction::Answers,
            _ => Direction::Requests,
        }
    }

    /// Is it about this host alone?
    pub(super) const fn is_local(&self) -> bool {
        matches!(
            self.request.operation,
            SendOperation::LocalInvalidate(_) | SendOperation::BindWindow(_)
        )
    }

    pub(super) const fn is_inline(&self) -> bool {
        self.request.flags.contains(SendFlags::INLINE)
    }

    /// Gives it the sequence numbers from `first` on, and returns the one after them.
    pub(super) const fn number(
        &mut self,
        first: PacketSequenceNumber,
        mtu: PathMtu,
    ) -> PacketSequenceNumber {
        self.first = first;
        self.packets = if self.is_local() {
            0
        } else {
            mtu.packets(self.length)
        };
        first.plus(self.packets)
    }

    /// Copies bytes of the message, from `offset` on.
    pub(super) fn read(
        &self,
        host: &impl Host,
        offset: u32,
        into: &mut [u8],
    ) -> Result<(), AccessRefused> {
        if into.is_empty() {
            return Ok(());
        }
        if !self.is_inline() {
            return host.gather(&self.request.entries, offset, into);
        }
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.inline.get(offset..)?.get(..into.len()))
            .ok_or(AccessRefused)?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

impl SendQueue {
    pub(super) const fn new(capabilities: QueuePairCapabilities, policy: &Policy) -> Self {
        Self {
            slots: VecDeque::new(),
            reclaimed: 0,
            completed: 0,
            started: 0,
            capabilities,
            inline_max: policy.inline_max,
            checks_atomics: policy.checks_posted_atomics,
            reclaim: policy.slot_reclaim,
            spare: Vec::new(),
            spare_entries: Vec::new(),
        }
    }

    pub(super) const fn completed(&self) -> u64 {
        self.completed
    }

    pub(super) const fn started(&self) -> u64 {
        self.started
    }

    pub(super) fn posted(&self) -> u64 {
        self.reclaimed + self.slots.len() as u64
    }

    pub(super) fn slot(&self, number: u64) -> Option<&Slot> {
        self.slots.get(self.index(number)?)
    }

    pub(super) fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        let index = self.index(number)?;
        self.slots.get_mut(index)
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.reclaimed)?).ok()
    }

    /// The next request has started.
    pub(super) const fn start(&mut self) {
        self.started += 1;
    }

    /// # Errors
    /// If the request is not one that this queue takes. Then nothing has changed.
    pub(super) fn post(
        &mut self,
        request: &SendRequest,
        host: &impl Host,
    ) -> Result<(), VerbsError> {
        if self.slots.len() as u64 >= u64::from(self.capabilities.send_requests_max) {
            return Err(VerbsError::QueueFull("send"));
        }
        let length = self.check(request)?;
        let mut inline = Vec::new();
        if request.flags.contains(SendFlags::INLINE) {
            inline = self.spare.pop().unwrap_or_default();
            inline.resize(length as usize, 0);
            if length > 0 && host.gather(&request.entries, 0, &mut inline).is_err() {
                self.spare.push(inline);
                return Err(VerbsError::LocalProtection);
            }
        }
        let mut entries = self.spare_entries.pop().unwrap_or_default();
        entries.extend_from_slice(&request.entries);
        self.slots.push_back(Slot {
            request: SendRequest {
                entries,
                ..*request
            },
            length,
            inline,
            first: PacketSequenceNumber::new(0),
            packets: 0,
            reported: false,
        });
        Ok(())
    }

    /// Is it within the limits? Returns its length.
    fn check(&self, request: &SendRequest) -> Result<u32, VerbsError> {
        let within = |what, asked: u64, limit: u32| {
            let limit = u64::from(limit);
            (asked <= limit)
                .then_some(())
                .ok_or(VerbsError::LimitExceeded { what, asked, limit })
        };
        let entries = request.entries.len() as u64;
        within("entries", entries, self.capabilities.entries_max)?;
        let length = request.entries.iter().fold(0, |sum: u64, entry| {
            sum.saturating_add(u64::from(entry.length))
        });
        within("message bytes", length, MESSAGE_LENGTH_MAX)?;
        if request.flags.contains(SendFlags::INLINE) {
            if request.operation.writes_locally() {
                return Err(VerbsError::Unsupported(
                    "inline data of a READ or an atomic",
                ));
            }
            within("inline bytes", length, self.inline_max)?;
        }
        let address = match request.operation {
            SendOperation::CompareAndSwap { target, .. }
            | SendOperation::FetchAndAdd { target, .. } => target.address,
            _ => return Ok(length as u32),
        };
        if self.checks_atomics && (length < 8 || !address.is_multiple_of(8)) {
            return Err(VerbsError::Unsupported(
                "atomics on anything but 8 aligned bytes",
            ));
        }
        Ok(length as u32)
    }

    /// Completes the oldest request that is not complete.
    pub(super) fn complete(&mut self, result: Result<(), CompletionStatus>, host: &mut impl Host) {
        let number = self.completed;
        let Some(slot) = self.slot_mut(number) else {
            return;
        };
        // An error completes though the request is not signaled (IB spec 10.7.3.1).
        slot.reported = result.is_err() || slot.request.flags.contains(SendFlags::SIGNALED);
        if slot.reported {
            host.complete(QueueCompletion {
                queue: WorkQueue::Send,
                wr_id: slot.request.wr_id,
                result: result.map(|()| slot.request.operation.completion_kind()),
                solicited: result.is_err(),
            });
        }
        self.completed += 1;
        self.started = self.started.max(self.completed);
        if self.reclaim == SlotReclaim::Completed {
            self.release();
        }
    }

    /// Is a request that is not complete about memory of this key?
    pub(super) fn uses(&self, key: LocalKey) -> bool {
        let complete = usize::try_from(self.completed - self.reclaimed).unwrap_or(usize::MAX);
        self.slots.iter().skip(complete).any(|slot| {
            let binds = matches!(
                slot.request.operation,
                SendOperation::BindWindow(binding) if binding.region == key
            );
            let entries = &slot.request.entries;
            binds || (!slot.is_inline() && entries.iter().any(|entry| entry.local_key == key))
        })
    }

    /// Completes all that is not complete as flushed.
    pub(super) fn flush(&mut self, host: &mut impl Host) {
        while self.completed < self.posted() {
            self.complete(Err(CompletionStatus::WorkRequestFlushed), host);
        }
    }

    /// The oldest completion that was not polled, is now.
    pub(super) fn polled(&mut self) {
        if self.reclaim == SlotReclaim::Completed {
            return;
        }
        let complete = usize::try_from(self.completed - self.reclaimed).unwrap_or(usize::MAX);
        if self.slots.iter().take(complete).any(|slot| slot.reported) {
            while self.release() == Some(false) {}
        }
    }

    /// Frees the oldest slot, and says whether its request was reported.
    fn release(&mut self) -> Option<bool> {
        let mut slot = self.slots.pop_front()?;
        self.reclaimed += 1;
        if slot.inline.capacity() > 0 {
            slot.inline.clear();
            self.spare.push(slot.inline);
        }
        let mut entries = slot.request.entries;
        entries.clear();
        self.spare_entries.push(entries);
        Some(slot.reported)
    }

    /// Forgets all requests.
    pub(super) fn reset(&mut self) {
        let posted = self.posted();
        while self.release().is_some() {}
        (self.completed, self.started) = (posted, posted);
    }
}
