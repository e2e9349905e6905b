//! Memory of this side that one peer may use for a time: a grant.
//!
//! A grant is an operation on a buffer, as a read is, but the peer's: it has an outcome when the peer
//! can begin, and its buffer comes back when the peer can do nothing more. The peer reaches it through
//! a memory window of its own queue pair (type 2B, IB spec 10.6.7.2.3), so that a grant ends without
//! an end of the region, of the connection, or of another peer's grants: by a local invalidation on
//! the connection, which is [`Proof::LocalInvalidation`]. If that does not complete in time the
//! connection ends, and the grant with it.

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::event::Buffer;
use crate::fabric::Fabric;
use crate::id::{Key, Kind};
use crate::one_sided::Operation;
use crate::shared::Shared;
use crate::{ConnectionId, OperationId, Proof, Refused};
use alloc::vec::Vec;
use legato_base::Time;
use legato_verbs::{
    AccessFlags, CompletionKind, CompletionStatus, Provider, RemoteAddress, RemoteKey,
    ScatterGatherEntry, SendFlags, SendOperation, SendRequest, VerbsError, WindowBinding,
    WorkRequestId,
};

/// The window of a grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Its key before it was bound.
    before: RemoteKey,
    /// The key that the peer is given.
    key: RemoteKey,
    /// The peer can use it.
    pub(crate) is_bound: bool,
    revocation: Revocation,
}

/// The request that ends a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Revocation {
    NotAsked,
    Posted,
    /// The queue pair gave it back. The grant ends with the queue pair.
    Flushed,
}

impl Window {
    /// Requests about it that have not completed.
    pub(crate) fn posted(&self) -> usize {
        usize::from(!self.is_bound) + usize::from(self.revocation == Revocation::Posted)
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revocation != Revocation::NotAsked
    }

    /// Ends the window, bound or not. False if the peer may still use it.
    fn is_ended(self, provider: &mut dyn Provider) -> bool {
        // It has one of the two keys, and the provider does not know the other.
        let bound = provider.deallocate_window(self.key);
        let unbound = provider.deallocate_window(self.before);
        match (bound, unbound) {
            (Ok(()), Ok(())) => true,
            (Ok(()), Err(other)) | (Err(other), Ok(())) => {
                matches!(other, VerbsError::UnknownHandle(_))
            }
            (Err(_), Err(_)) => false,
        }
    }
}

impl<B: Buffer> Fabric<B> {
    /// Lets the peer of a connection use the buffer, which is one piece of a region that windows can be
    /// bound to ([`AccessFlags::WINDOW_BIND`]) in [`Self::domain_of`] the connection. Returns where the
    /// peer finds it. [`crate::FabricEvent::Outcome`] says when it can begin, by the deadline, and
    /// [`crate::FabricEvent::Quiesced`] follows [`Self::revoke`] or the end of the connection.
    ///
    /// # Errors
    /// [`Refused`], with the buffer: nothing was granted. [`Refused::WouldBlock`] beyond
    /// [`crate::FabricConfig::grants_max`], [`VerbsError::Unsupported`] where there are no windows.
    pub fn grant(
        &mut self,
        provider: &mut dyn Provider,
        connection: ConnectionId,
        buffer: B,
        access: AccessFlags,
        deadline: Time,
    ) -> Result<(OperationId, RemoteAddress), (Refused, B)> {
        match self.find(connection) {
            Some((connection, shared)) => {
                connection.start_grant(shared, provider, buffer, access, deadline)
            }
            None => Err((Refused::NotConnected, buffer)),
        }
    }

    /// Takes a grant back. [`crate::FabricEvent::Quiesced`] follows; if it has not by the deadline, it
    /// does with the end of the connection, which ends then. Again, or with a connection that is
    /// ending, it changes nothing.
    ///
    /// # Errors
    /// [`Refused::NotConnected`] if there is no such grant any more, [`Refused::DeadlinePassed`], and
    /// what the provider refuses.
    pub fn revoke(
        &mut self,
        provider: &mut dyn Provider,
        grant: OperationId,
        deadline: Time,
    ) -> Result<(), Refused> {
        let key = grant.0.key();
        match self.of_token(grant.0) {
            Some((connection, shared)) => {
                connection.start_revocation(shared, provider, key, deadline)
            }
            None => Err(Refused::NotConnected),
        }
    }
}

