//! Requests and notices as bytes.

use super::*;
use alloc::vec;
use legato_verbs::{
    AsyncEvent, ConnectionEvent, ConnectionRequest, Listener, RejectReason, SharedReceiveQueue,
    UnreachableReason, WindowBinding,
};

const PAIR: QueuePair = QueuePair {
    index: 1,
    generation: 2,
};
const QUEUE: CompletionQueue = CompletionQueue {
    index: 3,
    generation: 4,
};
const TARGET: RemoteAddress = RemoteAddress {
    key: RemoteKey(0xFFFF_0000),
    address: u64::MAX,
};

fn operations() -> [SendOperation; 8] {
    [
        SendOperation::Send,
        SendOperation::RdmaWrite(TARGET),
        SendOperation::RdmaRead(TARGET),
        SendOperation::SendWithImmediate(u32::MAX),
        SendOperation::SendWithInvalidate(RemoteKey(9)),
        SendOperation::RdmaWriteWithImmediate(TARGET, 7),
        SendOperation::CompareAndSwap {
            target: TARGET,
            compare: 1,
            swap: u64::MAX,
        },
        SendOperation::FetchAndAdd {
            target: TARGET,
            add: 5,
        },
    ]
}

#[test]
fn requests_survive_a_round_trip_and_no_part_of_one_is_a_request() {
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    let sends = operations().map(|operation| Work::Send(operation, flags));
    let part = |number: u32| Part {
        region: RegionId(number),
        offset: 1 << 40,
        length: u32::MAX,
    };
    for (work, count) in sends.into_iter().chain([Work::Receive]).zip(0..) {
        let parts: Vec<Part> = (0..count).map(part).collect();
        let mut bytes = Vec::new();
        Post::encode((PAIR, 77), work, &parts, &mut Encoder(&mut bytes)).unwrap();
        let post = Post {
            pair: PAIR,
            number: 77,
            work,
            parts,
        };
        assert_eq!(Post::decode(Decoder(&bytes)), Ok(post));
        for length in 0..bytes.len() {
            assert_eq!(Post::decode(Decoder(&bytes[..length])), Err(Malformed));
        }
    }
}

#[test]
fn what_is_no_request_is_malformed() {
    let mut bytes = Vec::new();
    let work = Work::Send(SendOperation::Send, SendFlags::SIGNALED);
    Post::encode((PAIR, 1), work, &[], &mut Encoder(&mut bytes)).unwrap();
    // An operation, a flag and a number of entries that there are not.
    for (place, value) in [(0, 9), (1, 16), (18, 17)] {
        let mut wrong = bytes.clone();
        wrong[place] = value;
        wrong.extend_from_slice(&[0; 17 * 16]);
        assert_eq!(Post::decode(Decoder(&wrong)), Err(Malformed), "{place}");
    }
}

#[test]
fn windows_are_refused() {
    let binding = WindowBinding {
        window: RemoteKey(1),
        next: RemoteKey(2),
        region: legato_verbs::LocalKey(3),
        address: 0,
        length: 1,
        access: legato_verbs::AccessFlags::NONE,
    };
    for operation in [
        SendOperation::BindWindow(binding),
        SendOperation::LocalInvalidate(RemoteKey(1)),
    ] {
        let work = Work::Send(operation, SendFlags::NONE);
        let mut bytes = Vec::new();
        let encoded = Post::encode((PAIR, 1), work, &[], &mut Encoder(&mut bytes));
        assert_eq!(encoded, Err(VerbsError::Unsupported("memory windows")));
    }
}

fn survives(told: &Told) -> usize {
    let mut bytes = Vec::new();
    told.encode(&mut Encoder(&mut bytes));
    assert_eq!(Told::decode(Decoder(&bytes)).as_ref(), Ok(told));
    for length in 0..bytes.len() {
        assert_eq!(Told::decode(Decoder(&bytes[..length])), Err(Malformed));
    }
    bytes.len()
}

