//! What is present where the pager is in charge is what the pager takes for resident, and nothing else.

use super::failure::FailureKind;
use super::state::World;
use legato_base::PageNumber;
use legato_pager::{Kernel, SpacePage};

impl World {
    /// Compares the pages of every space whose changes have all been followed.
    pub(super) fn check_care(&self) -> Result<(), FailureKind> {
        let (kernel, now) = (self.pager.kernel(), self.now());
        for (&space, place) in &kernel.spaces {
            if !place.is_followed(now) || !kernel.can_evict(space) {
                continue;
            }
            let is_dropping = |page| place.dropping.iter().any(|drop| drop.range.contains(page));
            let may_go = |page: &u64| is_dropping(PageNumber(*page)) || place.lazy.contains(page);
            let stray = place.present.keys().find(|page| {
                let is_excused = may_go(page) || place.strays.contains(page);
                let page = SpacePage::new(space, PageNumber(**page));
                let is_known = self.pager.has_in_care(page) || kernel.written.contains(&page);
                place.charged.contains(&page.page().0) && !is_excused && !is_known
            });
            if let Some(&page) = stray {
                let page = PageNumber(page);
                return Err(FailureKind::OutOfCare { space, page });
            }
            let mut resident = self.pager.taken_for_resident(space);
            let absent = resident.find(|page| !place.present.contains_key(&page.0));
            if let Some(page) = absent {
                return Err(FailureKind::NotResident { space, page });
            }
        }
        Ok(())
    }
}
