//! Userfaultfds that are held so that evicted pages do not read as zeros (`super::keeper` says when they
//! would).

use legato_pager::uffd::HeldMemory;

/// So many may be held at any time of processes that are gone.
const SIFT_MIN: usize = 16;

/// Each with what is known of it.
#[derive(Debug)]
pub(crate) struct Held<T> {
    list: Vec<(HeldMemory, T)>,
    /// With so many of them it is time to see which are of use still.
    sift_at: usize,
}

impl<T> Held<T> {
    pub(crate) const fn new() -> Self {
        Self {
            list: Vec::new(),
            sift_at: SIFT_MIN,
        }
    }

    /// Gives up others now and then: often enough that no more are held than twice what is needed.
    pub(crate) fn push(&mut self, memory: HeldMemory, known: T) {
        self.list.push((memory, known));
        if self.list.len() >= self.sift_at {
            self.sift();
            self.sift_at = self.list.len() * 2 + SIFT_MIN;
        }
    }

    /// Gives up those of processes that are gone, or run another program.
    pub(crate) fn sift(&mut self) {
        self.list.retain(|(memory, _)| memory.is_used());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(HeldMemory, T)> {
        self.list.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (HeldMemory, T)> {
        self.list.iter_mut()
    }

    pub(crate) fn into_memory(self) -> impl Iterator<Item = HeldMemory> {
        self.list.into_iter().map(|(memory, _)| memory)
    }
}
