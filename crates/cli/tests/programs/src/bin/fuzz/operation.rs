//! The kinds of operations, their names, and how often each is drawn.

use legato_base::random::Random;

macro_rules! operations {
    ($($variant:ident $name:literal $weight:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Operation {
            /// What has not been touched yet.
            Nothing,
            /// The first writes to all memory.
            Fill,
            $($variant,)*
        }

        /// Every kind, with its name and weight.
        const ALL: &[(Operation, &str, u64)] = &[$((Operation::$variant, $name, $weight),)*];
    };
}

operations! {
    Write "write" 30
    Check "check" 20
    Copy "copy" 6
    File "read-file" 3
    Random "getrandom" 2
    Map "mmap" 12
    Unmap "munmap" 4
    MapFile "mmap-file" 3
    MapShared "mmap-shared" 3
    Grow "mremap-grow" 4
    Shrink "mremap-shrink" 3
    Move "mremap-move" 5
    Away "mremap-away" 2
    Keep "mremap-keep" 3
    Protect "mprotect" 8
    Discard "dontneed" 6
    Free "free" 3
    Remove "remove" 3
    PopulateRead "populate-read" 2
    PopulateWrite "populate-write" 3
    Cold "cold" 2
    PageOut "pageout" 3
    Huge "hugepage" 2
    NoHuge "nohugepage" 1
    Collapse "collapse" 2
    DontFork "dontfork" 2
    DoFork "dofork" 1
    WipeOnFork "wipeonfork" 2
    KeepOnFork "keeponfork" 1
    Mergeable "mergeable" 1
    Unmergeable "unmergeable" 1
    Guard "guard" 3
    Unguard "unguard" 3
    Lock "mlock" 2
    LockOnFault "mlock-onfault" 2
    Unlock "munlock" 3
    Fault "efault" 5
    Signal "signal" 2
    Futex "futex" 2
    SharedRead "shared-read" 5
    SharedLock "shared-lock" 5
    Heap "brk" 0
    Fork "fork" 0
    Execute "exec" 0
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        let found = ALL.iter().find(|(operation, ..)| *operation == self);
        found.map_or("fill", |(_, name, _)| name)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        let found = ALL.iter().find(|(_, known, _)| *known == name);
        found.map(|(operation, ..)| *operation)
    }

    pub(crate) fn draw(random: &mut Random) -> Self {
        let total = ALL.iter().map(|(_, _, weight)| weight).sum();
        let mut rest = random.below(total);
        for (operation, _, weight) in ALL {
            if rest < *weight {
                return *operation;
            }
            rest -= weight;
        }
        Self::Nothing
    }
}
