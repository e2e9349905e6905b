//! The simulated program: threads that touch pages and change their address space, and the model
//! of what they must find.

use super::content::{page_of, value_of};
use super::failure::FailureKind;
use super::kernel::SimKernel;
use super::space::Access;
use legato_base::{PageNumber, Time};
use legato_pager::{PageRange, SpaceId, SpacePage};
use std::collections::{BTreeMap, BTreeSet};

/// One thing that a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read(PageNumber),
    /// Fills the page with a value's pattern; zero makes it all zeros.
    Write(PageNumber, u64),
    /// `mmap` of fresh anonymous memory.
    Map(PageRange),
    Unmap(PageRange),
    /// `madvise(MADV_DONTNEED)`.
    DontNeed(PageRange),
    /// `madvise(MADV_FREE)`.
    Free(PageRange),
    /// `mlock2(MLOCK_ONFAULT)`.
    Lock(PageRange),
    Unlock(PageRange),
    /// `mremap` to another address, with so many new pages behind.
    Remap {
        from: PageRange,
        to: PageNumber,
        grow: u64,
    },
    /// `mremap` in place: the mapping before these pages grows by them.
    Grow(PageRange),
    Fork,
    /// A device holds the page.
    Pin(PageNumber),
    Unpin(PageNumber),
    /// The process ends.
    Exit,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Value(u64),
    BusError,
    /// EINVAL.
    Invalid,
    Child(SpaceId),
}

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Running {
        operation: Operation,
        since: Time,
    },
    /// Until the page is there.
    Faulted {
        operation: Operation,
        page: u64,
        since: Time,
    },
    /// Until the pager has read the event.
    Announced {
        operation: Operation,
        event: u64,
        outcome: Outcome,
        since: Time,
    },
    Ended,
}

/// What a step of a thread did.
#[derive(Debug)]
pub(super) enum Step {
    Finished(Outcome),
    Waits(State),
    Exits,
}

/// A range whose content `madvise` is about to drop, and what was written there meanwhile.
#[derive(Debug)]
struct Removal {
    space: SpaceId,
    range: PageRange,
    written: BTreeSet<u64>,
}

/// What every page of every space may hold: one value, or one of two while a removal that was
/// announced has not happened yet. Pages that are not here hold zeros.
#[derive(Debug, Default)]
pub(super) struct Model {
    spaces: BTreeMap<SpaceId, BTreeMap<u64, Vec<u64>>>,
    /// Pages that may hold their content or zeros, whatever a read has found, until they are
    /// written or found to be zeros.
    freed: BTreeSet<(SpaceId, u64)>,
    removals: Vec<Removal>,
    /// Parents and children of forks that have not returned.
    forks: Vec<(SpaceId, SpaceId)>,
}

impl Model {
    fn pages(&mut self, space: SpaceId) -> &mut BTreeMap<u64, Vec<u64>> {
        self.spaces.entry(space).or_default()
    }

    pub(super) fn read(
        &mut self,
        space: SpaceId,
        page: u64,
        found: Option<u64>,
    ) -> Result<u64, FailureKind> {
        let allowed = self.allowed(space, page).to_vec();
        match found.filter(|value| allowed.contains(value)) {
            Some(value) => {
                if value == 0 || !self.freed.contains(&(space, page)) {
                    self.settle(space, page, value);
                }
                Ok(value)
            }
            None => Err(FailureKind::WrongData {
                space,
                page: PageNumber(page),
                found,
                allowed,
            }),
        }
    }

    /// The values that a page may hold.
    pub(super) fn allowed(&self, space: SpaceId, page: u64) -> &[u64] {
        let pages = self.spaces.get(&space);
        pages
            .and_then(|pages| pages.get(&page))
            .map_or(&[0], Vec::as_slice)
    }

    pub(super) fn settle(&mut self, space: SpaceId, page: u64, value: u64) {
        self.freed.remove(&(space, page));
        self.pages(space).insert(page, vec![value]);
    }

    fn write(&mut self, space: SpaceId, page: u64, value: u64) {
        self.settle(space, page, value);
        for removal in &mut self.removals {
            if removal.space == space && removal.range.contains(PageNumber(page)) {
                removal.written.insert(page);
            }
        }
    }

