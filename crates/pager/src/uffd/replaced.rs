//! Was memory dropped that is not what it was meant to be?
//!
//! `madvise` lets the address space go while it waits for its announcement to be read. If the
//! range was unmapped and something else mapped in its place in between, it has dropped the new
//! memory. The kernel has no way to prevent that, but it can be seen afterwards: whatever is new
//! is not registered with the agent's userfaultfd, or was moved there with an announcement.
//!
//! Whoever maps something over the range in one call (`mmap` with MAP_FIXED) waits in that call until the
//! end of the old mapping was read of, and so has put nothing there yet.

use super::mappings::FlagReader;
use super::message::Message;
use crate::{PageRange, SpaceId};
use alloc::string::String;
use alloc::vec::Vec;
use legato_base::PageNumber;

/// Mappings where ranges were dropped, as they were when that was done.
#[derive(Debug)]
pub(super) struct Standing {
    /// Those that are not registered. None if that is not known.
    foreign: Option<Vec<PageRange>>,
    /// Where a thread that waits inside a call is putting a mapping of its own.
    placed: Vec<PageRange>,
}

impl Standing {
    /// From the text of a smaps file, and those that say what each thread does in the kernel
    /// (proc_pid_syscall(5)).
    pub(super) fn of(
        smaps: Option<String>,
        calls: impl IntoIterator<Item = String>,
        ranges: &[PageRange],
    ) -> Self {
        Self {
            foreign: smaps.map(|text| foreign_mappings(&text, ranges)),
            placed: calls.into_iter().filter_map(|call| placed(&call)).collect(),
        }
    }

    /// The first page of a range that was unmapped and has something else in its place. A mapping
    /// that is still the old one is not: it was unmapped afterwards, with nothing new in it yet.
    pub(super) fn first_replaced(
        &self,
        messages: &[(SpaceId, Message)],
        ranges: &[PageRange],
    ) -> Option<PageNumber> {
        let arrivals: Vec<PageRange> = of_own(messages).filter_map(Message::arrival).collect();
        let mut lost = of_own(messages)
            .filter_map(Message::vacated)
            .flat_map(|gone| ranges.iter().filter_map(move |range| gone.common(*range)));
        let is_placed = |part: PageRange| {
            let covers = |place: &PageRange| place.common(part) == Some(part);
            self.placed.iter().any(covers)
        };
        let is_replaced = |part: &PageRange| {
            let in_use = |foreign: &PageRange| {
                let taken = foreign.common(*part);
                taken.is_some_and(|taken| !is_placed(taken))
            };
            arrivals.iter().any(|arrival| part.overlaps(*arrival))
                || self
                    .foreign
                    .as_ref()
                    .is_none_or(|foreign| foreign.iter().any(in_use))
        };
        lost.find(is_replaced).map(|part| part.start)
    }
}

/// True if anything of the ranges was unmapped.
pub(super) fn any_unmapped(messages: &[(SpaceId, Message)], ranges: &[PageRange]) -> bool {
    of_own(messages)
        .filter_map(Message::vacated)
        .any(|gone| ranges.iter().any(|range| gone.overlaps(*range)))
}

/// What the messages tell of the agent's own address space.
fn of_own(messages: &[(SpaceId, Message)]) -> impl Iterator<Item = &Message> {
    messages
        .iter()
        .filter(|(space, _)| *space == SpaceId::OWN)
        .map(|(_, message)| message)
}

/// Where a call puts a mapping, if it is `mmap` with MAP_FIXED: number and arguments in hexadecimal.
fn placed(call: &str) -> Option<PageRange> {
    const SYS_MMAP: &str = "9";
    const MAP_FIXED: u64 = 0x10;
    let mut fields = call.split_ascii_whitespace();
    if fields.next()? != SYS_MMAP {
        return None;
    }
    let mut argument = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok();
    let (start, length, _access, flags) = (argument()?, argument()?, argument()?, argument()?);
    let end = start.checked_add(length)?;
    (flags & MAP_FIXED != 0).then(|| PageRange::of_bytes(start, end))
}

