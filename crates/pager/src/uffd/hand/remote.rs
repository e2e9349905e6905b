//! The agent's side of a hand.
//!
//! From a MOVE until the agent has read the staging pages, they hold the only copy of what was
//! moved. The staging pages are the child's memory: they outlive the hand, and are read through
//! `/proc/PID/mem`, which needs no hand either. If they cannot be read, nothing can stand in for
//! them, and the child must end.

use super::protocol::{ANSWER_SIZE, Answer, Order};
use super::serve::STAGING_PAGES;
use crate::PageRange;
use crate::uffd::Userfaultfd;
use crate::uffd::message::Message;
use crate::uffd::peer::Peer;
use crate::uffd::program::{is_readable, shares_memory};
use crate::uffd::residency::Residency;
use crate::uffd::transfer::Transferred;
use crate::uffd::users::Sharer;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use legato_base::timeouts::HAND_ANSWER;
use legato_base::{PAGE_SHIFT, PageNumber, SystemError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal};
use zerocopy::FromBytes;

const STAGING_SIZE: u64 = (STAGING_PAGES as u64) << PAGE_SHIFT;

/// An answer takes some 20 us, or as long as a busy machine lets the hand wait for a processor.
/// After this long the agent looks whether the hand waits for it.
const GLANCE_MILLIS: u64 = 20;
const GLANCE: Timespec = milliseconds(GLANCE_MILLIS.cast_signed());
/// Glances before a hand is given up. Time in which the agent does not run makes none.
const GLANCES_MAX: u64 = HAND_ANSWER.as_millis() / GLANCE_MILLIS;

/// Why a hand is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::uffd) enum HandError {
    #[error("the task in the forked child has ended or does not answer")]
    Gone,
    #[error("the task is in no address space that is served here")]
    Stranger,
    #[error("the address space is changing: read its events first")]
    Again,
    #[error("pages that were leaving the forked child cannot be read")]
    Lost,
    #[error("this kernel cannot move pages (Linux 6.8 can)")]
    NoMove,
    #[error("the forked child's memory cannot be looked at: {}", SystemError(*.0))]
    System(i32),
}

impl HandError {
    /// The child has ended, or has executed another program: no page of it is served here.
    pub(in crate::uffd) const fn is_end_of_child(self) -> bool {
        const NOENT: i32 = Errno::NOENT.raw_os_error();
        const SRCH: i32 = Errno::SRCH.raw_os_error();
        matches!(self, Self::Stranger | Self::System(NOENT | SRCH))
    }
}

/// A hand that has connected, in a child that is not known yet.
#[derive(Debug)]
pub(in crate::uffd) struct Applicant {
    socket: OwnedFd,
    child: Pid,
}

impl Applicant {
    /// The child is the process that the hand was started in.
    pub(in crate::uffd) const fn new(socket: OwnedFd, child: Pid) -> Self {
        Self { socket, child }
    }

    /// True if the hand is in the userfaultfd's address space; from then on it uses that.
    ///
    /// # Errors
    /// [`HandError::Again`] and [`HandError::Gone`].
    pub(in crate::uffd) fn is_in(&self, context: &Userfaultfd) -> Result<bool, HandError> {
        match self.ask(context)?.result() {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Err(HandError::Again),
            Err(_) => Ok(false),
        }
    }

    fn ask(&self, context: &Userfaultfd) -> Result<Answer, HandError> {
        send(self.socket.as_fd(), Order::Try, Some(context.fd()))?;
        await_answer(&self.socket)
    }

    /// Takes the hand into service, after [`Self::is_in`] has found its address space.
    ///
    /// # Errors
    /// If the child may not be looked at.
    pub(in crate::uffd) fn accept(self, context: &Userfaultfd) -> Result<Hand, HandError> {
        let answer = self.ask(context)?;
        let system = |error: Errno| HandError::System(error.raw_os_error());
        // Of the connection, not of a message: the kernel says who it is.
        let peer = Peer::of(&self.socket).map_err(system)?;
        let process = peer
            .pid
            .ok_or(HandError::System(Errno::SRCH.raw_os_error()))?;
        let residency = Residency::open(Some(process), true).map_err(system)?;
        let memory = residency.open_memory().map_err(system)?;
        let child = Residency::open_directory(Some(self.child)).map_err(system)?;
        Ok(Hand {
            socket: self.socket,
            process,
            child: (self.child, child),
            residency,
            memory,
            staging: answer.area[1] - STAGING_SIZE,
            mappings: [answer.area, answer.object]
                .map(|[start, end]| PageRange::of_bytes(start, end)),
            used: 0,
            registered: false,
            dropping: false,
        })
    }
}

