//! What a queue pair's engine finds around it: memory by its keys, receives, completion queues.

use super::completions::CompletionToCome;
use super::policy::{LastWorkRequestEvents, OverrunEvents};
use super::queue_pair::{Context, Receives};
use super::surroundings::{RegionNumber, Surroundings};
use super::{Deferred, Objects};
use crate::congestion::Path;
use crate::nic::{Accessor, Binding, Place, Taken};
use crate::{AccessRefused, Host, QueueCompletion, QueuePairEvent, WorkQueue};
use core::ops::Range;
use legato_verbs::{
    AccessFlags, AsyncEvent, Completion, CompletionStatus, Event, ReceiveRequest, RemoteAddress,
    RemoteKey, ScatterGatherEntry, WindowBinding,
};

/// An adapter as one queue pair sees it.
pub(super) struct QueuePairHost<'a, S> {
    pub(super) objects: &'a mut Objects,
    pub(super) surroundings: &'a mut S,
    pub(super) context: &'a mut Context,
    /// To its peer, if it has one and congestion is controlled.
    pub(super) path: Option<&'a mut Path>,
    /// A completion of the send and of the receive queue's flush has found no room.
    pub(super) flush_given_up: [bool; 2],
}

impl<S: Surroundings> QueuePairHost<'_, S> {
    const fn accessor(&self) -> Accessor {
        Accessor {
            queue_pair: self.context.handle,
            domain: self.context.domain,
        }
    }

    fn read(&self, place: Place, into: &mut [u8]) -> bool {
        let region = RegionNumber(place.owner);
        self.surroundings.read_memory(region, place.offset, into)
    }

    fn write(&mut self, place: Place, from: &[u8]) -> bool {
        let region = RegionNumber(place.owner);
        self.surroundings.write_memory(region, place.offset, from)
    }

    /// Where an entry is. The entries of a shared queue's receives belong to the queue's domain;
    /// what is written locally may be one of them.
    fn local(
        &self,
        entry: &ScatterGatherEntry,
        access: AccessFlags,
    ) -> Result<Place, AccessRefused> {
        let keys = &self.objects.keys;
        let own = keys.check_local(self.context.domain, entry, access);
        let place = own.or_else(|error| match &self.context.receives {
            Receives::Shared(shared) if access.contains(AccessFlags::LOCAL_WRITE) => {
                let domain = self.objects.shared.domain(*shared).map_err(|_| error)?;
                keys.check_local(domain, entry, access)
            }
            _ => Err(error),
        });
        place.map_err(|_| AccessRefused)
    }

    fn remote(
        &self,
        target: RemoteAddress,
        length: u32,
        access: AccessFlags,
    ) -> Result<Place, AccessRefused> {
        self.objects
            .keys
            .check_remote(self.accessor(), target, length, access)
            .map_err(|_| AccessRefused)
    }
}

/// The pieces of a part of a message: where they are, and which bytes of it. None is empty.
fn pieces(
    entries: &[ScatterGatherEntry],
    offset: u32,
    length: usize,
) -> Result<impl Iterator<Item = (ScatterGatherEntry, Range<usize>)> + Clone, AccessRefused> {
    let all = entries.iter().map(|entry| u64::from(entry.length)).sum();
    if u64::from(offset) + length as u64 > all {
        return Err(AccessRefused);
    }
    let (mut skip, mut at) = (offset, 0);
    Ok(entries.iter().filter_map(move |entry| {
        let here = entry.length.saturating_sub(skip);
        let here = here.min(u32::try_from(length - at).unwrap_or(u32::MAX));
        let piece = ScatterGatherEntry {
            address: entry.address.wrapping_add(u64::from(skip)),
            length: here,
            ..*entry
        };
        skip = skip.saturating_sub(entry.length);
        let range = at..at + here as usize;
        at = range.end;
        (here > 0).then_some((piece, range))
    }))
}

