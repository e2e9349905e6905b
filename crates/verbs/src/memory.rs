//! Memory regions.

use core::ops::BitOr;

/// What may be done to a region (`enum ibv_access_flags`). Reading locally is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct AccessFlags(u8);

impl AccessFlags {
    pub const NONE: Self = Self(0);
    /// Receives and RDMA READ may place bytes here.
    pub const LOCAL_WRITE: Self = Self(1);
    pub const REMOTE_WRITE: Self = Self(2);
    pub const REMOTE_READ: Self = Self(4);
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Memory windows can be bound to the region (`IBV_ACCESS_MW_BIND`).
    pub const WINDOW_BIND: Self = Self(16);

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Unknown bits are dropped.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 31)
    }
}

impl BitOr for AccessFlags {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

/// Names a region in local requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalKey(pub u32);

/// Names a region in a peer's requests. Never issued twice in a provider's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteKey(pub u32);

/// A registered region: `length` bytes from `address` on. The address is the one to use in
/// scatter/gather entries and in a peer's [`crate::RemoteAddress`]; whether it is also a virtual
/// address is the provider's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    pub local_key: LocalKey,
    pub remote_key: RemoteKey,
    pub address: u64,
    pub length: u64,
}

impl MemoryRegion {
    /// The entry for `length` bytes at `offset` in the region. Bounds are checked when posted.
    pub const fn entry(&self, offset: u64, length: u32) -> ScatterGatherEntry {
        ScatterGatherEntry {
            local_key: self.local_key,
            address: self.address + offset,
            length,
        }
    }
}

/// What a memory window is to give a peer (type 2B: only the queue pair that binds it can use it,
/// IB spec 10.6.7.2.3). Its end takes one peer's access away and no other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// The window, by its key of now.
    pub window: RemoteKey,
    /// The key that the peer is to use: [`crate::Provider::next_window_key`].
    pub next: RemoteKey,
    pub region: LocalKey,
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// What the peer may do.
    pub access: AccessFlags,
}

/// One piece of local memory in a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterGatherEntry {
    pub local_key: LocalKey,
    pub address: u64,
    /// Bytes.
    pub length: u32,
}

/// Whether a request that names a key of the peer's would start at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    Yes,
    /// The peer is asked, or does not answer.
    NotYet,
    /// This side lacks what it takes, such as a mapping. It may have it when it is asked again.
    Refused,
}
