//! V-22: connections with the kernel's `rdma_cm`, made by either side, and what `rping` of
//! rdma-core does through them: the client names a buffer in a message, the server reads it and
//! says so, the client names another, the server writes there what it has read and says so.

use crate::rig::{Family, Rig, nic_at};
use legato_verbs::{
    CompletionKind, ConnectionEvent, Provider as _, QueuePair, RejectReason, RemoteAddress,
    RemoteKey, SendOperation,
};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of its messages: address, key, length.
const MESSAGE: u32 = 16;
const SEND_AT: u64 = 0;
const RECEIVE_AT: u64 = 4096;
const SOURCE_AT: u64 = 1 << 20;
const SINK_AT: u64 = 2 << 20;
const LISTENING: &str =
    "until rdma res show cm_id | grep -q LISTEN; do sleep 0.1; done; echo listens";
/// Only the kernel's own queue pair of connection management is left.
const NOTHING_LEFT: &str =
    "until rdma res show | grep -q ' qp 1 '; do sleep 0.1; done; echo nothing left";

/// A message of `rping`'s (`struct rping_rdma_info`).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Message {
    address: U64,
    key: U32,
    length: U32,
}

const _: () = assert!(size_of::<Message>() == MESSAGE as usize);

pub(crate) fn message(place: RemoteAddress, length: u32) -> Message {
    Message {
        address: U64::new(place.address),
        key: U32::new(place.key.0),
        length: U32::new(length),
    }
}

pub(crate) fn place_in(bytes: &[u8]) -> (RemoteAddress, u32) {
    let message = Message::read_from_bytes(bytes).unwrap();
    let place = RemoteAddress {
        address: message.address.get(),
        key: RemoteKey(message.key.get()),
    };
    (place, message.length.get())
}

impl Rig {
    fn post_message(&mut self, queue_pair: QueuePair, bytes: &[u8]) {
        self.write(SEND_AT, bytes);
        self.post(queue_pair, 1, SendOperation::Send, (SEND_AT, MESSAGE));
    }

    /// A completion of either queue, in either order.
    fn await_both(&mut self, one: CompletionKind, other: CompletionKind) {
        let found = [self.await_success().1, self.await_success().1];
        assert!(found == [one, other] || found == [other, one], "{found:?}");
    }

    fn await_established(&mut self) -> Vec<u8> {
        self.await_connection_event("established", |event| match event {
            ConnectionEvent::Established { private_data, .. } => Some(private_data.clone()),
            _ => None,
        })
    }

    fn await_disconnected(&mut self) {
        self.await_connection_event("disconnected", |event| {
            matches!(event, ConnectionEvent::Disconnected { .. }).then_some(())
        });
    }
}

const SENT: CompletionKind = CompletionKind::Send;
const TOLD: CompletionKind = CompletionKind::Receive { length: MESSAGE };

