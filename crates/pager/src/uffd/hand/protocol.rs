//! What agent and hand say to each other over a seqpacket connection. Both run one binary's code.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What the hand is to do. It answers each order with one [`Answer`], in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::uffd) enum Order {
    /// Is the attached userfaultfd one of the hand's address space? If so, it is the one to use.
    Try,
    /// Move `count` pages from the address `from` on to the staging pages from `slot` on.
    MoveOut { from: u64, slot: u32, count: u32 },
    /// Put the memory of `count` pages from the address `from` on in place of the first staging pages,
    /// which are not registered, and leave its mapping empty. The agent reads what this announces.
    Take { from: u64, count: u32 },
    /// Drop what is in all staging pages, or in their place. They are not registered meanwhile.
    Drop,
    /// Does any process but the hand use this memory? EINVAL if so.
    Count,
}

/// Zero or an errno, how many pages were moved, and where the hand's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::uffd) struct Answer {
    pub(in crate::uffd) errno: i32,
    pub(in crate::uffd) moved: u32,
    /// Stack and staging pages: start and end.
    pub(in crate::uffd) area: [u64; 2],
    /// Code and data: start and end.
    pub(in crate::uffd) object: [u64; 2],
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawOrder {
    kind: u32,
    slot: u32,
    count: u32,
    reserved: u32,
    from: u64,
}

pub(in crate::uffd) const ORDER_SIZE: usize = size_of::<RawOrder>();
pub(in crate::uffd) const ANSWER_SIZE: usize = size_of::<Answer>();

impl Order {
    pub(in crate::uffd) fn to_bytes(self) -> [u8; ORDER_SIZE] {
        let (kind, from, slot, count) = match self {
            Self::Try => (1, 0, 0, 0),
            Self::MoveOut { from, slot, count } => (2, from, slot, count),
            Self::Drop => (3, 0, 0, 0),
            Self::Count => (4, 0, 0, 0),
            Self::Take { from, count } => (5, from, 0, count),
        };
        let raw = RawOrder {
            kind,
            slot,
            count,
            reserved: 0,
            from,
        };
        let mut bytes = [0; ORDER_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// None if it is no order.
    pub(in crate::uffd) fn parse(bytes: &[u8]) -> Option<Self> {
        let raw = RawOrder::read_from_bytes(bytes).ok()?;
        match raw.kind {
            1 => Some(Self::Try),
            2 => Some(Self::MoveOut {
                from: raw.from,
                slot: raw.slot,
                count: raw.count,
            }),
            3 => Some(Self::Drop),
            4 => Some(Self::Count),
            5 => Some(Self::Take {
                from: raw.from,
                count: raw.count,
            }),
            _ => None,
        }
    }
}

impl Answer {
    pub(in crate::uffd) fn result(&self) -> Result<(), Errno> {
        if self.errno == 0 {
            Ok(())
        } else {
            Err(Errno::from_raw_os_error(self.errno))
        }
    }
}
