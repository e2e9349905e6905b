//! A table of bounded size whose places carry generations.

use crate::CONTRACT;
use crate::id::{Generations, Key};
use alloc::vec::Vec;
use slab::Slab;

#[derive(Debug)]
pub(crate) struct Table<T> {
    entries: Slab<(u32, T)>,
    capacity: usize,
}

impl<T> Table<T> {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            entries: Slab::with_capacity(capacity as usize),
            capacity: capacity as usize,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    /// Gives the value back when the table is full.
    pub(crate) fn insert(&mut self, generations: &mut Generations, value: T) -> Result<Key, T> {
        if self.is_full() {
            return Err(value);
        }
        let generation = generations.next();
        // A slab fills its vacant places first, so an index stays below the capacity.
        let index = self.entries.insert((generation, value)) as u16;
        Ok(Key { index, generation })
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.entries.get(usize::from(key.index)) {
            Some((generation, value)) if is_of(*generation, key) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.entries.get_mut(usize::from(key.index)) {
            Some((generation, value)) if is_of(*generation, key) => Some(value),
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get_mut(key)?;
        Some(self.entries.remove(usize::from(key.index)).1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries.iter().map(|(index, (generation, value))| {
            let key = Key {
                index: index as u16,
                generation: *generation,
            };
            (key, value)
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        self.entries.iter_mut().map(|(index, (generation, value))| {
            let key = Key {
                index: index as u16,
                generation: *generation,
            };
            (key, value)
        })
    }

    /// Empties the table.
    pub(crate) fn take_all(&mut self) -> Vec<(Key, T)> {
        let keys: Vec<Key> = self.iter_mut().map(|(key, _)| key).collect();
        keys.into_iter()
            .filter_map(|key| Some((key, self.remove(key)?)))
            .collect()
    }
}

/// The key of an earlier tenant finds nothing (P-17).
fn is_of(generation: u32, key: Key) -> bool {
    !CONTRACT || generation == key.generation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing_after_its_place_was_given_away() {
        let mut generations = Generations::starting_at(u32::MAX);
        let mut table = Table::new(2);
        let first = table.insert(&mut generations, 'a').unwrap();
        table.insert(&mut generations, 'b').unwrap();
        assert_eq!(table.insert(&mut generations, 'c'), Err('c'));
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert(&mut generations, 'd').unwrap();
        assert_eq!(second.index, first.index);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.take_all().len(), 2);
        assert_eq!((table.len(), table.get_mut(second)), (0, None));
    }
}
