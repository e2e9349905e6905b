//! Injections on behalf of the tree.

use super::injector::{Injected, Injector};
use super::tree::{Entry, Inject};
use legato_pager::uffd::injection::{self, Target};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

/// Results that are the tree's.
pub(crate) type Outcomes = Rc<RefCell<VecDeque<Injected>>>;

/// Shares the injector with the start of static programs.
#[derive(Debug)]
pub(crate) struct Intruder {
    injector: Rc<RefCell<Injector>>,
    outcomes: Outcomes,
}

impl Intruder {
    pub(crate) fn new(injector: Rc<RefCell<Injector>>) -> (Self, Outcomes) {
        let outcomes = Outcomes::default();
        let intruder = Self {
            injector,
            outcomes: Rc::clone(&outcomes),
        };
        (intruder, outcomes)
    }
}

impl Inject for Intruder {
    fn inject(&mut self, target: Target, entry: Entry) {
        let (entry, argument) = match entry {
            Entry::Agent => (injection::Entry::Agent, 0),
            Entry::Hand { program } => (
                injection::Entry::Hand,
                u64::from(program.as_raw_pid().unsigned_abs()),
            ),
        };
        self.injector.borrow_mut().inject(target, entry, argument);
    }

    fn poll(&mut self) -> Option<Injected> {
        self.outcomes.borrow_mut().pop_front()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // The loop waits for the injector itself.
        None
    }
}
