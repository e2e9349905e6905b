//! A child that has just been forked is asked what it has inherited ([`crate::order::pages_in_question`]).
//!
//! It may be running by then, and have changed its address space; then it waits until that is read, and
//! nothing can be asked before. So it is read, and taken into account.

use crate::PageRange;
use crate::order::Inheritance;
use crate::uffd::context::MESSAGES_MAX;
use crate::uffd::message::{Message, Newborn};
use legato_base::PageNumber;
use rustix::io::Errno;

/// A child has a single thread, which is on its way back from the kernel when it is asked again.
const ASKED_MAX: usize = 100;

impl Newborn {
    /// Which of some pages were registered at the fork. None if it cannot be asked.
    pub(super) fn ask(&mut self, pages: &[PageNumber]) -> Option<Inheritance> {
        for _ in 0..ASKED_MAX {
            let answer = |&page: &PageNumber| {
                let known = was_there(&self.changes, page).map(Ok);
                let is_there = || self.context.is_registered(PageRange::new(page, 1));
                Ok((page, known.unwrap_or_else(is_there)?))
            };
            let answers: Result<Inheritance, Errno> = pages.iter().map(answer).collect();
            if answers.is_ok() {
                return answers.ok();
            }
            // Of one that has ended there is nothing to read, and nothing to be wrong about.
            let _ = self.context.read(MESSAGES_MAX, &mut self.changes);
        }
        None
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
