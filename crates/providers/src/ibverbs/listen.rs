//! Listening, and the peers that wait for an answer.

use super::IbverbsProvider;
use super::abi::{RdmaCmId, SocketAddress, cm_event};
use super::create::{limit, unknown};
use super::identifier::{Owner, Said};
use super::objects::{Owned, check};
use super::queue_pair::Phase;
use crate::table::Walk;
use core::ffi::{c_int, c_void};
use core::net::SocketAddr;
use legato_verbs::{
    Address, ConnectionEvent, ConnectionRequest, Listener, PRIVATE_DATA_MAX, QueuePair,
    QueuePairState, Receives, VerbsError, private_data,
};
use rustix::io::Errno;

/// Peers that the kernel lets wait until their request is taken here.
const BACKLOG: c_int = 128;
/// Peers that wait for their answer.
const WAITING_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Listening {
    id: Owned<RdmaCmId>,
}

/// A peer that waits.
#[derive(Debug)]
pub(super) struct Request {
    id: Owned<RdmaCmId>,
    listener: Listener,
    /// READs that the peer may have under way here, and this side there, at most.
    reads: [u8; 2],
    /// That of the peer's address.
    source_port: u16,
}

impl IbverbsProvider {
    pub(super) fn start_listening(&mut self, address: &Address) -> Result<Listener, VerbsError> {
        let place = self.place_of(address)?;
        if place.ip().is_unspecified() || place.ip().is_multicast() {
            return Err(VerbsError::UnsupportedAddress);
        }
        let id = self.new_id()?;
        let functions = &self.base.functions;
        let mut at = SocketAddress::from(place);
        // SAFETY: the identifier is alive, and the address is copied.
        let bound = unsafe { (functions.rdma_bind_addr)(id.as_ptr(), &raw mut at) };
        check("rdma_bind_addr", bound).map_err(in_words)?;
        if !self.is_of_device(id.as_ptr()) {
            return Err(VerbsError::UnsupportedAddress);
        }
        // SAFETY: the identifier is alive.
        let listens = unsafe { (functions.rdma_listen)(id.as_ptr(), BACKLOG) };
        check("rdma_listen", listens).map_err(in_words)?;
        let address = id.as_ptr().addr();
        let listener = self.listeners.insert(Listening { id });
        self.owners.insert(address, Owner::Listener(listener));
        Ok(listener)
    }

    pub(super) fn stop_listening(&mut self, listener: Listener) -> Result<(), VerbsError> {
        // What the kernel has received and nobody has taken is taken now: it waits too.
        self.take_connection_events();
        let found = self.listeners.remove(listener);
        let found = found.ok_or_else(|| unknown(listener))?;
        self.end_id(found.id);
        let mut walk = Walk::default();
        while let Some(request) = walk.next(&self.requests) {
            let waits = self.requests.get(request);
            if waits.is_some_and(|waits| waits.listener == listener) {
                // The peer's wait ends by itself if this cannot be said.
                let _ = self.send_away(request, &[]);
            }
        }
        Ok(())
    }

    /// A peer asks to be connected.
    pub(super) fn requested(&mut self, id: *mut RdmaCmId, listening: *mut RdmaCmId, said: Said) {
        // SAFETY: the library has made the identifier for this event, and it is ours from now on.
        let adopted = unsafe { Owned::adopt(&self.base, id, "rdma_get_cm_event") };
        let Ok(id) = adopted else {
            self.counters.events_dropped += 1;
            return;
        };
        let owner = self.owners.get(&listening.addr()).copied();
        let (Some(Owner::Listener(listener)), true) = (owner, self.is_of_device(id.as_ptr()))
        else {
            // Its listener is closed: whose identifier ends without an answer is rejected.
            self.counters.events_dropped += 1;
            return;
        };
        if self.requests.len() >= WAITING_MAX {
            return;
        }
        // SAFETY: the identifier is alive, and the library has filled in its addresses.
        let peer = unsafe { (*id.as_ptr()).route.addr.dst_addr.get() };
        let source_port = peer.map_or(0, |peer| peer.port());
        let [responder, initiator] = self.reads_max();
        let address = id.as_ptr().addr();
        let request = self.requests.insert(Request {
            id,
            listener,
            reads: [
                said.responder_resources.min(responder),
                said.initiator_depth.min(initiator),
            ],
            source_port,
        });
        self.owners.insert(address, Owner::Request(request));
        self.raise(ConnectionEvent::Requested {
            listener,
            request,
            private_data: private_data::asked(&said.private_data, source_port),
        });
    }

