//! Objects by handle: an index and a generation, so that a stale handle finds nothing.

use alloc::vec::Vec;
use core::marker::PhantomData;
use legato_verbs::{
    CompletionQueue, ConnectionRequest, Listener, ProtectionDomain, QueuePair, SharedReceiveQueue,
};

/// A handle that a [`Table`] issues.
pub(crate) trait Handle: Copy {
    /// For [`legato_verbs::VerbsError::UnknownHandle`].
    const NAME: &'static str;
    fn new(index: u32, generation: u32) -> Self;
    fn index(self) -> u32;
    fn generation(self) -> u32;
}

macro_rules! handle {
    ($handle:ident, $name:literal) => {
        impl Handle for $handle {
            const NAME: &'static str = $name;
            fn new(index: u32, generation: u32) -> Self {
                Self { index, generation }
            }
            fn index(self) -> u32 {
                self.index
            }
            fn generation(self) -> u32 {
                self.generation
            }
        }
    };
}

handle!(ProtectionDomain, "protection domain");
handle!(CompletionQueue, "completion queue");
handle!(QueuePair, "queue pair");
handle!(SharedReceiveQueue, "shared receive queue");
handle!(Listener, "listener");
handle!(ConnectionRequest, "connection request");

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<H, T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    handles: PhantomData<H>,
}

impl<H: Handle, T> Table<H, T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            handles: PhantomData,
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> H {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                value: None,
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.value = Some(value);
        H::new(index, slot.generation)
    }

    /// The handle that [`Self::insert`] returns next.
    #[cfg(feature = "ibverbs")]
    pub(crate) fn next_handle(&self) -> H {
        match self.free.last() {
            Some(&index) => {
                let slot = self.slots.get(index as usize);
                let generation = slot.map_or(0, |slot| slot.generation);
                H::new(index, generation.wrapping_add(1))
            }
            None => H::new(self.slots.len() as u32, 1),
        }
    }

    pub(crate) fn remove(&mut self, handle: H) -> Option<T> {
        let slot = self.slots.get_mut(handle.index() as usize)?;
        if slot.generation != handle.generation() {
            return None;
        }
        let value = slot.value.take()?;
        self.free.push(handle.index());
        Some(value)
    }

    pub(crate) fn get(&self, handle: H) -> Option<&T> {
        let slot = self.slots.get(handle.index() as usize)?;
        (slot.generation == handle.generation())
            .then_some(slot.value.as_ref())
            .flatten()
    }

    pub(crate) fn get_mut(&mut self, handle: H) -> Option<&mut T> {
        let slot = self.slots.get_mut(handle.index() as usize)?;
        (slot.generation == handle.generation())
            .then_some(slot.value.as_mut())
            .flatten()
    }

    /// The handle that is valid at an index.
    pub(crate) fn at(&self, index: u32) -> Option<H> {
        let slot = self.slots.get(index as usize)?;
        slot.value.is_some().then(|| H::new(index, slot.generation))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }
}

/// A walk over the handles of a table, which may change meanwhile: what is added on the way may be seen or not.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    index: u32,
}

impl Walk {
    pub(crate) fn next<H: Handle, T>(&mut self, table: &Table<H, T>) -> Option<H> {
        while (self.index as usize) < table.slots.len() {
            let handle = table.at(self.index);
            self.index += 1;
            if handle.is_some() {
                return handle;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_handle_finds_nothing() {
        let mut table = Table::<Listener, u32>::new();
        let old = table.insert(1);
        assert_eq!(table.remove(old), Some(1));
        let new = table.insert(2);
        assert_eq!(old.index, new.index);
        assert_eq!(table.get(old), None);
        assert_eq!(table.remove(old), None);
        assert_eq!(table.get(new), Some(&2));
        assert_eq!(table.len(), 1);
    }
}
