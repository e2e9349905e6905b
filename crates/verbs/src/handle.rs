//! Handles: an index and a generation, never a pointer. A stale handle is an error value.

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            pub index: u32,
            /// Differs for each object that ever had this index in the provider's life.
            pub generation: u32,
        }
    };
}

handle!(
    /// A protection domain: regions and queue pairs work together only within one.
    ProtectionDomain
);
handle!(
    /// A completion queue.
    CompletionQueue
);
handle!(
    /// A reliable connected (RC) queue pair.
    QueuePair
);
handle!(
    /// Receives that several queue pairs take from (SRQ).
    SharedReceiveQueue
);
handle!(
    /// A listening address.
    Listener
);
handle!(
    /// A peer that waits for accept or reject.
    ConnectionRequest
);
