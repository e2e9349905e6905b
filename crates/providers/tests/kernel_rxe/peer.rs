//! A connection with `peer.c` in the guest, made without connection management, so that both
//! starting sequence numbers can be chosen.

use crate::rig::{Family, Rig};
use legato_providers::roce::out_of_band::{Introduction, Terms, connect};
use legato_verbs::{
    CompletionKind, PacketSequenceNumber, PathMtu, Provider as _, QueuePair, QueuePairNumber,
    RemoteAddress, RemoteKey, RetryCount, RnrTimer, SendOperation,
};

/// Bytes of the peer's that this side may use.
pub(crate) const ARENA: u32 = 1 << 20;
/// Bytes of the longest message.
pub(crate) const MESSAGE_MAX: u32 = 1 << 16;

/// How a connection is made.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The number of this side's first packet, and of the peer's.
    pub(crate) sequences: (u32, u32),
    /// Receives that the peer has.
    pub(crate) slots: u32,
    pub(crate) path_mtu: PathMtu,
    /// 4.096 us * 2^timeout without an answer, and either side repeats.
    pub(crate) timeout: u8,
    /// Requests are to be repeated, which `rdma_rxe` does not bear together with empty ones
    /// (`the_kernel_refuses_to_repeat_a_read_after_an_empty_one`).
    pub(crate) repeats: bool,
    pub(crate) family: Family,
}

/// As `rping` and `ibv_rc_pingpong` have it.
pub(crate) fn terms(path_mtu: PathMtu, timeout: u8) -> Terms {
    Terms {
        path_mtu,
        reads: 16,
        timeout,
        retry_count: RetryCount::SEVEN,
        rnr_retry: 7,
        rnr_timer: RnrTimer::new(12),
    }
}

impl Wanted {
    pub(crate) const USUAL: Self = Self {
        sequences: (0x12_3456, 0x65_4321),
        slots: 32,
        path_mtu: PathMtu::Bytes1024,
        // A second: a busy machine is to cause no repetition.
        timeout: 18,
        repeats: false,
        family: Family::Ipv4,
    };
}

/// The connected pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) queue_pair: QueuePair,
    address: u64,
    key: RemoteKey,
}

impl Peer {
    /// A place in its arena.
    pub(crate) fn place(&self, offset: u32) -> RemoteAddress {
        RemoteAddress {
            address: self.address + u64::from(offset),
            key: self.key,
        }
    }
}

/// What the peer is to do (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    Write,
    Read,
    CompareAndSwap { compare: u64, swap: u64 },
    FetchAndAdd(u64),
}

/// Bytes of an order, and of the answer.
const ORDER_LENGTH: u32 = 40;
pub(crate) const REPLY_LENGTH: u32 = 16;
/// Where orders and answers are in the region.
const ORDER_AT: u64 = 0;
pub(crate) const REPLY_AT: u64 = 64;

impl Rig {
    pub(crate) fn connect_peer(&mut self, wanted: Wanted) -> Peer {
        let queue_pair = self.queue_pair();
        let number = self.nic.queue_pair_number(queue_pair).unwrap().get();
        let (own, other) = wanted.sequences;
        let (slots, mtu, timeout) = (wanted.slots, wanted.path_mtu.bytes(), wanted.timeout);
        let (index, gid) = (wanted.family.gid_index(), wanted.family.gid_here());
        self.guest.say(&format!(
            "./peer {number} {own} {other} {slots} {mtu} {timeout} {index} {gid}"
        ));
        let line = self.await_line("peer ");
        let numbers: Vec<u64> = line[5..].split(' ').map(|n| n.parse().unwrap()).collect();
        let peer = Introduction {
            queue_pair: QueuePairNumber::new(numbers[0] as u32),
            sequence: PacketSequenceNumber::new(other),
            gid: wanted.family.gid_there().octets(),
        };
        let own = PacketSequenceNumber::new(own);
        let terms = terms(wanted.path_mtu, timeout);
        connect(&mut self.nic, queue_pair, own, &peer, &terms).unwrap();
        Peer {
            queue_pair,
            address: numbers[1],
            key: RemoteKey(numbers[2] as u32),
        }
    }

    /// Says what the peer is to do with a place of this side's and one in its arena.
    pub(crate) fn post_order(
        &mut self,
        peer: Peer,
        order: Order,
        place: RemoteAddress,
        (offset, length): (u32, u32),
    ) {
        let (operation, compare_add, swap) = match order {
            Order::Write => (0u32, 0, 0),
            Order::Read => (4, 0, 0),
            Order::CompareAndSwap { compare, swap } => (5, compare, swap),
            Order::FetchAndAdd(add) => (6, add, 0),
        };
        let mut bytes = Vec::new();
        bytes.extend(operation.to_le_bytes());
        bytes.extend(place.key.0.to_le_bytes());
        bytes.extend(place.address.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(compare_add.to_le_bytes());
        bytes.extend(swap.to_le_bytes());
        self.write(ORDER_AT, &bytes);
        let send = SendOperation::SendWithImmediate(7);
        self.post(peer.queue_pair, 0, send, (ORDER_AT, ORDER_LENGTH));
    }

    /// Has the peer do something, while nothing else is under way. Returns the 8 bytes at its offset.
    pub(crate) fn order(
        &mut self,
        peer: Peer,
        order: Order,
        place: RemoteAddress,
        local: (u32, u32),
    ) -> u64 {
        self.post_receive(peer.queue_pair, 1, (REPLY_AT, REPLY_LENGTH));
        self.post_order(peer, order, place, local);
        let length = REPLY_LENGTH;
        let found = [self.await_success().1, self.await_success().1];
        assert!(found.contains(&CompletionKind::Send), "{found:?}");
        assert!(found.contains(&CompletionKind::Receive { length }));
        let reply = self.bytes(REPLY_AT, REPLY_LENGTH);
        assert_eq!(reply[..8], [0; 8]);
        u64::from_le_bytes(reply[8..].try_into().unwrap())
    }

    /// The peer's program ends; its shell goes on.
    pub(crate) fn end_peer(&mut self, peer: Peer) {
        self.nic.destroy_queue_pair(peer.queue_pair).unwrap();
        self.guest.say("");
        self.await_line("peer ends");
    }
}
