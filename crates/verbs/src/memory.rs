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

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Unknown bits are dropped.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & 7)
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

/// One piece of local memory in a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterGatherEntry {
    pub local_key: LocalKey,
    pub address: u64,
    /// Bytes.
    pub length: u32,
}
