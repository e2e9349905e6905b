//! What the program of a seed does.

use super::config::WorldConfig;
use super::program::{Operation, State};
use legato_base::{PageNumber, Random};
use legato_pager::{PageRange, SpaceId};
use std::collections::BTreeMap;

/// Forked children that live at a time.
const CHILDREN_MAX: usize = 3;
/// Operations of a child, on average.
const CHILD_LIFE: u64 = 400;
/// One operation in so many while there are children comes with the end of a process.
const KILLED_EVERY: u64 = 1500;
/// Pages that a space has locked at a time.
const LOCKED_MAX: u64 = 24;

/// How a thread walks.
#[derive(Clone, Copy, Debug)]
enum Walk {
    Forward {
        next: u64,
        left: u64,
    },
    Anywhere {
        left: u64,
    },
    /// Around one place again and again.
    Near {
        place: u64,
        left: u64,
    },
}

/// The choices of all threads.
#[derive(Debug)]
pub(super) struct Workload {
    random: Random,
    memory_pages: u64,
    moves: u64,
    mappings: BTreeMap<SpaceId, Vec<PageRange>>,
    /// Address ranges that were unmapped and may be used again.
    vacant: Vec<PageRange>,
    next_address: u64,
    walks: Vec<Walk>,
    /// What each thread was given last. Its effect on the mappings counts once it has ended.
    given: Vec<Option<(SpaceId, Operation)>>,
    /// The place that this has given up is among the vacant ones.
    is_vacated: Vec<bool>,
    pinned: Vec<PageNumber>,
    /// One range of each space that is locked for a while.
    locked: BTreeMap<SpaceId, PageRange>,
    last_value: u64,
}

impl Workload {
    pub(super) fn new(random: Random, config: &WorldConfig) -> Self {
        Self {
            random,
            memory_pages: config.memory_pages,
            moves: config.moves,
            mappings: BTreeMap::new(),
            vacant: Vec::new(),
            next_address: 0x10_0000,
            walks: Vec::new(),
            given: Vec::new(),
            is_vacated: Vec::new(),
            pinned: Vec::new(),
            locked: BTreeMap::new(),
            last_value: 0,
        }
    }

    fn mapped(&self, space: SpaceId) -> u64 {
        self.mappings
            .get(&space)
            .into_iter()
            .flatten()
            .map(|range| range.count)
            .sum()
    }

    /// A child has begun, with these mappings.
    pub(super) fn forked(&mut self, child: SpaceId, mappings: Vec<PageRange>) {
        self.mappings.insert(child, mappings);
    }

    /// What the thread was given last has ended.
    pub(super) fn ended(&mut self, thread: usize) {
        self.vacate(thread);
        let given = self.given.get_mut(thread).and_then(Option::take);
        let Some((space, operation)) = given else {
            return;
        };
        let mapped = match operation {
            Operation::Map(range) => range,
            Operation::Remap { from, to, grow } => PageRange::new(to, from.count + grow),
            _ => return,
        };
        self.mappings.entry(space).or_default().push(mapped);
    }

    /// What the thread has unmapped or moved has left its place. The kernel hands that out again
    /// before it has announced this.
    fn vacate(&mut self, thread: usize) {
        let given = self.given.get(thread).copied().flatten();
        // In a child the same addresses may be mapped still, or again.
        if let Some((SpaceId::OWN, operation)) = given
            && let Operation::Unmap(range) | Operation::Remap { from: range, .. } = operation
            && !std::mem::replace(&mut self.is_vacated[thread], true)
        {
            self.vacant.push(range);
        }
    }

