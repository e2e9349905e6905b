//! A child that has just been forked is asked what it has inherited ([`crate::order::pages_in_question`]).
//!
//! It may be running by then, and have changed its address space; then it waits until that is read, and
//! nothing can be asked before. So it is read, and taken into account.

use crate::PageRange;
use crate::order::Inheritance;
use crate::uffd::Userfaultfd;
use crate::uffd::context::MESSAGES_MAX;
use crate::uffd::message::Message;
use alloc::vec::Vec;
use legato_base::PageNumber;
use rustix::io::Errno;

/// A child has a single thread, which is on its way back from the kernel when it is asked again.
const ASKED_MAX: usize = 100;

/// What a child has answered.
#[derive(Debug, Default)]
pub(super) struct Newborn {
    pub(super) inherited: Inheritance,
    /// What was read of it meanwhile, in order.
    pub(super) changes: Vec<Message>,
    unclear: bool,
}

impl Newborn {
    pub(super) fn ask(child: &Userfaultfd, pages: &[PageNumber]) -> Self {
        let mut newborn = Self::default();
        newborn.ask_more(child, pages);
        newborn
    }

    pub(super) fn ask_more(&mut self, child: &Userfaultfd, pages: &[PageNumber]) {
        for _ in 0..ASKED_MAX {
            let answer = |&page: &PageNumber| {
                let known = was_there(&self.changes, page).map(Ok);
                let is_there = || child.is_registered(PageRange::new(page, 1));
                Ok((page, known.unwrap_or_else(is_there)?))
            };
            let answers: Result<Inheritance, Errno> = pages.iter().map(answer).collect();
            if let Ok(answers) = answers {
                self.inherited.extend(answers);
                return;
            }
            // Of one that has ended there is nothing to read, and nothing to be wrong about.
            let _ = child.read(MESSAGES_MAX, &mut self.changes);
        }
        self.unclear = true;
    }

    /// It could not be asked.
    pub(super) const fn is_unclear(&self) -> bool {
        self.unclear
    }
}

/// Was a page registered before these changes? None if they do not tell.
fn was_there(changes: &[Message], page: PageNumber) -> Option<bool> {
    let has = |range: Option<PageRange>| range.is_some_and(|range| range.contains(page));
    changes.iter().find_map(|change| {
        let (gone, came) = (has(change.vacated()), has(change.arrival()));
        (gone || came).then_some(gone)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_of_a_page_tells_what_was_before() {
        let range = |start| PageRange::new(PageNumber(start), 4);
        let changes = [
            Message::Remapped {
                from: range(10),
                to: PageNumber(20),
                kept: false,
            },
            Message::Removed {
                range: range(20),
                unmapped: true,
            },
            Message::Removed {
                range: range(30),
                unmapped: false,
            },
        ];
        let was_there = |page| was_there(&changes, PageNumber(page));
        assert_eq!(was_there(11), Some(true));
        assert_eq!(was_there(21), Some(false));
        assert_eq!(was_there(31), None);
    }
}
