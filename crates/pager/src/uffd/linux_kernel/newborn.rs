//! A child that has just been forked is asked what it has inherited ([`crate::order::Order::ask_children`]).
//!
//! It may be running by then, and have changed its address space; then it waits until that is read, and
//! nothing can be asked before. So it is read, and taken into account.

use super::LinuxKernel;
use crate::PageRange;
use crate::order::{self, Inheritance};
use crate::uffd::agent::now;
use crate::uffd::context::MESSAGES_MAX;
use crate::uffd::message::Newborn;
use legato_base::timeouts::{ANNOUNCEMENTS, Patience};
use legato_base::{Duration, PageNumber};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::thread::{Timespec, nanosleep};

/// A child that has just begun has a single thread, which is on its way back from the kernel when it is asked
/// again. If it has been asked so many times it gets no processor, or has more threads: it is asked now and then.
const ASKED_AT_ONCE: usize = 100;
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000,
};
/// From one look to the next, even if this task gets no CPU for a while.
const LOOK: Duration = Duration::from_millis(10);

impl Newborn {
    /// Which of some pages were registered at the fork. None if it cannot be asked.
    pub(super) fn ask(&mut self, pages: &[PageNumber]) -> Option<Inheritance> {
        let mut patience = Patience::new(LOOK, now());
        for asked in 0.. {
            // Of one that has ended nothing can be told.
            if !self.context.is_alive() {
                return Some(Inheritance::new());
            }
            let answer = |&page: &PageNumber| {
                let known = order::was_there(&self.changes, page).map(Ok);
                let is_there = || self.context.is_registered(PageRange::new(page, 1));
                Ok((page, known.unwrap_or_else(is_there)?))
            };
            let answers: Result<Inheritance, Errno> = pages.iter().map(answer).collect();
            if answers.is_ok() {
                return answers.ok();
            }
            let _ = self.context.read(MESSAGES_MAX, &mut self.changes);
            if asked >= ASKED_AT_ONCE {
                if patience.waited(now()) >= ANNOUNCEMENTS {
                    break;
                }
                let _ = nanosleep(&PAUSE);
            }
        }
        None
    }
}

impl LinuxKernel {
    /// Shows the userfaultfds of children whose forks wait, each once.
    pub(in crate::uffd) fn hand_over_newborns(
        &mut self,
        mut hand_over: impl FnMut(BorrowedFd<'_>),
    ) {
        let children = self.children.values_mut().map(|child| &mut child.space);
        for space in core::iter::once(&mut self.own).chain(children) {
            let newborns = space.order.waiting_children();
            for newborn in newborns.filter(|newborn| !newborn.handed_over) {
                hand_over(newborn.context.fd());
                newborn.handed_over = true;
            }
        }
    }
}
