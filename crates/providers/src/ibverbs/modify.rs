//! Changes of a queue pair's state.

use super::IbverbsProvider;
use super::abi::{AhAttr, GlobalRoute, QpAttr, QpInitAttr, attr_mask};
use super::create::unknown;
use super::device::Device;
use super::objects::check;
use super::queue_pair::{number_of, state_of};
use core::ffi::c_int;
use legato_verbs::{
    AccessFlags, AddressVector, CompletionKind, ModifyError, PacketSequenceNumber, PathMtu,
    QueuePair, QueuePairAttributes, QueuePairNumber, QueuePairState, RetryCount, RnrTimer,
    VerbsError,
};

use rustix::io::Errno;

/// Routers that a packet may pass: the most, as `rdma_cm` has it.
const HOP_LIMIT: u8 = 255;
/// How often a change out of SendQueueDrain is tried, with the processor given up between: some milliseconds.
const DRAIN_TRIES: u32 = 1000;
/// The provider's port has this number towards its user, whichever it is of the device.
const PORT: u8 = 1;

impl IbverbsProvider {
    /// The state that the device says.
    pub(super) fn query(&self, queue_pair: QueuePair) -> Result<QueuePairState, VerbsError> {
        use QueuePairState::{ReadyToReceive, ReadyToSend, SendQueueDrain};
        let pair = self
            .queue_pairs
            .get(queue_pair)
            .ok_or_else(|| unknown(queue_pair))?;
        // A device leaves only these by itself.
        if !matches!(pair.state, ReadyToReceive | ReadyToSend | SendQueueDrain) {
            return Ok(pair.state);
        }
        let mut attributes = QpAttr::default();
        // SAFETY: of numbers and pointers, for which zeros are values.
        let mut init: QpInitAttr = unsafe { core::mem::zeroed() };
        // SAFETY: the queue pair is alive, and both structures are written to only.
        let queried = unsafe {
            (self.base.functions.ibv_query_qp)(
                pair.objects.qp.as_ptr(),
                &raw mut attributes,
                attr_mask::STATE,
                &raw mut init,
            )
        };
        check("ibv_query_qp", queried)?;
        match state_of(attributes.qp_state) {
            Some(QueuePairState::Error | QueuePairState::SendQueueError) => {
                Ok(QueuePairState::Error)
            }
            // Between the states that it was taken to, ours is the newer word.
            _ => Ok(pair.state),
        }
    }

    pub(super) fn modify(
        &mut self,
        queue_pair: QueuePair,
        to: QueuePairState,
        attributes: &QueuePairAttributes,
    ) -> Result<(), VerbsError> {
        let from = self.query(queue_pair)?;
        attributes.check(from, to)?;
        if attributes.port.is_some_and(|port| port != PORT) {
            return Err(VerbsError::Attributes(ModifyError::OutOfRange {
                attribute: "port",
                limit: PORT,
            }));
        }
        match to {
            QueuePairState::Error => return self.enter_error(queue_pair),
            QueuePairState::Reset => return self.reset(queue_pair),
            QueuePairState::ReadyToReceive if self.device.is_infiniband => {
                return Err(VerbsError::Unsupported(
                    "connections by hand on InfiniBand, where a port's address is a LID",
                ));
            }
            _ => {}
        }
        let (mut change, mask) = change_of(attributes, to, &self.device);
        match from {
            QueuePairState::SendQueueDrain => self.modify_drained(queue_pair, &mut change, mask)?,
            _ => self.modify_device(queue_pair, &mut change, mask)?,
        }
        if let Some(pair) = self.queue_pairs.get_mut(queue_pair) {
            pair.attributes.merge(attributes);
            pair.attributes.current_state = None;
            pair.attributes.drained_event = attributes.drained_event;
            pair.state = to;
        }
        Ok(())
    }

    /// `ibv_modify_qp(3)`.
    pub(super) fn modify_device(
        &self,
        queue_pair: QueuePair,
        change: &mut QpAttr,
        mask: c_int,
    ) -> Result<(), VerbsError> {
        let pair = self
            .queue_pairs
            .get(queue_pair)
            .ok_or_else(|| unknown(queue_pair))?;
        // SAFETY: the queue pair is alive; the attributes are copied.
        let modified =
            unsafe { (self.base.functions.ibv_modify_qp)(pair.objects.qp.as_ptr(), change, mask) };
        check("ibv_modify_qp", modified)
    }

    /// Out of SendQueueDrain. A device (rxe) may refuse it before the queue has come to its stop, which on an idle
    /// one takes a moment.
    fn modify_drained(
        &self,
        queue_pair: QueuePair,
        change: &mut QpAttr,
        mask: c_int,
    ) -> Result<(), VerbsError> {
        for _ in 0..DRAIN_TRIES {
            match self.modify_device(queue_pair, change, mask) {
                Err(VerbsError::System { errno, .. }) if errno == Errno::INVAL.raw_os_error() => {
                    std::thread::yield_now();
                }
                other => return other,
            }
        }
        Err(VerbsError::Busy(
            "send queue, which has not come to its stop,",
        ))
    }

    /// To a state that needs no attributes.
    pub(super) fn modify_plainly(
        &self,
        queue_pair: QueuePair,
        to: QueuePairState,
    ) -> Result<(), VerbsError> {
        let mut change = QpAttr {
            qp_state: number_of(to),
            ..QpAttr::default()
        };
        self.modify_device(queue_pair, &mut change, attr_mask::STATE)
    }

