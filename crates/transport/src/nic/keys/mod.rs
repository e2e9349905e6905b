//! Memory keys: regions, and the windows that are bound to parts of them (IB spec 10.6).
//!
//! Windows are of type 2B: bound by a request, for one queue pair in one protection domain, and
//! ended by a request of that queue pair or of its peer. The bytes are somewhere else: a region is
//! a range of addresses with a word of its owner's.

mod tags;
#[cfg(test)]
mod tests;
mod window;

use crate::permutation::{self, Permutation};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use legato_base::Random;
use legato_verbs::{
    AccessFlags, LocalKey, ProtectionDomain, QueuePair, RemoteAddress, ScatterGatherEntry,
};
use tags::{TAG_BITS, Tags};
use window::Window;

pub use window::Binding;

/// The keys of a device.
///
/// A key is an index of 24 bits and a tag of 8. An object has an index for itself. The next object
/// there, and the next binding of a window, has another tag; when an index has used up all its
/// tags it is given up. So no key is ever issued twice, and 0 is none (P-62). Neither index nor tag
/// follows from keys that were issued before (P-82); only a window counts up, whose next key is for the
/// peer of one queue pair.
#[derive(Clone, Debug)]
pub struct Keys {
    permutation: Permutation,
    /// For tags.
    random: Random,
    slots: Vec<Slot>,
    /// Empty slots with tags left, the longest empty one first.
    free: VecDeque<u32>,
    limit: u32,
    alive: u32,
}

/// A range of memory that can be used by its keys, which are the same number for both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub domain: ProtectionDomain,
    pub access: AccessFlags,
    /// Can windows be bound to it (`IBV_ACCESS_MW_BIND`)?
    pub windows: bool,
    pub address: u64,
    pub length: u64,
    /// Tells the owner which memory it is.
    pub owner: u64,
}

/// Who uses a key: the queue pair whose request it is, or that a peer's request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accessor {
    pub queue_pair: QueuePair,
    pub domain: ProtectionDomain,
}

/// Where the bytes of an allowed access are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The region's word.
    pub owner: u64,
    /// Bytes from the beginning of the region on.
    pub offset: u64,
}

/// Why a key cannot be used so. Of several reasons it is the first one here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("no such key")]
    Unknown,
    #[error("the window is not bound")]
    NotBound,
    #[error("the window is bound for another queue pair")]
    OtherQueuePair,
    #[error("the key belongs to another protection domain")]
    OtherDomain,
    #[error("the key does not allow this access")]
    NotAllowed,
    #[error("the range is not inside that of the key")]
    OutOfRange,
    /// Remote writes and atomics need local writes (`ibv_reg_mr(3)`).
    #[error("a peer may not write what may not be written locally")]
    NeedsLocalWrite,
    #[error("{0} windows are bound to the region")]
    HasWindows(u32),
    #[error("the window is bound already")]
    AlreadyBound,
    #[error("the new key is not the window's next one")]
    NotNext,
    #[error("a window cannot be empty")]
    Empty,
    #[error("all keys of the window have been used")]
    UsedUp,
    #[error("there are {0} regions and windows already")]
    TooMany(u32),
}

#[derive(Clone, Debug)]
struct Slot {
    tags: Tags,
    object: Object,
}

#[derive(Clone, Debug)]
enum Object {
    Nothing,
    Region {
        region: Region,
        /// Windows that are bound to it.
        windows: u32,
    },
    Window(Window),
}

const _: () = assert!(permutation::BITS + TAG_BITS == u32::BITS);

impl Keys {
    /// No key yet, and at most `limit` regions and windows at a time. The seed decides the keys.
    pub fn new(mut random: Random, limit: u32) -> Self {
        Self {
            permutation: Permutation::new(&mut random),
            random,
            slots: Vec::new(),
            free: VecDeque::new(),
            limit,
            alive: 0,
        }
    }

    /// Regions and windows.
    pub const fn count(&self) -> u32 {
        self.alive
    }

    /// Makes a region usable. Its local and its remote key are the same number.
    ///
    /// # Errors
    /// [`KeyError::OutOfRange`] if it does not end below 2^64, [`KeyError::NeedsLocalWrite`],
    /// [`KeyError::TooMany`].
    pub fn register(&mut self, region: Region) -> Result<LocalKey, KeyError> {
        if region.address.checked_add(region.length).is_none() {
            return Err(KeyError::OutOfRange);
        }
        if !may_grant(region.access, region.access) {
            return Err(KeyError::NeedsLocalWrite);
        }
        self.insert(Object::Region { region, windows: 0 })
            .map(LocalKey)
    }

    /// Ends a region's key.
    ///
    /// # Errors
    /// [`KeyError::Unknown`]; [`KeyError::HasWindows`] while windows are bound to it.
    pub fn deregister(&mut self, key: LocalKey) -> Result<Region, KeyError> {
        let slot = self.find(key.0)?;
        let Object::Region { region, windows } = self.object(slot)? else {
            return Err(KeyError::Unknown);
        };
        if *windows > 0 {
            return Err(KeyError::HasWindows(*windows));
        }
        let region = *region;
        self.remove(slot);
        Ok(region)
    }

