//! Pages that are moved, copied or cleared into a space, or moved out of it, and what refuses that.

use super::defect::Defect;
use super::kernel::SimKernel;
use legato_base::PAGE_SIZE;
use legato_pager::{EvictError, FillError, FrameIndex, FrameMemory, Kernel, SpaceId, SpacePage};

/// One move in so many is refused for a moment: another CPU has the page locked.
pub(super) const LOCKED_EVERY: u64 = 64;
/// One page in so many cannot be moved in, only copied: userfaultfd refuses some mappings.
const COPY_ONLY_EVERY: u64 = 61;

impl SimKernel {
    /// True if the address space refuses moves now, or the agent does not try because it has read changes
    /// that it has not followed.
    pub(super) fn refuses(&mut self, space: SpaceId) -> bool {
        let now = self.now;
        let unsettled = self
            .spaces
            .get(&space)
            .is_some_and(|space| !space.is_followed(now));
        unsettled || self.happens(LOCKED_EVERY)
    }

    /// Why a page cannot be filled, if it cannot.
    pub(super) fn fillable(&mut self, page: SpacePage) -> Result<(), FillError> {
        let (space, page) = (page.space(), page.page());
        if self.spaces.get(&space).is_none_or(|space| space.ended) {
            return Err(FillError::SpaceGone);
        }
        if self.refuses(space) {
            return Err(FillError::Again);
        }
        let place = self.space_mut(space);
        if !place.registered.contains(&page.0) {
            Err(FillError::Gone)
        } else if place.present.contains_key(&page.0) {
            Err(FillError::Present)
        } else {
            Ok(())
        }
    }

    /// As [`Self::fillable`]: copying replaces poison, and nothing else does.
    pub(super) fn fillable_unless_poisoned(&mut self, page: SpacePage) -> Result<(), FillError> {
        self.fillable(page)?;
        let poisoned = &self.space_mut(page.space()).poisoned;
        if poisoned.contains(&page.page().0) {
            Err(FillError::Present)
        } else {
            Ok(())
        }
    }

    pub(super) fn fill(&mut self, page: SpacePage, content: Box<[u8; PAGE_SIZE]>) {
        self.pages_handled += 1;
        let content = self.memory.page(content);
        let place = self.space_mut(page.space());
        place.poisoned.remove(&page.page().0);
        place.present.insert(page.page().0, content);
        self.wake(page);
    }

    pub(super) fn move_one_in(
        &mut self,
        frame: FrameIndex,
        page: SpacePage,
    ) -> Result<(), FillError> {
        self.fillable(page)?;
        let locked = self.space_mut(page.space()).locked.contains(&page.page().0);
        if locked || !self.steady && page.page().0.is_multiple_of(COPY_ONLY_EVERY) {
            return Err(FillError::CopyOnly);
        }
        self.fillable_unless_poisoned(page)?;
        let content = self.frames.take(frame.0);
        self.fill(page, content);
        Ok(())
    }

    pub(super) fn copy_one_in(
        &mut self,
        frame: FrameIndex,
        page: SpacePage,
    ) -> Result<(), FillError> {
        self.fillable(page)?;
        let content = self.frames.page(frame, |content| Box::new(*content));
        self.fill(page, content);
        Ok(())
    }

    pub(super) fn move_one_out(
        &mut self,
        page: SpacePage,
        frame: FrameIndex,
    ) -> Result<(), EvictError> {
        if self.refuses(page.space()) {
            return Err(EvictError::Again);
        }
        let torn = self.defect == Some(Defect::PagesTorn);
        let space = page.space();
        self.drop_lazy(space, page.page().0);
        let place = self.space_mut(space);
        let page = page.page();
        if place.locked.contains(&page.0) {
            return Err(EvictError::Locked { more: 0 });
        }
        if place.poisoned.contains(&page.0) {
            return Err(EvictError::Fixed);
        }
        if place.pinned.contains(&page.0) && place.present.contains_key(&page.0) {
            return Err(EvictError::Pinned);
        }
        let shared = place.present.remove(&page.0).ok_or(EvictError::Absent)?;
        place.lazy.remove(&page.0);
        let mut content = *shared.bytes();
        if torn && page.0.is_multiple_of(97) {
            content[PAGE_SIZE - 1] ^= 1;
        }
        self.frames.put(frame.0, &content);
        if space == SpaceId::OWN {
            self.frames.mark_foreign(frame.0);
        }
        self.pages_handled += 1;
        Ok(())
    }
}

/// Fills page after page from frame after frame, up to the first that is refused.
pub(super) fn one_by_one(
    frame: FrameIndex,
    page: SpacePage,
    count: u32,
    mut fill: impl FnMut(FrameIndex, SpacePage) -> Result<(), FillError>,
) -> (u32, Result<(), FillError>) {
    for done in 0..count {
        if let Err(error) = fill(FrameIndex(frame.0 + done), page.plus(u64::from(done))) {
            return (done, Err(error));
        }
    }
    (count, Ok(()))
}
