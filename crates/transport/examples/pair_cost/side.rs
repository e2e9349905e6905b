//! One side of a connection: a queue pair and a host of one region, which allocates nothing by itself.

use legato_base::Time;
use legato_transport::rc::{Configuration, Policy, QueuePair, Receives};
use legato_transport::wire::Packet;
use legato_transport::{
    AccessRefused, Host, PacketSequenceNumber, PathMtu, QueueCompletion, QueuePairEvent,
    QueuePairNumber,
};
use legato_verbs::{
    AccessFlags, AddressVector, LocalKey, QueuePairAttributes, QueuePairCapabilities,
    QueuePairState, ReceiveRequest, RemoteAddress, RemoteKey, RetryCount, RnrTimer,
    ScatterGatherEntry, SendFlags, SendOperation, SendRequest, VerbsError, WindowBinding,
    WorkRequestId,
};
use std::ops::Range;

/// The address of the region's first byte.
const BASE: u64 = 1 << 32;
/// Bytes of the region.
pub(crate) const REGION: usize = 1 << 20;

pub(crate) struct Memory {
    bytes: Vec<u8>,
    pub(crate) completed: u64,
}

pub(crate) struct Side {
    pub(crate) queue_pair: QueuePair,
    pub(crate) memory: Memory,
}

fn range(address: u64, length: usize) -> Result<Range<usize>, AccessRefused> {
    let start = address.checked_sub(BASE).ok_or(AccessRefused)?;
    let start = usize::try_from(start).map_err(|_| AccessRefused)?;
    let end = start.checked_add(length).ok_or(AccessRefused)?;
    if end > REGION {
        return Err(AccessRefused);
    }
    Ok(start..end)
}

/// Where bytes of a message lie, which has one entry.
fn piece(
    entries: &[ScatterGatherEntry],
    offset: u32,
    length: usize,
) -> Result<Range<usize>, AccessRefused> {
    let entry = entries.first().ok_or(AccessRefused)?;
    range(entry.address + u64::from(offset), length)
}

impl Host for Memory {
    fn check_entries(
        &self,
        entries: &[ScatterGatherEntry],
        _: AccessFlags,
    ) -> Result<(), AccessRefused> {
        entries
            .iter()
            .try_for_each(|entry| range(entry.address, entry.length as usize).map(|_| ()))
    }

    fn gather(
        &self,
        entries: &[ScatterGatherEntry],
        offset: u32,
        into: &mut [u8],
    ) -> Result<(), AccessRefused> {
        into.copy_from_slice(&self.bytes[piece(entries, offset, into.len())?]);
        Ok(())
    }

    fn scatter(
        &mut self,
        entries: &[ScatterGatherEntry],
        offset: u32,
        from: &[u8],
    ) -> Result<(), AccessRefused> {
        let place = piece(entries, offset, from.len())?;
        self.bytes[place].copy_from_slice(from);
        Ok(())
    }

    fn check_remote(
        &self,
        target: RemoteAddress,
        length: u32,
        _: AccessFlags,
    ) -> Result<(), AccessRefused> {
        range(target.address, length as usize).map(|_| ())
    }

    fn read_remote(&self, target: RemoteAddress, into: &mut [u8]) -> Result<(), AccessRefused> {
        into.copy_from_slice(&self.bytes[range(target.address, into.len())?]);
        Ok(())
    }

    fn write_remote(&mut self, target: RemoteAddress, from: &[u8]) -> Result<(), AccessRefused> {
        let place = range(target.address, from.len())?;
        self.bytes[place].copy_from_slice(from);
        Ok(())
    }

