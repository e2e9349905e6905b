//! The NICs that this side may have.

#[cfg(feature = "ibverbs")]
use legato_providers::ibverbs::{Counters, IbverbsProvider};
use legato_providers::{Pollable, RoceProvider};
use legato_verbs::Provider;

/// A NIC that this side may have.
pub(crate) trait Nic: Provider + Pollable {
    /// What it has counted, for the message of a test that fails.
    fn counted(&self) -> String;

    /// Nothing came that should not have come.
    fn check(&self);
}

impl Nic for RoceProvider {
    fn counted(&self) -> String {
        format!("{:?}", self.received())
    }

    /// V-13: every packet of the kernel's was whole, so that what is counted as damaged was found
    /// so by mistake.
    fn check(&self) {
        let received = self.received();
        println!(
            "  {} packets of the kernel's, {} with an identification that was solved",
            received.packets_received, received.identifications_solved
        );
        assert!(received.packets_received > 0);
        assert_eq!((received.damaged, received.malformed), (0, 0));
    }
}

#[cfg(feature = "ibverbs")]
impl Nic for IbverbsProvider {
    fn counted(&self) -> String {
        format!("{:?}", self.counters())
    }

    fn check(&self) {
        assert_eq!(self.counters(), Counters::default());
    }
}
