//! What a READ of 4 KiB costs from post to completion, against a plain copy of 4 KiB.
#![allow(clippy::unwrap_used, reason = "a failed call ends the measurement")]

use legato_base::{Random, Time};
use legato_providers::ShmProvider;
use legato_verbs::{
    AccessFlags, Address, ConnectionEvent, Event, Provider, QueuePair, QueuePairCapabilities,
    QueuePairInit, RemoteAddress, SendFlags, SendOperation, SendRequest, WorkRequestId,
};
use std::time::Instant;

const PAGE: u64 = 4096;
const COUNT: u64 = 200_000;

fn end(
    provider: &mut ShmProvider,
    length: u64,
) -> (
    QueuePair,
    legato_verbs::CompletionQueue,
    legato_verbs::MemoryRegion,
) {
    let domain = provider.create_protection_domain().unwrap();
    let queue = provider.create_completion_queue(32).unwrap();
    let capabilities = QueuePairCapabilities {
        send_requests_max: 16,
        receive_requests_max: 16,
        entries_max: 1,
    };
    let pair = provider
        .create_queue_pair(&QueuePairInit::new(domain, queue, capabilities))
        .unwrap();
    provider.modify_to_init(pair).unwrap();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    (
        pair,
        queue,
        provider.allocate_region(domain, length, access).unwrap(),
    )
}

fn main() {
    let (mut left, mut right) = (ShmProvider::new().unwrap(), ShmProvider::new().unwrap());
    let length = 256 << 20;
    let (near, queue, into) = end(&mut left, PAGE);
    let (far, _, from) = end(&mut right, length);
    for offset in (0..length).step_by(PAGE as usize) {
        right
            .write_region(&from, offset, &[1; PAGE as usize])
            .unwrap();
    }
    let address = Address::Shm(format!("@legato-bench-{}", std::process::id()));
    right.listen(&address).unwrap();
    left.connect(near, &address, &[]).unwrap();
    right.progress(Time::ZERO);
    let Some(Event::Connection(ConnectionEvent::Requested { request, .. })) = right.poll_event()
    else {
        panic!("no request");
    };
    right.accept(request, far, &[]).unwrap();
    left.progress(Time::ZERO);
    let mut done = Vec::new();
    let mut request = SendRequest {
        wr_id: WorkRequestId(1),
        operation: SendOperation::Send,
        entries: vec![into.entry(0, PAGE as u32)],
        flags: SendFlags::SIGNALED,
    };
    let mut read = |left: &mut ShmProvider, offset: u64| {
        let at = RemoteAddress {
            key: from.remote_key,
            address: from.address + offset,
        };
        request.operation = SendOperation::RdmaRead(at);
        left.post_send(near, &request).unwrap();
        done.clear();
        left.poll_completion_queue(queue, 1, &mut done).unwrap()
    };
    while read(&mut left, 0) == 0 {
        right.progress(Time::ZERO);
        left.progress(Time::ZERO);
        if left
            .poll_completion_queue(queue, 16, &mut Vec::new())
            .unwrap()
            > 0
        {
            break;
        }
    }
    for (name, range) in [("hot 64 KiB", 16), ("256 MiB", length / PAGE)] {
        // Touches the initiator's mapping first, as any earlier READ would have.
        for page in 0..range {
            assert_eq!(read(&mut left, page * PAGE), 1);
        }
        let mut buffer = vec![0; PAGE as usize];
        let (mut plain, mut posted) = (u128::MAX, u128::MAX);
        for _ in 0..5 {
            let mut random = Random::from_seed(1);
            let begin = Instant::now();
            for _ in 0..COUNT {
                right
                    .read_region(&from, random.below(range) * PAGE, &mut buffer)
                    .unwrap();
            }
            plain = plain.min(begin.elapsed().as_nanos());
            let mut random = Random::from_seed(1);
            let begin = Instant::now();
            for _ in 0..COUNT {
                assert_eq!(read(&mut left, random.below(range) * PAGE), 1);
            }
            posted = posted.min(begin.elapsed().as_nanos());
        }
        println!(
            "{name}: copy {} ns, READ {} ns, ratio {:.2}",
            plain / u128::from(COUNT),
            posted / u128::from(COUNT),
            posted as f64 / plain as f64
        );
    }
}
