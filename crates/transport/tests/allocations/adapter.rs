//! Operations through two channel adapters, as a provider has them.

use super::machine::{ENTRIES_MAX, MTU, Machine};
use legato_base::Duration;
use legato_transport::rc::Recovery;
use legato_verbs::{
    MemoryRegion, ReceiveRequest, RemoteAddress, ScatterGatherEntry, SendFlags, SendOperation,
    SendRequest, WorkRequestId,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Write,
    Read,
    Send,
}

/// So many bytes in so many entries, which end in the middle of packets.
fn entries(region: &MemoryRegion, count: u32, length: u32) -> Vec<ScatterGatherEntry> {
    let each = length / count - 4;
    let last = length - each * (count - 1);
    let length_of = |index| if index + 1 == count { last } else { each };
    (0..count)
        .map(|index| region.entry(u64::from(index * each), length_of(index)))
        .collect()
}

/// Allocations of an operation, from its post to its completion, once the queues have grown.
fn allocations(recovery: Recovery, verb: Verb, count: u32, packets: u32) -> u64 {
    let mut left = Machine::new(1, recovery);
    let mut right = Machine::new(2, recovery);
    let (left_number, right_number) = (left.number(), right.number());
    left.connect(2, right_number);
    right.connect(1, left_number);
    let length = packets * MTU;
    let target = RemoteAddress {
        key: right.region.remote_key,
        address: right.region.address,
    };
    let request = SendRequest {
        wr_id: WorkRequestId(1),
        operation: match verb {
            Verb::Write => SendOperation::RdmaWrite(target),
            Verb::Read => SendOperation::RdmaRead(target),
            Verb::Send => SendOperation::Send,
        },
        entries: entries(&left.region, count, length),
        flags: SendFlags::SIGNALED,
    };
    let receive = ReceiveRequest {
        wr_id: WorkRequestId(2),
        entries: entries(&right.region, count, length),
    };
    let mut last = 0;
    for _ in 0..200 {
        let seen = allocation_counter::measure(|| {
            if verb == Verb::Send {
                right.post_receive(&receive);
            }
            left.post(&request);
            let (mut sent, mut received) = (0, 0);
            for _ in 0..1_000 {
                left.wait(Duration::from_micros(10));
                right.wait(Duration::from_micros(10));
                while left.send_to(1, &mut right) | right.send_to(2, &mut left) {}
                sent += left.poll();
                received += right.poll();
                if sent == 1 && (verb != Verb::Send || received == 1) {
                    return;
                }
            }
            panic!("{sent} sends, {received} receives");
        });
        last = seen.count_total;
    }
    last
}

#[test]
fn no_packet_allocates_through_an_adapter() {
    for recovery in [Recovery::AsAttributes, Recovery::Measured] {
        for verb in [Verb::Write, Verb::Read, Verb::Send] {
            for count in [1, 2, ENTRIES_MAX] {
                for packets in [1, 64] {
                    let seen = allocations(recovery, verb, count, packets);
                    assert_eq!(
                        seen, 0,
                        "{recovery:?} {verb:?} of {packets} packets, {count} entries"
                    );
                }
            }
        }
    }
}
