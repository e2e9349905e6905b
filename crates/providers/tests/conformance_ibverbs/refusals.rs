//! V-9: what a WRITE leaves that begins in its region and ends behind it.

use crate::rig::{Ground, Rig, Side};
use legato_verbs::{
    AccessFlags, Completion, CompletionKind, CompletionStatus, MemoryRegion, PathMtu,
    Provider as _, QueuePair, QueuePairState, RemoteAddress, SendFlags, SendOperation, SendRequest,
    WorkRequestId,
};

/// Two packets, and a WRITE of four.
const SMALL: u32 = 2048;
const LONG: u32 = 4096;

/// Fills so much of the left side's region with a byte and writes it to the start of `to`.
fn write(
    rig: &mut Rig,
    (queue_pair, ground): (QueuePair, &Ground),
    to: &MemoryRegion,
    (byte, length): (u8, u32),
) -> Completion {
    rig.fill(Side::Left, ground, &vec![byte; length as usize]);
    let target = RemoteAddress {
        key: to.remote_key,
        address: to.address,
    };
    let request = SendRequest {
        wr_id: WorkRequestId(u64::from(length)),
        operation: SendOperation::RdmaWrite(target),
        entries: vec![ground.region.entry(0, length)],
        flags: SendFlags::SIGNALED,
    };
    rig.on(Side::Left).post_send(queue_pair, &request).unwrap();
    rig.completions(Side::Left, ground.queue, 1).remove(0)
}

/// Adapters write up to the edge; rxe looks at the whole length when the first packet comes.
#[test]
#[ignore = "runs in the guest: in_a_guest"]
fn v09_a_write_over_the_edge_of_its_region_leaves_nothing() {
    let mut rig = Rig::new();
    let grounds = [rig.ground(Side::Left, 64), rig.ground(Side::Right, 64)];
    let left = rig.queue_pair(Side::Left, &grounds[0]);
    let right = rig.queue_pair(Side::Right, &grounds[1]);
    rig.on(Side::Left).modify_to_init(left).unwrap();
    rig.on(Side::Right).modify_to_init(right).unwrap();
    rig.connect(left, right);
    let known = rig.on(Side::Left).query_attributes(left).unwrap();
    assert_eq!(known.path_mtu, Some(PathMtu::Bytes1024));
    let small = rig
        .on(Side::Right)
        .allocate_region(
            grounds[1].domain,
            u64::from(SMALL),
            AccessFlags::from_bits(15),
        )
        .unwrap();
    let whole = |rig: &mut Rig| {
        let mut bytes = vec![0; SMALL as usize];
        let right = rig.on(Side::Right);
        right.read_region(&small, 0, &mut bytes).unwrap();
        bytes
    };
    let from = (left, &grounds[0]);
    let fits = write(&mut rig, from, &small, (0x11, SMALL));
    assert_eq!(fits.result, Ok(CompletionKind::RdmaWrite));
    assert!(whole(&mut rig) == [0x11; SMALL as usize]);
    let refused = write(&mut rig, from, &small, (0xEE, LONG));
    assert_eq!(refused.result, Err(CompletionStatus::RemoteAccess));
    assert!(whole(&mut rig) == [0x11; SMALL as usize], "a partial write");
    rig.disconnected(Side::Right, right);
    for (side, queue_pair) in [(Side::Left, left), (Side::Right, right)] {
        let state = rig.on(side).query_queue_pair(queue_pair);
        assert_eq!(state, Ok(QueuePairState::Error), "{side:?}");
    }
    // Whatever was under way has come, and it is still so.
    assert!(whole(&mut rig) == [0x11; SMALL as usize], "a late write");
}
