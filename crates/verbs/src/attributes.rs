//! What a connection is made of: the attributes of `ibv_modify_qp(3)`, each present or not.

use crate::{
    AccessFlags, PacketSequenceNumber, PathMtu, QueuePairNumber, QueuePairState, RetryCount,
    RnrTimer,
};

/// Where a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The port's global identifier; for RoCE, its IP address (annex A17.4.2).
    pub destination: [u8; 16],
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $name:ident $bit:literal,)*) => {
        /// The attributes of a change, or those that a queue pair has. A present field is the mask
        /// bit of `ibv_modify_qp(3)`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct QueuePairAttributes {
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl QueuePairAttributes {
            /// None of them.
            pub const NONE: Self = Self { $($field: None,)* };

            pub(crate) fn present(&self) -> AttributeSet {
                AttributeSet(0 $(| if self.$field.is_some() { 1 << $bit } else { 0 })*)
            }

            /// Takes over what `change` has.
            pub fn merge(&mut self, change: &Self) {
                $(self.$field = change.$field.or(self.$field);)*
            }
        }

        impl AttributeSet {
            $(pub(crate) const $name: Self = Self(1 << $bit);)*

            /// The name of one that is in here.
            pub(crate) fn first_name(self) -> Option<&'static str> {
                match self.0.trailing_zeros() {
                    $($bit => Some(stringify!($field)),)*
                    _ => None,
                }
            }
        }
    };
}

impl QueuePairAttributes {
    /// What a queue pair needs to go to Init, with all access rights.
    pub const INIT: Self = Self {
        partition_index: Some(0),
        port: Some(1),
        access_flags: Some(AccessFlags::from_bits(0b1110)),
        ..Self::NONE
    };
}

attributes! {
    /// The change is refused if the queue pair is in another state.
    current_state: QueuePairState = CURRENT_STATE 0,
    partition_index: u16 = PARTITION_INDEX 1,
    port: u8 = PORT 2,
    /// What the peer's requests may do at all.
    access_flags: AccessFlags = ACCESS_FLAGS 3,
    address_vector: AddressVector = ADDRESS_VECTOR 4,
    path_mtu: PathMtu = PATH_MTU 5,
    destination: QueuePairNumber = DESTINATION 6,
    /// The number that the peer's first packet has.
    receive_sequence: PacketSequenceNumber = RECEIVE_SEQUENCE 7,
    /// READs and atomics of the peer that can be under way at a time (`max_dest_rd_atomic`).
    responder_resources: u8 = RESPONDER_RESOURCES 8,
    /// How long a peer waits that found no receive here (`min_rnr_timer`).
    rnr_timer: RnrTimer = RNR_TIMER 9,
    /// 4.096 us * 2^timeout without an answer and packets are sent again; 0: for ever.
    timeout: u8 = TIMEOUT 10,
    /// Transmissions again.
    retry_count: RetryCount = RETRY_COUNT 11,
    /// Transmissions again to a peer without a receive, 0 to 6; 7: without end.
    rnr_retry: u8 = RNR_RETRY 12,
    /// The number that the first packet has.
    send_sequence: PacketSequenceNumber = SEND_SEQUENCE 13,
    /// READs and atomics that can be under way at a time (`max_rd_atomic`).
    initiator_depth: u8 = INITIATOR_DEPTH 14,
    /// Raise [`crate::AsyncEvent::SendQueueDrained`] (`en_sqd_async_notify`).
    drained_event: bool = DRAINED_EVENT 15,
}

/// A set of attributes, by bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttributeSet(u32);

impl AttributeSet {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}
