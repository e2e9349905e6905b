//! Operations of two queue pairs, with the least around them.

use crate::side::{Side, entries};
use legato_base::Time;
use legato_transport::PathMtu;

/// Allocations of an operation, from its post to its completion, once the queues have grown.
fn allocations(read: bool, length: u32) -> u64 {
    let mut left = Side::connected(2, 3, PathMtu::Bytes256);
    let mut right = Side::connected(3, 2, PathMtu::Bytes256);
    let mut buffer = vec![0; left.queue_pair.packet_max()];
    let mut last = 0;
    // Of the first ones the queues grow.
    for done in 1..200 {
        let entries = entries(length);
        let seen = allocation_counter::measure(|| {
            left.post(read, entries).unwrap();
            let mut packets = 1;
            while packets > 0 {
                packets = left.send_to(&mut right, Time::ZERO, &mut buffer);
                packets += right.send_to(&mut left, Time::ZERO, &mut buffer);
            }
            left.queue_pair.send_polled();
        });
        assert_eq!(left.memory.completed, done);
        last = seen.count_total;
    }
    last
}

#[test]
fn no_packet_allocates() {
    for read in [false, true] {
        // Of 1 and of 64 packets.
        for length in [256, 64 * 256] {
            assert_eq!(allocations(read, length), 0, "read {read}, {length} bytes");
        }
    }
}