    /// To Reset: all is forgotten.
    fn reset(&mut self, queue_pair: QueuePair) -> Result<(), VerbsError> {
        let pair = self
            .queue_pairs
            .get(queue_pair)
            .ok_or_else(|| unknown(queue_pair))?;
        if pair.state == QueuePairState::Reset {
            return Ok(());
        }
        self.modify_plainly(queue_pair, QueuePairState::Reset)?;
        self.windows.end_of(queue_pair);
        self.end_connection(queue_pair);
        self.forget(queue_pair);
        if let Some(pair) = self.queue_pairs.get_mut(queue_pair) {
            pair.state = QueuePairState::Reset;
            pair.attributes = QueuePairAttributes::NONE;
            pair.last_was_told = false;
            pair.fatal_was_told = false;
            let init = pair.init;
            self.sweep(queue_pair, &init);
        }
        Ok(())
    }

    /// The buffers of what is outstanding are their owner's.
    pub(super) fn forget(&mut self, queue_pair: QueuePair) {
        let Some(pair) = self.queue_pairs.get_mut(queue_pair) else {
            return;
        };
        for request in pair.sends.take_all().chain(pair.receives.take_all()) {
            self.regions.release(&request.keys);
            if let (CompletionKind::BindWindow, Some(key)) = (request.kind, request.window) {
                self.windows.revert(key);
            }
        }
    }
}

/// The attributes of a change as the library takes them, with their mask.
pub(super) fn change_of(
    attributes: &QueuePairAttributes,
    to: QueuePairState,
    device: &Device,
) -> (QpAttr, c_int) {
    let mut change = QpAttr {
        qp_state: number_of(to),
        ..QpAttr::default()
    };
    let mut mask = attr_mask::STATE;
    macro_rules! take {
        ($($field:ident: $bit:ident = |$value:ident| $set:expr;)*) => {
            $(if let Some($value) = attributes.$field {
                $set;
                mask |= attr_mask::$bit;
            })*
        };
    }
    take! {
        current_state: CURRENT_STATE = |it| change.cur_qp_state = number_of(it);
        partition_index: PARTITION_INDEX = |it| change.pkey_index = it;
        port: PORT = |_it| change.port_num = device.opened.port;
        access_flags: ACCESS_FLAGS = |it| change.qp_access_flags = u32::from(it.bits());
        address_vector: ADDRESS_VECTOR = |it| change.ah_attr = vector_of(&it, device);
        path_mtu: PATH_MTU = |it| change.path_mtu = u32::from(it.code());
        destination: DESTINATION = |it| change.dest_qp_num = it.get();
        receive_sequence: RECEIVE_SEQUENCE = |it| change.rq_psn = it.get();
        responder_resources: RESPONDER_RESOURCES = |it| change.max_dest_rd_atomic = it;
        rnr_timer: RNR_TIMER = |it| change.min_rnr_timer = it.code();
        timeout: TIMEOUT = |it| change.timeout = it;
        retry_count: RETRY_COUNT = |it| change.retry_cnt = it.get();
        rnr_retry: RNR_RETRY = |it| change.rnr_retry = it;
        send_sequence: SEND_SEQUENCE = |it| change.sq_psn = it.get();
        initiator_depth: INITIATOR_DEPTH = |it| change.max_rd_atomic = it;
        drained_event: DRAINED_EVENT = |it| change.en_sqd_async_notify = u8::from(it);
    }
    (change, mask)
}

fn vector_of(vector: &AddressVector, device: &Device) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: super::abi::Gid {
                raw: vector.destination,
            },
            flow_label: 0,
            sgid_index: device.gid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
        },
        is_global: 1,
        port_num: device.opened.port,
        ..AhAttr::default()
    }
}

/// The reverse of [`change_of`], for what connection management has put in.
pub(super) fn attributes_in(change: &QpAttr, mask: c_int) -> QueuePairAttributes {
    let has = |bit: c_int| mask & bit != 0;
    QueuePairAttributes {
        access_flags: has(attr_mask::ACCESS_FLAGS)
            .then(|| AccessFlags::from_bits(change.qp_access_flags as u8)),
        address_vector: has(attr_mask::ADDRESS_VECTOR).then_some(AddressVector {
            destination: change.ah_attr.grh.dgid.raw,
        }),
        path_mtu: has(attr_mask::PATH_MTU)
            .then(|| PathMtu::from_code(change.path_mtu as u8))
            .flatten(),
        destination: has(attr_mask::DESTINATION).then(|| QueuePairNumber::new(change.dest_qp_num)),
        receive_sequence: has(attr_mask::RECEIVE_SEQUENCE)
            .then(|| PacketSequenceNumber::new(change.rq_psn)),
        responder_resources: has(attr_mask::RESPONDER_RESOURCES)
            .then_some(change.max_dest_rd_atomic),
        rnr_timer: has(attr_mask::RNR_TIMER).then(|| RnrTimer::new(change.min_rnr_timer)),
        timeout: has(attr_mask::TIMEOUT).then_some(change.timeout),
        retry_count: has(attr_mask::RETRY_COUNT).then(|| RetryCount::from_bits(change.retry_cnt)),
        rnr_retry: has(attr_mask::RNR_RETRY).then_some(change.rnr_retry),
        send_sequence: has(attr_mask::SEND_SEQUENCE)
            .then(|| PacketSequenceNumber::new(change.sq_psn)),
        initiator_depth: has(attr_mask::INITIATOR_DEPTH).then_some(change.max_rd_atomic),
        ..QueuePairAttributes::NONE
    }
}
