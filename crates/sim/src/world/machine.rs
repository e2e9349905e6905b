//! The model of the kernel by itself, without a pager: one call at a time, so that each can be
//! compared with what Linux does.

use super::content::{page_of, value_of};
use super::frames::{Registered, SimFrames};
use super::kernel::SimKernel;
use super::program::{Model, Operation, Outcome, State, Step, step};
use legato_base::wire::slot::SLOT_HEADER_SIZE;
use legato_base::{PAGE_SIZE, PageNumber, Random, Time};
use legato_pager::{
    EvictError, FillError, FrameIndex, FrameMemory, Incoming, Kernel, PageRange, SpaceId, SpacePage,
};
use legato_verbs::{LocalKey, MemoryRegion, RemoteKey};
use std::cell::RefCell;
use std::rc::Rc;

/// How far a call of the program got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Finished(Outcome),
    /// The process is gone.
    Exited,
    /// The page is missing, and must be filled.
    Faulted,
    /// An event must be read first.
    Announced,
}

/// What a page table says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    Missing,
    Present,
    Poisoned,
}

/// Programs on the modelled kernel, and nothing that happens by chance.
#[derive(Debug)]
pub struct Machine {
    kernel: SimKernel,
    model: Model,
    waiting: Option<(SpaceId, State)>,
    /// Holds what is copied.
    spare: FrameIndex,
}

impl Machine {
    /// With so many empty frames.
    pub fn new(frames: u32) -> Self {
        let spare = FrameIndex(frames);
        let pages = memory(frames + 1, PAGE_SIZE);
        let headers = memory(frames + 1, SLOT_HEADER_SIZE);
        let frames = SimFrames::new(frames + 1, pages, headers);
        // What the kernel says is to be seen as it says it.
        let kernel = SimKernel::new(frames, Random::from_seed(0), None);
        let mut kernel = kernel.steady().following_at_once();
        kernel.add_frames(spare, 1);
        Self {
            kernel,
            spare,
            model: Model::default(),
            waiting: None,
        }
    }

    pub fn register(&mut self, space: SpaceId, range: PageRange) {
        let pages = range.start.0..range.end().0;
        self.kernel.space_mut(space).registered.extend(pages);
    }

    pub fn is_registered(&self, page: SpacePage) -> bool {
        self.kernel.is_registered(page)
    }

    /// Moves a page out; returns its value.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn move_out(&mut self, page: SpacePage, frame: FrameIndex) -> Result<u64, EvictError> {
        self.kernel.move_out(page, frame, 1).1?;
        // Nobody sees to it that the content comes back.
        self.model.settle(page.space(), page.page().0, 0);
        Ok(self.value_in(frame))
    }

    fn value_in(&self, frame: FrameIndex) -> u64 {
        let value = self.kernel.frames().page(frame, value_of);
        value.expect("frames hold what programs wrote")
    }

    /// Moves a page in. True if the frame's memory went along, false if it was copied.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn move_in(&mut self, frame: FrameIndex, page: SpacePage) -> Result<bool, FillError> {
        let value = self.value_in(frame);
        let moved = match self.kernel.move_in(frame, page, 1).1 {
            Err(FillError::CopyOnly) => self.kernel.copy_in(frame, page, 1).1.map(|()| false),
            moved => moved.map(|()| true),
        }?;
        self.model.settle(page.space(), page.page().0, value);
        Ok(moved)
    }

    /// Copies a page in that is made of a value.
    ///
    /// # Errors
    /// As the kernel's.
    pub fn copy(&mut self, page: SpacePage, value: u64) -> Result<(), FillError> {
        let content = page_of(value);
        let frames = self.kernel.frames_mut();
        frames.page_mut(self.spare, |page| *page = *content);
        self.kernel.copy_in(self.spare, page, 1).1?;
        self.model.settle(page.space(), page.page().0, value);
        Ok(())
    }

    /// # Errors
    /// As the kernel's.
    pub fn zero(&mut self, page: SpacePage) -> Result<(), FillError> {
        self.kernel.zero_in(page)?;
        self.model.settle(page.space(), page.page().0, 0);
        Ok(())
    }

    /// # Errors
    /// As the kernel's.
    pub fn poison(&mut self, page: SpacePage) -> Result<(), FillError> {
        self.kernel.poison(page)
    }

    /// Starts a call of the program.
    ///
    /// # Panics
    /// If the one before has not ended, or touches what is not mapped, or reads what no program
    /// could have written.
    pub fn begin(&mut self, space: SpaceId, operation: Operation) -> Progress {
        assert!(self.waiting.is_none(), "one call at a time");
        let since = Time::ZERO;
        self.advance(space, State::Running { operation, since })
    }

    /// Lets the call go on whose page was filled or whose event was read.
    ///
    /// # Panics
    /// As [`Self::begin`].
    pub fn resume(&mut self) -> Progress {
        let (space, state) = self.waiting.take().expect("a call waits");
        match state {
            State::Faulted {
                operation, since, ..
            } => self.advance(space, State::Running { operation, since }),
            state => self.advance(space, state),
        }
    }

    fn advance(&mut self, space: SpaceId, state: State) -> Progress {
        match step(&mut self.kernel, &mut self.model, space, state).expect("a legal call") {
            Step::Finished(outcome) => Progress::Finished(outcome),
            Step::Exits => {
                self.kernel.end(space);
                self.model.end(space);
                Progress::Exited
            }
            Step::Waits(state) => {
                self.waiting = Some((space, state));
                match state {
                    State::Faulted { .. } => Progress::Faulted,
                    _ => Progress::Announced,
                }
            }
        }
    }

    /// Reads all that the kernel has to say.
    pub fn read(&mut self) -> Incoming {
        let mut all = Incoming::default();
        while self.kernel.has_messages(Time::ZERO) {
            let more = self.kernel.read();
            all.events.extend(more.events);
            all.faults.extend(more.faults);
        }
        all
    }

    pub fn page(&self, space: SpaceId, page: PageNumber) -> PageState {
        let space = &self.kernel.spaces[&space];
        if space.present.contains_key(&page.0) {
            PageState::Present
        } else if space.poisoned.contains(&page.0) {
            PageState::Poisoned
        } else {
            PageState::Missing
        }
    }
}

/// Memory that no NIC knows.
fn memory(frames: u32, size: usize) -> Registered {
    let length = frames as usize * size;
    let region = MemoryRegion {
        local_key: LocalKey(0),
        remote_key: RemoteKey(0),
        address: 0,
        length: length as u64,
    };
    let bytes = Rc::new(RefCell::new(crate::provider::RegionMemory::new(length)));
    Registered { region, bytes }
}
