//! The two ends of a connection, and how they are connected by hand.

use super::model::{Broken, Flow, MEMORY, REFUSED, SLOT, What};
use crate::provider::SimProvider;
use legato_base::Random;
use legato_verbs::{
    AccessFlags, AddressVector, CompletionQueue, MemoryRegion, PacketSequenceNumber, PathMtu,
    ProtectionDomain, Provider as _, QueuePair, QueuePairAttributes, QueuePairCapabilities,
    QueuePairInit, QueuePairNumber, QueuePairState, ReceiveRequest, RemoteAddress, RetryCount,
    RnrTimer, SendFlags, SendOperation, SendRequest, VerbsError, WorkRequestId,
};

/// Requests outstanding in one direction.
pub(super) const WINDOW: u64 = 8;
/// Receives posted.
pub(super) const RECEIVES: u64 = 12;

/// One machine.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) name: &'static str,
    pub(super) nic: SimProvider,
    pub(super) domain: ProtectionDomain,
    pub(super) queue: CompletionQueue,
}

/// One machine's end of a connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) queue_pair: QueuePair,
    /// What the peer may use.
    pub(super) memory: MemoryRegion,
    /// Buffers of sends, then of receives.
    pub(super) buffers: MemoryRegion,
    /// What this end asks of the other.
    pub(super) flow: Flow,
    pub(super) receives: u64,
    /// Receives completed, which must be in their order.
    pub(super) taken: u64,
    pub(super) sequence: PacketSequenceNumber,
}

/// What a request is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) is_receive: bool,
    pub(super) pair: usize,
    /// How often the pair was connected before.
    pub(super) epoch: u16,
    pub(super) number: u64,
}

/// Attributes of both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) mtu: PathMtu,
    pub(super) timeout: u8,
}

impl Name {
    pub(super) const fn id(self) -> WorkRequestId {
        let kind = self.is_receive as u64;
        WorkRequestId(
            (kind << 56) | ((self.pair as u64) << 48) | ((self.epoch as u64) << 32) | self.number,
        )
    }

    pub(super) const fn of(id: WorkRequestId) -> Self {
        Self {
            is_receive: (id.0 >> 56) & 1 == 1,
            pair: (id.0 >> 48) as usize & 0xFF,
            epoch: (id.0 >> 32) as u16,
            number: id.0 & 0xFFFF_FFFF,
        }
    }
}

impl Side {
    pub(super) fn new(
        name: &'static str,
        mut nic: SimProvider,
        pairs: usize,
    ) -> Result<Self, VerbsError> {
        let domain = nic.create_protection_domain()?;
        let entries = (WINDOW + RECEIVES) as u32 * pairs as u32;
        let queue = nic.create_completion_queue(entries * 4)?;
        Ok(Self {
            name,
            nic,
            domain,
            queue,
        })
    }

    pub(super) fn open(&mut self) -> Result<End, VerbsError> {
        let capabilities = QueuePairCapabilities {
            send_requests_max: WINDOW as u32,
            receive_requests_max: RECEIVES as u32,
            entries_max: 1,
        };
        let init = QueuePairInit::new(self.domain, self.queue, capabilities);
        let remote = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        Ok(End {
            queue_pair: self.nic.create_queue_pair(&init)?,
            memory: self
                .nic
                .allocate_region(self.domain, MEMORY as u64, remote)?,
            buffers: self.new_buffers()?,
            flow: Flow::new(),
            receives: 0,
            taken: 0,
            sequence: PacketSequenceNumber::new(0),
        })
    }

    fn new_buffers(&mut self) -> Result<MemoryRegion, VerbsError> {
        let length = (WINDOW + RECEIVES) * SLOT as u64;
        self.nic
            .allocate_region(self.domain, length, AccessFlags::LOCAL_WRITE)
    }

    /// To Init, with receives posted. The buffers are new: a device may still write into those of
    /// before, until their region ends.
    pub(super) fn prepare(
        &mut self,
        end: &mut End,
        pair: usize,
        epoch: u16,
        random: &mut Random,
    ) -> Result<(), VerbsError> {
        self.nic.deregister_region(&end.buffers)?;
        end.buffers = self.new_buffers()?;
        end.receives = 0;
        end.taken = 0;
        // Often near the wrap of the 24-bit numbers.
        let near = 0xFF_FFFF - random.below(40) as u32;
        let anywhere = random.next_u64() as u32 & 0xFF_FFFF;
        let start = if random.ratio(1, 2) { near } else { anywhere };
        end.sequence = PacketSequenceNumber::new(start);
        self.nic.modify_to_init(end.queue_pair)?;
        for _ in 0..RECEIVES {
            self.post_receive(end, pair, epoch)?;
        }
        Ok(())
    }