    /// The next thing for a thread; `threads` are all of them with their spaces.
    pub(super) fn next(
        &mut self,
        thread: usize,
        space: SpaceId,
        threads: &[(SpaceId, State)],
    ) -> Operation {
        for (thread, (_, state)) in threads.iter().enumerate() {
            if matches!(state, State::Announced { .. }) {
                self.vacate(thread);
            }
        }
        let operation = if space == SpaceId::OWN {
            self.next_of_program(thread, threads)
        } else {
            self.next_in_child(thread, space, threads)
        };
        if self.given.len() <= thread {
            self.given.resize(thread + 1, None);
            self.is_vacated.resize(thread + 1, false);
        }
        self.given[thread] = Some((space, operation));
        self.is_vacated[thread] = false;
        operation
    }

    fn next_of_program(&mut self, thread: usize, threads: &[(SpaceId, State)]) -> Operation {
        if self.mapped(SpaceId::OWN) > 0 && self.random.ratio(4, 1000) {
            return self.pin_or_unpin();
        }
        self.next_in(thread, SpaceId::OWN, threads)
    }

    fn next_in(
        &mut self,
        thread: usize,
        space: SpaceId,
        threads: &[(SpaceId, State)],
    ) -> Operation {
        let mapped = self.mapped(space);
        if mapped == 0 || mapped < self.memory_pages && self.random.ratio(1, 4) {
            return self.map(space);
        }
        // Whoever gives up memory is followed by others more often than by chance, so that some get
        // its place.
        let moves = self.moves * if gives_up(space, threads) { 25 } else { 1 };
        if self.random.ratio(moves, 1000) {
            return self.remap(space, threads);
        }
        match self.random.below(1000) {
            0..25 => self.drop_content(space, threads),
            25..32 => self.unmap(space, threads),
            32..36 => self.lock_or_unlock(space),
            36..40 if self.children(threads) < CHILDREN_MAX => Operation::Fork,
            _ => self.touch(thread, space, threads),
        }
    }

    fn next_in_child(
        &mut self,
        thread: usize,
        space: SpaceId,
        threads: &[(SpaceId, State)],
    ) -> Operation {
        if self.random.ratio(1, CHILD_LIFE) || self.mapped(space) == 0 {
            self.forget_space(space);
            return Operation::Exit;
        }
        self.next_in(thread, space, threads)
    }

    /// A process was killed, whatever it was doing.
    pub(super) fn killed(&mut self, space: SpaceId) {
        self.forget_space(space);
        for given in &mut self.given {
            *given = given.filter(|&(other, _)| other != space);
        }
    }

    fn forget_space(&mut self, space: SpaceId) {
        self.mappings.remove(&space);
        self.locked.remove(&space);
    }

    /// A process that is to be killed now; seldom the program, and only while children go on.
    pub(super) fn any_victim(&mut self, threads: &[(SpaceId, State)]) -> Option<SpaceId> {
        if self.children(threads) == 0 || !self.random.ratio(1, KILLED_EVERY) {
            return None;
        }
        let (space, state) = threads[self.random.below(threads.len() as u64) as usize];
        let spared = space == SpaceId::OWN && !self.random.ratio(1, 8);
        (state != State::Ended && !spared).then_some(space)
    }

    fn children(&self, threads: &[(SpaceId, State)]) -> usize {
        let lives =
            |&&(space, state): &&(SpaceId, State)| space != SpaceId::OWN && state != State::Ended;
        threads.iter().filter(lives).count()
    }

    fn map(&mut self, space: SpaceId) -> Operation {
        let reuse = space == SpaceId::OWN && self.random.ratio(1, 2);
        let reused = reuse.then(|| self.vacant.pop()).flatten();
        let range = reused.unwrap_or_else(|| {
            let count = 1 + self.random.below(400);
            self.fresh(count)
        });
        Operation::Map(range)
    }

    fn fresh(&mut self, count: u64) -> PageRange {
        // Sometimes right behind the last one, as allocators do.
        let gap = self.random.below(2) * self.random.below(700);
        let range = PageRange::new(PageNumber(self.next_address + gap), count);
        self.next_address = range.end().0;
        range
    }

    fn any_mapping(&mut self, space: SpaceId) -> PageRange {
        let mappings = &self.mappings[&space];
        mappings[self.random.below(mappings.len() as u64) as usize]
    }