    fn update_remote(
        &mut self,
        _: RemoteAddress,
        _: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, AccessRefused> {
        Err(AccessRefused)
    }

    fn invalidate(&mut self, _: RemoteKey) -> Result<(), AccessRefused> {
        Err(AccessRefused)
    }

    fn bind_window(&mut self, _: &WindowBinding) -> Result<(), AccessRefused> {
        Err(AccessRefused)
    }

    fn take_receive(&mut self) -> Option<ReceiveRequest> {
        None
    }

    fn complete(&mut self, completion: QueueCompletion) {
        assert!(completion.result.is_ok(), "{completion:?}");
        self.completed += 1;
    }

    fn raise(&mut self, event: QueuePairEvent) {
        assert_eq!(event, QueuePairEvent::CommunicationEstablished);
    }
}

/// The states that a queue pair passes until it sends to another, and what it needs for each.
pub(crate) fn way_to_send(
    address: [u8; 16],
    peer: QueuePairNumber,
    mtu: PathMtu,
) -> [(QueuePairState, QueuePairAttributes); 3] {
    let first = PacketSequenceNumber::new(0);
    let receive = QueuePairAttributes {
        address_vector: Some(AddressVector {
            destination: address,
        }),
        path_mtu: Some(mtu),
        destination: Some(peer),
        receive_sequence: Some(first),
        responder_resources: Some(16),
        rnr_timer: Some(RnrTimer::new(12)),
        ..QueuePairAttributes::NONE
    };
    let send = QueuePairAttributes {
        timeout: Some(14),
        retry_count: RetryCount::new(3),
        rnr_retry: Some(2),
        send_sequence: Some(first),
        initiator_depth: Some(16),
        ..QueuePairAttributes::NONE
    };
    [
        (QueuePairState::Init, QueuePairAttributes::INIT),
        (QueuePairState::ReadyToReceive, receive),
        (QueuePairState::ReadyToSend, send),
    ]
}

impl Side {
    /// A queue pair that is ready to send to the peer of that number.
    pub(crate) fn connected(number: u32, peer: u32, mtu: PathMtu) -> Self {
        let configuration = Configuration {
            capabilities: QueuePairCapabilities {
                send_requests_max: 64,
                receive_requests_max: 1,
                entries_max: 1,
            },
            receives: Receives::Own,
            policy: Policy::IDEAL,
        };
        let mut side = Self {
            queue_pair: QueuePair::new(QueuePairNumber::new(number), &configuration),
            memory: Memory {
                bytes: vec![number as u8; REGION],
                completed: 0,
            },
        };
        let way = way_to_send([0; 16], QueuePairNumber::new(peer), mtu);
        for (state, attributes) in way {
            let modified = side.queue_pair.modify(state, &attributes, &mut side.memory);
            assert_eq!(modified, Ok(()));
        }
        side
    }

    /// Posts a WRITE or READ of so many bytes, whose entries the caller has made.
    pub(crate) fn post(
        &mut self,
        read: bool,
        entries: Vec<ScatterGatherEntry>,
    ) -> Result<(), VerbsError> {
        let target = RemoteAddress {
            key: RemoteKey(1),
            address: BASE,
        };
        let request = SendRequest {
            wr_id: WorkRequestId(1),
            operation: if read {
                SendOperation::RdmaRead(target)
            } else {
                SendOperation::RdmaWrite(target)
            },
            entries,
            flags: SendFlags::SIGNALED,
        };
        self.queue_pair.post_send(&request, &mut self.memory)
    }

    /// Gives the other side all packets that there are, and returns their number.
    pub(crate) fn send_to(&mut self, other: &mut Self, now: Time, buffer: &mut [u8]) -> u64 {
        let mut count = 0;
        while let Some(written) = self.queue_pair.transmit(now, &mut self.memory, buffer) {
            if let Ok(packet) = Packet::parse(&buffer[..written.length]) {
                other.queue_pair.input(now, &packet, &mut other.memory);
                count += 1;
            }
        }
        count
    }
}

/// The region's first bytes.
pub(crate) fn entries(length: u32) -> Vec<ScatterGatherEntry> {
    vec![ScatterGatherEntry {
        local_key: LocalKey(1),
        address: BASE,
        length,
    }]
}
