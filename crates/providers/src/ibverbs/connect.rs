//! Connecting: addresses and routes are resolved, then the peer is asked, each answer an event.

use super::IbverbsProvider;
use super::abi::{QpAttr, RdmaCmId, SocketAddress, attr_mask, cm_event, option};
use super::create::{limit, unknown};
use super::identifier::{Owner, Said};
use super::modify::attributes_in;
use super::objects::{Owned, check};
use super::queue_pair::{Deadline, Phase, number_of};
use alloc::vec::Vec;
use core::ffi::{c_int, c_void};
use core::net::SocketAddr;
use legato_base::Duration;
use legato_verbs::{
    Address, ConnectionEvent, Event, PRIVATE_DATA_MAX, QueuePair, QueuePairState, Receives,
    RejectReason, RnrTimer, UnreachableReason, VerbsError, private_data,
};
use rustix::io::Errno;

/// Transmissions again. Not 7, which rxe takes for ever: a dead peer would never be found out.
pub(super) const RETRY_COUNT: u8 = 6;
/// Not for ever (7): a peer without a receive for 4 ms breaks the promise of its credits.
pub(super) const RNR_RETRY: u8 = 6;
/// 0.64 ms. Connection management alone would say 0, which is 655 ms.
const RNR_TIMER: u8 = 12;
/// Local ACK timeout: 4.096 us * 2^17 = 0.54 s, which `rdma_cm` has for RoCE as well. A peer that says
/// nothing for seven of them, 3.8 s, is given up; a cable may be out for 3 s.
const TIMEOUT: u8 = 17;
/// READs and atomics under way at a time, in each direction.
const READS_MAX: u8 = 16;
/// For the resolution of an address, and of a route, in milliseconds.
const RESOLVE_MS: c_int = 2000;
/// From the call to the end, whatever it is: longer than both resolutions and one repetition of a
/// request (4.6 s), and far shorter than the kernel's own 74 s.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that this side asks for.
#[derive(Debug)]
pub(super) struct Connecting {
    pub(super) id: Owned<RdmaCmId>,
    private_data: Vec<u8>,
    pub(super) deadline: Deadline,
}

impl IbverbsProvider {
    /// READs that a peer may have under way here, and this side there.
    pub(super) fn reads_max(&self) -> [u8; 2] {
        let device = &self.device.attributes;
        [device.max_qp_rd_atom, device.max_qp_init_rd_atom]
            .map(|most| u8::try_from(most).map_or(READS_MAX, |most| most.min(READS_MAX)))
    }

    /// A queue pair in Init that nobody connects, and private data that fits.
    pub(super) fn may_connect(&self, queue_pair: QueuePair, data: &[u8]) -> Result<(), VerbsError> {
        let pair = self
            .queue_pairs
            .get(queue_pair)
            .ok_or_else(|| unknown(queue_pair))?;
        if pair.state != QueuePairState::Init || !matches!(pair.phase, Phase::Unconnected) {
            return Err(VerbsError::InvalidState(pair.state));
        }
        limit("private data", data.len() as u64, PRIVATE_DATA_MAX as u64)
    }

    /// Where an address is, for connection management.
    pub(super) fn place_of(&self, address: &Address) -> Result<SocketAddr, VerbsError> {
        match address {
            Address::Verbs(place) => Ok(*place),
            Address::VerbsPort(named)
                if named.device == self.device.opened.device
                    && named.port == self.device.opened.port =>
            {
                Ok(SocketAddr::new(self.device.opened.ip, named.service))
            }
            _ => Err(VerbsError::UnsupportedAddress),
        }
    }

    pub(super) fn start_connecting(
        &mut self,
        queue_pair: QueuePair,
        address: &Address,
        data: &[u8],
    ) -> Result<(), VerbsError> {
        self.may_connect(queue_pair, data)?;
        let mut peer = SocketAddress::from(self.place_of(address)?);
        let port = private_data::source_port(data.len());
        let mut own = SocketAddress::from(SocketAddr::new(self.device.opened.ip, port));
        let id = self.new_id()?;
        let functions = &self.base.functions;
        // Others may come from the same port.
        let mut reuse: c_int = 1;
        // SAFETY: the identifier is alive; the option is an int, the addresses are copied.
        let (shared, resolved) = unsafe {
            let shared = (functions.rdma_set_option)(
                id.as_ptr(),
                option::LEVEL_ID,
                option::ID_REUSEADDR,
                (&raw mut reuse).cast::<c_void>(),
                size_of::<c_int>(),
            );
            let shared = check("rdma_set_option", shared);
            let resolved =
                (functions.rdma_resolve_addr)(id.as_ptr(), &raw mut own, &raw mut peer, RESOLVE_MS);
            (shared, check("rdma_resolve_addr", resolved))
        };
        shared?;
        self.own(&id, Owner::Pair(queue_pair));
        self.timers_at = None;
        if let Some(pair) = self.queue_pairs.get_mut(queue_pair) {
            pair.phase = Phase::Connecting(Connecting {
                id,
                private_data: data.to_vec(),
                deadline: None,
            });
        }
        match resolved {
            Ok(()) => Ok(()),
            // Found out before anything was sent: said like everything else that goes wrong.
            Err(VerbsError::System { errno, .. }) if is_route(errno) => {
                self.unreachable(queue_pair, UnreachableReason::NoSuchAddress);
                Ok(())
            }
            Err(error) => {
                self.drop_connecting(queue_pair);
                Err(error)
            }
        }
    }

