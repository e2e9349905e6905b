//! Which of the program's mappings may go far: private, anonymous, readable, not
//! the main stack, and not the agent's own. Parsed from `/proc/PID/maps` (proc_pid_maps(5)).
//!
//! What is read only now may stay so for as long as the program runs, or until other memory has left: its
//! pages leave by copy. So do those of what is executable (heaps of Lisps, code that a program makes): MOVE
//! wants the same access on both sides.

use super::mappings::mapping_of;
use crate::PageRange;
use alloc::vec;
use alloc::vec::Vec;
use legato_base::PageNumber;

/// Larger holes separate. What is placed by the kernel is placed without large holes.
const HOLE_MAX: u64 = 1 << (30 - legato_base::PAGE_SHIFT);

/// A part of the address space that can be registered in one go, and what is eligible there.
///
/// In one go, because the program goes on meanwhile: of a mapping that has just grown, or has just
/// taken the place of another, a part would be registered and the rest not. Then it would be two
/// mappings, and `mremap` takes only one (EFAULT). So a region goes from one mapping that cannot be
/// registered to the next one, over the holes between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) range: PageRange,
    /// In order of address. Neighbouring mappings are one range.
    pub(super) eligible: Vec<PageRange>,
    /// All that may be registered, each mapping for itself, in order of address.
    mappings: Vec<PageRange>,
}

impl Region {
    fn pages(&self) -> u64 {
        self.eligible.iter().map(|range| range.count).sum()
    }

    /// Each mapping with the holes on both sides of it: the region in parts, for when something in it
    /// cannot be registered.
    pub(super) fn parts(&self) -> impl Iterator<Item = PageRange> {
        self.mappings.iter().enumerate().map(|(index, _)| {
            let before = index.checked_sub(1).map(|index| self.mappings[index].end());
            let after = self.mappings.get(index + 1).map(|next| next.start);
            let start = before.unwrap_or(self.range.start);
            let end = after.unwrap_or_else(|| self.range.end());
            PageRange::new(start, end.0 - start.0)
        })
    }
}

/// Finds the regions in the lines of a maps file, without the agent's own.
#[derive(Debug)]
pub(super) struct RegionReader<'a> {
    mappings: MappingReader<'a>,
    regions: Vec<Region>,
    before: (PageRange, Kind),
}

impl<'a> RegionReader<'a> {
    pub(super) const fn new(own: &'a [PageRange]) -> Self {
        Self {
            mappings: MappingReader::new(own),
            regions: Vec::new(),
            before: (PageRange::new(PageNumber(0), 0), Kind::Other),
        }
    }

    /// Takes the next line.
    pub(super) fn line(&mut self, line: &str) {
        let (regions, before) = (&mut self.regions, &mut self.before);
        let take = |range, kind| add_mapping(regions, before, range, kind);
        self.mappings.line(line, take);
    }

    /// The regions, the one with the most eligible pages first.
    pub(super) fn finish(mut self) -> Vec<Region> {
        self.regions.retain(|region| !region.eligible.is_empty());
        self.regions
            .sort_by_key(|region| core::cmp::Reverse(region.pages()));
        self.regions
    }
}

/// Puts a mapping into the last region, or where a new one begins with it.
fn add_mapping(
    regions: &mut Vec<Region>,
    before: &mut (PageRange, Kind),
    range: PageRange,
    kind: Kind,
) {
    let (last, last_kind) = core::mem::replace(before, (range, kind));
    let hole = range.start.0.saturating_sub(last.end().0);
    let (is_open, goes_on) = (last_kind != Kind::Other, kind != Kind::Other);
    if is_open && goes_on && hole <= HOLE_MAX {
        extend(regions, hole);
    } else {
        // Two regions share a hole; nothing is below the first mapping.
        let shared = is_open && goes_on || last.count == 0;
        let reach = if shared { hole / 2 } else { hole };
        if is_open {
            extend(regions, reach);
        }
        if goes_on {
            let start = PageNumber(range.start.0 - reach);
            regions.push(Region {
                range: PageRange::new(start, reach),
                eligible: Vec::new(),
                mappings: Vec::new(),
            });
        }
    }
    if goes_on && let Some(region) = regions.last_mut() {
        region.range.count += range.count;
        region.mappings.push(range);
        if kind == Kind::Eligible {
            add(&mut region.eligible, range);
        }
    }
}

