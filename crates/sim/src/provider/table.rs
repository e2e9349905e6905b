//! Slots with generations.

/// Objects by index and generation. A freed slot is the first to be used again, so that a stale
/// handle meets the next owner of its index as soon as possible.
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    /// Puts in what `make` returns for the new index and generation.
    pub(super) fn insert(&mut self, make: impl FnOnce(u32, u32) -> T) -> (u32, u32) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                value: None,
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.generation += 1;
        slot.value = Some(make(index, slot.generation));
        (index, slot.generation)
    }

    pub(super) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        let slot = self.slots.get(index as usize)?;
        slot.value
            .as_ref()
            .filter(|_| slot.generation == generation)
    }

    pub(super) fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(index as usize)?;
        slot.value
            .as_mut()
            .filter(|_| slot.generation == generation)
    }

    pub(super) fn remove(&mut self, index: u32, generation: u32) -> Option<T> {
        self.get(index, generation)?;
        self.free.push(index);
        self.slots.get_mut(index as usize)?.value.take()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// The index and generation of each object, with the object.
    pub(super) fn entries(&self) -> impl Iterator<Item = ((u32, u32), &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let value = slot.value.as_ref()?;
            Some(((index as u32, slot.generation), value))
        })
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }
}
