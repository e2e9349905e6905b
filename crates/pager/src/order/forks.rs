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

/// So many changes that concern each other are tried at a time, in all combinations that are possible.
const TRIED_MAX: usize = 10;

/// Of some pages, whether they were registered in a child when it was forked.
pub type Inheritance = Vec<(PageNumber, bool)>;

impl<C> Order<C> {
    /// Asks the children of forks what they have inherited of what other messages concern that were read
    /// with them, or before or after and may have been done on the other side. `armed` is what is
    /// registered as far as is known, and `mapped` what is mapped in the parent now. False if a child
    /// cannot tell.
    ///
    /// What was registered on a page and is so in the child was there at the fork, unless a mapping has grown
    /// over the page meanwhile, which nobody announces: see [`Order::next`].
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
        let is_open = |waiting: &&Waiting<C>| waiting.sequence.is_open();
        let open = self
            .waiting
            .iter()
            .filter(is_open)
            .map(|waiting| &waiting.message);
        let all = open.chain(&batch.messages);
        if !all.clone().any(is_fork) {
            return true;
        }
        let is_unmapping = all.clone().any(Message::is_unmapping);
        let fresh = pages_in_question(&batch.messages, armed);
        let pages = pages_in_question(all, armed);
        for waiting in &mut self.waiting {
            if waiting.sequence.is_open()
                && let Some(child) = waiting.message.child_mut()
            {
                waiting.inheritance.extend(tell(child, &fresh));
            }
        }
        if pages.is_empty() || !batch.messages.iter().any(is_fork) {
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

    /// What children have where the parent has something too that nothing tells of: a mapping has grown to
    /// there, before or after the fork. Then it says nothing, and what was read first counts as done first.
    /// None if the parent cannot tell now.
    pub(super) fn forget_grown(
        &mut self,
        armed: &RangeSet,
        is_registered: impl Fn(PageNumber) -> Option<bool>,
    ) -> Option<()> {
        if !self.waiting.iter().any(Waiting::is_in_question) {
            return Some(());
        }
        let mut after = armed.clone();
        self.waiting
            .iter()
            .for_each(|waiting| waiting.message.follow_in_armed(&mut after));
        let mut grown = RangeSet::new();
        let found = self.waiting.iter().flat_map(|waiting| &waiting.inheritance);
        for &(page, is_there) in found {
            if is_there && !after.contains(page) && is_registered(page)? {
                grown.insert(PageRange::new(page, 1));
            }
        }
        for waiting in &mut self.waiting {
            waiting
                .inheritance
                .retain(|&(page, is_there)| !is_there || !grown.contains(page));
        }
        Some(())
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
    // Of what was unmapped only a part may have been registered, and of that a part is gone by what was
    // announced before, if that came in order.
    let first = |range: PageRange, set: &RangeSet| {
        let part = set.range_from(range.start)?;
        range.contains(part.start).then_some(part.start)
    };
    let mut rest = armed.clone();
    let mut pages = Vec::new();
    for message in messages {
        if let Some(gone) = message.vacated() {
            let known = first(gone, &rest).or_else(|| first(gone, armed));
            pages.push(known.unwrap_or(gone.start));
        }
        pages.extend(message.arrival().map(|to| to.start));
        message.follow_in_armed(&mut rest);
    }
    pages
}

/// And those that tell of moves of which only the beginning was read: that something was unmapped where
/// they go to. What is no longer mapped in the parent has been given up.
fn pages_given_up(armed: &RangeSet, mapped: &RangeSet) -> Vec<PageNumber> {
    let given_up = armed.ranges().flat_map(|range| mapped.missing_from(range));
    given_up.map(|range| range.start).collect()
}

const fn is_fork<C>(message: &Message<C>) -> bool {
    message.child().is_some()
}

/// `madvise` drops what it announces once that was read. So children that were there by then have it.
pub(super) fn forks_first<C>(messages: Vec<Message<C>>) -> impl Iterator<Item = Message<C>> {
    let (forks, others): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| is_fork(message));
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
    let is_certain = |waiting: &Waiting<C>| {
        let may_be_late = waiting.sequence.is_open() && waiting.message.may_come_late();
        was_read_before(waiting) && !may_be_late
    };
    let by_reading: Vec<bool> = ordered.iter().map(was_read_before).collect();
    let mut certain: Vec<bool> = ordered.iter().map(is_certain).collect();
    for index in (0..ordered.len()).rev() {
        let needed = |later: usize| certain[later] && depends(ordered, later, index);
        certain[index] |= (index + 1..ordered.len()).any(needed);
    }
    let mut is_before: Vec<bool> = by_reading
        .iter()
        .zip(&certain)
        .map(|(read, certain)| *read || *certain)
        .collect();
    let is_open = |&index: &usize| !certain[index] && ordered[index].message.has_place();
    for group in groups(ordered, (0..ordered.len()).filter(is_open)) {
        explain(ordered, &mut is_before, &group, fork, armed);
    }
    let mut has_all = true;
    for (waiting, is_before) in ordered.iter().zip(&mut is_before) {
        // Another fork comes first if all does that was done before that. And a fault may be about what
        // was changed before it.
        if !waiting.message.has_place() {
            *is_before = has_all && (*is_before || waiting.message.is_change());
        }
        has_all &= *is_before || !waiting.message.is_change();
    }
    is_before
}

/// Those that concern each other, directly or through others, together and in order.
fn groups<C>(ordered: &[Waiting<C>], open: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in open {
        let is_concerned = |group: &mut Vec<usize>| {
            let mut earlier = group.iter();
            earlier.any(|&earlier| depends(ordered, index, earlier))
        };
        let mut group: Vec<usize> = groups.extract_if(.., is_concerned).flatten().collect();
        group.push(index);
        group.sort_unstable();
        groups.push(group);
    }
    groups
}

/// Tries which of a group were done before the fork, some of them at a time. Of what explains equally much
/// that is taken which is nearest to the order of reading.
fn explain<C>(
    ordered: &[Waiting<C>],
    is_before: &mut [bool],
    group: &[usize],
    fork: &Waiting<C>,
    armed: &RangeSet,
) {
    let needs = |&index: &usize| {
        let earlier = group.iter().copied().filter(|&earlier| earlier < index);
        let needed = earlier.filter(|&earlier| depends(ordered, index, earlier));
        (index, needed.collect())
    };
    let needs: Vec<(usize, Vec<usize>)> = group.iter().map(needs).collect();
    let touches = |index: usize, page: PageNumber| ordered[index].message.touches(page);
    let in_question = |page: PageNumber| group.iter().any(|&index| touches(index, page));
    let asked = fork
        .inheritance
        .iter()
        .filter(|(page, _)| in_question(*page));
    let asked: Vec<(PageNumber, bool)> = asked.copied().collect();
    for part in group.chunks(TRIED_MAX) {
        let with = |combination: usize| {
            let mut with = is_before.to_vec();
            for (bit, &index) in part.iter().enumerate() {
                with[index] = combination >> bit & 1 == 1;
            }
            // Nothing was done before that what it depends on was not.
            for (index, needs) in &needs {
                with[*index] &= needs.iter().all(|&needed| with[needed]);
            }
            with
        };
        let unexplained = |with: &[bool]| {
            let expected = |page| inherits(ordered, with, armed, page);
            let pages = asked.iter();
            pages
                .filter(|&&(page, is_there)| expected(page) != is_there)
                .count()
        };
        let moved = |with: &[bool]| {
            group
                .iter()
                .filter(|&&index| with[index] != is_before[index])
                .count()
        };
        let combinations = (0..1usize << part.len()).map(with);
        let best = combinations.min_by_key(|with| (unexplained(with), moved(with)));
        if let Some(best) = best {
            is_before.copy_from_slice(&best);
        }
    }
}

/// Must what was `earlier` have been done before the other?
fn depends<C>(ordered: &[Waiting<C>], index: usize, earlier: usize) -> bool {
    let (later, earlier) = (&ordered[index].message, &ordered[earlier].message);
    // A fault tells of no change, and where forks are is what is asked.
    later.has_place() && earlier.has_place() && concerns(earlier, later)
}

/// Is a page registered after these?
fn inherits<C>(ordered: &[Waiting<C>], with: &[bool], armed: &RangeSet, page: PageNumber) -> bool {
    let done = ordered
        .iter()
        .zip(with)
        .filter(|(waiting, with)| **with && waiting.message.touches(page));
    done.fold(armed.contains(page), |is_there, (waiting, _)| {
        let has = |range: Option<PageRange>| range.is_some_and(|range| range.contains(page));
        let stays = is_there && !has(waiting.message.vacated());
        stays || has(waiting.message.arrival())
    })
}
