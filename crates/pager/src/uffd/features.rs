//! What the kernel must be able to do, and what it may.

use super::abi;

/// Without these an unmodified program would see wrong memory: unmapped, moved, dropped or
/// forked ranges would not be noticed, or lost pages would read zero.
const REQUIRED: u64 = abi::FEATURE_EVENT_FORK
    | abi::FEATURE_EVENT_REMAP
    | abi::FEATURE_EVENT_REMOVE
    | abi::FEATURE_EVENT_UNMAP
    | abi::FEATURE_POISON;

/// The kernel lacks something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    #[error("this kernel cannot tell which pages are resident (Linux 6.7 or newer is needed)")]
    PagemapScan,
    #[error(
        "this kernel can neither move pages through userfaultfd (Linux 6.8) nor write-protect \
         them (Linux 5.7)"
    )]
    Leave,
    #[error("this kernel cannot mark pages as lost (Linux 6.6 or newer is needed)")]
    Poison,
    #[error("this kernel does not report fork, mremap, madvise and munmap (Linux 4.11 or newer)")]
    Events,
}

/// What is used of what the kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    pub(super) wanted: u64,
}

impl Features {
    /// Pages are moved. Otherwise they are copied, and dropped with `madvise`. Then a page that a
    /// device or the kernel holds (a buffer of O_DIRECT, vfio) cannot be told from one that may
    /// leave: MOVE refuses such a page, `madvise` cuts it off from its holder.
    pub(super) const fn can_move(self) -> bool {
        self.wanted & abi::FEATURE_MOVE != 0
    }

    pub(super) const fn can_protect(self) -> bool {
        self.wanted & abi::FEATURE_PAGEFAULT_FLAG_WP != 0
    }
}

/// Features that a test hides, by the names in LEGATO_MASK_FEATURES, so that what is done without
/// them can be tested on a kernel that has them.
pub(super) fn masked(names: &[u8]) -> u64 {
    names
        .split(|&byte| byte == b',')
        .fold(0, |mask, name| match name {
            b"move" => mask | abi::FEATURE_MOVE,
            b"protect" => mask | abi::FEATURE_PAGEFAULT_FLAG_WP,
            _ => mask,
        })
}

/// Chooses from the features that the kernel offers.
pub(super) const fn choose(offered: u64) -> Result<Features, FeatureError> {
    let events = REQUIRED & !abi::FEATURE_POISON;
    if offered & events != events {
        return Err(FeatureError::Events);
    }
    if offered & abi::FEATURE_POISON == 0 {
        return Err(FeatureError::Poison);
    }
    let leave = abi::FEATURE_MOVE | abi::FEATURE_PAGEFAULT_FLAG_WP;
    if offered & leave == 0 {
        return Err(FeatureError::Leave);
    }
    Ok(Features {
        wanted: REQUIRED | offered & leave,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = REQUIRED | abi::FEATURE_MOVE | abi::FEATURE_PAGEFAULT_FLAG_WP;

    #[test]
    fn each_missing_feature_has_its_own_message() {
        assert_eq!(
            choose(ALL & !abi::FEATURE_POISON),
            Err(FeatureError::Poison)
        );
        assert_eq!(
            choose(ALL & !abi::FEATURE_EVENT_FORK),
            Err(FeatureError::Events)
        );
        assert_eq!(choose(REQUIRED), Err(FeatureError::Leave));
        assert_eq!(choose(0), Err(FeatureError::Events));
    }

    #[test]
    fn one_way_out_is_enough() {
        let all = choose(ALL).unwrap();
        assert!(all.can_move() && all.can_protect());
        let without_move = choose(ALL & !masked(b"move")).unwrap();
        assert!(!without_move.can_move() && without_move.can_protect());
        let without_protect = choose(ALL & !masked(b"protect")).unwrap();
        assert!(without_protect.can_move() && !without_protect.can_protect());
    }
}
