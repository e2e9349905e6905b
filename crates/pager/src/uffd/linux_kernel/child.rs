//! Forked children: their userfaultfds, their hands, and pages that leave and enter them.

use super::LinuxKernel;
use super::kernel::evict_error;
use super::ranges::Ranges;
use super::space::Space;
use crate::uffd::Userfaultfd;
use crate::uffd::hand::remote::{Applicant, Hand, HandError};
use crate::uffd::message::Message;
use crate::{EvictError, FrameIndex, PageRange, SpaceId};
use alloc::vec::Vec;
use legato_base::{PAGE_SHIFT, PageNumber};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::Pid;

/// Staging pages that are given back at once; fewer only when the agent has nothing else to do.
const DISCARD_FROM: u32 = 32;

/// A forked child.
#[derive(Debug)]
pub(in crate::uffd) struct Child {
    pub(super) space: Space,
    /// Without one pages cannot leave.
    pub(super) hand: Option<Hand>,
}

impl Child {
    pub(super) fn new(context: Userfaultfd, ranges: Ranges) -> Self {
        Self {
            space: Space::new(context, ranges),
            hand: None,
        }
    }
}

impl LinuxKernel {
    /// Finds the child that a hand is in, and takes the hand into service. The child's process id
    /// is the one that the hand's message names.
    ///
    /// # Errors
    /// [`HandError::Again`] with the applicant: try again after the next `read`. After any other
    /// error the hand ends.
    pub(in crate::uffd) fn attach_hand(
        &mut self,
        applicant: Applicant,
    ) -> Result<SpaceId, (HandError, Option<Applicant>)> {
        if !self.features.can_move() {
            return Err((HandError::NoMove, None));
        }
        // Its fork may be among what was read and waits.
        let mut changing = self.is_unsettled();
        let mut found = None;
        for (&space, child) in &self.children {
            if child.hand.is_some() {
                continue;
            }
            match applicant.is_in(&child.space.context) {
                Ok(true) => {
                    found = Some(space);
                    break;
                }
                Ok(false) => {}
                Err(HandError::Again) => changing = true,
                Err(error) => return Err((error, None)),
            }
        }
        let Some(space) = found else {
            return Err(if changing {
                (HandError::Again, Some(applicant))
            } else {
                (HandError::Stranger, None)
            });
        };
        if let Some(child) = self.children.get_mut(&space) {
            let hand = applicant
                .accept(&child.space.context)
                .map_err(|e| (e, None))?;
            child.hand = Some(hand);
            self.shared.forget();
        }
        Ok(space)
    }

    /// A hand has connected to the supervisor, which passes it on.
    pub(in crate::uffd) fn apply(&mut self, socket: OwnedFd, child: Pid) {
        self.applicants.push(Applicant::new(socket, child));
    }

    /// Takes hands into service that have applied, each when its address space does not change.
    /// Returns what became of them.
    pub(in crate::uffd) fn attach_hands(&mut self) -> Vec<Result<SpaceId, HandError>> {
        let mut outcomes = Vec::new();
        for applicant in core::mem::take(&mut self.applicants) {
            match self.attach_hand(applicant) {
                Ok(space) => outcomes.push(Ok(space)),
                Err((HandError::Again, Some(applicant))) => self.applicants.push(applicant),
                Err((error, _)) => outcomes.push(Err(error)),
            }
        }
        outcomes
    }

    /// Children that had to end, because pages of theirs were lost on their way.
    pub(in crate::uffd) fn take_killed(&mut self) -> Vec<Pid> {
        core::mem::take(&mut self.killed)
    }

    /// Gives the staging pages of children back to the system, if `at_least` are in use.
    pub(in crate::uffd) fn discard_staging(&mut self, at_least: u32) {
        for child in self.children.values_mut() {
            let Some(hand) = &mut child.hand else {
                continue;
            };
            if hand.discard_from(&child.space.context, at_least).is_err() {
                child.hand = None;
                self.shared.forget();
            }
        }
    }

    pub(super) fn discard_full_staging(&mut self) {
        self.discard_staging(DISCARD_FROM);
    }

    /// As `move_out`, for a child.
    pub(super) fn move_out_child(
        &mut self,
        space: SpaceId,
        page: PageNumber,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>) {
        if self.is_unsettled_in(space) {
            return (0, Err(EvictError::Again));
        }
        let Some(mut child) = self.children.remove(&space) else {
            return (0, Err(EvictError::Fixed));
        };
        let result = self.move_out_of(space, &mut child, page, frame, count);
        self.children.insert(space, child);
        result
    }