    /// Takes back a call that was refused.
    fn drop_connecting(&mut self, queue_pair: QueuePair) {
        if let Some(pair) = self.queue_pairs.get_mut(queue_pair) {
            let phase = core::mem::replace(&mut pair.phase, Phase::Unconnected);
            if let Phase::Connecting(connecting) = phase {
                self.end_id(connecting.id);
            }
        }
    }

    /// An event of a queue pair's identifier.
    pub(super) fn pair_event(&mut self, queue_pair: QueuePair, said: Said) {
        match said.kind {
            cm_event::ADDR_RESOLVED => self.address_resolved(queue_pair),
            cm_event::ROUTE_RESOLVED => self.route_resolved(queue_pair),
            cm_event::CONNECT_RESPONSE => self.answered(queue_pair, &said),
            cm_event::ESTABLISHED => self.confirmed(queue_pair),
            cm_event::REJECTED => self.rejected(queue_pair, &said),
            cm_event::ADDR_ERROR => {
                self.unreachable(queue_pair, UnreachableReason::NoSuchAddress);
            }
            cm_event::UNREACHABLE => self.unreachable(queue_pair, UnreachableReason::TimedOut),
            cm_event::ROUTE_ERROR | cm_event::CONNECT_ERROR => {
                self.unreachable(queue_pair, UnreachableReason::Failed);
            }
            cm_event::DISCONNECTED => self.disconnected(queue_pair),
            cm_event::TIMEWAIT_EXIT => self.time_wait_over(queue_pair),
            cm_event::DEVICE_REMOVAL => self.device_removed(queue_pair),
            cm_event::ADDR_CHANGE => self.raise(ConnectionEvent::AddressChanged { queue_pair }),
            _ => self.counters.events_dropped += 1,
        }
    }

    /// The identifier of a connection that this side asks for.
    fn connecting(&self, queue_pair: QueuePair) -> Option<*mut RdmaCmId> {
        match &self.queue_pairs.get(queue_pair)?.phase {
            Phase::Connecting(connecting) => Some(connecting.id.as_ptr()),
            _ => None,
        }
    }

    fn address_resolved(&mut self, queue_pair: QueuePair) {
        let Some(id) = self.connecting(queue_pair) else {
            return;
        };
        // SAFETY: the identifier is alive.
        let resolve = || unsafe { (self.base.functions.rdma_resolve_route)(id, RESOLVE_MS) };
        if !self.is_of_device(id) || check("rdma_resolve_route", resolve()).is_err() {
            self.unreachable(queue_pair, UnreachableReason::Failed);
        }
    }

    fn route_resolved(&mut self, queue_pair: QueuePair) {
        let reads = self.reads_max();
        let Some(pair) = self.queue_pairs.get(queue_pair) else {
            return;
        };
        let Phase::Connecting(connecting) = &pair.phase else {
            return;
        };
        let is_shared = pair.init.receives != Receives::Own;
        let data = &connecting.private_data;
        let mut parameters = self.parameters(pair.number, is_shared, data, reads);
        // SAFETY: the identifier is alive; the private data lives until the call returns.
        let asked = unsafe {
            (self.base.functions.rdma_connect)(connecting.id.as_ptr(), &raw mut parameters)
        };
        if check("rdma_connect", asked).is_err() {
            self.unreachable(queue_pair, UnreachableReason::Failed);
        }
    }

