//! One simulated machine: the objects of its NIC and its memory.

use super::queue_pair::QueuePairRecord;
use super::table::Table;
use super::wire::{Occurrence, Place};
use legato_base::Time;
use legato_verbs::{
    AccessFlags, Completion, Event, Listener, LocalKey, MemoryRegion, ProtectionDomain, QueuePair,
    RemoteKey, ScatterGatherEntry, VerbsError,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// One incarnation of a machine. A killed one keeps its place, empty, for ever.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub(super) name: String,
    pub(super) alive: bool,
    pub(super) frozen: bool,
    /// What happens to a frozen machine waits here until it thaws.
    pub(super) held: Vec<Occurrence>,
    pub(super) domains: Table<()>,
    /// By local key.
    pub(super) regions: BTreeMap<u32, Region>,
    pub(super) queues: Table<Queue>,
    pub(super) queue_pairs: Table<QueuePairRecord>,
    pub(super) listeners: Table<String>,
    pub(super) requests: Table<Waiting>,
    pub(super) events: VecDeque<Event>,
    /// When the link has sent what it was given.
    pub(super) link_free: Time,
    pub(super) keys_issued: u32,
    /// Makes keys of different machines and incarnations differ, so that a mix-up shows.
    pub(super) key_salt: u32,
    pub(super) next_address: u64,
}

#[derive(Debug)]
pub(super) struct Region {
    pub(super) handle: MemoryRegion,
    pub(super) domain: ProtectionDomain,
    pub(super) access: AccessFlags,
    pub(super) memory: Rc<RefCell<Vec<u8>>>,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) capacity: u32,
    pub(super) reserved: u32,
    pub(super) entries: VecDeque<Entry>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) completion: Completion,
    pub(super) reclaims: Reclaims,
}

/// The queue slots that are free once a completion was polled.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reclaims {
    SendsUpTo(u64),
    OneReceive,
}

/// A peer that waits for accept or reject.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) listener: Listener,
    pub(super) peer: Place,
}

impl Machine {
    pub(super) fn new(name: &str, key_salt: u32) -> Self {
        Self {
            name: name.to_owned(),
            alive: true,
            key_salt,
            // Far from zero, so that an offset passed as an address is refused.
            next_address: 1 << 40,
            ..Self::default()
        }
    }

    pub(super) fn queue_pair(&self, handle: QueuePair) -> Option<&QueuePairRecord> {
        self.queue_pairs.get(handle.index, handle.generation)
    }

    pub(super) fn queue_pair_mut(&mut self, handle: QueuePair) -> Option<&mut QueuePairRecord> {
        self.queue_pairs.get_mut(handle.index, handle.generation)
    }

    /// A key that this machine never issued before: multiplication by an odd number permutes the
    /// 32-bit numbers (the constant is 2^32 divided by the golden ratio).
    pub(super) const fn issue_key(&mut self) -> Option<u32> {
        let Some(next) = self.keys_issued.checked_add(1) else {
            return None;
        };
        self.keys_issued = next;
        Some(next.wrapping_mul(0x9E37_79B1) ^ self.key_salt)
    }

    /// The region that covers an entry, if the domain's owner may use it so.
    pub(super) fn local(
        &self,
        domain: ProtectionDomain,
        entry: &ScatterGatherEntry,
        access: AccessFlags,
    ) -> Result<(&Region, usize), VerbsError> {
        self.regions
            .get(&entry.local_key.0)
            .filter(|region| region.domain == domain && region.access.contains(access))
            .and_then(|region| {
                let offset = region.offset(entry.address, u64::from(entry.length))?;
                Some((region, offset))
            })
            .ok_or(VerbsError::LocalProtection)
    }

    /// The bytes of a posted request, as they are now. Posting has checked the entries, and a
    /// region that a posted request names cannot go away.
    pub(super) fn gather(
        &self,
        domain: ProtectionDomain,
        entries: &[ScatterGatherEntry],
    ) -> Result<Vec<u8>, VerbsError> {
        let mut bytes = Vec::new();
        for entry in entries {
            let (region, offset) = self.local(domain, entry, AccessFlags::NONE)?;
            let memory = region.memory.borrow();
            bytes.extend_from_slice(&memory[offset..offset + entry.length as usize]);
        }
        Ok(bytes)
    }

    /// Places bytes in the entries, which have room for them.
    pub(super) fn scatter(
        &self,
        domain: ProtectionDomain,
        entries: &[ScatterGatherEntry],
        bytes: &[u8],
    ) -> Result<(), VerbsError> {
        let mut rest = bytes;
        for entry in entries {
            let (now, later) = rest.split_at(rest.len().min(entry.length as usize));
            let (region, offset) = self.local(domain, entry, AccessFlags::LOCAL_WRITE)?;
            region.memory.borrow_mut()[offset..offset + now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// The region and offset that a peer's request names, if it may use them so.
    pub(super) fn remote(
        &self,
        domain: ProtectionDomain,
        at: legato_verbs::RemoteAddress,
        length: u64,
        access: AccessFlags,
    ) -> Option<(&Region, usize)> {
        let region = self
            .regions
            .get(&local_key_of(at.key))
            .filter(|region| region.domain == domain && region.access.contains(access))?;
        Some((region, region.offset(at.address, length)?))
    }

    /// True if a posted request of any queue pair names the region.
    pub(super) fn is_posted(&self, local_key: u32) -> bool {
        let names = |entries: &[ScatterGatherEntry]| {
            entries.iter().any(|entry| entry.local_key.0 == local_key)
        };
        self.queue_pairs.iter().any(|record| {
            record
                .sends
                .iter()
                .any(|posted| names(&posted.request.entries))
                || record.receives.iter().any(|posted| names(&posted.entries))
        })
    }
}

/// The two keys of a region are complements: different numbers, so that a mix-up is refused, and
/// either is found by the other.
pub(super) const fn remote_key_of(local: LocalKey) -> RemoteKey {
    RemoteKey(!local.0)
}

const fn local_key_of(remote: RemoteKey) -> u32 {
    !remote.0
}

impl Region {
    /// Where `length` bytes at `address` lie in the region, if all of them do.
    fn offset(&self, address: u64, length: u64) -> Option<usize> {
        let offset = address.checked_sub(self.handle.address)?;
        let end = offset.checked_add(length)?;
        (end <= self.handle.length).then_some(offset as usize)
    }
}