    fn begin_removal(&mut self, space: SpaceId, range: PageRange) {
        self.allow_zeros(space, range);
        // Both calls are on their way: either may have come first.
        let forks = self.forks.iter().filter(|(parent, _)| *parent == space);
        let unborn: Vec<SpaceId> = forks.map(|(_, child)| *child).collect();
        for child in unborn {
            self.allow_zeros(child, range);
        }
        self.removals.push(Removal {
            space,
            range,
            written: BTreeSet::new(),
        });
    }

    fn allow_zeros(&mut self, space: SpaceId, range: PageRange) {
        for page in range.start.0..range.end().0 {
            if let Some(allowed) = self.pages(space).get_mut(&page)
                && !allowed.contains(&0)
            {
                allowed.push(0);
            }
        }
    }

    fn end_removal(&mut self, space: SpaceId, range: PageRange) {
        let place = self
            .removals
            .iter()
            .position(|r| r.space == space && r.range == range);
        let Some(removal) = place.map(|place| self.removals.remove(place)) else {
            return;
        };
        for page in range.start.0..range.end().0 {
            // What was written in the meantime may have been moved out before the drop.
            if removal.written.contains(&page)
                && let Some(allowed) = self.pages(space).get_mut(&page)
            {
                allowed.push(0);
            } else {
                self.pages(space).remove(&page);
                self.freed.remove(&(space, page));
            }
        }
    }

    /// Zeros at last, unless it is written first.
    fn end_free(&mut self, space: SpaceId, range: PageRange) {
        let removal = self
            .removals
            .iter()
            .position(|r| r.space == space && r.range == range);
        removal.map(|place| self.removals.remove(place));
        for page in range.start.0..range.end().0 {
            if let Some(allowed) = self.pages(space).get_mut(&page) {
                if !allowed.contains(&0) {
                    allowed.push(0);
                }
                self.freed.insert((space, page));
            }
        }
    }

    fn forget(&mut self, space: SpaceId, range: PageRange) {
        for page in range.start.0..range.end().0 {
            self.pages(space).remove(&page);
            self.freed.remove(&(space, page));
        }
    }

    pub(super) fn end(&mut self, space: SpaceId) {
        self.spaces.remove(&space);
        self.freed.retain(|&(other, _)| other != space);
        self.removals.retain(|removal| removal.space != space);
        self.end_fork(space);
    }

    fn remap(&mut self, space: SpaceId, from: PageRange, to: PageNumber, grow: u64) {
        self.forget(space, PageRange::new(to, from.count + grow));
        for step in 0..from.count {
            if self.freed.remove(&(space, from.start.0 + step)) {
                self.freed.insert((space, to.0 + step));
            }
            if let Some(allowed) = self.pages(space).remove(&(from.start.0 + step)) {
                self.pages(space).insert(to.0 + step, allowed);
            }
        }
    }

    fn fork(&mut self, parent: SpaceId, child: SpaceId) {
        let copy = self.pages(parent).clone();
        let freed: Vec<u64> = self
            .freed
            .range((parent, 0)..=(parent, u64::MAX))
            .map(|&(_, page)| page)
            .collect();
        self.freed
            .extend(freed.into_iter().map(|page| (child, page)));
        self.spaces.insert(child, copy);
        self.forks.push((parent, child));
    }

    /// The fork has returned.
    fn end_fork(&mut self, child: SpaceId) {
        self.forks.retain(|(_, unborn)| *unborn != child);
    }
}

/// Runs `operation` for a thread of `space` as far as it goes.
pub(super) fn step(
    kernel: &mut SimKernel,
    model: &mut Model,
    space: SpaceId,
    state: State,
) -> Result<Step, FailureKind> {
    if let State::Announced { event, .. } = state {
        kernel.space_mut(space).announcements.go_on(event);
    }
    match state {
        State::Running { operation, since } => start(kernel, model, space, operation, since),
        // The event was read: now `madvise` does what it announced; the others have done it.
        State::Announced {
            operation: Operation::DontNeed(range),
            outcome,
            ..
        } => {
            kernel.space_mut(space).zap(range);
            kernel.space_mut(space).end_dropping(range);
            model.end_removal(space, range);
            Ok(Step::Finished(outcome))
        }
        State::Announced {
            operation: Operation::Free(range),
            outcome,
            ..
        } => {
            kernel.space_mut(space).free(range);
            kernel.space_mut(space).end_dropping(range);
            model.end_free(space, range);
            Ok(Step::Finished(outcome))
        }
        State::Announced { outcome, .. } => {
            if let Outcome::Child(child) = outcome {
                model.end_fork(child);
            }
            Ok(Step::Finished(outcome))
        }
        _ => Ok(Step::Finished(Outcome::Done)),
    }
}

