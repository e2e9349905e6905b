//! What two ends do that are connected: one drives, with operations of every kind, and the other
//! answers its messages. Either may be a provider of any kind.

use crate::side::{Peer, pattern};
use legato_providers::Pollable;
use legato_verbs::{
    AccessFlags, CompletionKind, CompletionStatus, ConnectionEvent, Event, Provider, RemoteAddress,
    RemoteKey, SendFlags, SendOperation, WindowBinding,
};
use std::collections::VecDeque;

/// Receives, one behind the other from the region's start.
const SLOTS: u64 = 8;
const SLOT: u32 = 4096;
const SEND_AT: u64 = 64 << 10;
const SINK_AT: u64 = 128 << 10;
/// What the other end may write and read here.
const TARGET_AT: u64 = 192 << 10;
const TARGET: u32 = 60_000;
/// Around packets of 1024 bytes, and nothing at all.
const LENGTHS: [u32; 8] = [1, 7, 1023, 1024, 1025, 4095, 4096, 0];
/// Instead of a length: the key of a window is wanted, and there is nothing more to answer.
const WINDOW_WANTED: u32 = 0xAAAA_0001;
const END: u32 = 0xAAAA_0002;
/// The request that is waited for.
const DONE: u64 = 1000;

/// Posts every receive; to be called before the ends are connected.
pub(crate) fn prepare<P: Provider + Pollable>(end: &mut Peer<P>) {
    (0..SLOTS).for_each(|slot| post_slot(end, slot));
}

fn post_slot<P: Provider + Pollable>(end: &mut Peer<P>, slot: u64) {
    end.post_receive(slot, slot * u64::from(SLOT), SLOT);
}

/// The next receive, and the bytes that came; its slot is posted again.
fn received<P: Provider + Pollable>(end: &mut Peer<P>) -> (CompletionKind, Vec<u8>) {
    let completion = end.until("a message", |end| {
        let found = end.completions.iter().position(|it| it.wr_id.0 < SLOTS)?;
        end.completions.remove(found)
    });
    let kind = completion.result.unwrap();
    use CompletionKind::{Receive, ReceiveWithImmediate, ReceiveWithInvalidate};
    let length = match kind {
        Receive { length }
        | ReceiveWithImmediate { length, .. }
        | ReceiveWithInvalidate { length, .. } => length,
        _ => 0,
    };
    let slot = completion.wr_id.0;
    let bytes = end.bytes(slot * u64::from(SLOT), length as usize);
    post_slot(end, slot);
    (kind, bytes)
}

/// Posts a request and waits for it.
fn does<P: Provider + Pollable>(
    end: &mut Peer<P>,
    operation: SendOperation,
    (offset, length): (u64, u32),
) -> Result<CompletionKind, CompletionStatus> {
    end.post(DONE, operation, offset, length);
    end.until("a request is done", |end| {
        let mut all = end.completions.iter();
        let found = all.position(|it| it.wr_id.0 == DONE)?;
        end.completions.remove(found).map(|it| it.result)
    })
}

#[track_caller]
fn succeeds<P: Provider + Pollable>(
    end: &mut Peer<P>,
    operation: SendOperation,
    place: (u64, u32),
) {
    let kind = operation.completion_kind();
    assert_eq!(does(end, operation, place), Ok(kind));
}

fn inverted(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| !byte).collect()
}

/// Everything, against an end that [`answer`]s. `far` is its region.
pub(crate) fn drive<P: Provider + Pollable>(end: &mut Peer<P>, far: RemoteAddress) {
    messages(end);
    one_sided(end, far);
    atomics(end, far);
    windows(end);
    let goodbye = SendOperation::SendWithImmediate(END);
    succeeds(end, goodbye, (SEND_AT, 0));
}