/// Mappings that share pages with the ranges and are not registered.
fn foreign_mappings(smaps: &str, ranges: &[PageRange]) -> Vec<PageRange> {
    let mut reader = FlagReader::default();
    let foreign = |line| {
        let (mapping, flags) = reader.line(line)?;
        (!flags.are_registered()).then_some(mapping)
    };
    let mut foreign: Vec<PageRange> = smaps.lines().filter_map(foreign).collect();
    foreign.retain(|mapping| ranges.iter().any(|range| mapping.overlaps(*range)));
    foreign
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
10000-14000 rw-p 00000000 00:00 0
Size:                 16 kB
VmFlags: rd wr mr mw me ac um uw
14000-18000 rw-p 00000000 00:00 0
Size:                 16 kB
VmFlags: rd wr mr mw me ac
18000-20000 r-xp 00000000 fe:00 7  /usr/bin/um
VmFlags: rd ex mr mw me
";

    fn range(start: u64, count: u64) -> PageRange {
        PageRange::new(PageNumber(start), count)
    }

    fn gone(start: u64, count: u64) -> (SpaceId, Message) {
        let message = Message::Removed {
            range: range(start, count),
            unmapped: true,
        };
        (SpaceId::OWN, message)
    }

    fn first_replaced(messages: &[(SpaceId, Message)], ranges: &[PageRange]) -> Option<PageNumber> {
        Standing::of(Some(SMAPS.into()), None, ranges).first_replaced(messages, ranges)
    }

    #[test]
    fn whoever_waits_in_the_call_that_maps_has_put_nothing_there() {
        let ranges = [range(0x12, 4)];
        let replaced = |call: &str| {
            let standing = Standing::of(Some(SMAPS.into()), Some(call.into()), &ranges);
            standing.first_replaced(&[gone(0x13, 2)], &ranges)
        };
        let damage = Some(PageNumber(0x13));
        assert_eq!(replaced("running\n"), damage);
        // The new mapping begins at page 0x14.
        let fixed = |start: &str| alloc::format!("9 {start} 0x4000 0x3 0x32 0x3 0x0 0x7ffc 0x7ffd");
        assert_eq!(replaced(&fixed("0x14000")), None);
        assert_eq!(replaced(&fixed("0x15000")), damage);
        assert_eq!(replaced("9 0x14000 0x4000 0x3 0x22 0x3 0x0"), damage);
        assert_eq!(replaced("11 0x14000 0x4000 0x3 0x32 0x3 0x0"), damage);
    }

    #[test]
    fn what_is_not_registered_has_taken_the_place() {
        let ranges = [range(0x12, 4)];
        assert!(any_unmapped(&[gone(0x10, 8)], &ranges));
        let replaced = first_replaced(&[gone(0x13, 2)], &ranges);
        // The first page that was dropped of the part that was unmapped and is new.
        assert_eq!(replaced, Some(PageNumber(0x13)));
        assert_eq!(first_replaced(&[], &ranges), None);
    }

    #[test]
    fn the_old_mapping_and_no_mapping_are_no_damage() {
        let messages = [gone(0x10, 2), gone(0x30, 2)];
        assert_eq!(
            first_replaced(&messages, &[range(0x10, 2), range(0x30, 2)]),
            None
        );
    }

    #[test]
    fn memory_that_was_moved_there_is_new() {
        let moved = Message::Remapped {
            from: range(0x50, 2),
            to: PageNumber(0x10),
            kept: false,
        };
        let messages = [gone(0x10, 2), (SpaceId::OWN, moved)];
        assert_eq!(
            first_replaced(&messages, &[range(0x10, 2)]),
            Some(PageNumber(0x10))
        );
    }

    #[test]
    fn what_is_not_known_is_damage() {
        let ranges = [range(0x10, 2)];
        let unknown = Standing::of(None, None, &ranges);
        let messages = [gone(0x10, 2)];
        assert_eq!(
            unknown.first_replaced(&messages, &ranges),
            Some(PageNumber(0x10))
        );
    }
}
