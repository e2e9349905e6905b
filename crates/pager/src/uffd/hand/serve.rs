//! What the hand runs.
//!
//! It must never wait for the agent except on its connection, because the agent waits for its
//! answers. So it touches no memory of the child's program that may be missing:
//! - Its stack, its code and its data are in mappings of its own, which are never registered.
//! - UFFDIO_MOVE does not fault: a missing source is ENOENT, and the staging pages are only its
//!   target.
//! - MADV_POPULATE_WRITE follows a MOVE that has just found the page present. In between it can
//!   only be dropped by a `madvise` whose announcement the agent read long before; should that
//!   ever happen, the agent fills the page (see `remote`).
//! - `mremap` of memory that cannot be moved otherwise announces itself, and the agent reads that while it
//!   waits for the answer.
//! - Mapping the staging pages anew, or others' memory in their place, comes when they are not registered,
//!   and then announces nothing.
//!
//! It uses no heap: it runs in a copy of the agent's object that has none.

use super::protocol::{Answer, ORDER_SIZE, Order};
use crate::uffd::supervisor::Supervisor;
use crate::uffd::task_state::run_where_supervisor_may;
use crate::uffd::users::is_alone;
use crate::uffd::{Userfaultfd, transfer};
use core::mem::MaybeUninit;
use legato_base::wire::control::AgentMessageBody;
use legato_base::{PAGE_SHIFT, PAGE_SIZE};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use zerocopy::IntoBytes;

/// Staging pages: as many as the pager evicts in one batch.
pub const STAGING_PAGES: u32 = 128;
const STAGING_SIZE: usize = STAGING_PAGES as usize * PAGE_SIZE;
/// Bytes that the hand's stack needs.
pub const STACK_SIZE: u64 = 64 << 10;

/// What the entry into the child hands over.
#[derive(Clone, Copy, Debug)]
pub struct HandStart<'a> {
    /// Path of the supervisor's socket.
    pub supervisor: &'a [u8],
    /// The child's process id, as it sees it.
    pub child: u32,
    /// The process whose agent serves the child.
    pub program: u32,
    /// Start and end of the hand's mapping: its stack, then the staging pages up to the end.
    pub area: (u64, u64),
    /// Start and end of the copy of the agent's object that the hand runs.
    pub object: (u64, u64),
}

/// Serves until the agent closes the connection, or ends. The calling task has begun with
/// [`crate::uffd::task_state::begin`].
///
/// # Errors
/// If the supervisor cannot be reached.
pub fn run(start: &HandStart<'_>) -> Result<(), Errno> {
    let supervisor = Supervisor::connect(start.supervisor, start.child)?;
    run_where_supervisor_may(supervisor.fd());
    let (program, address) = (start.program, start.area.0);
    supervisor.send(AgentMessageBody::Hand { program, address }, &[])?;
    serve(supervisor.fd(), start.area, start.object);
    Ok(())
}

pub(super) fn serve(socket: BorrowedFd<'_>, area: (u64, u64), object: (u64, u64)) {
    let staging = area.1 - (u64::from(STAGING_PAGES) << PAGE_SHIFT);
    let mut context = None;
    // Something else than the hand's own memory is where the staging pages were.
    let mut is_replaced = false;
    while let Some((order, attached)) = receive(socket) {
        let (moved, result) = match order {
            Order::Try => (0, try_context(attached, &mut context)),
            Order::MoveOut { from, slot, count } => match &context {
                Some(context) if slot.saturating_add(count) <= STAGING_PAGES => {
                    let to = staging + (u64::from(slot) << PAGE_SHIFT);
                    // One at a time: each has just been found present.
                    let unshare = |first, _| transfer::unshare(context, first);
                    // SAFETY: the agent is in charge of the pages, and keeps what it finds in the
                    // staging pages, which are the hand's.
                    unsafe { transfer::move_out(context, to, from, count, unshare) }
                }
                _ => (0, Err(Errno::INVAL)),
            },
            Order::Take { from, count } => match &context {
                Some(context) if count <= STAGING_PAGES => {
                    let length = u64::from(count) << PAGE_SHIFT;
                    // SAFETY: as for moving; and the staging pages are not registered and hold nothing.
                    let result = unsafe { transfer::take(context.fd(), from, length, staging) };
                    is_replaced |= result.is_ok();
                    (if result.is_ok() { count } else { 0 }, result)
                }
                _ => (0, Err(Errno::INVAL)),
            },
            Order::Drop if !is_replaced => (0, drop_staging(staging)),
            Order::Drop => {
                let renewed = renew_staging(staging);
                is_replaced = renewed.is_err();
                (0, renewed)
            }
            Order::Count if is_alone() => (0, Ok(())),
            Order::Count => (0, Err(Errno::INVAL)),
        };
        let answer = Answer {
            errno: result.map_or_else(Errno::raw_os_error, |()| 0),
            moved,
            area: [area.0, area.1],
            object: [object.0, object.1],
        };
        if rustix::net::send(socket, answer.as_bytes(), SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

fn try_context(attached: Option<OwnedFd>, context: &mut Option<Userfaultfd>) -> Result<(), Errno> {
    let tried = Userfaultfd::from_descriptor(attached.ok_or(Errno::BADF)?);
    if !tried.is_of_this_space()? {
        return Err(Errno::XDEV);
    }
    *context = Some(tried);
    Ok(())
}

fn drop_staging(staging: u64) -> Result<(), Errno> {
    // SAFETY: the staging pages are the hand's, and the agent has what was in them.
    unsafe { rustix::mm::madvise(staging as *mut _, STAGING_SIZE, Advice::LinuxDontNeed) }
}

/// Maps the staging pages, which are the caller's to change, as they have to be: not inherited by `fork` and
/// not dumped; and, whatever the process's personality (READ_IMPLIES_EXEC), not executable.
fn renew_staging(staging: u64) -> Result<(), Errno> {
    let start = staging as *mut _;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: as for dropping.
    unsafe {
        rustix::mm::mmap_anonymous(start, STAGING_SIZE, ProtFlags::empty(), flags)?;
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            rustix::mm::madvise(start, STAGING_SIZE, advice)?;
        }
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        rustix::mm::mprotect(start, STAGING_SIZE, access)
    }
}

/// None when the agent is gone or speaks nonsense.
fn receive(socket: BorrowedFd<'_>) -> Option<(Order, Option<OwnedFd>)> {
    let mut bytes = [0u8; ORDER_SIZE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut ancillary, flags) {
            Ok(received) => {
                let attached = ancillary.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                    _ => None,
                });
                let order = Order::parse(bytes.get(..received.bytes)?)?;
                return Some((order, attached));
            }
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
