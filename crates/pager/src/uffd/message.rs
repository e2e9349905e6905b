//! Messages of a userfaultfd.

use super::Userfaultfd;
use super::abi;
use crate::PageRange;
use alloc::vec::Vec;
use legato_base::PageNumber;
use rustix::fd::{FromRawFd, OwnedFd};

/// `struct uffd_msg` is packed, 32 bytes: an event byte, then from byte 8 three words.
pub(super) const MESSAGE_SIZE: usize = 32;

/// A missing page, or a change of the address space.
#[derive(Debug)]
pub(super) enum Message {
    /// If `protected`, the page was there when the thread touched it, but write-protected.
    Fault {
        page: PageNumber,
        protected: bool,
    },
    Forked {
        child: Userfaultfd,
    },
    Remapped {
        from: PageRange,
        to: PageNumber,
        /// The old place is still mapped, and empty (MREMAP_DONTUNMAP). The kernel does not say so
        /// here: that it does not announce the end of the old place does (`linux_kernel/order.rs`).
        kept: bool,
    },
    /// The range reads zero until it is written; if `unmapped`, it is no longer registered.
    Removed {
        range: PageRange,
        unmapped: bool,
    },
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
            }),
            0x13 => {
                let fd = i32::try_from(word(0) & 0xFFFF_FFFF).ok()?;
                // SAFETY: the kernel has just installed this descriptor in our table for us.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                Some(Self::Forked {
                    child: Userfaultfd::from_descriptor(fd),
                })
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

    /// Where no mapping of those before is any more: it was unmapped, or moved away.
    pub(super) fn vacated(&self) -> Option<PageRange> {
        match *self {
            Self::Removed {
                range,
                unmapped: true,
            } => Some(range),
            Self::Remapped {
                from, kept: false, ..
            } => Some(from),
            _ => None,
        }
    }

    /// Where memory was moved to.
    pub(super) fn arrival(&self) -> Option<PageRange> {
        match *self {
            Self::Remapped { from, to, .. } => Some(PageRange::new(to, from.count)),
            _ => None,
        }
    }
}

/// As many as a buffer holds.
pub(super) fn parse_all(bytes: &[u8], into: &mut Vec<Message>) {
    into.extend(bytes.as_chunks().0.iter().filter_map(Message::parse));
}
