//! Userfaultfds that are held so that evicted pages do not read as zeros (`super::keeper` says when they
//! would).

use legato_pager::uffd::has_address_space;
use std::os::fd::{AsFd as _, OwnedFd};

/// So many may be held at any time of processes that are gone.
const SIFT_MIN: usize = 16;

/// Each with what is known of it.
#[derive(Debug)]
pub(crate) struct Held<T> {
    list: Vec<(OwnedFd, T)>,
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
    pub(crate) fn push(&mut self, userfaultfd: OwnedFd, known: T) {
        self.list.push((userfaultfd, known));
        if self.list.len() >= self.sift_at {
            self.sift();
            self.sift_at = self.list.len() * 2 + SIFT_MIN;
        }
    }

    /// Gives up those of processes that are gone, or run another program.
    pub(crate) fn sift(&mut self) {
        self.list.retain(|(fd, _)| has_address_space(fd.as_fd()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (OwnedFd, T)> {
        self.list.iter_mut()
    }
}