fn messages<P: Provider + Pollable>(end: &mut Peer<P>) {
    for (round, length) in LENGTHS.iter().cycle().take(40).enumerate() {
        let bytes = pattern(round as u64, *length as usize);
        end.fill(SEND_AT, &bytes);
        let immediate = round as u32;
        let (operation, expected) = if round % 2 == 0 {
            let length = *length;
            (SendOperation::Send, CompletionKind::Receive { length })
        } else {
            let operation = SendOperation::SendWithImmediate(immediate);
            let (length, immediate) = (*length, !immediate);
            (
                operation,
                CompletionKind::ReceiveWithImmediate { length, immediate },
            )
        };
        succeeds(end, operation, (SEND_AT, *length));
        let (kind, answer) = received(end);
        assert_eq!(kind, expected, "round {round}");
        assert!(answer == inverted(&bytes), "round {round}: other bytes");
    }
}

fn place(far: RemoteAddress, offset: u64) -> RemoteAddress {
    RemoteAddress {
        key: far.key,
        address: far.address + TARGET_AT + offset,
    }
}

fn one_sided<P: Provider + Pollable>(end: &mut Peer<P>, far: RemoteAddress) {
    for (round, length) in [1, 1024, 1025, 4096, 30_000, TARGET]
        .into_iter()
        .enumerate()
    {
        let bytes = pattern(100 + round as u64, length as usize);
        end.fill(SEND_AT, &bytes);
        succeeds(
            end,
            SendOperation::RdmaWrite(place(far, 0)),
            (SEND_AT, length),
        );
        end.fill(SINK_AT, &vec![0; length as usize]);
        succeeds(
            end,
            SendOperation::RdmaRead(place(far, 0)),
            (SINK_AT, length),
        );
        assert!(
            end.bytes(SINK_AT, length as usize) == bytes,
            "round {round}"
        );
        let immediate = round as u32;
        let write = SendOperation::RdmaWriteWithImmediate(place(far, 0), immediate);
        succeeds(end, write, (SEND_AT, length));
        // It says what it was told.
        let told = CompletionKind::ReceiveWithImmediate {
            length: 0,
            immediate: !immediate,
        };
        assert_eq!(received(end).0, told);
    }
}

fn atomics<P: Provider + Pollable>(end: &mut Peer<P>, far: RemoteAddress) {
    let target = place(far, 8);
    end.fill(SEND_AT, &5u64.to_le_bytes());
    succeeds(end, SendOperation::RdmaWrite(target), (SEND_AT, 8));
    let old = |end: &Peer<P>| u64::from_le_bytes(end.bytes(SINK_AT, 8).try_into().unwrap());
    for round in 0..10 {
        let add = SendOperation::FetchAndAdd { target, add: 3 };
        succeeds(end, add, (SINK_AT, 8));
        assert_eq!(old(end), 5 + 3 * round);
    }
    for (compare, swap, before) in [(1, 2, 35), (35, 77, 35), (77, 1, 77)] {
        let operation = SendOperation::CompareAndSwap {
            target,
            compare,
            swap,
        };
        succeeds(end, operation, (SINK_AT, 8));
        assert_eq!(old(end), before);
    }
    succeeds(end, SendOperation::RdmaRead(target), (SINK_AT, 8));
    assert_eq!(old(end), 1);
}

/// Reads through a window of the other end's, and ends it from here.
fn windows<P: Provider + Pollable>(end: &mut Peer<P>) {
    succeeds(
        end,
        SendOperation::SendWithImmediate(WINDOW_WANTED),
        (SEND_AT, 0),
    );
    let (_, answer) = received(end);
    let key = RemoteKey(u32::from_le_bytes(answer[..4].try_into().unwrap()));
    let address = u64::from_le_bytes(answer[4..12].try_into().unwrap());
    let through = RemoteAddress { key, address };
    end.fill(SINK_AT, &[0; 64]);
    succeeds(end, SendOperation::RdmaRead(through), (SINK_AT, 64));
    assert_eq!(end.bytes(SINK_AT, 64), inverted(&[0x3C; 64]));
    succeeds(end, SendOperation::SendWithInvalidate(key), (SEND_AT, 0));
    let told = CompletionKind::ReceiveWithImmediate {
        length: 0,
        immediate: key.0,
    };
    assert_eq!(received(end).0, told);
}