fn start(
    kernel: &mut SimKernel,
    model: &mut Model,
    space: SpaceId,
    operation: Operation,
    since: Time,
) -> Result<Step, FailureKind> {
    let announced = |event: Option<u64>, outcome: Outcome| match event {
        Some(event) => Step::Waits(State::Announced {
            operation,
            event,
            outcome,
            since,
        }),
        None => Step::Finished(outcome),
    };
    Ok(match operation {
        Operation::Read(PageNumber(page)) | Operation::Write(PageNumber(page), _) => {
            match kernel.touch(space, page) {
                Access::Fault => Step::Waits(State::Faulted {
                    operation,
                    page,
                    since,
                }),
                Access::BusError => Step::Finished(Outcome::BusError),
                Access::SegmentationFault => {
                    return Err(FailureKind::NotMapped {
                        page: PageNumber(page),
                    });
                }
                Access::Page => Step::Finished(access(kernel, model, space, page, operation)?),
            }
        }
        Operation::Map(range) => {
            model.forget(space, range);
            announced(kernel.map(space, range), Outcome::Done)
        }
        Operation::Unmap(range) => {
            model.forget(space, range);
            announced(kernel.unmap(space, range), Outcome::Done)
        }
        Operation::DontNeed(range) | Operation::Free(range) => {
            if !kernel.space_mut(space).is_droppable(range) {
                return Ok(Step::Finished(Outcome::Invalid));
            }
            model.begin_removal(space, range);
            let state = State::Announced {
                operation,
                event: kernel.announce_removal(space, range).unwrap_or(0),
                outcome: Outcome::Done,
                since,
            };
            match state {
                State::Announced { event: 0, .. } => return step(kernel, model, space, state),
                waits => Step::Waits(waits),
            }
        }
        Operation::Lock(range) => {
            let pages = range.start.0..range.end().0;
            kernel.space_mut(space).locked.extend(pages);
            Step::Finished(Outcome::Done)
        }
        Operation::Unlock(range) => {
            let place = kernel.space_mut(space);
            place
                .locked
                .retain(|&page| !range.contains(PageNumber(page)));
            Step::Finished(Outcome::Done)
        }
        Operation::Grow(new) => {
            model.forget(space, new);
            kernel.space_mut(space).grow(new);
            Step::Finished(Outcome::Done)
        }
        Operation::Remap { from, to, grow } => {
            model.remap(space, from, to, grow);
            announced(kernel.remap(space, from, to, grow), Outcome::Done)
        }
        Operation::Fork => {
            let (child, event) = kernel.fork(space);
            model.fork(space, child);
            if event.is_none() {
                model.end_fork(child);
            }
            announced(event, Outcome::Child(child))
        }
        Operation::Pin(page) => {
            let place = kernel.space_mut(space);
            if let Some(content) = place.present.get_mut(&page.0) {
                content.unshare();
                // Without a write, so that nobody sees it.
                if place.lazy.remove(&page.0) {
                    place.strays.insert(page.0);
                }
                place.pinned.insert(page.0);
            }
            Step::Finished(Outcome::Done)
        }
        Operation::Unpin(page) => {
            kernel.space_mut(space).pinned.remove(&page.0);
            Step::Finished(Outcome::Done)
        }
        Operation::Exit => Step::Exits,
    })
}

/// The page is there: reads or writes it.
fn access(
    kernel: &mut SimKernel,
    model: &mut Model,
    space: SpaceId,
    page: u64,
    operation: Operation,
) -> Result<Outcome, FailureKind> {
    let place = kernel.space_mut(space);
    let content = place
        .present
        .get_mut(&page)
        .expect("the page was touched just now");
    // Writes look too: a page that comes back wrong is wrong whoever overwrites it.
    let value = model.read(space, page, value_of(content.bytes()))?;
    if let Operation::Write(_, new) = operation {
        content.write(page_of(new));
        if place.lazy.remove(&page) || place.is_being_dropped(page) {
            kernel.report_written(SpacePage::new(space, PageNumber(page)));
        }
        model.write(space, page, new);
        return Ok(Outcome::Done);
    }
    Ok(Outcome::Value(value))
}
