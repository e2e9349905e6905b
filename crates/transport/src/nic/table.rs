//! Objects that are named by an index and a generation.

use alloc::vec::Vec;

/// Objects of one kind. A handle that outlives its object names nothing, for ever.
#[derive(Clone, Debug)]
pub struct Table<T> {
    slots: Vec<Slot<T>>,
    /// Empty slots that can be used again.
    free: Vec<u32>,
    limit: u32,
    alive: u32,
}

/// Names an object of a [`Table`]: what the handles of [`legato_verbs`] consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    pub index: u32,
    pub generation: u32,
}

#[derive(Clone, Debug)]
struct Slot<T> {
    /// Of the object, or of the last one that was here.
    generation: u32,
    object: Option<T>,
}

impl<T> Table<T> {
    /// An empty table of at most `limit` objects at a time.
    pub const fn new(limit: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            limit,
            alive: 0,
        }
    }

    /// Objects alive.
    pub const fn count(&self) -> u32 {
        self.alive
    }

    /// Most objects at a time.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Gives an object its handle; `None` if the table is full.
    pub fn insert(&mut self, object: T) -> Option<Handle> {
        if self.alive >= self.limit {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot {
                    generation: 0,
                    object: None,
                });
                index
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.generation += 1;
        slot.object = Some(object);
        self.alive += 1;
        Some(Handle {
            index,
            generation: slot.generation,
        })
    }

    pub fn get(&self, handle: Handle) -> Option<&T> {
        self.slots
            .get(handle.index as usize)
            .filter(|slot| slot.generation == handle.generation)
            .and_then(|slot| slot.object.as_ref())
    }

    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        self.slots
            .get_mut(handle.index as usize)
            .filter(|slot| slot.generation == handle.generation)
            .and_then(|slot| slot.object.as_mut())
    }

    /// Takes an object out. Its handle names nothing from now on.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let slot = self
            .slots
            .get_mut(handle.index as usize)
            .filter(|slot| slot.generation == handle.generation)?;
        let object = slot.object.take()?;
        self.alive -= 1;
        // A slot whose generations are used up stays empty: no handle is given out twice.
        if slot.generation < u32::MAX {
            self.free.push(handle.index);
        }
        Some(object)
    }

    /// All objects, in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            let generation = slot.generation;
            let object = slot.object.as_ref()?;
            Some((Handle { index, generation }, object))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_names_one_object_for_ever() {
        let mut table = Table::new(2);
        let first = table.insert('a').unwrap();
        let second = table.insert('b').unwrap();
        assert_eq!(table.insert('c'), None);
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let third = table.insert('c').unwrap();
        assert_eq!(third.index, first.index);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        let all: Vec<_> = table.iter().collect();
        assert_eq!(all, [(third, &'c'), (second, &'b')]);
        assert_eq!(table.count(), 2);
    }

    #[test]
    fn a_slot_without_generations_is_given_up() {
        let mut table = Table::new(1);
        let handle = table.insert('a').unwrap();
        table.slots[0].generation = u32::MAX;
        let last = Handle {
            generation: u32::MAX,
            ..handle
        };
        assert_eq!(table.remove(last), Some('a'));
        assert_eq!(table.insert('b').unwrap().index, 1);
        assert_eq!(table.get(last), None);
    }

    #[test]
    fn handles_of_nowhere_name_nothing() {
        let mut table = Table::<char>::new(0);
        let nowhere = Handle {
            index: u32::MAX,
            generation: 0,
        };
        assert_eq!(table.insert('a'), None);
        assert_eq!(table.get(nowhere), None);
        assert_eq!(table.remove(nowhere), None);
    }
}