    /// Whatever else is said of a peer that waits means that it waits no more.
    pub(super) fn request_event(&mut self, request: ConnectionRequest, said: &Said) {
        if said.kind == cm_event::ADDR_CHANGE {
            return;
        }
        if let Some(waits) = self.requests.remove(request) {
            self.end_id(waits.id);
        }
    }

    pub(super) fn accept_peer(
        &mut self,
        request: ConnectionRequest,
        queue_pair: QueuePair,
        data: &[u8],
    ) -> Result<(), VerbsError> {
        let found = self.requests.get(request).ok_or_else(|| unknown(request))?;
        let (id, reads, source_port) = (found.id.as_ptr(), found.reads, found.source_port);
        self.may_connect(queue_pair, data)?;
        let made = self.make_ready(queue_pair, id, Some(reads));
        if let Err(error) = made {
            let state = self.query(queue_pair)?;
            // It is the peer's fault, or it has gone away; or the queue pair is spoilt.
            let _ = self.send_away(request, &[]);
            if state != QueuePairState::Init {
                let _ = self.enter_error(queue_pair);
            }
            return Err(match error {
                VerbsError::System {
                    call: "rdma_init_qp_attr",
                    ..
                } => unknown(request),
                other => other,
            });
        }
        let data = private_data::answer(data, source_port);
        let Some(pair) = self.queue_pairs.get(queue_pair) else {
            return Err(unknown(queue_pair));
        };
        let is_shared = pair.init.receives != Receives::Own;
        let mut parameters = self.parameters(pair.number, is_shared, &data, reads);
        // SAFETY: the identifier is alive; the private data lives until the call returns.
        let accepted = unsafe { (self.base.functions.rdma_accept)(id, &raw mut parameters) };
        let accepted = check("rdma_accept", accepted);
        let Some(Request { id, .. }) = self.requests.remove(request) else {
            return Err(unknown(request));
        };
        if let Err(error) = accepted {
            self.end_id(id);
            let _ = self.enter_error(queue_pair);
            return Err(error);
        }
        self.own(&id, Owner::Pair(queue_pair));
        self.timers_at = None;
        if let Some(pair) = self.queue_pairs.get_mut(queue_pair) {
            pair.phase = Phase::Accepted { id, deadline: None };
        }
        Ok(())
    }

    pub(super) fn reject_peer(
        &mut self,
        request: ConnectionRequest,
        data: &[u8],
    ) -> Result<(), VerbsError> {
        limit("private data", data.len() as u64, PRIVATE_DATA_MAX as u64)?;
        self.send_away(request, data)
    }

    fn send_away(&mut self, request: ConnectionRequest, data: &[u8]) -> Result<(), VerbsError> {
        let found = self.requests.remove(request);
        let found = found.ok_or_else(|| unknown(request))?;
        let data = private_data::answer(data, found.source_port);
        // SAFETY: the identifier is alive; the private data lives until the call returns.
        let said = unsafe {
            (self.base.functions.rdma_reject)(
                found.id.as_ptr(),
                data.as_ptr().cast::<c_void>(),
                data.len() as u8,
            )
        };
        let said = check("rdma_reject", said);
        self.end_id(found.id);
        // The kernel says nothing of a peer that goes away before it is answered, but cannot answer it.
        said.map_err(|error| match error {
            VerbsError::System { errno, .. } if errno == Errno::INVAL.raw_os_error() => {
                unknown(request)
            }
            other => other,
        })
    }

    /// Where a listener is.
    pub fn listening_at(&self, listener: Listener) -> Option<SocketAddr> {
        let found = self.listeners.get(listener)?;
        // SAFETY: the identifier is alive, and the library has filled in its address.
        unsafe { (*found.id.as_ptr()).route.addr.src_addr.get() }
    }
}

fn in_words(error: VerbsError) -> VerbsError {
    let VerbsError::System { errno, .. } = error else {
        return error;
    };
    let is = |it: Errno| it.raw_os_error() == errno;
    if is(Errno::ADDRINUSE) {
        VerbsError::AddressInUse
    } else if is(Errno::ACCESS) || is(Errno::PERM) {
        VerbsError::PermissionDenied
    } else if is(Errno::ADDRNOTAVAIL) || is(Errno::NODEV) {
        VerbsError::UnsupportedAddress
    } else {
        error
    }
}
