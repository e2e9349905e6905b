//! What the kernel must be able to do, and what it may.

use super::abi;
use core::fmt;

/// Without these an unmodified program would see wrong memory: unmapped, moved, dropped or
/// forked ranges would not be noticed.
pub(super) const REQUIRED: u64 = abi::FEATURE_EVENT_FORK
    | abi::FEATURE_EVENT_REMAP
    | abi::FEATURE_EVENT_REMOVE
    | abi::FEATURE_EVENT_UNMAP;

/// Used where the kernel has them. FEATURE_WP_ASYNC is not among them: a page's checksum tells
/// whether it was written, and a write that the kernel lets through by itself would change a page
/// that is being copied out.
const OPTIONAL: u64 = abi::FEATURE_MOVE
    | abi::FEATURE_PAGEFAULT_FLAG_WP
    | abi::FEATURE_POISON
    | abi::FEATURE_THREAD_ID
    | abi::FEATURE_WP_UNPOPULATED;

/// All that is ever asked for.
pub(super) const USED: u64 = REQUIRED | OPTIONAL;

/// The kernel lacks something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    #[error(
        "this kernel can neither move pages through userfaultfd (Linux 6.8) nor write-protect \
         them (Linux 5.7); use a newer one"
    )]
    Leave,
    #[error(
        "this kernel does not report fork, mremap, madvise and munmap; use Linux 4.11 or newer"
    )]
    Events,
}

/// What is used of what the kernel offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    pub(super) wanted: u64,
    /// What is done without on purpose.
    pub(super) mask: Mask,
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

    /// A page that is away can be marked, so that the kernel calls it swapped out and not missing
    /// (pagemap, PAGEMAP_SCAN).
    pub(super) const fn can_mark(self) -> bool {
        self.can_protect() && self.wanted & abi::FEATURE_WP_UNPOPULATED != 0
    }

    /// Touching a lost page is SIGBUS. Otherwise it ends the program: what a missing page reads as
    /// is for the agent to say, and it has nothing right to say.
    pub(super) const fn can_poison(self) -> bool {
        self.wanted & abi::FEATURE_POISON != 0
    }
}

/// What is done without although the kernel may have it, so that it can be tested what happens on
/// a kernel that does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask {
    features: u64,
    pub(super) pagemap_scan: bool,
    pub(super) device: bool,
    pub(super) system_call: bool,
    pub(super) exact_rss: bool,
}

impl Mask {
    /// All names that [`Self::parse`] knows.
    pub const NAMES: &str =
        "move, protect, wp-async, wp-unpopulated, poison, pagemap-scan, device, syscall, exact-rss";

    /// Names with commas between them.
    ///
    /// # Errors
    /// The first name that is none: a test that hides nothing would show nothing.
    pub fn parse(names: &[u8]) -> Result<Self, UnknownName<'_>> {
        let mut mask = Self::default();
        for name in names.split(|&byte| byte == b',') {
            match name {
                b"" => {}
                b"move" => mask.features |= abi::FEATURE_MOVE,
                b"protect" => mask.features |= abi::FEATURE_PAGEFAULT_FLAG_WP,
                b"wp-async" => mask.features |= abi::FEATURE_WP_ASYNC,
                b"wp-unpopulated" => mask.features |= abi::FEATURE_WP_UNPOPULATED,
                b"poison" => mask.features |= abi::FEATURE_POISON,
                b"pagemap-scan" => mask.pagemap_scan = true,
                b"device" => mask.device = true,
                b"syscall" => mask.system_call = true,
                b"exact-rss" => mask.exact_rss = true,
                other => return Err(UnknownName(other)),
            }
        }
        Ok(mask)
    }

    /// What is left of what a kernel offers.
    pub(super) const fn allowed(self, offered: u64) -> u64 {
        offered & !self.features
    }
}

/// Not a feature that can be masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownName<'a>(&'a [u8]);

impl fmt::Display for UnknownName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = alloc::string::String::from_utf8_lossy(self.0);
        write!(
            f,
            "LEGATO_MASK_FEATURES: no feature is called '{name}'; there are {}; unset it outside of tests",
            Mask::NAMES
        )
    }
}

impl core::error::Error for UnknownName<'_> {}

/// Chooses from the features that the kernel offers.
pub(super) const fn choose(offered: u64, mask: Mask) -> Result<Features, FeatureError> {
    let offered = mask.allowed(offered);
    if offered & REQUIRED != REQUIRED {
        return Err(FeatureError::Events);
    }
    let leave = abi::FEATURE_MOVE | abi::FEATURE_PAGEFAULT_FLAG_WP;
    if offered & leave == 0 {
        return Err(FeatureError::Leave);
    }
    Ok(Features {
        wanted: REQUIRED | offered & OPTIONAL,
        mask,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = REQUIRED | OPTIONAL | abi::FEATURE_WP_ASYNC;

    fn without(names: &str) -> Features {
        choose(ALL, Mask::parse(names.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn each_missing_feature_has_its_own_message() {
        let none = Mask::default();
        assert_eq!(
            choose(ALL & !abi::FEATURE_EVENT_FORK, none),
            Err(FeatureError::Events)
        );
        assert_eq!(choose(REQUIRED, none), Err(FeatureError::Leave));
        assert_eq!(choose(0, none), Err(FeatureError::Events));
    }

    #[test]
    fn one_way_out_is_enough() {
        let all = without("");
        assert!(all.can_move() && all.can_protect() && all.can_poison());
        let without_move = without("move");
        assert!(!without_move.can_move() && without_move.can_protect());
        let without_protect = without("protect");
        assert!(without_protect.can_move() && !without_protect.can_protect());
        assert!(!without("poison").can_poison());
        assert!(all.can_mark() && !without("wp-unpopulated").can_mark());
        assert!(!without("protect").can_mark());
    }

    #[test]
    fn hiding_what_is_not_used_changes_nothing() {
        assert_eq!(without("wp-async").wanted, without("").wanted);
    }

    #[test]
    fn names_are_a_list_and_a_wrong_one_is_named() {
        let mask = Mask::parse(b"pagemap-scan,device").unwrap();
        assert!(mask.pagemap_scan && mask.device && !mask.system_call);
        let error = Mask::parse(b"move,remove").unwrap_err();
        assert_eq!(error, UnknownName(b"remove"));
        let mut known = Mask::NAMES.split(", ");
        assert!(known.all(|name| Mask::parse(name.as_bytes()).is_ok()));
    }
}
