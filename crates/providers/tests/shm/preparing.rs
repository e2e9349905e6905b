//! Keys that are prepared before their first use: nothing waits for them, and one that cannot be had costs
//! nothing else.

use crate::peer::Peer;
use crate::peer::pair::{connected, polled, remote, state, turn};
use legato_verbs::{
    AccessFlags, CompletionKind, CompletionStatus, MemoryRegion, Prepared, Provider,
    QueuePairState as State, RemoteAddress, SendOperation, VerbsError,
};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const READ: Result<CompletionKind, CompletionStatus> = Ok(CompletionKind::RdmaRead);
const LENGTH: u64 = 4096;

/// One more region of a peer's, which others may only read: so it has a segment of its own.
fn region(peer: &mut Peer, byte: u8) -> MemoryRegion {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let region = peer.provider.allocate_region(peer.domain, LENGTH, access);
    let region = region.unwrap();
    let bytes = [byte; LENGTH as usize];
    peer.provider.write_region(&region, 0, &bytes).unwrap();
    region
}

fn prepare(peer: &mut Peer, region: &MemoryRegion) -> Prepared {
    let prepared = peer
        .provider
        .prepare_remote(peer.queue_pair, region.remote_key);
    prepared.unwrap()
}

fn read(peer: &mut Peer, region: &MemoryRegion) {
    let from = RemoteAddress {
        key: region.remote_key,
        address: region.address,
    };
    peer.post(1, SendOperation::RdmaRead(from), 0, LENGTH as u32);
}

fn end(left: Peer, mut right: Peer, regions: &[MemoryRegion]) {
    left.dismantle();
    for region in regions {
        right.provider.deregister_region(region).unwrap();
    }
    right.dismantle();
}

/// Every mapping that the process can still have (`vm.max_map_count`).
struct AllMappings(Vec<(*mut core::ffi::c_void, usize)>);

impl AllMappings {
    fn take() -> Self {
        const PAGE: usize = legato_base::PAGE_SIZE;
        let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
        let pages = 2 * most.trim().parse::<usize>().unwrap();
        // SAFETY: fresh mappings, in which nothing is ever touched.
        let map = |flags, length| unsafe {
            mmap_anonymous(core::ptr::null_mut(), length, ProtFlags::empty(), flags)
        };
        let mut all = Self(Vec::with_capacity(8));
        let length = pages * PAGE;
        let cut = map(MapFlags::PRIVATE | MapFlags::NORESERVE, length).unwrap();
        all.0.push((cut, length));
        let uncut = (1..pages).step_by(2).find(|page| {
            // SAFETY: a page of the mapping.
            unsafe { mprotect(cut.byte_add(page * PAGE), PAGE, MprotectFlags::READ) }.is_err()
        });
        assert!(uncut.is_some(), "no limit");
        // A cut takes two. What is shared is a file of its own, and never one mapping with another.
        while let Ok(last) = map(MapFlags::SHARED, PAGE) {
            all.0.push((last, PAGE));
        }
        all
    }
}

impl Drop for AllMappings {
    fn drop(&mut self) {
        for &(start, length) in &self.0 {
            // SAFETY: nobody uses it.
            unsafe { munmap(start, length) }.unwrap();
        }
    }
}

#[test]
fn a_key_that_is_prepared_is_used_at_once_and_holds_up_nothing_meanwhile() {
    let (mut left, mut right) = connected("preparing");
    let first = right.region;
    let second = region(&mut right, 2);
    assert_eq!(prepare(&mut left, &first), Prepared::NotYet);
    turn(&mut left, &mut right);
    assert_eq!(prepare(&mut left, &first), Prepared::Yes);
    // From here on only one side runs.
    assert_eq!(prepare(&mut left, &second), Prepared::NotYet);
    assert_eq!(prepare(&mut left, &second), Prepared::NotYet, "asked once");
    left.post(1, SendOperation::RdmaRead(remote(&right)), 0, 64);
    assert_eq!(polled(&mut left), [READ]);
    turn(&mut left, &mut right);
    assert_eq!(prepare(&mut left, &second), Prepared::Yes);
    read(&mut left, &second);
    assert_eq!(polled(&mut left), [READ]);
    assert_eq!(left.bytes(0, 64), [2; 64]);
    end(left, right, &[second]);
}

#[test]
fn there_is_nothing_to_prepare_without_a_connection() {
    let mut peer = Peer::new();
    let key = peer.region.remote_key;
    let prepared = peer.provider.prepare_remote(peer.queue_pair, key);
    assert_eq!(prepared, Err(VerbsError::InvalidState(State::Init)));
    peer.dismantle();
}

/// P-101. Lost: the connection, and with it all that the peer held.
#[test]
fn who_has_no_mapping_left_is_refused_a_region_and_keeps_the_others() {
    let (mut left, mut right) = connected("unmappable");
    let regions: Vec<MemoryRegion> = (0..5).map(|byte| region(&mut right, byte)).collect();
    prepare(&mut left, &regions[0]);
    turn(&mut left, &mut right);
    let all = AllMappings::take();
    // Some are kept in hand.
    for (region, expected) in regions.iter().zip([
        Prepared::Yes,
        Prepared::Yes,
        Prepared::Yes,
        Prepared::Refused,
        Prepared::Refused,
    ]) {
        prepare(&mut left, region);
        turn(&mut left, &mut right);
        assert_eq!(prepare(&mut left, region), expected);
    }
    assert_eq!(state(&left), State::ReadyToSend);
    for (byte, region) in regions[..3].iter().enumerate() {
        read(&mut left, region);
        assert_eq!(polled(&mut left), [READ]);
        assert_eq!(left.bytes(0, 8), [byte as u8; 8]);
    }
    drop(all);
    assert_eq!(prepare(&mut left, &regions[3]), Prepared::NotYet);
    turn(&mut left, &mut right);
    assert_eq!(prepare(&mut left, &regions[3]), Prepared::Yes);
    end(left, right, &regions);
}

#[test]
fn a_request_that_needs_a_region_which_cannot_be_mapped_fails_alone() {
    let (mut left, mut right) = connected("unmapped-read");
    let regions: Vec<MemoryRegion> = (0..3).map(|byte| region(&mut right, byte)).collect();
    let all = AllMappings::take();
    for region in &regions[..2] {
        read(&mut left, region);
        turn(&mut left, &mut right);
        assert_eq!(polled(&mut left), [READ]);
    }
    read(&mut left, &regions[2]);
    turn(&mut left, &mut right);
    let failed = Err(CompletionStatus::LocalQueuePairOperation);
    assert_eq!(polled(&mut left), [failed]);
    assert_eq!(state(&left), State::Error, "as after every failed request");
    drop(all);
    end(left, right, &regions);
}