    /// A part of a mapping.
    fn any_part(&mut self, space: SpaceId) -> PageRange {
        let range = self.any_mapping(space);
        let count = 1 + self.random.below(range.count.min(80));
        let start = self.random.below(range.count - count + 1);
        PageRange::new(range.start.plus(start), count)
    }

    fn drop_content(&mut self, space: SpaceId, threads: &[(SpaceId, State)]) -> Operation {
        let range = self.any_part(space);
        if is_used(space, range, threads) {
            return Operation::Read(range.start);
        }
        if self.random.ratio(1, 3) {
            Operation::Free(range)
        } else {
            Operation::DontNeed(range)
        }
    }

    fn lock_or_unlock(&mut self, space: SpaceId) -> Operation {
        if let Some(range) = self.locked.remove(&space) {
            return Operation::Unlock(range);
        }
        let part = self.any_part(space);
        let range = PageRange::new(part.start, part.count.min(LOCKED_MAX));
        self.locked.insert(space, range);
        Operation::Lock(range)
    }

    fn unmap(&mut self, space: SpaceId, threads: &[(SpaceId, State)]) -> Operation {
        let part = self.any_part(space);
        // Half of the time the whole mapping goes.
        let whole = self.mappings[&space]
            .iter()
            .copied()
            .find(|range| range.contains(part.start))
            .unwrap_or(part);
        let range = if self.random.ratio(1, 2) { whole } else { part };
        if is_used(space, range, threads) {
            return Operation::Read(range.start);
        }
        self.cut(space, range);
        Operation::Unmap(range)
    }

    fn remap(&mut self, space: SpaceId, threads: &[(SpaceId, State)]) -> Operation {
        let from = self.any_part(space);
        if is_used(space, from, threads) {
            return Operation::Read(from.start);
        }
        let grow = self.random.below(2) * self.random.below(20);
        let to = self.place(space, from.count + grow);
        self.cut(space, from);
        Operation::Remap { from, to, grow }
    }

    /// For so many pages: where memory was until lately, if it is large enough.
    fn place(&mut self, space: SpaceId, count: u64) -> PageNumber {
        let reuse = space == SpaceId::OWN && self.random.ratio(2, 3);
        let is_enough = |vacant: &PageRange| vacant.count >= count;
        let found = self.vacant.iter().rposition(is_enough);
        let Some(found) = found.filter(|_| reuse) else {
            return self.fresh(count).start;
        };
        let place = self.vacant.remove(found);
        if place.count > count {
            let rest = PageRange::new(place.start.plus(count), place.count - count);
            self.vacant.insert(found, rest);
        }
        place.start
    }

    /// Takes a part out of the mapping that it lies in.
    fn cut(&mut self, space: SpaceId, part: PageRange) {
        let Some(mappings) = self.mappings.get_mut(&space) else {
            return;
        };
        let Some(place) = mappings.iter().position(|range| range.contains(part.start)) else {
            return;
        };
        let whole = mappings.remove(place);
        let before = PageRange::new(whole.start, part.start.0 - whole.start.0);
        let after = PageRange::new(part.end(), whole.end().0 - part.end().0);
        mappings.extend([before, after].into_iter().filter(|range| range.count > 0));
    }

    fn pin_or_unpin(&mut self) -> Operation {
        if self.pinned.len() > 8 || !self.pinned.is_empty() && self.random.ratio(1, 2) {
            return Operation::Unpin(self.pinned.swap_remove(0));
        }
        let page = self.any_part(SpaceId::OWN).start;
        self.pinned.push(page);
        Operation::Pin(page)
    }

