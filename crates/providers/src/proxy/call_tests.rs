//! Calls and answers as bytes.

use super::*;
use alloc::vec;

const PAIR: QueuePair = QueuePair {
    index: 1,
    generation: 2,
};
const QUEUE: CompletionQueue = CompletionQueue {
    index: 3,
    generation: 4,
};
const DOMAIN: ProtectionDomain = ProtectionDomain {
    index: 5,
    generation: 6,
};
const LISTENER: Listener = Listener {
    index: 7,
    generation: 8,
};
const REQUEST: ConnectionRequest = ConnectionRequest {
    index: 9,
    generation: u32::MAX,
};

fn calls() -> Vec<Call> {
    let address: Address = "roce://10.0.0.1:4791".parse().unwrap();
    vec![
        Call::Hello { version: VERSION },
        Call::ResourceCounts,
        Call::CreateDomain,
        Call::DestroyDomain(DOMAIN),
        Call::AllocateRegion {
            id: RegionId(9),
            domain: DOMAIN,
            length: u64::MAX,
            access: AccessFlags::LOCAL_WRITE,
        },
        Call::DeregisterRegion(RegionId(9)),
        Call::CreateQueue { entries: 7 },
        Call::DestroyQueue(QUEUE),
        Call::ArmQueue(QUEUE, Arm::Next),
        Call::ArmQueue(QUEUE, Arm::Solicited),
        Call::CreatePair {
            domain: DOMAIN,
            sends: QUEUE,
            receives: QUEUE,
            capabilities: QueuePairCapabilities {
                send_requests_max: 1,
                receive_requests_max: 2,
                entries_max: 3,
            },
        },
        Call::DestroyPair(PAIR),
        Call::QueryState(PAIR),
        Call::QueryAttributes(PAIR),
        Call::Modify {
            pair: PAIR,
            to: QueuePairState::Init,
            attributes: QueuePairAttributes::INIT,
        },
        Call::Listen(address.clone()),
        Call::CloseListener(LISTENER),
        Call::Connect {
            pair: PAIR,
            address,
            private: vec![1, 2, 3],
        },
        Call::Accept {
            request: REQUEST,
            pair: PAIR,
            private: vec![],
        },
        Call::Reject {
            request: REQUEST,
            private: vec![0; 56],
        },
        Call::Disconnect(PAIR),
    ]
}

#[test]
fn calls_survive_a_round_trip_and_no_part_of_one_is_a_call() {
    for call in calls() {
        let mut bytes = Vec::new();
        call.encode(&mut Encoder(&mut bytes));
        assert_eq!(Call::decode(Decoder(&bytes)), Ok(call));
        for length in 0..bytes.len() {
            let cut = Call::decode(Decoder(&bytes[..length]));
            assert_eq!(cut, Err(Malformed), "{length} of {bytes:?}");
        }
        bytes.push(0);
        assert_eq!(Call::decode(Decoder(&bytes)), Err(Malformed));
    }
}

#[test]
fn what_is_no_call_is_malformed() {
    for bytes in [&[0u8][..], &[21], &[255], &[15, 3, b'a', b'b', 0xFF]] {
        assert_eq!(Call::decode(Decoder(bytes)), Err(Malformed));
    }
}

#[test]
fn answers_survive_a_round_trip_and_no_part_of_one_is_an_answer() {
    let answers = [
        Ok(Answer::Done),
        Ok(Answer::Hello(Device {
            name: "roce".to_string(),
            limits: [1, 2, 3, 4, 5, 6],
            port: AddressVector {
                destination: [3; 16],
            },
        })),
        Ok(Answer::Counts(ResourceCounts {
            queue_pairs: 3,
            completion_entries: 30,
            posted_receives: 12,
            connection_state: 1,
            ..ResourceCounts::default()
        })),
        Ok(Answer::Domain(DOMAIN)),
        Ok(Answer::Region {
            key: RemoteKey(77),
            address: 1 << 40,
        }),
        Ok(Answer::Queue(QUEUE)),
        Ok(Answer::Waits(true)),
        Ok(Answer::Pair(PAIR, QueuePairNumber::new(0x1234))),
        Ok(Answer::State(QueuePairState::Error)),
        Ok(Answer::Attributes(QueuePairAttributes::INIT)),
        Ok(Answer::Listener(LISTENER)),
        Err(VerbsError::Busy("region")),
    ];
    for answer in answers {
        let mut bytes = Vec::new();
        Answer::encode(&answer, &mut Encoder(&mut bytes));
        assert_eq!(Answer::decode(Decoder(&bytes)), Ok(answer));
        for length in 0..bytes.len() {
            let cut = Answer::decode(Decoder(&bytes[..length]));
            assert_eq!(cut, Err(Malformed));
        }
    }
}
