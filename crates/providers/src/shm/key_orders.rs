//! Keys that are made valid and invalid, in every order in which a peer can see it.

use super::super::loom_words::{
    Defect, Loom, Loomed, NO_FENCES, NONE, ONE_LOOK, RELAXED_LOADS, RELAXED_STORES, failure,
    in_every_order,
};
use super::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32 as Bytes, Ordering::Relaxed};
use loom::thread;

const FIRST: u32 = 1;
const SECOND: u32 = 2;
const UNWRITTEN: u32 = 0;
const WRITTEN: u32 = 7;
const LATER: u32 = 9;

/// A slot and a region's bytes.
struct Target<const DEFECT: Defect> {
    slot: Loomed<Bytes, u32, DEFECT>,
    bytes: Bytes,
}

impl<const DEFECT: Defect> Target<DEFECT> {
    fn new(key: u32, bytes: u32) -> Arc<Self> {
        Arc::new(Self {
            slot: Loomed::<Bytes, u32, DEFECT>::new(key),
            bytes: Bytes::new(bytes),
        })
    }

    fn read(&self) -> Option<u32> {
        let look = Look::<Loom<DEFECT>>::first(&self.slot, FIRST)?;
        let bytes = self.bytes.load(Relaxed);
        look.again().then_some(bytes)
    }
}

/// The owner writes, then makes the key valid.
fn published<const DEFECT: Defect>() {
    let target = Target::<DEFECT>::new(0, UNWRITTEN);
    let peer = {
        let target = target.clone();
        thread::spawn(move || target.read())
    };
    target.bytes.store(WRITTEN, Relaxed);
    publish::<Loom<DEFECT>>(&target.slot, FIRST);
    let read = peer.join().unwrap();
    assert!(read.is_none_or(|bytes| bytes == WRITTEN), "read {read:?}");
}

/// The owner revokes the key while a peer reads, gives the slot to another region, and then
/// writes where the first one was.
fn revoked<const DEFECT: Defect>() {
    let target = Target::<DEFECT>::new(FIRST, WRITTEN);
    let peer = {
        let target = target.clone();
        thread::spawn(move || target.read())
    };
    revoke::<Loom<DEFECT>>(&target.slot);
    target.bytes.store(LATER, Relaxed);
    publish::<Loom<DEFECT>>(&target.slot, SECOND);
    let read = peer.join().unwrap();
    assert!(read.is_none_or(|bytes| bytes == WRITTEN), "read {read:?}");
}

#[test]
fn a_key_that_is_valid_names_bytes_that_are_written() {
    in_every_order(9, published::<NONE>);
    for failed in [
        failure(published::<RELAXED_STORES>),
        failure(published::<RELAXED_LOADS>),
    ] {
        assert_eq!(failed, "read Some(0)");
    }
}

// P-38
#[test]
fn a_read_that_counts_is_from_before_the_revocation() {
    in_every_order(9, revoked::<NONE>);
    for failed in [failure(revoked::<ONE_LOOK>), failure(revoked::<NO_FENCES>)] {
        assert_eq!(failed, "read Some(9)");
    }
}
