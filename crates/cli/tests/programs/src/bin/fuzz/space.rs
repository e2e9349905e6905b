//! The model of one thread's addresses: what every page of them is, and must hold.

use crate::content::Content;
use crate::operation::Operation;
use core::ops::Range;
use legato_base::PAGE_SIZE;
use legato_base::random::Random;

/// What is mapped at a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    Nothing,
    Anonymous,
    /// A private mapping of the file, at one of its pages.
    File(usize),
    Shared {
        object: usize,
        page: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protection {
    None,
    Read,
    ReadExecute,
    ReadWrite,
    All,
}

/// The operations on a page that a failure tells of.
const HISTORY: usize = 6;

#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) backing: Backing,
    pub(crate) protection: Protection,
    /// Pages of one piece have been one mapping all the time: the kernel takes them for one.
    pub(crate) piece: u32,
    /// Not of shared pages: theirs is in the object.
    pub(crate) content: Content,
    /// Given up with MADV_FREE and not written since: the content or zeros.
    pub(crate) is_free: bool,
    pub(crate) is_guard: bool,
    pub(crate) is_locked: bool,
    pub(crate) is_left_by_fork: bool,
    pub(crate) is_wiped_by_fork: bool,
    history: [(u32, Operation); HISTORY],
}

impl Page {
    fn nothing() -> Self {
        Self {
            backing: Backing::Nothing,
            protection: Protection::None,
            piece: 0,
            content: Content::default(),
            is_free: false,
            is_guard: false,
            is_locked: false,
            is_left_by_fork: false,
            is_wiped_by_fork: false,
            history: [(0, Operation::Nothing); HISTORY],
        }
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.backing != Backing::Nothing
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.backing == Backing::Anonymous
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.backing, Backing::Shared { .. })
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.is_mapped() && self.protection >= Protection::Read && !self.is_guard
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is_readable() && self.protection >= Protection::ReadWrite
    }

    /// The page's attributes and place go; its history stays.
    pub(crate) fn clear(&mut self) {
        let history = self.history;
        *self = Self {
            history,
            ..Self::nothing()
        };
    }

    pub(crate) fn history(&self) -> String {
        let past = self.history.iter().rev();
        past.filter(|(_, operation)| *operation != Operation::Nothing)
            .map(|(step, operation)| format!("{step} {}", operation.name()))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) base: usize,
    pub(crate) pages: Vec<Page>,
    /// From here on operations take any pages; before, multiples of units only.
    wild: usize,
    pieces: u32,
}

/// Far memory leaves alone what is mapped in less than 16 pages, so most of the memory is mapped in
/// multiples of this.
pub(crate) const UNIT: usize = 32;

/// At most so many units at a time.
const UNITS_MAX: u64 = 8;
/// At most so many pages at a time where any are taken.
const WILD_PAGES_MAX: u64 = 24;

impl Space {
    pub(crate) fn new(base: usize, pages: usize) -> Self {
        let wild = (pages / 8).min(96);
        Self {
            base,
            pages: vec![Page::nothing(); pages],
            wild: (pages - wild) / UNIT * UNIT,
            pieces: 0,
        }
    }

    pub(crate) fn address(&self, page: usize) -> usize {
        self.base + page * PAGE_SIZE
    }

    pub(crate) fn new_piece(&mut self) -> u32 {
        self.pieces += 1;
        self.pieces
    }

    /// Pages in one of the two parts of the space.
    pub(crate) fn pick(&self, random: &mut Random) -> Range<usize> {
        let all = self.pages.len();
        if self.wild == 0 || random.ratio(1, 3) {
            let start = self.wild + random.below((all - self.wild) as u64) as usize;
            let count = 1 + random.below(WILD_PAGES_MAX) as usize;
            return start..(start + count).min(all);
        }
        let start = random.below((self.wild / UNIT) as u64) as usize * UNIT;
        let count = (1 + random.below(UNITS_MAX) as usize) * UNIT;
        start..(start + count).min(self.wild)
    }

