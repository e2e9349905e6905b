//! The page table of the pager: sparse, in chunks of 512 pages (2 MiB of address space), so that
//! ranges can be dropped and moved without walking what is not there.

use crate::PageRange;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use legato_base::PageNumber;

const CHUNK_SHIFT: u32 = 9;
const CHUNK_PAGES: usize = 1 << CHUNK_SHIFT;

#[derive(Debug)]
struct Chunk<T> {
    used: u32,
    entries: Box<[Option<T>]>,
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

    pub(crate) fn entry(&self, page: PageNumber) -> Option<&T> {
        self.chunks.get(&chunk_of(page))?.entries[index_of(page)].as_ref()
    }

    pub(crate) fn entry_mut(&mut self, page: PageNumber) -> Option<&mut T> {
        self.chunks.get_mut(&chunk_of(page))?.entries[index_of(page)].as_mut()
    }

    /// Returns the entry that was there.
    pub(crate) fn insert(&mut self, page: PageNumber, entry: T) -> Option<T> {
        let chunk = self.chunks.entry(chunk_of(page)).or_insert_with(|| Chunk {
            used: 0,
            entries: (0..CHUNK_PAGES).map(|_| None).collect(),
        });
        let old = chunk.entries[index_of(page)].replace(entry);
        if old.is_none() {
            chunk.used += 1;
            self.pages += 1;
        }
        old
    }

    pub(crate) fn remove(&mut self, page: PageNumber) -> Option<T> {
        let chunk = self.chunks.get_mut(&chunk_of(page))?;
        let old = chunk.entries[index_of(page)].take()?;
        chunk.used -= 1;
        self.pages -= 1;
        if chunk.used == 0 {
            self.chunks.remove(&chunk_of(page));
        }
        Some(old)
    }

    /// Takes every entry of a range out, in order.
    pub(crate) fn remove_range(&mut self, range: PageRange) -> Vec<(PageNumber, T)> {
        let mut removed = Vec::new();
        for page in self.pages_in(range) {
            if let Some(entry) = self.remove(page) {
                removed.push((page, entry));
            }
        }
        removed
    }

    fn pages_in(&self, range: PageRange) -> Vec<PageNumber> {
        if range.count == 0 {
            return Vec::new();
        }
        let last = chunk_of(PageNumber(range.end().0 - 1));
        self.chunks
            .range(chunk_of(range.start)..=last)
            .flat_map(|(&chunk, entries)| pages_of(chunk, entries))
            .map(|(page, _)| page)
            .filter(|&page| range.contains(page))
            .collect()
    }

    /// All entries, by page.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PageNumber, &T)> {
        self.chunks
            .iter()
            .flat_map(|(&chunk, entries)| pages_of(chunk, entries))
    }

    /// All entries, by page, to change in place.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PageNumber, &mut T)> {
        self.chunks.iter_mut().flat_map(|(&chunk, entries)| {
            entries
                .entries
                .iter_mut()
                .enumerate()
                .filter_map(move |(index, entry)| {
                    entry.as_mut().map(|entry| (page_at(chunk, index), entry))
                })
        })
    }
}

fn pages_of<T>(chunk: u64, entries: &Chunk<T>) -> impl Iterator<Item = (PageNumber, &T)> {
    entries
        .entries
        .iter()
        .enumerate()
        .filter_map(move |(index, entry)| {
            entry.as_ref().map(|entry| (page_at(chunk, index), entry))
        })
}

const fn page_at(chunk: u64, index: usize) -> PageNumber {
    PageNumber((chunk << CHUNK_SHIFT) + index as u64)
}

const fn chunk_of(page: PageNumber) -> u64 {
    page.0 >> CHUNK_SHIFT
}

const fn index_of(page: PageNumber) -> usize {
    page.0 as usize & (CHUNK_PAGES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use legato_base::Random;
    use std::collections::BTreeMap;

    #[test]
    fn it_agrees_with_a_plain_map() {
        let mut random = Random::from_seed(1);
        let mut table = PageTable::default();
        let mut model = BTreeMap::new();
        for step in 0..20_000u64 {
            let page = PageNumber(random.below(3000));
            match random.below(10) {
                0..5 => assert_eq!(table.insert(page, step), model.insert(page, step)),
                5..9 => assert_eq!(table.remove(page), model.remove(&page)),
                _ => {
                    let range = PageRange::new(page, random.below(700));
                    let removed = table.remove_range(range);
                    let expected: Vec<_> = model
                        .extract_if(.., |page, _| range.contains(*page))
                        .collect();
                    assert_eq!(removed, expected);
                }
            }
            assert_eq!(table.len(), model.len() as u64);
            assert_eq!(table.entry(page), model.get(&page));
        }
        assert!(table.iter().map(|(page, &value)| (page, value)).eq(model));
    }
}