impl<S: Surroundings> Host for QueuePairHost<'_, S> {
    fn check_entries(
        &self,
        entries: &[ScatterGatherEntry],
        access: AccessFlags,
    ) -> Result<(), AccessRefused> {
        entries
            .iter()
            .try_for_each(|entry| self.local(entry, access).map(|_| ()))
    }

    fn gather(
        &self,
        entries: &[ScatterGatherEntry],
        offset: u32,
        into: &mut [u8],
    ) -> Result<(), AccessRefused> {
        for (piece, range) in pieces(entries, offset, into.len())? {
            let place = self.local(&piece, AccessFlags::NONE)?;
            if !self.read(place, &mut into[range]) {
                return Err(AccessRefused);
            }
        }
        Ok(())
    }

    fn scatter(
        &mut self,
        entries: &[ScatterGatherEntry],
        offset: u32,
        from: &[u8],
    ) -> Result<(), AccessRefused> {
        let access = AccessFlags::LOCAL_WRITE;
        let pieces = pieces(entries, offset, from.len())?;
        // Nothing is written unless all of it can be: the first is looked at before it is.
        for (piece, _) in pieces.clone().skip(1) {
            self.local(&piece, access)?;
        }
        for (piece, range) in pieces {
            let place = self.local(&piece, access)?;
            self.write(place, &from[range]);
        }
        Ok(())
    }

    fn check_remote(
        &self,
        target: RemoteAddress,
        length: u32,
        access: AccessFlags,
    ) -> Result<(), AccessRefused> {
        self.remote(target, length, access).map(|_| ())
    }

    fn read_remote(&self, target: RemoteAddress, into: &mut [u8]) -> Result<(), AccessRefused> {
        let length = u32::try_from(into.len()).map_err(|_| AccessRefused)?;
        let place = self.remote(target, length, AccessFlags::REMOTE_READ)?;
        let read = self.read(place, into);
        if read { Ok(()) } else { Err(AccessRefused) }
    }

    fn write_remote(&mut self, target: RemoteAddress, from: &[u8]) -> Result<(), AccessRefused> {
        let length = u32::try_from(from.len()).map_err(|_| AccessRefused)?;
        let place = self.remote(target, length, AccessFlags::REMOTE_WRITE)?;
        let written = self.write(place, from);
        if written { Ok(()) } else { Err(AccessRefused) }
    }

    fn update_remote(
        &mut self,
        target: RemoteAddress,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, AccessRefused> {
        let place = self.remote(target, 8, AccessFlags::REMOTE_ATOMIC)?;
        let region = RegionNumber(place.owner);
        let updated = self
            .surroundings
            .update_memory(region, place.offset, change);
        updated.ok_or(AccessRefused)
    }

    fn invalidate(&mut self, key: RemoteKey) -> Result<(), AccessRefused> {
        let accessor = self.accessor();
        let done = self.objects.keys.invalidate(accessor, key);
        done.map_err(|_| AccessRefused)
    }

    fn bind_window(&mut self, binding: &WindowBinding) -> Result<(), AccessRefused> {
        let accessor = self.accessor();
        let to = Binding {
            region: binding.region,
            address: binding.address,
            length: binding.length,
            access: binding.access,
        };
        let bound = self
            .objects
            .keys
            .bind(accessor, binding.window, binding.next, &to);
        bound.map_err(|_| AccessRefused)
    }

    fn path(&mut self) -> Option<&mut Path> {
        self.path.as_deref_mut()
    }

    fn take_receive(&mut self) -> Option<ReceiveRequest> {
        let Taken {
            request,
            limit_reached,
        } = match &mut self.context.receives {
            Receives::Own(queue) => queue.take()?,
            Receives::Shared(shared) => {
                let name = *shared;
                // The ledger has an entry for each that it may hold.
                let (_, most) = self.context.reserved();
                let ledger = self.objects.has_ledger(self.context.receive_queue);
                if ledger && self.context.held >= most {
                    return None;
                }
                let taken = self.objects.shared.queue_mut(name).ok()?.take()?;
                self.context.held += 1;
                if taken.limit_reached {
                    let event = AsyncEvent::SharedReceiveQueueLimit(name);
                    self.objects.raise(self.surroundings, Event::Async(event));
                }
                taken
            }
        };
        let _ = limit_reached;
        let name = self.context.handle;
        self.surroundings
            .buffers_lent(name, request.wr_id, &request.entries);
        Some(request)
    }

    fn give_receive(&mut self, receive: ReceiveRequest) {
        match &mut self.context.receives {
            Receives::Own(queue) => queue.give_back(receive),
            Receives::Shared(shared) => {
                if let Ok(queue) = self.objects.shared.queue_mut(*shared) {
                    queue.give_back(receive);
                }
            }
        }
    }

    fn complete(&mut self, completion: QueueCompletion) {
        let into = match completion.queue {
            WorkQueue::Send => self.context.send_queue,
            WorkQueue::Receive => self.context.receive_queue,
        };
        let failed = completion.result.is_err();
        if failed && completion.queue == WorkQueue::Receive {
            self.context.flushed_receive = true;
        }
        let (name, failure) = (self.context.handle, completion.result.err());
        self.surroundings
            .buffers_returned(name, completion.wr_id, failure);
        let entry = Completion {
            wr_id: completion.wr_id,
            queue_pair: name,
            result: completion.result,
            vendor_error: match completion.result {
                Ok(_) => 0,
                Err(status) => self.objects.policy.vendor_errors.of(status),
            },
        };
        let flushed = completion.result == Err(CompletionStatus::WorkRequestFlushed)
            && self.objects.policy.overrun_events == OverrunEvents::Each;
        let flush = usize::from(completion.queue == WorkQueue::Receive);
        if flushed && self.flush_given_up[flush] {
            return;
        }
        let lost = self.objects.lost(into);
        let to_come = CompletionToCome {
            into,
            completion: entry,
            queue: completion.queue,
            solicited: completion.solicited,
        };
        self.objects.complete(self.surroundings, &to_come);
        self.flush_given_up[flush] |= flushed && self.objects.lost(into) > lost;
    }

    fn raise(&mut self, event: QueuePairEvent) {
        let times = match (event, self.objects.policy.last_work_request) {
            (QueuePairEvent::LastWorkRequestReached, LastWorkRequestEvents::AfterFlush) => {
                u32::from(self.context.flushed_receive)
            }
            (QueuePairEvent::LastWorkRequestReached, LastWorkRequestEvents::Times(times)) => times,
            _ => 1,
        };
        let handle = self.context.handle;
        for _ in 0..times {
            let event = Event::Async(event.of(handle));
            self.objects.raise(self.surroundings, event);
        }
        if event == QueuePairEvent::CommunicationEstablished {
            self.objects.deferred.push(Deferred::DataArrived(handle));
        }
    }
}
