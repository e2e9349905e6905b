//! Posting: what is refused at once, and the ledger of queue slots.

use super::machine::Machine;
use super::queue_pair::{PostedSend, QueuePairRecord};
use super::transfer::request_length;
use super::verbs::NO_QUEUE_PAIR;
use super::wire::{Inner, Place};
use legato_verbs::{
    AccessFlags, CompletionStatus, QueuePairState, ReceiveRequest, ScatterGatherEntry,
    SendOperation, SendRequest, VerbsError,
};

impl Inner {
    pub(super) fn post_send(
        &mut self,
        place: Place,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        let length_max = self.config.message_length_max;
        let machine = &self.machines[place.machine];
        let record = machine.queue_pair(place.queue_pair).ok_or(NO_QUEUE_PAIR)?;
        let state = record.state();
        if !matches!(state, QueuePairState::ReadyToSend | QueuePairState::Error) {
            return Err(VerbsError::InvalidState(state));
        }
        let access = match request.operation {
            SendOperation::RdmaRead(_) => AccessFlags::LOCAL_WRITE,
            SendOperation::Send | SendOperation::RdmaWrite(_) => AccessFlags::NONE,
        };
        check_request(machine, record, &request.entries, access, length_max)?;
        let outstanding = record.sends_posted - record.sends_reclaimed;
        if outstanding >= u64::from(record.capabilities.send_requests_max) {
            return Err(VerbsError::QueueFull("send"));
        }
        let Some(record) = self.record(place) else {
            return Err(NO_QUEUE_PAIR);
        };
        let posted = PostedSend {
            sequence: record.sends_posted,
            request: request.clone(),
            sent: false,
        };
        record.sends_posted += 1;
        record.sends.push_back(posted);
        if state == QueuePairState::Error {
            self.fail(place, CompletionStatus::WorkRequestFlushed);
        } else {
            self.schedule_transmit(place);
        }
        Ok(())
    }

    pub(super) fn post_receive(
        &mut self,
        place: Place,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        let length_max = self.config.message_length_max;
        let machine = &self.machines[place.machine];
        let record = machine.queue_pair(place.queue_pair).ok_or(NO_QUEUE_PAIR)?;
        let state = record.state();
        if state == QueuePairState::Reset {
            return Err(VerbsError::InvalidState(state));
        }
        let access = AccessFlags::LOCAL_WRITE;
        check_request(machine, record, &request.entries, access, length_max)?;
        let outstanding = record.receives_posted - record.receives_reclaimed;
        if outstanding >= u64::from(record.capabilities.receive_requests_max) {
            return Err(VerbsError::QueueFull("receive"));
        }
        let Some(record) = self.record(place) else {
            return Err(NO_QUEUE_PAIR);
        };
        record.receives_posted += 1;
        record.receives.push_back(request.clone());
        if state == QueuePairState::Error {
            self.fail(place, CompletionStatus::WorkRequestFlushed);
        }
        Ok(())
    }
}

/// What is wrong with a request, whatever the state of its queue pair.
fn check_request(
    machine: &Machine,
    record: &QueuePairRecord,
    entries: &[ScatterGatherEntry],
    access: AccessFlags,
    length_max: u32,
) -> Result<(), VerbsError> {
    let entries_max = u64::from(record.capabilities.entries_max);
    limit("entries of a request", entries.len() as u64, entries_max)?;
    limit(
        "length of a message",
        request_length(entries),
        u64::from(length_max),
    )?;
    for entry in entries {
        machine.local(record.domain, entry, access)?;
    }
    Ok(())
}

pub(super) fn limit(what: &'static str, asked: u64, limit: u64) -> Result<(), VerbsError> {
    if asked <= limit {
        return Ok(());
    }
    Err(VerbsError::LimitExceeded { what, asked, limit })
}