    /// May a queue pair of `domain` use the bytes of an entry so? Even an entry of no bytes needs a
    /// key.
    ///
    /// # Errors
    /// If the region does not allow it.
    pub fn check_local(
        &self,
        domain: ProtectionDomain,
        entry: &ScatterGatherEntry,
        access: AccessFlags,
    ) -> Result<Place, KeyError> {
        let region = self.region(entry.local_key)?;
        region.check(domain, access)?;
        region.place(entry.address, u64::from(entry.length))
    }

    /// May a peer of `accessor` use `length` bytes so? Requests for no bytes are not asked about
    /// (IB spec 9.7.4.1).
    ///
    /// # Errors
    /// If the region or the window does not allow it.
    pub fn check_remote(
        &self,
        accessor: Accessor,
        target: RemoteAddress,
        length: u32,
        access: AccessFlags,
    ) -> Result<Place, KeyError> {
        let length = u64::from(length);
        match self.object(self.find(target.key.0)?)? {
            Object::Nothing => Err(KeyError::Unknown),
            Object::Region { region, .. } => {
                region.check(accessor.domain, access)?;
                region.place(target.address, length)
            }
            Object::Window(window) => {
                let bound = window.check(accessor, access)?;
                bound.check_range(target.address, length)?;
                self.region_at(bound.region)?.place(target.address, length)
            }
        }
    }

    fn region(&self, key: LocalKey) -> Result<&Region, KeyError> {
        self.region_at(self.find(key.0)?)
    }

    fn region_at(&self, slot: u32) -> Result<&Region, KeyError> {
        match self.object(slot)? {
            Object::Region { region, .. } => Ok(region),
            _ => Err(KeyError::Unknown),
        }
    }

    /// The slot whose object has this key now.
    fn find(&self, key: u32) -> Result<u32, KeyError> {
        let slot = self.permutation.number(key >> TAG_BITS);
        match self.slots.get(slot as usize) {
            Some(Slot {
                object: Object::Nothing,
                ..
            })
            | None => Err(KeyError::Unknown),
            Some(found) if found.tags.is_last(key) => Ok(slot),
            Some(_) => Err(KeyError::Unknown),
        }
    }

    fn object(&self, slot: u32) -> Result<&Object, KeyError> {
        let slot = self.slots.get(slot as usize).ok_or(KeyError::Unknown)?;
        Ok(&slot.object)
    }

    /// Gives an object the next key of a slot.
    fn insert(&mut self, object: Object) -> Result<u32, KeyError> {
        if self.alive >= self.limit {
            return Err(KeyError::TooMany(self.alive));
        }
        let number = match self.free.pop_front() {
            Some(number) => number,
            None => self.open_slot().ok_or(KeyError::TooMany(self.alive))?,
        };
        let slot = self
            .slots
            .get_mut(number as usize)
            .ok_or(KeyError::Unknown)?;
        let tag = slot.tags.draw(&mut self.random).ok_or(KeyError::UsedUp)?;
        slot.object = object;
        self.alive += 1;
        Ok(self.permutation.value(number) << TAG_BITS | u32::from(tag))
    }

    /// A slot that has never been used; `None` if there is none any more.
    fn open_slot(&mut self) -> Option<u32> {
        loop {
            let number = u32::try_from(self.slots.len()).ok()?;
            if number >> permutation::BITS != 0 {
                return None;
            }
            self.slots.push(Slot {
                tags: Tags::default(),
                object: Object::Nothing,
            });
            // One of its keys would be 0, which many programs take for none.
            if self.permutation.value(number) != 0 {
                return Some(number);
            }
        }
    }

    fn remove(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(number as usize) else {
            return;
        };
        slot.object = Object::Nothing;
        self.alive = self.alive.saturating_sub(1);
        if !slot.tags.are_used_up() {
            self.free.push_back(number);
        }
    }
}

impl Region {
    fn check(&self, domain: ProtectionDomain, access: AccessFlags) -> Result<(), KeyError> {
        if self.domain != domain {
            return Err(KeyError::OtherDomain);
        }
        if !self.access.contains(access) {
            return Err(KeyError::NotAllowed);
        }
        Ok(())
    }

    fn place(&self, address: u64, length: u64) -> Result<Place, KeyError> {
        let offset = offset_in(self.address, self.length, address, length)?;
        Ok(Place {
            owner: self.owner,
            offset,
        })
    }
}

/// How far into a range another one begins that is inside it.
fn offset_in(start: u64, size: u64, address: u64, length: u64) -> Result<u64, KeyError> {
    address
        .checked_sub(start)
        .filter(|&offset| offset.checked_add(length).is_some_and(|end| end <= size))
        .ok_or(KeyError::OutOfRange)
}

/// Can a key of these rights stand on memory that can locally be used so?
const fn may_grant(access: AccessFlags, local: AccessFlags) -> bool {
    let writes =
        access.contains(AccessFlags::REMOTE_WRITE) || access.contains(AccessFlags::REMOTE_ATOMIC);
    !writes || local.contains(AccessFlags::LOCAL_WRITE)
}
