//! Was memory taken that is not what it was meant to be?
//!
//! Between the protecting of pages and their taking, threads may unmap a range and put other memory in
//! its place. Each page shows whether it is protected, wherever it is moved to, and other memory is
//! not: but for pages that were protected at the same time elsewhere, and that a thread moved there.

use super::message::Message;
use crate::{PageRange, SpaceId};
use legato_base::PageNumber;

/// True if a mapping of any of the ranges is gone.
pub(super) fn any_vacated(messages: &[(SpaceId, Message)], ranges: &[PageRange]) -> bool {
    of_own(messages)
        .filter_map(Message::vacated)
        .any(|gone| ranges.iter().any(|range| gone.overlaps(*range)))
}

/// The first page that was taken where a page from elsewhere may have arrived with its protection: one
/// of those that were protected and not taken. (What was taken has its content in a frame, and this
/// moves as what announces the move is followed: it is right wherever the page itself was.)
pub(super) fn first_unclear(
    messages: &[(SpaceId, Message)],
    taken: &[PageRange],
    protected: &[PageRange],
) -> Option<PageNumber> {
    // They may have come by several moves.
    let is_protected = |page: PageRange| {
        let arrivals = of_own(messages).filter_map(Message::arrival);
        let mut sources = protected.iter().copied().chain(arrivals);
        !protected.is_empty() && sources.any(|source| source.overlaps(page))
    };
    of_own(messages).find_map(|message| {
        let Message::Remapped { from, to, .. } = message else {
            return None;
        };
        let arrival = PageRange::new(*to, from.count);
        let mut parts = taken.iter().filter_map(|range| range.common(arrival));
        let is_unclear = |part: &PageRange| {
            let source = from.start.plus(part.start.0 - to.0);
            is_protected(PageRange::new(source, part.count))
        };
        parts.find(is_unclear).map(|part| part.start)
    })
}

/// What the messages tell of the agent's own address space.
fn of_own(messages: &[(SpaceId, Message)]) -> impl Iterator<Item = &Message> {
    messages
        .iter()
        .filter(|(space, _)| *space == SpaceId::OWN)
        .map(|(_, message)| message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, count: u64) -> PageRange {
        PageRange::new(PageNumber(start), count)
    }

    fn gone(range: PageRange) -> (SpaceId, Message) {
        let unmapped = true;
        (SpaceId::OWN, Message::Removed { range, unmapped })
    }

    fn moved(from: PageRange, to: u64) -> (SpaceId, Message) {
        let (to, kept) = (PageNumber(to), false);
        (SpaceId::OWN, Message::Remapped { from, to, kept })
    }

    #[test]
    fn a_mapping_is_gone_that_was_unmapped_or_moved_away() {
        let ranges = [range(0x10, 4), range(0x20, 4)];
        let is_gone = |messages: &[_]| any_vacated(messages, &ranges);
        assert!(is_gone(&[gone(range(0x23, 8))]));
        assert!(is_gone(&[moved(range(0x13, 1), 0x50)]));
        assert!(!is_gone(&[
            gone(range(0x14, 12)),
            moved(range(0x50, 4), 0x10)
        ]));
        let (_, message) = gone(range(0x10, 1));
        assert!(!is_gone(&[(SpaceId(1), message)]), "of another process");
    }

    #[test]
    fn only_what_was_protected_can_be_taken_for_what_was_to_be_taken() {
        let (taken, rest) = (range(0x10, 4), range(0x50, 2));
        let first = |messages: &[_]| first_unclear(messages, &[taken], &[rest]);
        assert_eq!(
            first(&[moved(range(0x4F, 4), 0x10)]),
            Some(PageNumber(0x10))
        );
        // The part that arrives where something was taken was not protected.
        assert_eq!(first(&[moved(range(0x50, 6), 0x0E)]), None);
        assert_eq!(first(&[moved(rest, 0x14)]), None, "beside it");
        assert_eq!(first_unclear(&[moved(rest, 0x10)], &[taken], &[]), None);
    }

    #[test]
    fn what_was_protected_may_come_by_several_moves() {
        let (taken, rest) = (range(0x10, 4), range(0x50, 2));
        let messages = [moved(rest, 0x80), moved(range(0x80, 2), 0x12)];
        let first = first_unclear(&messages, &[taken], &[rest]);
        assert_eq!(first, Some(PageNumber(0x12)));
    }
}
