//! The page table of the pager: sparse, in chunks of 64 pages (256 KiB of address space), so that
//! ranges can be dropped and moved without walking what is not there. A chunk holds what it has and
//! nothing else: a program with forked children has one for each place where any of them has a page.

use crate::{PageRange, SpaceId, SpacePage};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

const CHUNK_SHIFT: u32 = 6;
const CHUNK_PAGES: u64 = u64::BITS as u64;
const _: () = assert!(1 << CHUNK_SHIFT == CHUNK_PAGES);

#[derive(Debug)]
struct Chunk<T> {
    /// A bit for each page that has an entry.
    present: u64,
    /// In order of page.
    entries: Vec<T>,
}

impl<T> Chunk<T> {
    const fn new() -> Self {
        Self {
            present: 0,
            entries: Vec::new(),
        }
    }

    /// Where the entry of a page is, or would be if it had one.
    const fn place(&self, index: u32) -> usize {
        (self.present & ((1 << index) - 1)).count_ones() as usize
    }

    const fn has(&self, index: u32) -> bool {
        self.present & 1 << index != 0
    }

    fn entry(&self, index: u32) -> Option<&T> {
        self.has(index).then(|| &self.entries[self.place(index)])
    }

    fn entry_mut(&mut self, index: u32) -> Option<&mut T> {
        let place = self.place(index);
        self.has(index).then(|| &mut self.entries[place])
    }

    fn insert(&mut self, index: u32, entry: T) -> Option<T> {
        if let Some(old) = self.entry_mut(index) {
            return Some(core::mem::replace(old, entry));
        }
        self.entries.insert(self.place(index), entry);
        self.present |= 1 << index;
        None
    }

    fn remove(&mut self, index: u32) -> Option<T> {
        if !self.has(index) {
            return None;
        }
        let entry = self.entries.remove(self.place(index));
        self.present &= !(1 << index);
        self.shrink();
        Some(entry)
    }

    fn shrink(&mut self) {
        if self.entries.len() <= self.entries.capacity() / 4 {
            self.entries.shrink_to_fit();
        }
    }

    /// Takes the entries of neighbouring pages out, which `mask` has a bit for each of.
    fn take(&mut self, mask: u64) -> Self {
        let present = self.present & mask;
        let first = self.place(mask.trailing_zeros());
        let taken = first..first + present.count_ones() as usize;
        let entries = self.entries.drain(taken).collect();
        self.present &= !mask;
        self.shrink();
        Self { present, entries }
    }
}

/// The pages that a chunk has, from 0.
fn indices(present: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |index| present & 1 << index != 0)
}

/// Page number to entry.
#[derive(Debug)]
pub(crate) struct PageTable<T> {
    chunks: BTreeMap<u64, Chunk<T>>,
    pages: u64,
}

impl<T> Default for PageTable<T> {
    fn default() -> Self {
        Self {
            chunks: BTreeMap::new(),
            pages: 0,
        }
    }
}

impl<T> PageTable<T> {
    #[cfg(test)]
    pub(crate) const fn len(&self) -> u64 {
        self.pages
    }

    pub(crate) fn entry(&self, page: SpacePage) -> Option<&T> {
        self.chunks.get(&chunk_of(page))?.entry(index_of(page))
    }

    pub(crate) fn entry_mut(&mut self, page: SpacePage) -> Option<&mut T> {
        self.chunks
            .get_mut(&chunk_of(page))?
            .entry_mut(index_of(page))
    }

    /// Returns the entry that was there.
    pub(crate) fn insert(&mut self, page: SpacePage, entry: T) -> Option<T> {
        let chunk = self.chunks.entry(chunk_of(page)).or_insert(Chunk::new());
        let old = chunk.insert(index_of(page), entry);
        self.pages += u64::from(old.is_none());
        old
    }

    pub(crate) fn remove(&mut self, page: SpacePage) -> Option<T> {
        let chunk = self.chunks.get_mut(&chunk_of(page))?;
        let old = chunk.remove(index_of(page))?;
        self.pages -= 1;
        if chunk.present == 0 {
            self.chunks.remove(&chunk_of(page));
        }
        Some(old)
    }

    /// Takes out the entries that are in the first chunk of a range that has any, by page. A range is
    /// taken out by as many calls as it has chunks: a list of all of its entries would be larger than
    /// the table.
    pub(crate) fn take_first(
        &mut self,
        space: SpaceId,
        range: PageRange,
    ) -> Option<impl Iterator<Item = (SpacePage, T)> + use<T>> {
        let first = SpacePage::new(space, range.start);
        let end = first.plus(range.count);
        let mut chunks = self.chunks.range(chunk_of(first)..=chunk_of(end));
        let (number, mask) = chunks.find_map(|(&number, chunk)| {
            let mask = mask_of(number, first, end);
            (chunk.present & mask != 0).then_some((number, mask))
        })?;
        let taken = self.take_from(number, mask)?;
        self.pages -= taken.entries.len() as u64;
        let pages = indices(taken.present).map(move |index| page_at(number, index));
        Some(pages.zip(taken.entries))
    }

    fn take_from(&mut self, number: u64, mask: u64) -> Option<Chunk<T>> {
        let chunk = self.chunks.get_mut(&number)?;
        if chunk.present & !mask == 0 {
            self.chunks.remove(&number)
        } else {
            Some(chunk.take(mask))
        }
    }

