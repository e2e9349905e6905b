//! What a responder refuses.

use crate::bench::{ALL_ACCESS, Bench, FLUSHED, MILLISECOND, Outcome, Setup, WRITTEN};
use legato_sim::provider::Personality;
use legato_verbs::{
    AccessFlags, AsyncEvent, CompletionStatus as Status, QueuePairState, RemoteAddress, RemoteKey,
    SendOperation,
};

const THREE: [Personality; 3] = [Personality::IDEAL, Personality::MLX5, Personality::RXE];

fn write(setup: Setup, length: u32, at: impl FnOnce(RemoteAddress) -> RemoteAddress) -> Bench {
    let mut bench = Bench::connected(setup);
    bench.left.fill(0, &[7; 64]);
    bench.right.receive(9, 64);
    let target = at(bench.right.at(0));
    bench.left.post(1, SendOperation::RdmaWrite(target), length);
    bench.run_for(MILLISECOND);
    bench
}

fn is_refused(mut bench: Bench, status: Status) {
    let name = bench.setup.left.name;
    assert_eq!(bench.left.polled(), [(1, Err(status))], "{name}");
    assert_eq!(bench.right.polled(), [(9, FLUSHED)], "{name}");
    for end in [&bench.left, &bench.right] {
        assert_eq!(end.state(), QueuePairState::Error);
    }
    assert_eq!(bench.right.bytes(0, 64), [0; 64]);
    let right = bench.right.queue_pair;
    let expected = match (name, status) {
        ("rxe", _) => vec![],
        (_, Status::RemoteAccess) => vec![AsyncEvent::QueuePairAccessError(right)],
        _ => vec![AsyncEvent::QueuePairRequestError(right)],
    };
    assert_eq!(bench.right.async_events(), expected, "{name}");
}

#[test]
fn v_08_refused_writes() {
    for personality in THREE {
        let setup = Setup::new(personality);
        let access = Status::RemoteAccess;
        let bad_key = |at: RemoteAddress| RemoteAddress {
            key: RemoteKey(!at.key.0),
            ..at
        };
        is_refused(write(setup, 64, bad_key), access);
        let outside = |at: RemoteAddress| RemoteAddress {
            address: at.address + setup.region_length - 63,
            ..at
        };
        is_refused(write(setup, 64, outside), access);
        let not_writable = Setup {
            region_access: AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ,
            ..setup
        };
        is_refused(write(not_writable, 64, |at| at), access);
        let not_allowed = Setup {
            access: AccessFlags::REMOTE_READ,
            ..setup
        };
        is_refused(
            write(not_allowed, 64, |at| at),
            Status::RemoteInvalidRequest,
        );
        let mut bench = write(setup, 0, bad_key);
        assert_eq!(bench.left.polled(), [(1, WRITTEN)]);
        assert_eq!(bench.right.state(), QueuePairState::ReadyToSend);
    }
}

#[test]
fn v_09_a_write_that_leaves_its_region_is_partial() {
    for personality in THREE {
        let setup = Setup::new(personality);
        let mut bench = Bench::connected(setup);
        bench.left.fill(0, &[7; 4096]);
        // The region ends after two packets of 1024 bytes.
        let target = bench.right.at(setup.region_length - 2048);
        bench.left.post(1, SendOperation::RdmaWrite(target), 4096);
        bench.run_for(MILLISECOND);
        assert_eq!(bench.left.polled(), [(1, Err(Status::RemoteAccess))]);
        let written = bench.right.bytes(setup.region_length - 2048, 2048);
        let expected = if personality.name == "rxe" { 0 } else { 7 };
        assert_eq!(written, [expected; 2048], "{}", personality.name);
    }
}

#[test]
fn v_10_a_message_longer_than_its_receive() {
    for personality in THREE {
        let mut bench = Bench::connected(Setup::new(personality));
        bench.right.receive(10, 16);
        bench.right.receive(11, 64);
        bench.left.send(1, 64);
        bench.run_for(MILLISECOND);
        let (sender, receiver): (Outcome, Outcome) = if personality.name == "rxe" {
            (
                Err(Status::RemoteOperation),
                Err(Status::LocalQueuePairOperation),
            )
        } else {
            (Err(Status::RemoteInvalidRequest), Err(Status::LocalLength))
        };
        assert_eq!(bench.left.polled(), [(1, sender)]);
        assert_eq!(bench.right.polled(), [(10, receiver), (11, FLUSHED)]);
    }
}

/// A peer may not reach what a region's rights do not give, atomics included.
#[test]
fn v_08_atomics_need_their_right_and_an_aligned_address() {
    for (access, offset, status) in [
        (ALL_ACCESS, 4, Status::RemoteInvalidRequest),
        (AccessFlags::from_bits(7), 0, Status::RemoteAccess),
    ] {
        let mut bench = Bench::connected(Setup {
            region_access: access,
            ..Setup::new(Personality::IDEAL)
        });
        let target = bench.right.at(offset);
        bench
            .left
            .post(1, SendOperation::FetchAndAdd { target, add: 1 }, 8);
        bench.run_for(MILLISECOND);
        assert_eq!(bench.left.polled(), [(1, Err(status))]);
        assert_eq!(bench.right.bytes(0, 16), [0; 16]);
    }
}