#[test]
fn completions_survive_a_round_trip() {
    let (length, immediate) = (u32::MAX, 0xDEAD_BEEF);
    let kinds = [
        CompletionKind::Send,
        CompletionKind::Receive { length },
        CompletionKind::RdmaWrite,
        CompletionKind::RdmaRead,
        CompletionKind::CompareAndSwap,
        CompletionKind::FetchAndAdd,
        CompletionKind::LocalInvalidate,
        CompletionKind::BindWindow,
        CompletionKind::ReceiveWithImmediate { length, immediate },
        CompletionKind::ReceiveWithInvalidate {
            length,
            key: RemoteKey(1),
        },
        CompletionKind::ReceiveRdmaWithImmediate { length, immediate },
    ];
    let statuses = (0..=u8::MAX).filter_map(CompletionStatus::from_code);
    let results = kinds.map(Ok).into_iter().chain(statuses.map(Err));
    let mut seen = 0;
    for result in results {
        let completed = Completed {
            queue: QUEUE,
            pair: PAIR,
            direction: Direction::Receive,
            number: u64::MAX,
            result,
            vendor_error: u32::from(result.is_err()),
        };
        let length = survives(&Told {
            notice: Notice::Completed(completed),
            state: Some(QueuePairState::Error),
        });
        assert!(length <= COMPLETED_BYTES_MAX, "{length}");
        seen += 1;
    }
    assert_eq!(seen, kinds.len() + 10);
}

fn connection_events() -> Vec<ConnectionEvent> {
    let queue_pair = PAIR;
    let private_data = vec![7; 255];
    let mut events = vec![
        ConnectionEvent::Requested {
            listener: Listener {
                index: 1,
                generation: 1,
            },
            request: ConnectionRequest {
                index: 2,
                generation: 2,
            },
            private_data: private_data.clone(),
        },
        ConnectionEvent::Established {
            queue_pair,
            private_data: Vec::new(),
        },
        ConnectionEvent::Disconnected { queue_pair },
        ConnectionEvent::DeviceRemoved { queue_pair },
        ConnectionEvent::AddressRemoved { queue_pair },
        ConnectionEvent::AddressReturned { queue_pair },
        ConnectionEvent::TimeWaitExit { queue_pair },
        ConnectionEvent::AddressChanged { queue_pair },
    ];
    for reason in [
        RejectReason::NoResources,
        RejectReason::Timeout,
        RejectReason::InvalidServiceId,
        RejectReason::StaleConnection,
        RejectReason::ConsumerReject,
        RejectReason::IncompatibleVersion,
        RejectReason::Other(0xABCD),
    ] {
        events.push(ConnectionEvent::Rejected {
            queue_pair,
            reason,
            private_data: private_data.clone(),
        });
    }
    for reason in [
        UnreachableReason::NoSuchAddress,
        UnreachableReason::PermissionDenied,
        UnreachableReason::TimedOut,
        UnreachableReason::Failed,
    ] {
        events.push(ConnectionEvent::Unreachable { queue_pair, reason });
    }
    events
}

#[test]
fn events_survive_a_round_trip() {
    let shared = SharedReceiveQueue {
        index: 5,
        generation: 6,
    };
    let asynchronous = [
        AsyncEvent::CompletionQueueError(QUEUE),
        AsyncEvent::QueuePairFatal(PAIR),
        AsyncEvent::QueuePairRequestError(PAIR),
        AsyncEvent::QueuePairAccessError(PAIR),
        AsyncEvent::CommunicationEstablished(PAIR),
        AsyncEvent::SendQueueDrained(PAIR),
        AsyncEvent::PathMigrated(PAIR),
        AsyncEvent::PathMigrationError(PAIR),
        AsyncEvent::LastWorkRequestReached(PAIR),
        AsyncEvent::SharedReceiveQueueError(shared),
        AsyncEvent::SharedReceiveQueueLimit(shared),
        AsyncEvent::PortActive(1),
        AsyncEvent::PortError(1),
        AsyncEvent::LocalIdentifierChange(1),
        AsyncEvent::PartitionKeyChange(1),
        AsyncEvent::SubnetManagerChange(1),
        AsyncEvent::ClientReregister(1),
        AsyncEvent::AddressChange(2),
        AsyncEvent::ReceiverNotReady(PAIR),
        AsyncEvent::DeviceFatal,
    ];
    let asynchronous = asynchronous.into_iter().map(Event::Async);
    let connections = connection_events().into_iter().map(Event::Connection);
    let ready = [Event::CompletionQueueReady(QUEUE)];
    for event in asynchronous.chain(connections).chain(ready) {
        let length = survives(&Told {
            notice: Notice::Event(event),
            state: None,
        });
        assert!(length <= NOTICE_BYTES_MAX, "{length}");
    }
}