/// A hand in service. Closing its connection ends it.
#[derive(Debug)]
pub(in crate::uffd) struct Hand {
    socket: OwnedFd,
    process: Pid,
    /// The process whose memory this is, and its directory in `/proc`, which names it for good.
    child: (Pid, OwnedFd),
    pub(in crate::uffd) residency: Residency,
    memory: OwnedFd,
    staging: u64,
    mappings: [PageRange; 2],
    /// Staging pages that hold something.
    used: u32,
    /// The staging pages are registered: MOVE may fill them, and nothing may drop them.
    registered: bool,
    /// The answer to [`Order::Drop`] is due.
    dropping: bool,
}

impl Hand {
    /// Mappings that are the hand's and not the program's.
    pub(in crate::uffd) const fn mappings(&self) -> [PageRange; 2] {
        self.mappings
    }

    /// True while the child's process lives and has not replaced its memory, or others use that still.
    /// The hand keeps that memory alive, so somebody must look.
    pub(in crate::uffd) fn is_needed(&mut self) -> bool {
        shares_memory(self.process, self.child.0) || self.has_sharers()
    }

    /// True if another process than the hand uses the child's memory; false also if the hand has ended.
    fn has_sharers(&mut self) -> bool {
        let answer = self
            .finish_dropping()
            .and_then(|()| send(self.socket.as_fd(), Order::Count, None))
            .and_then(|()| await_answer(&self.socket));
        answer.is_ok_and(|answer| answer.result() == Err(Errno::INVAL))
    }

    /// False if the hand has ended.
    pub(in crate::uffd) fn is_there(&self) -> bool {
        self.dropping || !is_readable(self.socket.as_fd())
    }

    pub(in crate::uffd) const fn child(&self) -> Pid {
        self.child.0
    }

    /// Kills the child, which cannot go on, and whoever shares its memory.
    pub(in crate::uffd) fn kill_child(&self) {
        // By whichever of the two lives they are known.
        let sharers = [self.process, self.child.0].map(Sharer::all_of);
        // Fails only when it has ended already.
        let _ = rustix::process::pidfd_send_signal(&self.child.1, Signal::KILL);
        sharers.iter().flatten().for_each(Sharer::kill);
    }

    /// How many of `count` pages may be moved out now; at least one.
    pub(in crate::uffd) fn prepare(
        &mut self,
        context: &Userfaultfd,
        count: u32,
    ) -> Result<u32, HandError> {
        if self.used == STAGING_PAGES {
            self.discard(context)?;
        }
        self.finish_dropping()?;
        if !self.registered {
            // SAFETY: the staging pages are touched only while they have memory.
            unsafe { context.register(self.staging, STAGING_SIZE, false) }
                .map_err(|_| HandError::Gone)?;
            self.registered = true;
        }
        Ok(count.min(STAGING_PAGES - self.used))
    }

    fn finish_dropping(&mut self) -> Result<(), HandError> {
        if self.dropping {
            let answer = await_answer(&self.socket)?;
            self.dropping = false;
            answer.result().map_err(|_| HandError::Gone)?;
        }
        Ok(())
    }

    /// Moves pages to staging pages. Returns how many, and why not more; with
    /// [`HandError::Gone`] beside them the hand has ended in between. Messages that had to be read
    /// meanwhile are put into `strays`.
    pub(in crate::uffd) fn move_out(
        &mut self,
        context: &Userfaultfd,
        range: PageRange,
        strays: &mut Vec<Message>,
    ) -> (Transferred, Result<(), HandError>) {
        let order = Order::MoveOut {
            from: range.start.address(),
            slot: self.used,
            count: range.count as u32,
        };
        let answer = send(self.socket.as_fd(), order, None)
            .and_then(|()| self.answer(context, range, strays));
        match answer {
            Ok(answer) if u64::from(answer.moved) <= range.count => {
                ((answer.moved, answer.result()), Ok(()))
            }
            _ => {
                let moved = self.end_and_count(range.count);
                ((moved, Err(Errno::INVAL)), Err(HandError::Gone))
            }
        }
    }

