//! A fork beside changes of other threads.
//!
//! What was read together with a fork may have been done before it or after it, and the messages do not
//! say which: the child has a copy of the address space as it was in between. But the child can be asked
//! what is registered in it; what it has changed by then it has announced. So the fork comes where what it
//! has inherited is explained best.

use super::repair::concerns;
use super::{Message, Waiting};
use crate::{PageRange, RangeSet};
use alloc::vec::Vec;
use legato_base::PageNumber;

/// So many changes are tried in all combinations that are possible; more are taken as done afterwards.
const TRIED_MAX: usize = 10;

/// Of some pages, whether they were registered in a child when it was forked.
pub type Inheritance = Vec<(PageNumber, bool)>;

/// The pages that tell which of these messages, read at once, were done before the forks among them.
/// `armed` is what is registered as far as is known.
pub fn pages_in_question<C>(messages: &[Message<C>], armed: &RangeSet) -> Vec<PageNumber> {
    if !messages.iter().any(|message| message.child().is_some()) {
        return Vec::new();
    }
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
    messages.iter().flat_map(places).flatten().collect()
}

/// And those that tell of moves of which only the beginning was read: that something was unmapped where
/// they go to. `mapped` is what is mapped in the parent now; what is not has been given up.
pub fn pages_given_up<C>(
    messages: &[Message<C>],
    armed: &RangeSet,
    mapped: impl FnOnce() -> RangeSet,
) -> Vec<PageNumber> {
    if !messages.iter().any(Message::is_unmapping) {
        return Vec::new();
    }
    let mapped = mapped();
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
    // What was read before it was done before it, and all that that depends on.
    let mut is_before: Vec<bool> = ordered
        .iter()
        .map(|waiting| waiting.reading < fork.reading)
        .collect();
    for index in (0..ordered.len()).rev() {
        let needed = |later: usize| is_before[later] && depends(ordered, later, index);
        is_before[index] |= (index + 1..ordered.len()).any(needed);
    }
    let is_open = |&index: &usize| !is_before[index] && ordered[index].message.is_change();
    let open: Vec<usize> = (0..ordered.len()).filter(is_open).take(TRIED_MAX).collect();
    let with = |tried: usize| {
        let mut with = is_before.clone();
        for (bit, &index) in open.iter().enumerate() {
            with[index] |= tried >> bit & 1 == 1;
        }
        with
    };
    let is_possible = |with: &Vec<bool>| {
        let is_missing = |&index: &usize| {
            with[index]
                && (0..index).any(|earlier| !with[earlier] && depends(ordered, index, earlier))
        };
        !open.iter().any(is_missing)
    };
    let unexplained = |with: &Vec<bool>| {
        let expected = |page| inherits(ordered, with, armed, page);
        let pages = fork.inheritance.iter();
        pages
            .filter(|&&(page, is_there)| expected(page) != is_there)
            .count()
    };
    let tried = (0..1usize << open.len()).map(with).filter(is_possible);
    tried
        .min_by_key(|with| (unexplained(with), with.iter().filter(|&&is| is).count()))
        .unwrap_or(is_before)
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
