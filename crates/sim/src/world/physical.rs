//! Physical memory: pages that address spaces share after a fork until one of them writes.

use legato_base::PAGE_SIZE;
use std::cell::Cell;
use std::rc::Rc;

/// The machine's memory: how many pages there are that some address space maps.
#[derive(Clone, Debug, Default)]
pub(super) struct PhysicalMemory {
    pages: Rc<Cell<u64>>,
}

/// A page, shared by whoever holds a clone.
#[derive(Clone, Debug)]
pub(super) struct Page(Rc<Counted>);

#[derive(Debug)]
struct Counted {
    bytes: Box<[u8; PAGE_SIZE]>,
    memory: PhysicalMemory,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.memory.pages.set(self.memory.pages.get() - 1);
    }
}

impl PhysicalMemory {
    /// Pages that are mapped somewhere; one that is shared counts once.
    pub(super) fn pages(&self) -> u64 {
        self.pages.get()
    }

    pub(super) fn page(&self, bytes: Box<[u8; PAGE_SIZE]>) -> Page {
        self.pages.set(self.pages.get() + 1);
        Page(Rc::new(Counted {
            bytes,
            memory: self.clone(),
        }))
    }

    pub(super) fn zeros(&self) -> Page {
        self.page(Box::new([0; PAGE_SIZE]))
    }
}

impl Page {
    pub(super) fn bytes(&self) -> &[u8; PAGE_SIZE] {
        &self.0.bytes
    }

    /// The same for all who share the page.
    pub(super) fn identity(&self) -> usize {
        Rc::as_ptr(&self.0).addr()
    }

    pub(super) fn is_shared(&self) -> bool {
        Rc::strong_count(&self.0) > 1
    }

    /// Writes the whole page; a shared one becomes the writer's own.
    pub(super) fn write(&mut self, bytes: Box<[u8; PAGE_SIZE]>) {
        match Rc::get_mut(&mut self.0) {
            Some(own) => own.bytes = bytes,
            None => *self = self.0.memory.page(bytes),
        }
    }

    /// A shared page becomes the holder's own, with the same content.
    pub(super) fn unshare(&mut self) {
        if self.is_shared() {
            *self = self.duplicate();
        }
    }

    /// A page of the same content that nobody shares.
    pub(super) fn duplicate(&self) -> Self {
        self.0.memory.page(self.0.bytes.clone())
    }
}