    /// The longest beginning of some picked pages that are all as told.
    pub(crate) fn pick_where(
        &self,
        random: &mut Random,
        is: impl Fn(&Page) -> bool,
    ) -> Option<Range<usize>> {
        (0..12).find_map(|_| {
            let range = self.pick(random);
            let end = range.clone().find(|page| !is(&self.pages[*page]));
            let end = end.unwrap_or(range.end);
            (end > range.start).then_some(range.start..end)
        })
    }

    /// As `pick_where`, within one piece.
    pub(crate) fn pick_piece(
        &self,
        random: &mut Random,
        is: impl Fn(&Page) -> bool,
    ) -> Option<Range<usize>> {
        let range = self.pick_where(random, is)?;
        let piece = self.pages[range.start].piece;
        let end = range.clone().find(|page| self.pages[*page].piece != piece);
        Some(range.start..end.unwrap_or(range.end))
    }

    /// A place for as many pages in the same part of the space, apart from them.
    pub(crate) fn pick_target(&self, random: &mut Random, source: &Range<usize>) -> Option<usize> {
        let count = source.len();
        let (from, to, unit) = match source.start >= self.wild {
            true => (self.wild, self.pages.len(), 1),
            false => (0, self.wild, UNIT),
        };
        let places = (to - from).checked_sub(count)? / unit + 1;
        (0..12).find_map(|_| {
            let target = from + random.below(places as u64) as usize * unit;
            let is_apart = target + count <= source.start || target >= source.end;
            is_apart.then_some(target)
        })
    }

    /// The pages from `page` on, at most `most`, in its part of the space, where nothing is mapped.
    pub(crate) fn room_after(&self, page: usize, most: usize) -> usize {
        let end = if page <= self.wild {
            self.wild
        } else {
            self.pages.len()
        };
        let room = self.pages[page..end].iter();
        let room = room.take_while(|page| !page.is_mapped()).count().min(most);
        if page <= self.wild {
            room / UNIT * UNIT
        } else {
            room
        }
    }

    pub(crate) fn note(&mut self, range: Range<usize>, step: u32, operation: Operation) {
        for page in &mut self.pages[range] {
            page.history.copy_within(1.., 0);
            page.history[HISTORY - 1] = (step, operation);
        }
    }

    /// New pages in place of what was there, as one piece.
    pub(crate) fn place(
        &mut self,
        range: Range<usize>,
        protection: Protection,
        backing: impl Fn(usize) -> (Backing, Content),
    ) {
        let piece = self.new_piece();
        for (index, page) in self.pages[range].iter_mut().enumerate() {
            page.clear();
            (page.backing, page.content) = backing(index);
            page.protection = protection;
            page.piece = piece;
        }
    }

    /// What is mapped from `page` on is another piece than what is before it.
    pub(crate) fn cut(&mut self, page: usize) {
        let new = self.new_piece();
        let behind = &mut self.pages[page..];
        let old = behind.first().map(|page| page.piece);
        let same = |page: &&mut Page| page.is_mapped() && Some(page.piece) == old;
        behind
            .iter_mut()
            .take_while(same)
            .for_each(|page| page.piece = new);
    }

    /// An attribute of these pages changed: what were parts of a piece are pieces of their own.
    pub(crate) fn change(&mut self, range: Range<usize>, mut change: impl FnMut(&mut Page)) {
        let (mut old, mut new) = (0, 0);
        for page in range {
            if self.pages[page].is_mapped() {
                if self.pages[page].piece != old {
                    old = self.pages[page].piece;
                    new = self.new_piece();
                }
                self.pages[page].piece = new;
                change(&mut self.pages[page]);
            } else {
                old = 0;
            }
        }
        // What is behind the range is cut off from what is before it.
    }

    pub(crate) fn count(&self, is: impl Fn(&Page) -> bool) -> usize {
        self.pages.iter().filter(|page| is(page)).count()
    }
}