    pub(super) fn post_receive(
        &mut self,
        end: &mut End,
        pair: usize,
        epoch: u16,
    ) -> Result<(), VerbsError> {
        let name = Name {
            is_receive: true,
            pair,
            epoch,
            number: end.receives,
        };
        let offset = receive_offset(end.receives);
        let request = ReceiveRequest {
            wr_id: name.id(),
            entries: vec![end.buffers.entry(offset, SLOT as u32)],
        };
        self.nic.post_receive(end.queue_pair, &request)?;
        end.receives += 1;
        Ok(())
    }

    /// From Init to ReadyToSend.
    pub(super) fn connect(
        &mut self,
        end: &End,
        path: Path,
        peer: (AddressVector, QueuePairNumber, PacketSequenceNumber),
    ) -> Result<(), VerbsError> {
        let receive = QueuePairAttributes {
            address_vector: Some(peer.0),
            destination: Some(peer.1),
            receive_sequence: Some(peer.2),
            path_mtu: Some(path.mtu),
            responder_resources: Some(4),
            // 0.01 ms
            rnr_timer: Some(RnrTimer::new(1)),
            ..QueuePairAttributes::NONE
        };
        let send = QueuePairAttributes {
            timeout: Some(path.timeout),
            // 7 is for ever on some devices.
            retry_count: RetryCount::new(6),
            rnr_retry: Some(7),
            send_sequence: Some(end.sequence),
            initiator_depth: Some(4),
            ..QueuePairAttributes::NONE
        };
        self.nic
            .modify_queue_pair(end.queue_pair, QueuePairState::ReadyToReceive, &receive)?;
        self.nic
            .modify_queue_pair(end.queue_pair, QueuePairState::ReadyToSend, &send)
    }

    /// Posts what the flow is to ask next.
    pub(super) fn post(
        &mut self,
        end: &End,
        peer: &MemoryRegion,
        name: Name,
        what: What,
    ) -> Result<(), VerbsError> {
        let offset = send_offset(name.number);
        let at = |place: usize| RemoteAddress {
            key: peer.remote_key,
            address: peer.address + place as u64,
        };
        let (operation, length) = match what {
            What::Send { length } => (SendOperation::Send, length),
            What::Write { slot, length } => (
                SendOperation::RdmaWrite(at(super::model::place(slot))),
                length,
            ),
            What::Read { slot, length } => (
                SendOperation::RdmaRead(at(super::model::place(slot))),
                length,
            ),
            What::Add { by } => {
                let target = at(super::model::COUNTER);
                (SendOperation::FetchAndAdd { target, add: by }, 8)
            }
            What::Swap { compare, swap } => {
                let target = at(super::model::WORD);
                let operation = SendOperation::CompareAndSwap {
                    target,
                    compare,
                    swap,
                };
                (operation, 8)
            }
        };
        if matches!(what, What::Send { .. } | What::Write { .. }) {
            let bytes = super::content(name.number, length);
            self.nic.write_region(&end.buffers, offset, &bytes)?;
        }
        let request = SendRequest {
            wr_id: name.id(),
            operation,
            entries: vec![end.buffers.entry(offset, length as u32)],
            flags: SendFlags::SIGNALED,
        };
        self.nic.post_send(end.queue_pair, &request)
    }

    pub(super) fn read(
        &self,
        region: &MemoryRegion,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Broken> {
        let mut into = vec![0; length];
        match self.nic.read_region(region, offset, &mut into) {
            Ok(()) => Ok(into),
            Err(error) => Err((REFUSED, format!("a region cannot be read: {error}"))),
        }
    }
}

/// The buffer of a send, in the region.
pub(super) const fn send_offset(number: u64) -> u64 {
    number % WINDOW * SLOT as u64
}

pub(super) const fn receive_offset(number: u64) -> u64 {
    (WINDOW + number % RECEIVES) * SLOT as u64
}