fn extend(regions: &mut [Region], pages: u64) {
    if let Some(region) = regions.last_mut() {
        region.range.count += pages;
    }
}

fn add(ranges: &mut Vec<PageRange>, range: PageRange) {
    match ranges.last_mut() {
        Some(last) if last.end() == range.start => last.count += range.count,
        _ => ranges.push(range),
    }
}

/// The mapping of a line of a maps file, if it is one of a file or a device, or shared. None of them has ever
/// been eligible.
pub(super) fn mapping_of_file(line: &str) -> Option<PageRange> {
    let mut fields = line.split_ascii_whitespace();
    // System V memory may have the number 0 for an inode.
    let is_shared = fields.nth(1)?.ends_with('s');
    let has_file = is_shared || fields.nth(2)? != "0";
    has_file.then(|| mapping_of(line))?
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Eligible,
    /// Anonymous, but not to be read now: it may become eligible, and may be registered.
    Protected,
    Other,
}

/// Finds the mappings in the lines of a maps file.
#[derive(Debug)]
pub(super) struct MappingReader<'a> {
    own: &'a [PageRange],
    /// The end of all that was told so far.
    end: PageNumber,
}

impl<'a> MappingReader<'a> {
    pub(super) const fn new(own: &'a [PageRange]) -> Self {
        Self {
            own,
            end: PageNumber(0),
        }
    }

    /// Takes the next line, and shows the mapping if it is eligible.
    pub(super) fn eligible(&mut self, line: &str, mut show: impl FnMut(PageRange)) {
        self.line(line, |range, kind| {
            if kind == Kind::Eligible {
                show(range);
            }
        });
    }

