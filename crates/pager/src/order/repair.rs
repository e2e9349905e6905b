//! What can be told of the order of changes from what they say.

use super::{Message, Sequence, Waiting};
use crate::{PageRange, RangeSet};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Messages in the order of what they tell of. It is that of the readings, but for calls that announce
/// several times.
pub(super) fn in_order_of_doing<C>(messages: VecDeque<Waiting<C>>) -> Vec<Waiting<C>> {
    by_precedence(messages, goes_before)
}

/// Takes one after the other the first that none of the rest goes before.
fn by_precedence<T>(
    mut rest: VecDeque<T>,
    goes_before: impl Fn(&VecDeque<T>, usize, usize) -> bool,
) -> Vec<T> {
    let mut ordered = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let is_first = |&place: &usize| {
            let mut others = (0..rest.len()).filter(|&other| other != place);
            !others.any(|other| goes_before(&rest, other, place))
        };
        let first = (0..rest.len()).find(is_first).unwrap_or(0);
        ordered.extend(rest.remove(first));
    }
    ordered
}

fn goes_before<C>(messages: &VecDeque<Waiting<C>>, one: usize, other: usize) -> bool {
    let (first, second) = (&messages[one], &messages[other]);
    let is_earlier = one < other && concerns(&first.message, &second.message);
    overtakes(first, second) || is_earlier && !overtakes(second, first)
}

/// What has come to a place at one reading cannot be given up at the next: the thread that moved it is
/// not back from its call. So what was given up was there before.
fn overtakes<C>(one: &Waiting<C>, other: &Waiting<C>) -> bool {
    let gathered = |waiting: &Waiting<C>| waiting.sequence == Sequence::Simultaneous;
    if !gathered(one) || !gathered(other) {
        return false;
    }
    let is_kept = matches!(other.message, Message::Remapped { kept: true, .. });
    let place = other.message.arrival().filter(|_| !is_kept);
    let gone = one.message.vacated();
    one.reading == other.reading + 1
        && place.is_some_and(|place| gone.is_some_and(|gone| gone.overlaps(place)))
}

/// Does it matter which of the two comes first?
pub(super) fn concerns<C>(one: &Message<C>, other: &Message<C>) -> bool {
    if matches!(other, Message::Fault { .. } | Message::Forked { .. })
        || matches!(one, Message::Forked { .. })
    {
        return true;
    }
    let touched = places(other);
    places(one)
        .into_iter()
        .flatten()
        .any(|place| touched.iter().flatten().any(|other| place.overlaps(*other)))
}

fn places<C>(message: &Message<C>) -> [Option<PageRange>; 2] {
    match *message {
        Message::Remapped { from, .. } => [Some(from), message.arrival()],
        Message::Removed { range, .. } => [Some(range), None],
        Message::Fault { .. } | Message::Forked { .. } => [None, None],
    }
}

/// Messages of different threads, each of which waits with its own. So what comes to a place came after
/// all that others say of that place.
pub(super) fn untangled<C>(messages: Vec<Message<C>>) -> Vec<Message<C>> {
    if !messages.iter().any(Message::is_move) {
        return messages;
    }
    by_precedence(messages.into(), |messages, one, other| {
        comes_before(&messages[one], &messages[other])
    })
}

/// Must one thread have done this before another did that?
fn comes_before<C>(one: &Message<C>, other: &Message<C>) -> bool {
    let Some(gone) = one.vacated() else {
        return false;
    };
    if let Some(place) = other.arrival()
        && one.arrival() != Some(place)
        && gone.overlaps(place)
    {
        return true;
    }
    // A mapping has grown to where the other was, and was moved or cut since. What was cut off within a
    // place that was moved may have come before or after it: there the queue's order is the best guess.
    let grown_over = |range: PageRange| gone.start > range.start && range.contains(gone.start);
    one.is_move() && other.vacated().is_some_and(grown_over)
}

/// Puts moves where they are possible: after what empties the place that they go to, and before what
/// empties the place that they come from. What is possible as it was read stays so.
pub(super) fn put_in_order<C>(messages: &mut [Waiting<C>], armed: &RangeSet) {
    // Each repair brings one message forward. It helps or it does not.
    for _ in 0..messages.len() {
        let Some((from, to)) = first_repair(messages, armed) else {
            return;
        };
        messages[to..=from].rotate_right(1);
    }
}

/// Which message is to be brought forward, and to where.
fn first_repair<C>(messages: &[Waiting<C>], armed: &RangeSet) -> Option<(usize, usize)> {
    let mut armed = armed.clone();
    for (index, Waiting { message, .. }) in messages.iter().enumerate() {
        if let Message::Remapped { from, .. } = *message
            && !armed.contains(from.start)
            && let Some(to) = messages[..index].iter().rposition(|before| {
                let gone = before.message.vacated();
                gone.is_some_and(|gone| gone.contains(from.start))
            })
        {
            return Some((index, to));
        }
        if let Some(gone) = message.vacated()
            && let Some(later) = what_was_inside(gone, &messages[index + 1..])
        {
            return Some((index + 1 + later, index));
        }
        if let Some(place) = message.arrival().filter(|&place| armed.overlaps(place))
            && let Some(later) = what_empties(place, &messages[index + 1..])
        {
            return Some((index + 1 + later, index));
        }
        message.follow_in_armed(&mut armed);
    }
    None
}

/// The first message that tells of memory being given up that began in the middle of a range that is
/// given up before it: one mapping was, and the other was there on its own, and gone by then.
fn what_was_inside<C>(range: PageRange, messages: &[Waiting<C>]) -> Option<usize> {
    let mut arrived = RangeSet::default();
    messages.iter().position(|Waiting { message, .. }| {
        let inside = matches!(message, Message::Remapped { from, .. }
            if from.start > range.start
                && range.contains(from.start)
                && !arrived.contains(from.start));
        let arrival = message.arrival();
        arrival.into_iter().for_each(|place| arrived.insert(place));
        inside
    })
}

/// The first message that tells of a place being given up. Memory that is as large as what comes to
/// the place is more likely that, on its way further.
fn what_empties<C>(place: PageRange, messages: &[Waiting<C>]) -> Option<usize> {
    let gone = |waiting: &Waiting<C>| {
        waiting
            .message
            .vacated()
            .filter(|gone| gone.overlaps(place))
    };
    let other = |waiting: &Waiting<C>| gone(waiting).is_some_and(|gone| gone != place);
    messages
        .iter()
        .position(other)
        .or_else(|| messages.iter().position(|waiting| gone(waiting).is_some()))
}
