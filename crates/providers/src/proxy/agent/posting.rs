//! Requests: checked here as a NIC would, and sent on their way.

use super::super::codec::Encoder;
use super::super::message::{Part, Post, Work};
use super::ProxyProvider;
use super::bounce::Carried;
use super::regions::Located;
use alloc::vec::Vec;
use legato_verbs::{
    CompletionKind, QueuePair, ReceiveRequest, ScatterGatherEntry, SendFlags, SendRequest,
    VerbsError,
};

const NO_PAIR: VerbsError = VerbsError::UnknownHandle("queue pair");

/// Pieces of the request, as they go on their way.
struct Way {
    parts: Vec<Part>,
    carried: Option<Carried>,
}

impl ProxyProvider {
    pub(super) fn send(
        &mut self,
        handle: QueuePair,
        request: &SendRequest,
    ) -> Result<(), VerbsError> {
        self.check_there()?;
        let pair = self.pairs.get(&handle).ok_or(NO_PAIR)?;
        pair.may_send()?;
        let length = self.check_entries(&request.entries, pair.capabilities.entries_max)?;
        self.check_inline(request, length)?;
        if !pair.sends.has_room(pair.capabilities.send_requests_max) {
            return Err(VerbsError::QueueFull("send"));
        }
        let writes = request.operation.writes_locally();
        let located = self.locate(handle, &request.entries, writes)?;
        let is_inline = request.flags.contains(SendFlags::INLINE);
        let is_own = located.iter().any(|it| it.is_own);
        let work = Work::Send(request.operation, request.flags);
        // What a proxy does not hand on is refused before it takes a slot.
        Post::encode((handle, 0), work, &[], &mut Encoder(&mut Vec::new()))?;
        let way = match is_own || is_inline {
            true => self.load(handle, &request.entries, &located, writes)?,
            false => Way {
                parts: located.iter().map(|it| it.part).collect(),
                carried: None,
            },
        };
        let pair = self.pairs.get_mut(&handle).ok_or(NO_PAIR)?;
        let number = pair.sends.next();
        pair.sends.push(request.wr_id, way.carried);
        self.put((handle, number), work, &way.parts)
    }

    pub(super) fn receive(
        &mut self,
        handle: QueuePair,
        request: &ReceiveRequest,
    ) -> Result<(), VerbsError> {
        self.check_there()?;
        let pair = self.pairs.get(&handle).ok_or(NO_PAIR)?;
        pair.may_receive()?;
        self.check_entries(&request.entries, pair.capabilities.entries_max)?;
        if !pair
            .receives
            .has_room(pair.capabilities.receive_requests_max)
        {
            return Err(VerbsError::QueueFull("receive"));
        }
        let located = self.locate(handle, &request.entries, true)?;
        if located.iter().any(|it| it.is_own) {
            return Err(VerbsError::Unsupported(
                "receives into memory that the NIC does not know",
            ));
        }
        let pair = self.pairs.get_mut(&handle).ok_or(NO_PAIR)?;
        let number = pair.receives.next();
        pair.receives.push(request.wr_id, None);
        let parts: Vec<Part> = located.iter().map(|it| it.part).collect();
        self.put((handle, number), Work::Receive, &parts)
    }

    fn check_there(&self) -> Result<(), VerbsError> {
        match self.is_gone {
            true => Err(VerbsError::DeviceRemoved),
            false => Ok(()),
        }
    }

    /// The sum of the entries' lengths.
    fn check_entries(&self, entries: &[ScatterGatherEntry], most: u32) -> Result<u64, VerbsError> {
        limit("entries of a request", entries.len() as u64, most.into())?;
        let length = entries.iter().map(|entry| u64::from(entry.length)).sum();
        let most = self.attributes.message_length_max;
        limit("length of a message", length, most.into())?;
        Ok(length)
    }

    fn check_inline(&self, request: &SendRequest, length: u64) -> Result<(), VerbsError> {
        if !request.flags.contains(SendFlags::INLINE) {
            return Ok(());
        }
        let kind = request.operation.completion_kind();
        if !matches!(kind, CompletionKind::Send | CompletionKind::RdmaWrite) {
            return Err(VerbsError::Unsupported("inline data of such an operation"));
        }
        let most = self.attributes.inline_length_max;
        limit("bytes of an inline request", length, most.into())
    }

    fn locate(
        &self,
        handle: QueuePair,
        entries: &[ScatterGatherEntry],
        writes: bool,
    ) -> Result<Vec<Located>, VerbsError> {
        let pair = self.pairs.get(&handle).ok_or(NO_PAIR)?;
        let found = entries.iter();
        found
            .map(|entry| self.regions.locate(pair.domain, entry, writes))
            .collect()
    }

    /// Into a slot: the NIC does not know the memory, or the buffer is the poster's again at once.
    fn load(
        &mut self,
        handle: QueuePair,
        entries: &[ScatterGatherEntry],
        located: &[Located],
        fetches: bool,
    ) -> Result<Way, VerbsError> {
        self.provide_pool(handle)?;
        let pair = self.pairs.get_mut(&handle).ok_or(NO_PAIR)?;
        let pool = pair.pool.as_mut().ok_or(VerbsError::QueueFull("send"))?;
        let (part, carried) = pool.load(entries, located, fetches)?;
        self.counters.requests_carried += 1;
        Ok(Way {
            parts: alloc::vec![part],
            carried: Some(carried),
        })
    }

    fn put(
        &mut self,
        name: (QueuePair, u64),
        work: Work,
        parts: &[Part],
    ) -> Result<(), VerbsError> {
        let mut bytes = core::mem::take(&mut self.message);
        bytes.clear();
        // It can be encoded: looked at before anything was changed.
        let _ = Post::encode(name, work, parts, &mut Encoder(&mut bytes));
        let put = self.line.get_mut().put(&bytes);
        self.message = bytes;
        if put.is_err() {
            // It is outstanding by now, and so it is flushed with the others.
            self.flush_if_lost();
        }
        Ok(())
    }
}

fn limit(what: &'static str, asked: u64, limit: u64) -> Result<(), VerbsError> {
    match asked <= limit {
        true => Ok(()),
        false => Err(VerbsError::LimitExceeded { what, asked, limit }),
    }
}