    /// Takes pages of one mapping that cannot be moved (read-only memory), and reads them. Returns how many were
    /// taken, and why not all; beside them [`HandError::Gone`] if the hand is to end. Messages that had to be
    /// read meanwhile are put into `strays`.
    ///
    /// # Errors
    /// [`HandError::Lost`]: something else may have been taken with them.
    ///
    /// # Safety
    /// `into` must be writable for as many pages.
    pub(in crate::uffd) unsafe fn take_unmovable(
        &mut self,
        context: &Userfaultfd,
        range: PageRange,
        into: u64,
        strays: &mut Vec<Message>,
    ) -> Result<(Transferred, Result<(), HandError>), HandError> {
        let taken = match self.vacate(context) {
            Ok(()) => self.take_to_staging(context, range, strays)?,
            Err(error) => ((0, Err(Errno::INVAL)), Err(error)),
        };
        let ((count, result), mut end) = taken;
        if count > 0 {
            // What the program has dropped meanwhile reads zero from here on.
            self.unregister(context).map_err(|_| HandError::Lost)?;
            // SAFETY: the caller's promise.
            unsafe { self.take(into, count) }?;
            end = end.and_then(|()| self.discard(context));
        }
        Ok(((count, result), end))
    }

    /// Empties the staging pages, and lets nobody hear of it when other memory comes in their place.
    fn vacate(&mut self, context: &Userfaultfd) -> Result<(), HandError> {
        if self.used > 0 {
            self.discard(context)?;
        } else {
            self.unregister(context)?;
        }
        self.finish_dropping()
    }

    fn take_to_staging(
        &self,
        context: &Userfaultfd,
        range: PageRange,
        strays: &mut Vec<Message>,
    ) -> Result<(Transferred, Result<(), HandError>), HandError> {
        let order = Order::Take {
            from: range.start.address(),
            count: range.count as u32,
        };
        if let Err(error) = send(self.socket.as_fd(), order, None) {
            return Ok(((0, Err(Errno::INVAL)), Err(error)));
        }
        let place = PageNumber::containing(self.staging);
        let mut is_announced = false;
        let answer = self.answer_amid(context, |message| match message {
            Message::Remapped { from, to, .. } if (from, to) == (range, place) => {
                is_announced = true;
            }
            message => strays.push(message),
        });
        let (is_taken, result, end) = match answer {
            Ok(answer) => (answer.moved > 0, answer.result(), Ok(())),
            Err(error) => {
                let found = self.end_and_count(range.count);
                (is_announced || found > 0, Err(Errno::INVAL), Err(error))
            }
        };
        if !is_taken {
            return Ok(((0, result), end));
        }
        // What is registered announces itself; what has come in its place is not registered, or has been moved there.
        let mut arrivals = strays.iter().filter_map(Message::arrival);
        if !is_announced || arrivals.any(|arrival| arrival.overlaps(range)) {
            return Err(HandError::Lost);
        }
        Ok(((range.count as u32, Ok(())), end))
    }

    /// Waits for an answer, for a time, to an order that announces something and goes on when that was read.
    fn answer_amid(
        &self,
        context: &Userfaultfd,
        mut show: impl FnMut(Message),
    ) -> Result<Answer, HandError> {
        let mut glances = 0;
        while glances < GLANCES_MAX {
            let mut polled = [self.socket.as_fd(), context.fd()]
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
            // Interrupted, it is as if the time were over.
            let ready = rustix::event::poll(&mut polled, Some(&GLANCE)).unwrap_or(0);
            if !polled[0].revents().is_empty() {
                return receive(&self.socket);
            }
            match context.read_one() {
                Some(message) => show(message),
                None if ready == 0 => glances += 1,
                None => {}
            }
        }
        Err(HandError::Gone)
    }

    /// Reads what was moved last.
    ///
    /// # Safety
    /// `into` must be writable for as many pages.
    pub(in crate::uffd) unsafe fn take(&mut self, into: u64, count: u32) -> Result<(), HandError> {
        let from = self.staging + (u64::from(self.used) << PAGE_SHIFT);
        let length = (count as usize) << PAGE_SHIFT;
        let mut done = 0;
        while done < length {
            // SAFETY: the caller's promise; the borrow ends with the call.
            let rest = unsafe {
                core::slice::from_raw_parts_mut((into as *mut u8).add(done), length - done)
            };
            // The pages are there, so that nothing is waited for.
            match rustix::io::pread(&self.memory, rest, from + done as u64) {
                Ok(0) => return Err(HandError::Lost),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(_) => return Err(HandError::Lost),
            }
        }
        self.used += count;
        Ok(())
    }