fn text_of(round: u32) -> String {
    format!("round {round} of a client that is no kernel\0")
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v22_a_client_of_rping_in_the_kernel() {
    ask_rping(Family::Ipv4);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v22_a_client_of_rping_in_the_kernel_over_ipv6() {
    ask_rping(Family::Ipv6);
}

fn ask_rping(family: Family) {
    let mut rig = Rig::over(family);
    let place = family.there();
    rig.guest.say(&format!(
        "(rping -s -a {place} -p 7174 -v; echo served $?) &"
    ));
    rig.guest.say(LISTENING);
    rig.await_line("listens");
    let queue_pair = rig.queue_pair();
    rig.post_receive(queue_pair, 2, (RECEIVE_AT, MESSAGE));
    rig.nic
        .connect_service(queue_pair, &nic_at(place), 7174, b"")
        .unwrap();
    assert_eq!(rig.await_established(), []);
    for round in 0..10u32 {
        let text = text_of(round);
        let length = text.len() as u32;
        rig.write(SOURCE_AT, text.as_bytes());
        rig.write(SINK_AT, &vec![0; text.len() + 8]);
        for at in [SOURCE_AT, SINK_AT] {
            let place = RemoteAddress {
                address: rig.region.address + at,
                key: rig.region.remote_key,
            };
            rig.post_message(queue_pair, message(place, length).as_bytes());
            rig.await_both(SENT, TOLD);
            rig.post_receive(queue_pair, 2, (RECEIVE_AT, MESSAGE));
        }
        let written = rig.bytes(SINK_AT, length + 8);
        assert_eq!(&written[..text.len()], text.as_bytes());
        assert_eq!(written[text.len()..], [0; 8]);
    }
    rig.nic.disconnect(queue_pair).unwrap();
    rig.await_disconnected();
    // It says all at the end.
    rig.await_line("served");
    for round in 0..10 {
        let shown = rig.await_line("server ping data: ");
        let text = format!("server ping data: {}", text_of(round));
        assert_eq!(shown, text.trim_end_matches('\0'));
    }
    rig.guest.say(NOTHING_LEFT);
    rig.await_line("nothing left");
    rig.check_packets();
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v22_a_port_of_the_kernel_that_nobody_listens_at() {
    let mut rig = Rig::new();
    let queue_pair = rig.queue_pair();
    rig.nic
        .connect_service(queue_pair, &nic_at(Family::Ipv4.there()), 9999, b"")
        .unwrap();
    let reason = rig.await_connection_event("rejected", |event| match event {
        ConnectionEvent::Rejected { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(reason, RejectReason::InvalidServiceId);
    rig.check_packets();
}

/// What `rping` fills its buffers with: a name, then letters in their order from one that moves.
pub(crate) fn check_ping(bytes: &[u8], round: u32) {
    let name = format!("rdma-ping-{round}: ");
    assert!(bytes.starts_with(name.as_bytes()), "round {round}");
    let (&zero, letters) = bytes[name.len()..].split_last().unwrap();
    assert_eq!(zero, 0);
    for pair in letters.windows(2) {
        let next = if pair[0] == b'z' { b'A' } else { pair[0] + 1 };
        assert_eq!(pair[1], next, "round {round}");
    }
}

fn serve_rping(family: Family, length: u32, rounds: u32) {
    let mut rig = Rig::over(family);
    let here = family.here();
    rig.nic.listen_service(&nic_at(here), 7175).unwrap();
    let client = format!("rping -c -a {here} -p 7175 -C {rounds} -S {length} -V");
    rig.guest.say(&format!("({client}; echo ended $?) &"));
    let request = rig.await_connection_event("a request", |event| match event {
        ConnectionEvent::Requested { request, .. } => Some(*request),
        _ => None,
    });
    let queue_pair = rig.queue_pair();
    rig.post_receive(queue_pair, 2, (RECEIVE_AT, MESSAGE));
    rig.nic.accept(request, queue_pair, b"").unwrap();
    rig.await_established();
    for round in 0..rounds {
        assert_eq!(rig.await_success().1, TOLD);
        let (source, asked) = place_in(&rig.bytes(RECEIVE_AT, MESSAGE));
        assert_eq!(asked, length);
        rig.post(
            queue_pair,
            3,
            SendOperation::RdmaRead(source),
            (SINK_AT, asked),
        );
        assert_eq!(rig.await_success().1, CompletionKind::RdmaRead);
        check_ping(&rig.bytes(SINK_AT, asked), round);
        rig.post_receive(queue_pair, 2, (RECEIVE_AT, MESSAGE));
        rig.post_message(queue_pair, &[0; MESSAGE as usize]);
        rig.await_both(SENT, TOLD);
        let (sink, asked) = place_in(&rig.bytes(RECEIVE_AT, MESSAGE));
        rig.post(
            queue_pair,
            3,
            SendOperation::RdmaWrite(sink),
            (SINK_AT, asked),
        );
        assert_eq!(rig.await_success().1, CompletionKind::RdmaWrite);
        rig.post_receive(queue_pair, 2, (RECEIVE_AT, MESSAGE));
        rig.post_message(queue_pair, &[0; MESSAGE as usize]);
        assert_eq!(rig.await_success().1, SENT);
    }
    // It says goodbye itself, after it has compared what was written with what it had.
    rig.await_disconnected();
    assert_eq!(rig.await_line("ended "), "ended 0");
    rig.guest.say(NOTHING_LEFT);
    rig.await_line("nothing left");
    rig.check_packets();
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v22_a_server_for_rping_in_the_kernel() {
    serve_rping(Family::Ipv4, 64, 20);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v22_a_server_for_long_pings_of_the_kernel() {
    serve_rping(Family::Ipv4, 65_000, 20);
}

#[test]
#[ignore = "`beside_a_guest` runs it, on the link"]
fn v22_a_server_for_rping_in_the_kernel_over_ipv6() {
    serve_rping(Family::Ipv6, 5_000, 20);
}
