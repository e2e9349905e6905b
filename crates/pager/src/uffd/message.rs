//! Messages of a userfaultfd, as the kernel writes them.

use super::Userfaultfd;
use super::abi;
use super::linux_kernel::LeftOut;
use crate::PageRange;
use alloc::vec::Vec;
use legato_base::PageNumber;
use rustix::fd::{FromRawFd, OwnedFd};

/// `struct uffd_msg` is packed, 32 bytes: an event byte, then from byte 8 three words.
pub(super) const MESSAGE_SIZE: usize = 32;

/// What a userfaultfd says; a forked child comes with its own.
pub(super) type Message = crate::order::Message<Newborn>;

/// A child whose fork is not accepted yet.
#[derive(Debug)]
pub(super) struct Newborn {
    pub(super) context: Userfaultfd,
    /// What was read of it already, in order.
    pub(super) changes: Vec<Message>,
    /// What it does not get of its parent's memory, if that could be seen when its fork was read.
    pub(super) left_out: Option<LeftOut>,
    /// The supervisor holds its userfaultfd.
    pub(super) handed_over: bool,
}

impl Message {
    /// Of one message, as the kernel writes it.
    pub(super) fn parse(message: &[u8; MESSAGE_SIZE]) -> Option<Self> {
        let word = |index: usize| -> u64 {
            let start = 8 + index * 8;
            // A message has 32 bytes and index is at most 2.
            message[start..start + 8]
                .iter()
                .rev()
                .fold(0, |word, &byte| (word << 8) | u64::from(byte))
        };
        match message[0] {
            0x12 => Some(Self::Fault {
                page: PageNumber::containing(word(1)),
                protected: word(0) & abi::PAGEFAULT_FLAG_WP != 0,
                thread: word(2) as u32,
            }),
            0x13 => {
                let fd = i32::try_from(word(0) & 0xFFFF_FFFF).ok()?;
                // SAFETY: the kernel has just installed this descriptor in our table for us.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                let child = Newborn {
                    context: Userfaultfd::from_descriptor(fd),
                    changes: Vec::new(),
                    left_out: None,
                    handed_over: false,
                };
                Some(Self::Forked { child })
            }
            0x14 => Some(Self::Remapped {
                from: PageRange::of_bytes(word(0), word(0) + word(2)),
                to: PageNumber::containing(word(1)),
                kept: false,
            }),
            event @ (0x15 | 0x16) => Some(Self::Removed {
                range: PageRange::of_bytes(word(0), word(1)),
                unmapped: event == 0x16,
            }),
            _ => None,
        }
    }
}

/// As many as a buffer holds.
pub(super) fn parse_all(bytes: &[u8], into: &mut Vec<Message>) {
    into.extend(bytes.as_chunks().0.iter().filter_map(Message::parse));
}
