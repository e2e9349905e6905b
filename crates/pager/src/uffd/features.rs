//! What the kernel must be able to do.

use super::abi;

/// Without these an unmodified program would see wrong memory: unmapped, moved, dropped or
/// forked ranges would not be noticed, or lost pages would read zero.
pub(super) const REQUIRED: u64 = abi::FEATURE_EVENT_FORK
    | abi::FEATURE_EVENT_REMAP
    | abi::FEATURE_EVENT_REMOVE
    | abi::FEATURE_EVENT_UNMAP
    | abi::FEATURE_POISON
    | abi::FEATURE_MOVE;

/// The kernel lacks something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    #[error("this kernel cannot move pages through userfaultfd (Linux 6.8 or newer is needed)")]
    Move,
    #[error("this kernel cannot mark pages as lost (Linux 6.6 or newer is needed)")]
    Poison,
    #[error("this kernel does not report fork, mremap, madvise and munmap (Linux 4.11 or newer)")]
    Events,
}

/// Checks the features that the kernel offers.
pub(super) const fn check(offered: u64) -> Result<(), FeatureError> {
    let events = abi::FEATURE_EVENT_FORK
        | abi::FEATURE_EVENT_REMAP
        | abi::FEATURE_EVENT_REMOVE
        | abi::FEATURE_EVENT_UNMAP;
    if offered & events != events {
        return Err(FeatureError::Events);
    }
    if offered & abi::FEATURE_POISON == 0 {
        return Err(FeatureError::Poison);
    }
    if offered & abi::FEATURE_MOVE == 0 {
        return Err(FeatureError::Move);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_feature_has_its_own_message() {
        assert_eq!(check(REQUIRED), Ok(()));
        assert_eq!(check(REQUIRED & !abi::FEATURE_MOVE), Err(FeatureError::Move));
        assert_eq!(check(REQUIRED & !abi::FEATURE_POISON), Err(FeatureError::Poison));
        assert_eq!(check(REQUIRED & !abi::FEATURE_EVENT_FORK), Err(FeatureError::Events));
        assert_eq!(check(0), Err(FeatureError::Events));
    }
}