    /// Gives a space what `derive` makes of each entry of another one: (its page, the entry, the page
    /// in the new space). The new one must have none.
    pub(crate) fn derive(
        &mut self,
        from: SpaceId,
        to: SpaceId,
        mut derive: impl FnMut(SpacePage, &T, SpacePage) -> Option<T>,
    ) {
        let first = SpacePage::new(from, PageRange::ALL.start);
        let end = chunk_of(first.plus(PageRange::ALL.count));
        let mut next = chunk_of(first);
        while let Some((&number, chunk)) = self.chunks.range(next..=end).next() {
            next = number + 1;
            let target = chunk_of(SpacePage::new(to, page_at(number, 0).page()));
            let mut derived = Chunk::new();
            derived.entries.reserve_exact(chunk.entries.len());
            for (index, entry) in indices(chunk.present).zip(&chunk.entries) {
                if let Some(entry) = derive(page_at(number, index), entry, page_at(target, index)) {
                    derived.present |= 1 << index;
                    derived.entries.push(entry);
                }
            }
            derived.shrink();
            if derived.present != 0 {
                self.pages += derived.entries.len() as u64;
                self.chunks.insert(target, derived);
            }
        }
    }

    /// The entries of a range, in order.
    pub(crate) fn range(
        &self,
        space: SpaceId,
        range: PageRange,
    ) -> impl Iterator<Item = (SpacePage, &T)> {
        let first = SpacePage::new(space, range.start);
        let end = first.plus(range.count);
        self.chunks
            .range(chunk_of(first)..=chunk_of(end))
            .flat_map(|(&chunk, entries)| pages_of(chunk, entries))
            .filter(move |(page, _)| (first..end).contains(page))
    }

    /// All entries, by page.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SpacePage, &T)> {
        self.chunks
            .iter()
            .flat_map(|(&chunk, entries)| pages_of(chunk, entries))
    }

    /// All entries, by page, to change in place.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (SpacePage, &mut T)> {
        self.chunks.iter_mut().flat_map(|(&number, chunk)| {
            indices(chunk.present)
                .map(move |index| page_at(number, index))
                .zip(&mut chunk.entries)
        })
    }
}

fn pages_of<T>(number: u64, chunk: &Chunk<T>) -> impl Iterator<Item = (SpacePage, &T)> {
    indices(chunk.present)
        .map(move |index| page_at(number, index))
        .zip(&chunk.entries)
}

const fn page_at(chunk: u64, index: u32) -> SpacePage {
    SpacePage::from_bits((chunk << CHUNK_SHIFT) + index as u64)
}

const fn chunk_of(page: SpacePage) -> u64 {
    page.bits() >> CHUNK_SHIFT
}

const fn index_of(page: SpacePage) -> u32 {
    (page.bits() & (CHUNK_PAGES - 1)) as u32
}

/// A bit for each page of a chunk that is in `first..end`.
fn mask_of(chunk: u64, first: SpacePage, end: SpacePage) -> u64 {
    let start = chunk << CHUNK_SHIFT;
    let below = |page: SpacePage| {
        let pages = page.bits().saturating_sub(start).min(CHUNK_PAGES);
        u64::MAX
            .checked_shr(CHUNK_PAGES as u32 - pages as u32)
            .unwrap_or(0)
    };
    below(end) & !below(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::{PageNumber, Random};
    use std::collections::BTreeMap;

    #[test]
    fn it_agrees_with_a_plain_map() {
        let mut random = Random::from_seed(1);
        let mut table = PageTable::default();
        let mut model = BTreeMap::new();
        for step in 0..20_000u64 {
            let space = SpaceId(random.below(2) as u32);
            let page = SpacePage::new(space, PageNumber(random.below(3000)));
            match random.below(10) {
                0..5 => assert_eq!(table.insert(page, step), model.insert(page, step)),
                5..9 => assert_eq!(table.remove(page), model.remove(&page)),
                _ => {
                    let range = PageRange::new(page.page(), random.below(700));
                    let in_range =
                        |page: SpacePage| page.space() == space && range.contains(page.page());
                    let first = model.keys().copied().find(|&page| in_range(page));
                    let expected: Vec<_> = model
                        .extract_if(.., |&page, _| {
                            in_range(page) && first.map(chunk_of) == Some(chunk_of(page))
                        })
                        .collect();
                    let taken: Vec<_> = table
                        .take_first(space, range)
                        .into_iter()
                        .flatten()
                        .collect();
                    assert_eq!(taken, expected);
                }
            }
            assert_eq!(table.len(), model.len() as u64);
            assert_eq!(table.entry(page), model.get(&page));
        }
        assert!(table.iter().map(|(page, &value)| (page, value)).eq(model));
    }

    #[test]
    fn a_space_derives_from_another_what_is_made_of_it() {
        let (parent, child) = (SpaceId(1), SpaceId(7));
        let mut table = PageTable::default();
        for number in [0, 1, 63, 64, 640, 641, 1000] {
            table.insert(SpacePage::new(parent, PageNumber(number)), number);
            table.insert(SpacePage::new(SpaceId(2), PageNumber(number)), 0);
        }
        table.derive(parent, child, |page, &entry, derived| {
            assert_eq!((page.space(), derived.space()), (parent, child));
            assert_eq!((page.page().0, derived.page().0), (entry, entry));
            (entry % 10 != 0).then_some(entry + 1)
        });
        let derived: Vec<_> = table
            .range(child, PageRange::ALL)
            .map(|(page, &entry)| (page.page().0, entry))
            .collect();
        assert_eq!(derived, [(1, 2), (63, 64), (64, 65), (641, 642)]);
        assert_eq!(table.len(), 18);
    }
}