    /// Takes the queue pair to ReadyToSend with what connection management knows of the peer.
    pub(super) fn make_ready(
        &mut self,
        queue_pair: QueuePair,
        id: *mut RdmaCmId,
        reads: Option<[u8; 2]>,
    ) -> Result<(), VerbsError> {
        for state in [QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
            let mut change = QpAttr {
                qp_state: number_of(state),
                ..QpAttr::default()
            };
            let mut mask = 0;
            // SAFETY: the identifier is alive.
            let told = unsafe {
                (self.base.functions.rdma_init_qp_attr)(id, &raw mut change, &raw mut mask)
            };
            check("rdma_init_qp_attr", told)?;
            mask &= !attr_mask::KERNEL_ONLY;
            change.min_rnr_timer = RnrTimer::new(RNR_TIMER).code();
            change.timeout = TIMEOUT;
            change.retry_cnt = RETRY_COUNT;
            change.rnr_retry = RNR_RETRY;
            if let Some([responder, initiator]) = reads {
                change.max_dest_rd_atomic = responder;
                change.max_rd_atomic = initiator;
            }
            // Those that the queue pair has, not those that connection management proposes.
            mask &= !attr_mask::ACCESS_FLAGS;
            self.modify_device(queue_pair, &mut change, mask)?;
            if let Some(pair) = self.queue_pairs.get_mut(queue_pair) {
                pair.state = state;
                pair.attributes.merge(&attributes_in(&change, mask));
            }
        }
        Ok(())
    }

    /// The peer has said yes.
    fn answered(&mut self, queue_pair: QueuePair, said: &Said) {
        let Some(id) = self.connecting(queue_pair) else {
            return;
        };
        let ready = self.make_ready(queue_pair, id, None).and_then(|()| {
            // SAFETY: the identifier is alive.
            let confirmed = unsafe { (self.base.functions.rdma_establish)(id) };
            check("rdma_establish", confirmed)
        });
        if ready.is_err() {
            // SAFETY: the identifier is alive, and no data is sent. The peer's wait ends at once.
            let _ = unsafe { (self.base.functions.rdma_reject)(id, core::ptr::null(), 0) };
            return self.unreachable(queue_pair, UnreachableReason::Failed);
        }
        let Some(pair) = self.queue_pairs.get_mut(queue_pair) else {
            return;
        };
        pair.phase = match core::mem::replace(&mut pair.phase, Phase::Unconnected) {
            Phase::Connecting(connecting) => Phase::Established { id: connecting.id },
            other => other,
        };
        self.raise(ConnectionEvent::Established {
            queue_pair,
            private_data: private_data::answered(&said.private_data),
        });
    }

    /// The peer knows that this side has said yes.
    fn confirmed(&mut self, queue_pair: QueuePair) {
        let Some(pair) = self.queue_pairs.get_mut(queue_pair) else {
            return;
        };
        match core::mem::replace(&mut pair.phase, Phase::Unconnected) {
            Phase::Accepted { id, .. } => {
                pair.phase = Phase::Established { id };
                self.raise(ConnectionEvent::Established {
                    queue_pair,
                    private_data: Vec::new(),
                });
            }
            other => pair.phase = other,
        }
    }

    fn rejected(&mut self, queue_pair: QueuePair, said: &Said) {
        if self.end_attempt(queue_pair) {
            self.raise(ConnectionEvent::Rejected {
                queue_pair,
                reason: reason_of(said.status),
                private_data: private_data::answered(&said.private_data),
            });
            self.raise(ConnectionEvent::TimeWaitExit { queue_pair });
        }
    }

    pub(super) fn unreachable(&mut self, queue_pair: QueuePair, reason: UnreachableReason) {
        if self.end_attempt(queue_pair) {
            self.raise(ConnectionEvent::Unreachable { queue_pair, reason });
            // Nothing was ever sent on it.
            self.raise(ConnectionEvent::TimeWaitExit { queue_pair });
        }
    }

    /// A connection that does not come to be: the queue pair is in the error state. False if there was none.
    fn end_attempt(&mut self, queue_pair: QueuePair) -> bool {
        let Some(pair) = self.queue_pairs.get_mut(queue_pair) else {
            return false;
        };
        match core::mem::replace(&mut pair.phase, Phase::Unconnected) {
            Phase::Connecting(Connecting { id, .. }) | Phase::Accepted { id, .. } => {
                self.end_id(id);
                self.fail(queue_pair);
                true
            }
            other => {
                pair.phase = other;
                false
            }
        }
    }

    pub(super) fn raise(&mut self, event: ConnectionEvent) {
        self.events.push_back(Event::Connection(event));
    }
}

/// There is no way to the address, or no RDMA device on it.
fn is_route(errno: i32) -> bool {
    [
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::ADDRNOTAVAIL,
        Errno::NODEV,
    ]
    .map(Errno::raw_os_error)
    .contains(&errno)
}

/// IB spec table 108.
fn reason_of(status: i32) -> RejectReason {
    match status {
        1..=3 => RejectReason::NoResources,
        4 => RejectReason::Timeout,
        8 => RejectReason::InvalidServiceId,
        10 => RejectReason::StaleConnection,
        28 => RejectReason::ConsumerReject,
        other => RejectReason::Other(u16::try_from(other).unwrap_or(0)),
    }
}