    fn move_out_of(
        &mut self,
        space: SpaceId,
        child: &mut Child,
        page: PageNumber,
        frame: FrameIndex,
        count: u32,
    ) -> (u32, Result<(), EvictError>) {
        let Some(mut hand) = child.hand.take() else {
            return (0, Err(EvictError::Fixed));
        };
        let Ok(count) = hand.prepare(&child.space.context, count) else {
            // Nothing is on its way. The hand ends.
            self.shared.forget();
            return (0, Err(EvictError::Fixed));
        };
        // Before anything moves: then there is a place for it.
        let room = self.give_memory(frame, count);
        if room == 0 {
            child.hand = Some(hand);
            return (0, Err(EvictError::Again));
        }
        let range = PageRange::new(page, u64::from(room));
        let mut strays = Vec::new();
        let into = self.layout.frame(frame.0);
        // SAFETY: the frames have memory, and nobody else uses them.
        let left = unsafe { leave(&mut hand, &child.space.context, range, into, &mut strays) };
        self.backlog
            .extend(strays.into_iter().map(|stray| (space, stray)));
        let Ok(((moved, result), end)) = left else {
            self.take_memory(frame, room);
            hand.kill_child();
            self.killed.push(hand.child());
            self.shared.forget();
            return (0, Err(EvictError::Fixed));
        };
        if moved < room {
            self.take_memory(FrameIndex(frame.0 + moved), room - moved);
        }
        if end.is_ok() {
            child.hand = Some(hand);
        } else {
            self.shared.forget();
        }
        (moved, result)
    }

    /// False once nobody uses the child's memory any more.
    pub(super) fn child_alive(&mut self, space: SpaceId) -> bool {
        let Some(child) = self.children.get_mut(&space) else {
            return false;
        };
        let is_useless = |hand: &mut Hand| !hand.is_there() || !hand.is_needed();
        if child.hand.as_mut().is_some_and(is_useless) {
            // It ends, and if the child has ended its memory goes with it.
            child.hand = None;
            self.shared.forget();
        }
        // A child of its own may be among what waits.
        self.is_unsettled_in(space)
            || self
                .space(space)
                .is_some_and(|space| space.context.is_alive())
    }
}

/// How many pages have left, and why not the next.
type Evicted = (u32, Result<(), EvictError>);

/// Lets pages leave into memory. Returns how many have left, and why not the next; beside them, an error if
/// the hand has to end.
///
/// # Errors
/// The child has to end: pages that were leaving are lost, or others may have left with them.
///
/// # Safety
/// `into` must be writable for as many pages.
unsafe fn leave(
    hand: &mut Hand,
    context: &Userfaultfd,
    range: PageRange,
    into: u64,
    strays: &mut Vec<Message>,
) -> Result<(Evicted, Result<(), HandError>), HandError> {
    let ((moved, result), end) = hand.move_out(context, range, strays);
    let is_replaced = strays
        .iter()
        .filter_map(Message::vacated)
        .any(|gone| gone.overlaps(range));
    if moved > 0 && is_replaced {
        return Err(HandError::Lost);
    }
    // SAFETY: the caller's promise.
    unsafe { hand.take(into, moved) }?;
    if result != Err(Errno::INVAL) || end.is_err() {
        return Ok(((moved, result.map_err(evict_error)), end));
    }
    // It is not writable, or locked.
    let first = range.start.plus(u64::from(moved));
    let mapping = hand.residency.mappings();
    let mapping = mapping.and_then(|mappings| mappings.containing(first));
    let rest = PageRange::new(first, range.count - u64::from(moved));
    let Some(rest) = mapping.and_then(|mapping| mapping.common(rest)) else {
        return Ok(((moved, Err(EvictError::Again)), end));
    };
    let present = hand.residency.pages_in(rest).unwrap_or_default();
    let present = (rest.start.0..)
        .zip(&present)
        .take_while(|(at, page)| *at == page.0);
    let rest = PageRange::new(rest.start, present.count() as u64);
    if rest.count == 0 {
        return Ok(((moved, Err(EvictError::Absent)), end));
    }
    let into = into + (u64::from(moved) << PAGE_SHIFT);
    // SAFETY: the caller's promise.
    let ((more, result), end) = unsafe { hand.take_unmovable(context, rest, into, strays) }?;
    let result = result.map_err(|error| match error {
        // It is changing, or not one mapping any more.
        Errno::AGAIN | Errno::FAULT => EvictError::Again,
        _ => EvictError::Fixed,
    });
    Ok(((moved + more, result), end))
}
