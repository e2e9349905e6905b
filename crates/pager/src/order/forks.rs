//! A fork beside changes of other threads.
//!
//! What was read together with a fork may have been done before it or after it, and the messages do not
//! say which: the child has a copy of the address space as it was in between. But the child can be asked
//! what is registered in it; what it has changed by then it has announced. So the fork comes where what it
//! has inherited is explained best.

use super::repair::concerns;
use super::{Batch, Message, Order, Waiting};
use crate::{PageRange, RangeSet};
use alloc::vec::Vec;
use legato_base::PageNumber;

/// So many changes that concern each other are tried in all combinations that are possible; of more, the
/// rest are taken as done in the order in which they were read.
const TRIED_MAX: usize = 10;

/// Of some pages, whether they were registered in a child when it was forked.
pub type Inheritance = Vec<(PageNumber, bool)>;

impl<C> Order<C> {
    /// Asks the children of forks what they have inherited of what other messages concern that were read
    /// with them, or before or after and may have been done on the other side. `armed` is what is
    /// registered as far as is known, and `mapped` what is mapped in the parent now. False if a child
    /// cannot tell.
    pub fn ask_children(
        &mut self,
        batch: &mut Batch<C>,
        armed: &RangeSet,
        mapped: impl FnOnce() -> RangeSet,
        mut ask: impl FnMut(&mut C, &[PageNumber]) -> Option<Inheritance>,
    ) -> bool {
        let mut all_told = true;
        let mut tell = |child: &mut C, pages: &[PageNumber]| {
            let answer = (!pages.is_empty()).then(|| ask(child, pages));
            let answer = answer.unwrap_or_else(|| Some(Inheritance::new()));
            all_told &= answer.is_some();
            answer.unwrap_or_default()
        };
        let fresh = pages_in_question(&batch.messages, armed);
        let open = || {
            self.waiting
                .iter()
                .filter(|waiting| waiting.sequence.is_open())
        };
        let waiting = open().map(|waiting| &waiting.message);
        let is_unmapping = batch
            .messages
            .iter()
            .chain(waiting.clone())
            .any(Message::is_unmapping);
        let mut pages = pages_in_question(waiting, armed);
        for waiting in &mut self.waiting {
            if waiting.sequence.is_open()
                && let Some(child) = waiting.message.child_mut()
            {
                waiting.inheritance.extend(tell(child, &fresh));
            }
        }
        pages.extend(fresh);
        if pages.is_empty()
            || !batch
                .messages
                .iter()
                .any(|message| message.child().is_some())
        {
            return all_told;
        }
        // At once, and what takes longer to find afterwards.
        let mut children: Vec<&mut C> = batch
            .messages
            .iter_mut()
            .filter_map(Message::child_mut)
            .collect();
        let answers = children.iter_mut().map(|child| tell(child, &pages));
        let mut answers: Vec<Inheritance> = answers.collect();
        if is_unmapping {
            let pages = pages_given_up(armed, &mapped());
            for (child, answer) in children.into_iter().zip(&mut answers) {
                answer.extend(tell(child, &pages));
            }
        }
        batch.inheritances = answers;
        all_told
    }
}

/// Was a page registered before these changes? None if they do not tell.
pub fn was_there<'a, C: 'a>(
    changes: impl IntoIterator<Item = &'a Message<C>>,
    page: PageNumber,
) -> Option<bool> {
    let has = |range: Option<PageRange>| range.is_some_and(|range| range.contains(page));
    changes.into_iter().find_map(|change| {
        let (gone, came) = (has(change.vacated()), has(change.arrival()));
        (gone || came).then_some(gone)
    })
}

/// The pages that tell whether these messages were done before a fork. `armed` is what is registered as
/// far as is known.
fn pages_in_question<'a, C: 'a>(
    messages: impl IntoIterator<Item = &'a Message<C>>,
    armed: &RangeSet,
) -> Vec<PageNumber> {
    // Of what was unmapped only a part may have been registered.
    let first = |range: PageRange| {
        let known = armed.range_from(range.start);
        let known = known.filter(|part| range.contains(part.start));
        known.map_or(range.start, |part| part.start)
    };
    let places = |message: &Message<C>| {
        [
            message.vacated().map(first),
            message.arrival().map(|to| to.start),
        ]
    };
    messages.into_iter().flat_map(places).flatten().collect()
}

/// And those that tell of moves of which only the beginning was read: that something was unmapped where
/// they go to. What is no longer mapped in the parent has been given up.
fn pages_given_up(armed: &RangeSet, mapped: &RangeSet) -> Vec<PageNumber> {
    let given_up = armed.ranges().flat_map(|range| mapped.missing_from(range));
    given_up.map(|range| range.start).collect()
}

/// `madvise` drops what it announces once that was read. So children that were there by then have it.
pub(super) fn forks_first<C>(messages: Vec<Message<C>>) -> impl Iterator<Item = Message<C>> {
    let is_fork = |message: &Message<C>| message.child().is_some();
    let (forks, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_fork);
    forks.into_iter().chain(others)
}