impl<B: Buffer> Connection<B> {
    fn start_grant(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        buffer: B,
        access: AccessFlags,
        deadline: Time,
    ) -> Result<(OperationId, RemoteAddress), (Refused, B)> {
        let entries = buffer.entries();
        if let Err(refused) = self.may_start(shared, &entries, deadline) {
            return Err((refused, buffer));
        }
        let &[entry] = entries.as_slice() else {
            let refused = VerbsError::LimitExceeded {
                what: "pieces of memory in a grant",
                asked: entries.len() as u64,
                limit: 1,
            };
            return Err((Refused::Provider(refused), buffer));
        };
        let granted = self.operations.iter();
        let granted = granted.filter(|(_, it)| it.window.is_some()).count();
        if granted >= shared.config.grants_max as usize || self.operations.is_full() {
            return Err((Refused::WouldBlock, buffer));
        }
        let window = match self.take_window(shared, provider) {
            Ok(window) => window,
            Err(error) => return Err((Refused::Provider(error), buffer)),
        };
        let slot = Operation::granting(buffer, deadline, window);
        let key = match self.operations.insert(&mut shared.generations, slot) {
            Ok(key) => key,
            Err(slot) => {
                self.windows.push(window.before);
                return Err((Refused::WouldBlock, slot.buffer));
            }
        };
        let token = self.token(Kind::OneSided, key);
        let binding = bind(window, entry, access);
        let posted = self.post_window_request(provider, token.bits(), binding);
        if let Err(error) = posted {
            let refused = self.refuse_post(shared, provider, error);
            let slot = self.operations.remove(key);
            let slot = slot.expect("invariant: it was put in above");
            self.windows.push(window.before);
            return Err((refused, slot.buffer));
        }
        shared.note_deadline(deadline);
        shared.counters.operations_started += 1;
        let at = RemoteAddress {
            key: window.key,
            address: entry.address,
        };
        Ok((OperationId(token), at))
    }

    /// A window that is not bound, with the key that it will have.
    fn take_window(
        &mut self,
        shared: &Shared<B>,
        provider: &mut dyn Provider,
    ) -> Result<Window, VerbsError> {
        let window = |before, key| Window {
            before,
            key,
            is_bound: false,
            revocation: Revocation::NotAsked,
        };
        while let Some(before) = self.windows.pop() {
            match provider.next_window_key(before) {
                Ok(key) => return Ok(window(before, key)),
                // It has had all its keys.
                Err(_) => provider.deallocate_window(before)?,
            }
        }
        let before = provider.allocate_window(self.own_domain.unwrap_or(shared.domain))?;
        Ok(window(before, provider.next_window_key(before)?))
    }

    fn post_window_request(
        &self,
        provider: &mut dyn Provider,
        wr_id: u64,
        operation: SendOperation,
    ) -> Result<(), VerbsError> {
        let request = SendRequest {
            wr_id: WorkRequestId(wr_id),
            operation,
            entries: Vec::new(),
            flags: SendFlags::SIGNALED,
        };
        provider.post_send(self.queue_pair, &request)
    }

    fn start_revocation(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        key: Key,
        deadline: Time,
    ) -> Result<(), Refused> {
        let is_established = self.is_established();
        let operation = self.operations.get_mut(key);
        let Some(operation) = operation.filter(|operation| operation.window.is_some()) else {
            return Err(Refused::NotConnected);
        };
        let Some(window) = operation.window.filter(|window| !window.is_revoked()) else {
            return Ok(());
        };
        if !is_established {
            return Ok(());
        }
        if deadline <= shared.now {
            return Err(Refused::DeadlinePassed);
        }
        let token = self.token(Kind::Revocation, key);
        // P-95: by this, or at the deadline with the connection.
        let end = SendOperation::LocalInvalidate(window.key);
        if let Err(error) = self.post_window_request(provider, token.bits(), end) {
            return Err(self.refuse_post(shared, provider, error));
        }
        if let Some(operation) = self.operations.get_mut(key) {
            operation.deadline = Deadline::at(deadline);
            if let Some(window) = &mut operation.window {
                window.revocation = Revocation::Posted;
            }
        }
        shared.note_deadline(deadline);
        Ok(())
    }

    /// The peer's key has ended, or the connection has before. False if there is no such grant.
    pub(crate) fn complete_revocation(
        &mut self,
        shared: &mut Shared<B>,
        provider: &mut dyn Provider,
        key: Key,
        result: Result<CompletionKind, CompletionStatus>,
    ) -> bool {
        let operation = self.operations.get_mut(key);
        let window = operation.and_then(|operation| operation.window.as_mut());
        let posted = |window: &&mut Window| window.revocation == Revocation::Posted;
        let Some(window) = window.filter(posted) else {
            return false;
        };
        if result.is_err() {
            window.revocation = Revocation::Flushed;
            return true;
        }
        let free = window.key;
        let Some(operation) = self.operations.remove(key) else {
            return false;
        };
        self.windows.push(free);
        let token = self.token(Kind::OneSided, key);
        let proof = Proof::LocalInvalidation;
        shared.end_operation(provider, token, operation, Ok(()), proof);
        true
    }

    /// The binding has failed: nobody was given anything.
    pub(crate) fn drop_window(&mut self, provider: &mut dyn Provider, window: Window) {
        if !window.is_ended(provider) {
            self.windows.push(window.before);
        }
    }

    /// Ends the windows that nobody uses.
    pub(crate) fn end_windows(&mut self, provider: &mut dyn Provider) {
        for window in self.windows.drain(..) {
            // One that is refused allows nothing, and belongs to a device that is gone.
            let _ = provider.deallocate_window(window);
        }
    }
}

impl<B> Operation<B> {
    /// It is a grant, and the peer's key has ended with its window.
    pub(crate) fn is_taken_back(&self, provider: &mut dyn Provider) -> bool {
        self.window.is_some_and(|window| window.is_ended(provider))
    }
}

const fn bind(window: Window, entry: ScatterGatherEntry, access: AccessFlags) -> SendOperation {
    SendOperation::BindWindow(WindowBinding {
        window: window.before,
        next: window.key,
        region: entry.local_key,
        address: entry.address,
        length: entry.length as u64,
        access,
    })
}