    /// Lets the hand drop what was read, without waiting for it: they are local memory still.
    /// `at_least` staging pages must be in use for that.
    pub(in crate::uffd) fn discard_from(
        &mut self,
        context: &Userfaultfd,
        at_least: u32,
    ) -> Result<(), HandError> {
        if self.used < at_least.max(1) {
            return Ok(());
        }
        self.discard(context)
    }

    /// Takes the staging pages, of which everything was read, out of the registration.
    fn unregister(&mut self, context: &Userfaultfd) -> Result<(), HandError> {
        // SAFETY: what is missing in the staging pages was missing where they were, or nobody looks at it.
        unsafe { context.unregister(self.staging, STAGING_SIZE) }.map_err(|_| HandError::Gone)?;
        self.registered = false;
        Ok(())
    }

    fn discard(&mut self, context: &Userfaultfd) -> Result<(), HandError> {
        // Only so may the hand drop it: it would announce it otherwise, and wait for the agent.
        self.unregister(context)?;
        send(self.socket.as_fd(), Order::Drop, None)?;
        self.dropping = true;
        self.used = 0;
        Ok(())
    }

    /// Waits for an answer, for a time, to an order for which the hand touches pages of its program.
    fn answer(
        &self,
        context: &Userfaultfd,
        moving: PageRange,
        strays: &mut Vec<Message>,
    ) -> Result<Answer, HandError> {
        for _ in 0..GLANCES_MAX {
            if wait(&self.socket) {
                return receive(&self.socket);
            }
            self.help(context, moving, strays);
        }
        Err(HandError::Gone)
    }

    /// The hand may wait for a page that its program has dropped just before the hand was to
    /// unshare it. Such a page reads zero. (A page that the hand has moved out is missing as well,
    /// and in a staging page.)
    fn help(&self, context: &Userfaultfd, moving: PageRange, strays: &mut Vec<Message>) {
        while is_readable(context.fd()) {
            // The kernel gives faults before changes, so a change is read only if the hand does
            // not wait for a page.
            let Some(message) = context.read_one() else {
                return;
            };
            let Message::Fault {
                page,
                protected: false,
                ..
            } = message
            else {
                strays.push(message);
                return;
            };
            // After reading: what is not in its staging page now was not there when it faulted.
            let moved = self.moved_of(moving.count);
            if !moving.contains(page) || page.0 < moving.start.0 + u64::from(moved) {
                strays.push(message);
                continue;
            }
            // SAFETY: the page was there when the hand began, and has only been dropped.
            if unsafe { context.zero(page) }.is_err() {
                strays.push(message);
            }
        }
    }

    /// Ends the hand and finds out what it has done.
    fn end_and_count(&self, count: u64) -> u32 {
        self.residency.kill();
        // The connection ends when the task can do nothing more.
        for _ in 0..GLANCES_MAX {
            if wait(&self.socket) && receive(&self.socket).is_err() {
                break;
            }
        }
        self.moved_of(count)
    }

    /// How many of the pages that were to be moved are in staging pages.
    fn moved_of(&self, count: u64) -> u32 {
        let first = PageNumber::containing(self.staging).plus(u64::from(self.used));
        let present = self.residency.pages_in(PageRange::new(first, count));
        present.map_or(0, |present| present.len() as u32)
    }
}

const fn milliseconds(count: i64) -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: count * 1_000_000,
    }
}

/// True if there is something to receive, or the other end is gone.
fn wait(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    matches!(rustix::event::poll(&mut polled, Some(&GLANCE)), Ok(ready) if ready > 0)
}

/// Waits for an answer, for a time, to an order for which the hand touches memory of its own alone.
fn await_answer(socket: &OwnedFd) -> Result<Answer, HandError> {
    for _ in 0..GLANCES_MAX {
        if wait(socket) {
            return receive(socket);
        }
    }
    Err(HandError::Gone)
}

fn receive(socket: &OwnedFd) -> Result<Answer, HandError> {
    let mut bytes = [0u8; ANSWER_SIZE];
    match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((ANSWER_SIZE, _)) => Answer::read_from_bytes(&bytes).map_err(|_| HandError::Gone),
        _ => Err(HandError::Gone),
    }
}

fn send(
    socket: BorrowedFd<'_>,
    order: Order,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), HandError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let attached = descriptor.as_slice();
    if !attached.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(attached)) {
        return Err(HandError::Gone);
    }
    let bytes = order.to_bytes();
    // One order at a time is under way: there is always room for it.
    let flags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)
        .map(drop)
        .map_err(|_| HandError::Gone)
}