/// Puts a fork where it is explained best by what the child has inherited.
pub(super) fn place_fork<C>(ordered: &mut Vec<Waiting<C>>, fork: Waiting<C>, armed: &RangeSet) {
    let is_before = done_before(ordered, &fork, armed);
    let mut after = Vec::new();
    let mut before = Vec::with_capacity(ordered.len() + 1);
    for (waiting, is_before) in ordered.drain(..).zip(is_before) {
        if is_before {
            before.push(waiting);
        } else {
            after.push(waiting);
        }
    }
    before.push(fork);
    before.append(&mut after);
    *ordered = before;
}

/// Which of the messages were done before the fork.
fn done_before<C>(ordered: &[Waiting<C>], fork: &Waiting<C>, armed: &RangeSet) -> Vec<bool> {
    // What was read before it was done before it, and all that that depends on, but for what may come late.
    let was_read_before = |waiting: &Waiting<C>| waiting.reading < fork.reading;
    let may_be_late = |waiting: &Waiting<C>| {
        let (open, message) = (waiting.sequence.is_open(), &waiting.message);
        message.is_change() && (!was_read_before(waiting) || open && message.may_come_late())
    };
    let mut is_before: Vec<bool> = ordered
        .iter()
        .map(|waiting| was_read_before(waiting) && !may_be_late(waiting))
        .collect();
    for index in (0..ordered.len()).rev() {
        let needed = |later: usize| is_before[later] && depends(ordered, later, index);
        is_before[index] |= (index + 1..ordered.len()).any(needed);
    }
    let is_open = |&index: &usize| !is_before[index] && may_be_late(&ordered[index]);
    let open: Vec<usize> = (0..ordered.len()).filter(is_open).collect();
    for &index in &open {
        is_before[index] = was_read_before(&ordered[index]);
    }
    for group in groups(ordered, open) {
        is_before = best_explained(ordered, is_before, &group, fork, armed);
    }
    // A fault may be about what was changed before it.
    let first_after = is_before.iter().position(|is_before| !is_before);
    for index in first_after.unwrap_or(ordered.len())..ordered.len() {
        is_before[index] &= ordered[index].message.is_change();
    }
    is_before
}

/// Those that concern each other, directly or through others, together and in order.
fn groups<C>(ordered: &[Waiting<C>], open: Vec<usize>) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in open {
        let concerned = |&&earlier: &&usize| depends(ordered, index, earlier);
        let is_concerned = |group: &mut Vec<usize>| group.iter().any(|earlier| concerned(&earlier));
        let mut group: Vec<usize> = groups.extract_if(.., is_concerned).flatten().collect();
        group.push(index);
        group.sort_unstable();
        groups.push(group);
    }
    groups
}

/// Tries which of a group were done before the fork.
fn best_explained<C>(
    ordered: &[Waiting<C>],
    is_before: Vec<bool>,
    group: &[usize],
    fork: &Waiting<C>,
    armed: &RangeSet,
) -> Vec<bool> {
    let tried = &group[..group.len().min(TRIED_MAX)];
    let with = |combination: usize| {
        let mut with = is_before.clone();
        for (bit, &index) in tried.iter().enumerate() {
            with[index] = combination >> bit & 1 == 1;
        }
        with
    };
    let is_possible = |with: &Vec<bool>| {
        let is_missing = |&index: &usize| {
            let needs = |&earlier: &usize| {
                earlier < index && !with[earlier] && depends(ordered, index, earlier)
            };
            with[index] && group.iter().any(needs)
        };
        !group.iter().any(is_missing)
    };
    let unexplained = |with: &Vec<bool>| {
        let expected = |page| inherits(ordered, with, armed, page);
        let pages = fork.inheritance.iter();
        pages
            .filter(|&&(page, is_there)| expected(page) != is_there)
            .count()
    };
    let combinations = (0..1usize << tried.len()).map(with).filter(is_possible);
    let best =
        combinations.min_by_key(|with| (unexplained(with), with.iter().filter(|&&is| is).count()));
    best.unwrap_or(is_before)
}

/// Must what was `earlier` have been done before the other?
fn depends<C>(ordered: &[Waiting<C>], index: usize, earlier: usize) -> bool {
    let (later, earlier) = (&ordered[index].message, &ordered[earlier].message);
    // A fault tells of no change.
    later.is_change() && earlier.is_change() && concerns(earlier, later)
}

/// Is a page registered after these?
fn inherits<C>(ordered: &[Waiting<C>], with: &[bool], armed: &RangeSet, page: PageNumber) -> bool {
    let done = ordered.iter().zip(with).filter(|(_, with)| **with);
    done.fold(armed.contains(page), |is_there, (waiting, _)| {
        let has = |range: Option<PageRange>| range.is_some_and(|range| range.contains(page));
        let stays = is_there && !has(waiting.message.vacated());
        stays || has(waiting.message.arrival())
    })
}