    fn line(&mut self, line: &str, mut show: impl FnMut(PageRange, Kind)) {
        let Some((range, kind)) = parse(line) else {
            return;
        };
        // The lines come in pieces, and the mapping at the seam may have grown downwards meanwhile, over
        // what was told already.
        let start = range.start.max(self.end);
        self.end = self.end.max(range.end());
        let rest = range.end().0.saturating_sub(start.0);
        if rest == 0 {
            return;
        }
        let range = PageRange::new(start, rest);
        let mut parts = vec![(range, kind)];
        for &hole in self.own.iter().filter(|own| own.overlaps(range)) {
            parts = parts
                .into_iter()
                .flat_map(|(part, kind)| {
                    let inside = part.common(hole).map(|inside| (inside, Kind::Other));
                    without(part, hole)
                        .map(move |part| (part, kind))
                        .chain(inside)
                })
                .collect();
        }
        parts.sort_unstable_by_key(|(part, _)| part.start);
        parts.into_iter().for_each(|(part, kind)| show(part, kind));
    }
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

fn parse(line: &str) -> Option<(PageRange, Kind)> {
    let mut fields = line.split_ascii_whitespace();
    let permissions = fields.nth(1)?;
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or("");
    let anonymous =
        inode == "0" && (name.is_empty() || name == "[heap]" || name.starts_with("[anon:"));
    let kind = match permissions {
        "rw-p" | "r--p" | "rwxp" | "r-xp" if anonymous => Kind::Eligible,
        "---p" | "-w-p" | "--xp" | "-wxp" if anonymous => Kind::Protected,
        _ => Kind::Other,
    };
    Some((mapping_of(line)?, kind))
}

/// The regions in the text of a maps file.
#[cfg(test)]
pub(super) fn regions(maps: &str, own: &[PageRange]) -> Vec<Region> {
    let mut reader = RegionReader::new(own);
    maps.lines().for_each(|line| reader.line(line));
    reader.finish()
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
7f4000400000-7f4000500000 r-xp 00000000 00:00 0
7f4100000000-7f4100001000 r-xp 00000000 00:00 0                          [vdso]
7f5000000000-7f5000400000 rw-p 00000000 00:00 0
7f6000000000-7f6000400000 r--p 00000000 00:00 0
7f7000000000-7f7000004000 r--p 00000000 00:00 0                          [vvar]
7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0                          [stack]
";

    fn at(start: u64, end: u64) -> PageRange {
        PageRange::of_bytes(start, end)
    }

    #[test]
    fn only_private_anonymous_data_is_eligible() {
        let own = at(0x7f50_0000_0000, 0x7f50_0040_0000);
        let own = [own];
        let mut reader = MappingReader::new(&own);
        let mut found = Vec::new();
        MAPS.lines()
            .for_each(|line| reader.eligible(line, |range| found.push(range)));
        assert_eq!(
            found,
            [
                at(0x55d0_c8a0_0000, 0x55d0_c8a4_0000),
                at(0x7f00_0000_0000, 0x7f00_0040_0000),
                at(0x7f00_0040_0000, 0x7f00_0040_1000),
                at(0x7f40_0000_0000, 0x7f40_0040_0000),
                at(0x7f40_0040_0000, 0x7f40_0050_0000),
                at(0x7f60_0000_0000, 0x7f60_0040_0000),
            ]
        );
    }

    #[test]
    fn what_has_a_file_is_told_by_its_inode() {
        let found: Vec<PageRange> = MAPS.lines().filter_map(mapping_of_file).collect();
        let files = [
            at(0x7f20_0000_0000, 0x7f20_0040_0000),
            at(0x7f30_0000_0000, 0x7f30_0040_0000),
        ];
        assert_eq!(found, files);
    }

    #[test]
    fn a_region_is_all_between_two_mappings_that_cannot_be_registered() {
        let maps = "\
1000000-1002000 r--p 00000000 fe:00 7 /bin/x
1010000-1020000 rw-p 00000000 00:00 0
1020000-1021000 rw-p 00000000 00:00 0
1022000-1030000 ---p 00000000 00:00 0
1030000-1031000 rw-p 00000000 00:00 0
1041000-1042000 rw-s 00000000 00:01 9
1042000-1050000 rw-p 00000000 00:00 0
1050000-1060000 r-xp 00000000 fe:00 7 /bin/x
";
        let found = regions(maps, &[]);
        assert_eq!(found[0].range, at(0x100_2000, 0x104_1000));
        assert_eq!(
            found[0].eligible,
            [at(0x101_0000, 0x102_1000), at(0x103_0000, 0x103_1000)]
        );
        assert_eq!(found[1].range, at(0x104_2000, 0x105_0000));
        assert_eq!(found.len(), 2);
        let parts: Vec<PageRange> = found[0].parts().collect();
        assert_eq!(
            parts,
            [
                at(0x100_2000, 0x102_0000),
                at(0x102_0000, 0x102_2000),
                at(0x102_1000, 0x103_0000),
                at(0x103_0000, 0x104_1000),
            ]
        );
    }

    /// Two mappings became one while the text was read.
    #[test]
    fn what_is_told_twice_counts_once() {
        let maps = "\
1000000-1010000 rw-p 00000000 00:00 0
1010000-1020000 rw-p 00000000 00:00 0
1000000-1030000 rw-p 00000000 00:00 0
1008000-1018000 rw-p 00000000 00:00 0
1040000-1050000 r--p 00000000 fe:00 7 /bin/x
";
        let found = regions(maps, &[]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].range.end(), at(0x100_0000, 0x104_0000).end());
        assert_eq!(found[0].eligible, [at(0x100_0000, 0x103_0000)]);
        let parts: Vec<PageRange> = found[0].parts().skip(1).collect();
        assert_eq!(
            parts,
            [at(0x101_0000, 0x102_0000), at(0x102_0000, 0x104_0000)]
        );
    }

    #[test]
    fn what_is_far_away_is_another_region() {
        let far =
            "1000000-1010000 rw-p 00000000 00:00 0\n9000000000-9000020000 rw-p 00000000 00:00 0\n";
        let found = regions(far, &[]);
        assert_eq!(found.len(), 2);
        // The larger one first.
        assert_eq!(found[0].eligible, [at(0x90_0000_0000, 0x90_0002_0000)]);
        assert_eq!(found[0].range.start, found[1].range.end());
    }

    #[test]
    fn the_agents_own_is_in_no_region() {
        let line = "1000000-1100000 rw-p 00000000 00:00 0";
        let hole = PageRange::new(PageNumber(0x1020), 0x20);
        let found = regions(line, &[hole]);
        let ranges: Vec<PageRange> = found.iter().map(|region| region.range).collect();
        assert_eq!(
            ranges,
            [
                PageRange::new(PageNumber(0x1040), 0xc0),
                // And half the way down from it, to where nothing is.
                PageRange::new(PageNumber(0x1000 - 0x800), 0x820),
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
            assert_eq!(regions(line, &[]), []);
        }
    }
}