/// Answers until the other end says that it has driven enough.
pub(crate) fn answer<P: Provider + Pollable>(end: &mut Peer<P>) {
    loop {
        let (kind, bytes) = received(end);
        match kind {
            CompletionKind::Receive { .. } => {
                send_back(end, SendOperation::Send, &inverted(&bytes));
            }
            CompletionKind::ReceiveWithImmediate { immediate: END, .. } => return,
            CompletionKind::ReceiveWithImmediate {
                immediate: WINDOW_WANTED,
                ..
            } => {
                let window = bind_window(end);
                send_back(end, SendOperation::Send, &window);
            }
            CompletionKind::ReceiveWithImmediate { immediate, .. } => {
                let operation = SendOperation::SendWithImmediate(!immediate);
                send_back(end, operation, &inverted(&bytes));
            }
            CompletionKind::ReceiveRdmaWithImmediate { immediate, .. } => {
                send_back(end, SendOperation::SendWithImmediate(!immediate), &[]);
            }
            CompletionKind::ReceiveWithInvalidate { key, .. } => {
                send_back(end, SendOperation::SendWithImmediate(key.0), &[]);
            }
            other => panic!("no completion of a receive: {other:?}"),
        }
    }
}

fn send_back<P: Provider + Pollable>(end: &mut Peer<P>, operation: SendOperation, bytes: &[u8]) {
    end.fill(SEND_AT, bytes);
    succeeds(end, operation, (SEND_AT, bytes.len() as u32));
}

/// A window on 64 bytes: its key and their address, as a message.
fn bind_window<P: Provider + Pollable>(end: &mut Peer<P>) -> Vec<u8> {
    let window = end.provider.allocate_window(end.domain).unwrap();
    let next = end.provider.next_window_key(window).unwrap();
    let access = AccessFlags::REMOTE_READ | AccessFlags::WINDOW_BIND;
    let region = end.provider.allocate_region(end.domain, 4096, access);
    let region = region.unwrap();
    end.provider
        .write_region(&region, 0, &inverted(&[0x3C; 64]))
        .unwrap();
    let binding = WindowBinding {
        window,
        next,
        region: region.local_key,
        address: region.address,
        length: 64,
        access: AccessFlags::REMOTE_READ,
    };
    let request = legato_verbs::SendRequest {
        wr_id: legato_verbs::WorkRequestId(DONE),
        operation: SendOperation::BindWindow(binding),
        entries: vec![],
        flags: SendFlags::SIGNALED,
    };
    end.provider.post_send(end.queue_pair, &request).unwrap();
    end.until("a window is bound", |end| {
        let mut all = end.completions.iter();
        let found = all.position(|it| it.wr_id.0 == DONE)?;
        end.completions.remove(found).map(|it| it.result.unwrap())
    });
    let mut message = next.0.to_le_bytes().to_vec();
    message.extend(binding.address.to_le_bytes());
    message
}

/// The driver disconnects, the other end is told; both have every posted receive back.
pub(crate) fn part<P: Provider + Pollable>(end: &mut Peer<P>, drives: bool) {
    if drives {
        end.provider.disconnect(end.queue_pair).unwrap();
    }
    end.event("Disconnected", |event| {
        let is_it = matches!(
            event,
            Event::Connection(ConnectionEvent::Disconnected { .. })
        );
        is_it.then_some(())
    });
    let mut flushed = VecDeque::new();
    end.until("every receive is flushed", |end| {
        flushed.extend(end.completions.drain(..));
        (flushed.len() as u64 == SLOTS).then_some(())
    });
    for completion in flushed {
        assert_eq!(completion.result, Err(CompletionStatus::WorkRequestFlushed));
    }
    if drives {
        // Until then the word is repeated that may have been lost.
        end.event("TimeWaitExit", |event| {
            let is_it = matches!(
                event,
                Event::Connection(ConnectionEvent::TimeWaitExit { .. })
            );
            is_it.then_some(())
        });
    }
    end.provider.destroy_queue_pair(end.queue_pair).unwrap();
}
