//! Sets of page ranges.

use crate::PageRange;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use legato_base::PageNumber;

/// Disjoint ranges, start to end (exclusive).
#[derive(Clone, Debug, Default)]
pub struct RangeSet {
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    pub const fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
        }
    }

    pub fn contains(&self, page: PageNumber) -> bool {
        self.ranges
            .range(..=page.0)
            .next_back()
            .is_some_and(|(_, &end)| page.0 < end)
    }

    pub fn ranges(&self) -> impl Iterator<Item = PageRange> {
        self.ranges
            .iter()
            .map(|(&start, &end)| PageRange::new(PageNumber(start), end - start))
    }

    /// The first range from a page on, or the rest of the one that the page is in.
    pub fn range_from(&self, page: PageNumber) -> Option<PageRange> {
        let ends_later = |&(_, &end): &(&u64, &u64)| end > page.0;
        let before = self.ranges.range(..=page.0).next_back();
        let found = before.filter(ends_later);
        let (&start, &end) = found.or_else(|| self.ranges.range(page.0..).next())?;
        let start = start.max(page.0);
        Some(PageRange::new(PageNumber(start), end - start))
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub fn insert(&mut self, range: PageRange) {
        if range.count == 0 {
            return;
        }
        let (mut start, mut end) = (range.start.0, range.end().0);
        // Everything that touches the new range becomes part of it.
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
    }

    pub fn remove(&mut self, range: PageRange) {
        let (start, end) = (range.start.0, range.end().0);
        let touched: Vec<(u64, u64)> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|&(_, &e)| e > start)
            .map(|(&s, &e)| (s, e))
            .collect();
        for (s, e) in touched {
            self.ranges.remove(&s);
            if s < start {
                self.ranges.insert(s, start);
            }
            if e > end {
                self.ranges.insert(end, e);
            }
        }
    }

    /// What is in the set of `from` moves to `to`, and replaces what was in it there.
    pub fn relocate(&mut self, from: PageRange, to: PageNumber) {
        if from.count == 0 {
            return;
        }
        let mut absent = Self::default();
        for part in self.missing_from(from) {
            absent.insert(part);
        }
        self.remove(from);
        self.remove(PageRange::new(to, from.count));
        for part in absent.missing_from(from) {
            let start = PageNumber(to.0 + (part.start.0 - from.start.0));
            self.insert(PageRange::new(start, part.count));
        }
    }

    /// True if any page of a range is in the set.
    pub fn overlaps(&self, range: PageRange) -> bool {
        self.ranges
            .range(..range.end().0)
            .next_back()
            .is_some_and(|(_, &end)| range.start.0 < end && range.count > 0)
    }

    /// The parts of a range that are in the set.
    pub fn common_with(&self, range: PageRange) -> Vec<PageRange> {
        let before = self.ranges.range(..=range.start.0).next_back();
        let inside = self.ranges.range(range.start.0 + 1..);
        let up_to_end = inside.take_while(|(start, _)| **start < range.end().0);
        let parts = before.into_iter().chain(up_to_end);
        let parts = parts.map(|(&start, &end)| PageRange::new(PageNumber(start), end - start));
        parts.filter_map(|part| part.common(range)).collect()
    }

    /// The parts of a range that are not in the set.
    pub fn missing_from(&self, range: PageRange) -> Vec<PageRange> {
        let mut missing = Vec::new();
        let mut at = range.start.0;
        let before = self.ranges.range(..=at).next_back().map(|(&s, &e)| (s, e));
        let inside = self
            .ranges
            .range(at + 1..range.end().0)
            .map(|(&s, &e)| (s, e));
        for (s, e) in before.into_iter().chain(inside) {
            if s > at {
                missing.push(PageRange::new(PageNumber(at), s - at));
            }
            at = at.max(e);
        }
        if at < range.end().0 {
            missing.push(PageRange::new(PageNumber(at), range.end().0 - at));
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::Random;
    use std::collections::BTreeSet;

    #[test]
    fn it_agrees_with_a_set_of_pages() {
        let mut random = Random::from_seed(17);
        let mut set = RangeSet::default();
        let mut model = BTreeSet::new();
        for _ in 0..5_000 {
            let range = PageRange::new(PageNumber(random.below(200)), random.below(30));
            let pages = range.start.0..range.end().0;
            if random.ratio(1, 5) {
                let to = random.below(200);
                set.relocate(range, PageNumber(to));
                let moved: Vec<u64> = pages.clone().filter(|page| model.contains(page)).collect();
                model.retain(|page| !pages.contains(page));
                model.retain(|page| !(to..to + range.count).contains(page));
                model.extend(moved.into_iter().map(|page| page - range.start.0 + to));
            } else if random.ratio(1, 2) {
                set.insert(range);
                model.extend(pages.clone());
            } else {
                set.remove(range);
                model.retain(|page| !pages.contains(page));
            }
            for page in 0..230 {
                assert_eq!(
                    set.contains(PageNumber(page)),
                    model.contains(&page),
                    "{page}"
                );
            }
            let probe = PageRange::new(PageNumber(random.below(200)), 1 + random.below(30));
            let missing: Vec<u64> = set
                .missing_from(probe)
                .into_iter()
                .flat_map(|range| range.start.0..range.end().0)
                .collect();
            let expected: Vec<u64> = (probe.start.0..probe.end().0)
                .filter(|page| !model.contains(page))
                .collect();
            assert_eq!(missing, expected);
            let common: Vec<u64> = set
                .common_with(probe)
                .into_iter()
                .flat_map(|range| range.start.0..range.end().0)
                .collect();
            let is_in_set = |page: &u64| model.contains(page);
            let expected: Vec<u64> = (probe.start.0..probe.end().0).filter(is_in_set).collect();
            assert_eq!(common, expected);
            assert_eq!(set.overlaps(probe), (missing.len() as u64) < probe.count);
        }
    }
}
