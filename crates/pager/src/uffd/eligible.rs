//! Which of the program's mappings may go far: private, anonymous, writable, not executable, not
//! the main stack, not the agent's own, and large enough to be worth it. Parsed from
//! `/proc/PID/maps` (proc_pid_maps(5)).

use crate::PageRange;
use alloc::vec::Vec;
use legato_base::PageNumber;

/// Smaller mappings stay local: registering each would cost a VMA and free next to nothing.
const PAGES_MIN: u64 = 16;

/// Eligible ranges in the text of a maps file, the largest first, without the agent's own.
pub(super) fn eligible_ranges(maps: &str, own: &[PageRange]) -> Vec<PageRange> {
    let mut ranges: Vec<PageRange> = maps.lines().filter_map(parse_eligible).collect();
    for &hole in own {
        ranges = ranges
            .into_iter()
            .flat_map(|range| without(range, hole))
            .collect();
    }
    ranges.retain(|range| range.count >= PAGES_MIN);
    ranges.sort_unstable_by_key(|range| core::cmp::Reverse((range.count, range.start)));
    ranges
}

/// What is left of a range on both sides of a hole. (The kernel merges neighbouring anonymous
/// mappings, so the agent's may be in the middle of one.)
fn without(range: PageRange, hole: PageRange) -> impl Iterator<Item = PageRange> {
    let left_end = hole.start.max(range.start).min(range.end());
    let right_start = hole.end().max(range.start).min(range.end());
    let left = PageRange::new(range.start, left_end.0 - range.start.0);
    let right = PageRange::new(right_start, range.end().0 - right_start.0);
    [left, right].into_iter().filter(|part| part.count > 0)
}

/// The pages of the mapping that a line of a maps file describes.
pub(super) fn mapping_of(line: &str) -> Option<PageRange> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let pages = end.checked_sub(start)? >> legato_base::PAGE_SHIFT;
    Some(PageRange::new(PageNumber::containing(start), pages))
}

fn parse_eligible(line: &str) -> Option<PageRange> {
    let mut fields = line.split_ascii_whitespace();
    let permissions = fields.nth(1)?;
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or("");
    let anonymous =
        inode == "0" && (name.is_empty() || name == "[heap]" || name.starts_with("[anon:"));
    if permissions != "rw-p" || !anonymous {
        return None;
    }
    mapping_of(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c8a00000-55d0c8a40000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0000400000-7f0000401000 rw-p 00000000 00:00 0
7f1000000000-7f1000400000 ---p 00000000 00:00 0
7f2000000000-7f2000400000 rw-s 00000000 00:01 1025                       /dev/zero (deleted)
7f3000000000-7f3000400000 rw-p 00000000 fe:00 123                        /usr/lib/libc.so.6
7f4000000000-7f4000400000 rwxp 00000000 00:00 0
7f5000000000-7f5000400000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0                          [stack]
";

    #[test]
    fn only_private_anonymous_data_is_eligible() {
        let own = PageRange::new(PageNumber::containing(0x7f50_0000_0000), 0x400);
        let found = eligible_ranges(MAPS, &[own]);
        assert_eq!(
            found,
            [
                PageRange::new(PageNumber::containing(0x7f00_0000_0000), 0x400),
                PageRange::new(PageNumber::containing(0x55d0_c8a0_0000), 0x40),
            ]
        );
    }

    #[test]
    fn the_agents_own_is_cut_out_of_merged_mappings() {
        let line = "1000000-1100000 rw-p 00000000 00:00 0";
        let hole = PageRange::new(PageNumber(0x1020), 0x20);
        assert_eq!(
            eligible_ranges(line, &[hole]),
            [
                PageRange::new(PageNumber(0x1040), 0xc0),
                PageRange::new(PageNumber(0x1000), 0x20),
            ]
        );
    }

    #[test]
    fn lines_that_make_no_sense_are_passed_over() {
        for line in [
            "",
            "x",
            "1-0 rw-p 0 0 0",
            "zz-yy rw-p 0 00:00 0",
            "1000-2000",
        ] {
            assert_eq!(eligible_ranges(line, &[]), []);
        }
    }
}