    fn touch(&mut self, thread: usize, space: SpaceId, threads: &[(SpaceId, State)]) -> Operation {
        let page = self.walk(thread, space);
        let changing = |&(other, state): &(SpaceId, State)| {
            other == space
                && matches!(state, State::Announced { operation: Operation::DontNeed(range) | Operation::Free(range), .. }
                    if range.contains(PageNumber(page)))
        };
        // Touching what another thread is dropping is odd, and legal.
        let page = if threads.iter().any(changing) && !self.random.ratio(1, 8) {
            self.any_mapping(space).start.0
        } else {
            page
        };
        match self.random.below(100) {
            0..3 => Operation::Write(PageNumber(page), 0),
            3..45 => {
                self.last_value += 1;
                Operation::Write(PageNumber(page), self.last_value)
            }
            _ => Operation::Read(PageNumber(page)),
        }
    }

    fn walk(&mut self, thread: usize, space: SpaceId) -> u64 {
        while self.walks.len() <= thread {
            self.walks.push(Walk::Anywhere { left: 0 });
        }
        let over = match self.walks[thread] {
            Walk::Forward { next, left } => left == 0 || !self.is_mapped(space, next),
            Walk::Anywhere { left } | Walk::Near { left, .. } => left == 0,
        };
        if over {
            self.walks[thread] = self.new_walk(space);
        }
        let page = match &mut self.walks[thread] {
            Walk::Forward { next, left } => {
                *left -= 1;
                *next += 1;
                *next - 1
            }
            Walk::Anywhere { left } => {
                *left -= 1;
                let range = self.any_mapping(space);
                range.start.0 + self.random.below(range.count)
            }
            Walk::Near { place, left } => {
                *left -= 1;
                *place + self.random.below(24)
            }
        };
        if self.is_mapped(space, page) {
            page
        } else {
            self.any_mapping(space).start.0
        }
    }

    fn new_walk(&mut self, space: SpaceId) -> Walk {
        let range = self.any_mapping(space);
        let place = range.start.0 + self.random.below(range.count);
        let left = 1 + self.random.below(150);
        match self.random.below(4) {
            0 | 1 => Walk::Forward { next: place, left },
            2 => Walk::Anywhere { left },
            _ => Walk::Near { place, left },
        }
    }

    fn is_mapped(&self, space: SpaceId, page: u64) -> bool {
        let mappings = self.mappings.get(&space).into_iter().flatten();
        mappings
            .into_iter()
            .any(|range| range.contains(PageNumber(page)))
    }

    /// What is mapped, for whoever cleans up.
    pub(super) fn take_mapping(&mut self) -> Option<PageRange> {
        self.mappings.get_mut(&SpaceId::OWN)?.pop()
    }
}

/// True if a thread has given up memory and waits until that was read.
fn gives_up(space: SpaceId, threads: &[(SpaceId, State)]) -> bool {
    threads.iter().any(|&(other, state)| {
        let State::Announced { operation, .. } = state else {
            return false;
        };
        other == space && matches!(operation, Operation::Unmap(_) | Operation::Remap { .. })
    })
}

/// True if an unfinished operation of the space concerns the range.
fn is_used(space: SpaceId, range: PageRange, threads: &[(SpaceId, State)]) -> bool {
    threads.iter().any(|&(other, state)| {
        let operation = match state {
            State::Running { operation, .. }
            | State::Faulted { operation, .. }
            | State::Announced { operation, .. } => operation,
            State::Idle | State::Ended => return false,
        };
        let used = match operation {
            Operation::Read(page)
            | Operation::Write(page, _)
            | Operation::Pin(page)
            | Operation::Unpin(page) => PageRange::new(page, 1),
            Operation::Map(range)
            | Operation::Unmap(range)
            | Operation::DontNeed(range)
            | Operation::Free(range)
            | Operation::Lock(range)
            | Operation::Unlock(range)
            | Operation::Grow(range) => range,
            Operation::Remap { from, to, grow } => {
                let moved = PageRange::new(to, from.count + grow);
                return other == space && (overlap(range, from) || overlap(range, moved));
            }
            Operation::Fork | Operation::Exit => return false,
        };
        other == space && overlap(range, used)
    })
}

const fn overlap(left: PageRange, right: PageRange) -> bool {
    left.start.0 < right.end().0 && right.start.0 < left.end().0
}
