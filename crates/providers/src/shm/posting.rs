//! Posting requests to a queue pair.

use super::connection::Step;
use super::hub::Hub;
use super::one_sided::{Bytes, OneSided, Operation};
use super::queue_pair::{Pair, Payload, Phase, PostedSend};
use super::region::Regions;
use super::segment::MESSAGE_LENGTH_MAX;
use super::shared_receive::{PostedReceive, ReceiveQueue};
use crate::memory;
use alloc::vec;
use alloc::vec::Vec;
use legato_verbs::{
    CompletionStatus, QueuePairState, ReceiveRequest, SendFlags, SendOperation, SendRequest,
    VerbsError,
};

/// Bytes that a request with [`SendFlags::INLINE`] can have. The keys of its entries say where they
/// are, because an address is an offset in its region; but their regions are free at once.
pub const INLINE_LENGTH_MAX: u32 = 512;

/// Which operations this provider has.
const fn check_operation(request: &SendRequest) -> Result<(), VerbsError> {
    match request.operation {
        SendOperation::SendWithInvalidate(_)
        | SendOperation::LocalInvalidate(_)
        | SendOperation::BindWindow(_) => Err(VerbsError::Unsupported("memory windows")),
        operation if operation.writes_locally() && request.flags.contains(SendFlags::INLINE) => {
            Err(VerbsError::Unsupported("inline data of READs and atomics"))
        }
        _ => Ok(()),
    }
}

/// Copies the bytes that the entries name.
fn copied(regions: &Regions, pair: &Pair, request: &SendRequest) -> Result<Vec<u8>, VerbsError> {
    let length: u64 = request.entries.iter().map(|e| u64::from(e.length)).sum();
    // At most INLINE_LENGTH_MAX: it was checked.
    let mut bytes = vec![0; length as usize];
    let mut done = 0;
    for entry in &request.entries {
        let piece = regions.locate(pair.init.domain, entry, false)?;
        let Some(to) = bytes.get_mut(done..done + piece.length as usize) else {
            return Err(VerbsError::LocalProtection);
        };
        // SAFETY: the piece is in a registered region, to which nobody holds a reference; so the
        // slice, which is as long, is elsewhere.
        unsafe { memory::copy(piece.pointer, to.as_mut_ptr(), to.len()) };
        done += piece.length as usize;
    }
    Ok(bytes)
}

impl Pair {
    /// The request's length, if it can be posted.
    #[inline]
    fn check_send(&self, regions: &Regions, request: &SendRequest) -> Result<u32, VerbsError> {
        check_operation(request)?;
        let limit = match request.flags.contains(SendFlags::INLINE) {
            true => INLINE_LENGTH_MAX,
            false => MESSAGE_LENGTH_MAX,
        };
        let entries_max = self.init.capabilities.entries_max;
        let limits = (request.operation.writes_locally(), entries_max, limit);
        regions.check(self.init.domain, &request.entries, limits)
    }

    pub(super) fn post_send(
        &mut self,
        hub: &mut Hub,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        use QueuePairState::{Error, ReadyToSend, SendQueueDrain};
        if !matches!(self.state, ReadyToSend | SendQueueDrain | Error) {
            return Err(VerbsError::InvalidState(self.state));
        }
        let length = self.check_send(&hub.regions, request)?;
        if self.send_slots >= self.init.capabilities.send_requests_max {
            return Err(VerbsError::QueueFull("send"));
        }
        self.send_slots += 1;
        if self.finishes_at_once(hub, request, length) {
            let kind = request.operation.completion_kind();
            self.finish_send(hub, request.wr_id, request.flags, kind);
            return Ok(());
        }
        if self.state == Error {
            let flushed = Err(CompletionStatus::WorkRequestFlushed);
            self.complete_send(hub, request.wr_id, flushed);
            return Ok(());
        }
        self.enqueue(hub, request, length)
    }

    /// Most READs and WRITEs find nothing before them and are over here, without a copy of the
    /// request.
    #[inline(always)]
    fn finishes_at_once(&mut self, hub: &Hub, request: &SendRequest, length: u32) -> bool {
        if self.state != QueuePairState::ReadyToSend || !self.sends.is_empty() {
            return false;
        }
        let Phase::Established(connection) = &mut self.phase else {
            return false;
        };
        let (operation, remote) = match request.operation {
            SendOperation::RdmaRead(remote) => (Operation::Read, remote),
            SendOperation::RdmaWrite(remote) => (Operation::Write, remote),
            _ => return false,
        };
        let one_sided = OneSided {
            operation,
            remote,
            bytes: Bytes::Entries(&request.entries),
            length,
        };
        connection.one_sided(&hub.regions, self.init.domain, &one_sided) == Step::Done
    }

    fn enqueue(
        &mut self,
        hub: &mut Hub,
        request: &SendRequest,
        length: u32,
    ) -> Result<(), VerbsError> {
        let payload = if request.flags.contains(SendFlags::INLINE) {
            Payload::Inline(copied(&hub.regions, self, request)?)
        } else {
            hub.regions.count_user(&request.entries, true);
            Payload::Entries(request.entries.clone())
        };
        self.sends.push_back(PostedSend {
            wr_id: request.wr_id,
            operation: request.operation,
            payload,
            length,
            flags: request.flags,
        });
        self.execute(hub);
        Ok(())
    }

    pub(super) fn post_receive(
        &mut self,
        hub: &mut Hub,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        if self.state == QueuePairState::Reset {
            return Err(VerbsError::InvalidState(self.state));
        }
        let ReceiveQueue::Own(posted) = &mut self.receives else {
            return Err(VerbsError::Unsupported(
                "own receives beside a shared receive queue",
            ));
        };
        let (domain, capabilities) = (self.init.domain, &self.init.capabilities);
        let limits = (true, capabilities.entries_max, u32::MAX);
        let length = hub.regions.check(domain, &request.entries, limits)?;
        if self.receive_slots >= capabilities.receive_requests_max {
            return Err(VerbsError::QueueFull("receive"));
        }
        self.receive_slots += 1;
        if self.state == QueuePairState::Error {
            let flushed = Err(CompletionStatus::WorkRequestFlushed);
            self.complete_receive(hub, request.wr_id, flushed, false);
            return Ok(());
        }
        hub.regions.count_user(&request.entries, true);
        posted.push_back(PostedReceive::new(domain, request, length));
        if let Phase::Established(connection) = &mut self.phase {
            connection.link.note_receive(length);
        }
        Ok(())
    }
}
