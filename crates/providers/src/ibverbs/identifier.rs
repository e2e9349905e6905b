//! Identifiers of connection management, whose each is, and the events that come of them.

use super::IbverbsProvider;
use super::abi::{RdmaCmEvent, RdmaCmId, RdmaConnParam, cm_event};
use super::library::Functions;
use super::objects::{Owned, check, refused};
use alloc::vec::Vec;
use core::ffi::c_void;
use core::ptr::NonNull;
use legato_verbs::{ConnectionRequest, Listener, QueuePair, VerbsError};

/// What an identifier is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Pair(QueuePair),
    Listener(Listener),
    Request(ConnectionRequest),
    Remains(u64),
}

/// What an event says, copied out of it.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) kind: u32,
    /// A negative `errno`, or the reason of a rejection.
    pub(super) status: i32,
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

/// A new identifier on a channel, its caller's.
pub(super) fn create_id(
    functions: &Functions,
    channel: *mut super::abi::RdmaEventChannel,
) -> Result<NonNull<RdmaCmId>, VerbsError> {
    let mut id = core::ptr::null_mut();
    // SAFETY: the channel is open.
    let made = unsafe {
        (functions.rdma_create_id)(
            channel,
            &raw mut id,
            core::ptr::null_mut(),
            RdmaCmId::PORT_SPACE_TCP,
        )
    };
    check("rdma_create_id", made)?;
    NonNull::new(id).ok_or_else(|| refused("rdma_create_id"))
}

impl IbverbsProvider {
    pub(super) fn new_id(&self) -> Result<Owned<RdmaCmId>, VerbsError> {
        let id = create_id(&self.base.functions, self.base.connections.as_ptr())?;
        // SAFETY: just made on this channel.
        unsafe { Owned::adopt(&self.base, id.as_ptr(), "rdma_create_id") }
    }

    pub(super) fn own(&mut self, id: &Owned<RdmaCmId>, owner: Owner) {
        self.owners.insert(id.as_ptr().addr(), owner);
    }

    /// Destroys an identifier. No event of it comes afterwards.
    pub(super) fn end_id(&mut self, id: Owned<RdmaCmId>) {
        self.owners.remove(&id.as_ptr().addr());
        drop(id);
    }

    /// Is the identifier bound to this provider's device?
    pub(super) fn is_of_device(&self, id: *mut RdmaCmId) -> bool {
        let name = super::device::device_name(&self.base.functions, id);
        name.as_deref() == Some(self.device.opened.device.as_str())
    }

    /// What the peer is told of this side's queue pair.
    pub(super) fn parameters(
        &self,
        number: u32,
        is_shared: bool,
        data: &[u8],
        reads: [u8; 2],
    ) -> RdmaConnParam {
        RdmaConnParam {
            private_data: data.as_ptr().cast::<c_void>(),
            private_data_len: data.len() as u8,
            responder_resources: reads[0],
            initiator_depth: reads[1],
            flow_control: 1,
            retry_count: super::connect::RETRY_COUNT,
            rnr_retry_count: super::connect::RNR_RETRY,
            srq: u8::from(is_shared),
            qp_num: number,
        }
    }

    /// Takes the events of the channel. Each is copied and acknowledged before anything is done about it:
    /// its identifier cannot be destroyed before.
    pub(super) fn take_connection_events(&mut self) {
        let functions = self.base.functions;
        loop {
            let mut event = core::ptr::null_mut();
            // SAFETY: the channel is open, and does not block.
            let got = unsafe {
                (functions.rdma_get_cm_event)(self.base.connections.as_ptr(), &raw mut event)
            };
            let Some(event) = NonNull::new(event).filter(|_| got == 0) else {
                return;
            };
            // SAFETY: the library's until it is acknowledged.
            let (id, listening, said) = unsafe { copy(event.as_ref()) };
            // SAFETY: acknowledged once; nothing of it is used afterwards.
            let _ = unsafe { (functions.rdma_ack_cm_event)(event.as_ptr()) };
            self.connection_event(id, listening, said);
        }
    }

    fn connection_event(&mut self, id: *mut RdmaCmId, listening: *mut RdmaCmId, said: Said) {
        if said.kind == cm_event::CONNECT_REQUEST {
            return self.requested(id, listening, said);
        }
        match self.owners.get(&id.addr()).copied() {
            Some(Owner::Pair(queue_pair)) => self.pair_event(queue_pair, said),
            Some(Owner::Request(request)) => self.request_event(request, &said),
            Some(Owner::Remains(key)) => self.remains_event(key, &said),
            // Its device is gone: it does not listen any more, which closing it finds out.
            Some(Owner::Listener(_)) => {}
            None => self.counters.events_dropped += 1,
        }
    }
}

/// # Safety
/// The event must not be acknowledged yet.
unsafe fn copy(event: &RdmaCmEvent) -> (*mut RdmaCmId, *mut RdmaCmId, Said) {
    let conn = &event.conn;
    let private_data = if conn.private_data.is_null() {
        Vec::new()
    } else {
        // SAFETY: so many bytes, which are the event's.
        let bytes = unsafe {
            core::slice::from_raw_parts(
                conn.private_data.cast::<u8>(),
                usize::from(conn.private_data_len),
            )
        };
        bytes.to_vec()
    };
    let said = Said {
        kind: event.event,
        status: event.status,
        private_data,
        responder_resources: conn.responder_resources,
        initiator_depth: conn.initiator_depth,
    };
    (event.id, event.listen_id, said)
}
