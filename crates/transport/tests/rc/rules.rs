//! Single packets, right and wrong, and what a queue pair makes of each.

use crate::harness::{ALL_ACCESS, BASE, End, FLUSHED, Options, entry, remote, request, unsignaled};
use legato_base::{Duration, Time};
use legato_transport::rc::Policy;
use legato_transport::wire::{
    Acknowledgement, AtomicHeader, BaseHeader, Body, Extra, NakCode, Packet, RemoteHeader, Syndrome,
};
use legato_transport::{PacketSequenceNumber, PathMtu, QueuePairNumber, WorkQueue};
use legato_verbs::{
    CompletionKind, CompletionStatus, QueuePairAttributes, QueuePairState as State, RemoteKey,
    SendFlags, SendOperation,
};

/// A queue pair with memory, of which the first packet has number 100 each way.
struct Alone {
    end: End,
    now: Time,
}

impl Alone {
    fn new() -> Self {
        Self::of(Policy::IDEAL)
    }

    fn of(policy: Policy) -> Self {
        let options = Options {
            policy,
            mtu: PathMtu::Bytes256,
            ..Options::default()
        };
        let mut end = options.end(1, 2, State::ReadyToSend);
        end.host.add(1, 4096, ALL_ACCESS);
        Self {
            end,
            now: Time::ZERO,
        }
    }

    fn input(&mut self, sequence: u32, body: Body, payload: &[u8]) {
        self.input_with(sequence, body, payload, true);
    }

    fn input_with(&mut self, sequence: u32, body: Body, payload: &[u8], acknowledge: bool) {
        let packet = Packet {
            base: BaseHeader {
                destination: QueuePairNumber::new(1),
                sequence: PacketSequenceNumber::new(sequence),
                acknowledge,
                solicited: true,
                forward_congestion: false,
                backward_congestion: false,
            },
            body,
            payload,
        };
        self.end
            .queue_pair
            .input(self.now, &packet, &mut self.end.host);
    }

    /// What it says next: number and body.
    fn says(&mut self) -> Option<(u32, Body)> {
        let mut buffer = [0; 1024];
        let end = &mut self.end;
        let transmit = end
            .queue_pair
            .transmit(self.now, &mut end.host, &mut buffer)?;
        let packet = Packet::parse(&buffer[..transmit.length]).unwrap();
        Some((packet.base.sequence.get(), packet.body))
    }

    fn syndrome(&mut self) -> Option<(u32, Syndrome)> {
        match self.says()? {
            (sequence, Body::Acknowledge(answer)) => Some((sequence, answer.syndrome)),
            other => panic!("{other:?}"),
        }
    }

    /// Posts a request and takes its packets.
    fn start(&mut self, operation: SendOperation, length: u32) {
        self.end
            .post(request(1, operation, vec![entry(1, 0, length)]));
        while self.says().is_some() {}
    }

    fn failed(&mut self) -> Option<CompletionStatus> {
        let completed = self.end.poll(WorkQueue::Send);
        completed.first().map(|(_, result)| result.unwrap_err())
    }
}

const ACKNOWLEDGED: Syndrome = Syndrome::Acknowledged { credits: 31 };
const INVALID: Syndrome = Syndrome::Refused(NakCode::InvalidRequest);

fn at(length: u32) -> RemoteHeader {
    RemoteHeader {
        address: BASE,
        key: RemoteKey(1),
        length,
    }
}

fn answer(syndrome: Syndrome) -> Acknowledgement {
    Acknowledgement {
        syndrome,
        messages: 0,
    }
}

#[test]
fn packets_out_of_their_order_are_invalid_requests() {
    let full = [0; 256];
    let only = Body::SendOnly(Extra::Nothing);
    let last = Body::SendLast(Extra::Nothing);
    let write = Body::WriteFirst(at(600));
    let cases: [(&[Body], Body, usize); 18] = [
        // A middle or a last without a first.
        (&[], Body::SendMiddle, 256),
        (&[], last, 1),
        (&[], Body::WriteMiddle, 256),
        (&[], Body::WriteLast(None), 1),
        // A message inside of another.
        (&[Body::SendFirst], only, 1),
        (&[Body::SendFirst], Body::SendFirst, 256),
        (&[Body::SendFirst], Body::WriteLast(None), 1),
        (&[Body::SendFirst], Body::ReadRequest(at(1)), 0),
        (&[write], last, 1),
        (&[write], Body::WriteOnly(at(1), None), 1),
        // A packet that is not full, or too full, or empty.
        (&[], Body::SendFirst, 255),
        (&[], only, 257),
        (&[Body::SendFirst], last, 0),
        (&[Body::SendFirst], Body::SendMiddle, 4),
        // Another length than was said.
        (&[], Body::WriteOnly(at(2), None), 1),
        (&[], Body::WriteFirst(at(256)), 256),
        (&[write, Body::WriteMiddle], Body::WriteLast(None), 87),
        (&[write, Body::WriteMiddle], Body::WriteMiddle, 256),
    ];
    for (before, body, length) in cases {
        let mut alone = Alone::new();
        alone.end.post_receive(1, vec![entry(1, 0, 4096)]);
        let mut sequence = 100;
        for body in before {
            alone.input_with(sequence, *body, &full, false);
            sequence += 1;
        }
        assert_eq!(alone.says(), None);
        alone.input(sequence, body, &vec![0; length]);
        let said = alone.syndrome();
        assert_eq!(said, Some((sequence, INVALID)), "{before:?} {body:?}");
        assert_eq!(alone.end.state(), State::Error);
        assert_eq!(alone.says(), None);
        assert_eq!(alone.end.poll(WorkQueue::Receive), [(1, FLUSHED)]);
    }
}

#[test]
fn a_length_that_no_message_has_is_an_invalid_request() {
    for body in [
        Body::WriteFirst(at((1 << 31) + 1)),
        Body::ReadRequest(at(u32::MAX)),
    ] {
        let mut alone = Alone::new();
        let payload = if body.opcode().has_payload() { 256 } else { 0 };
        alone.input(100, body, &vec![0; payload]);
        assert_eq!(alone.syndrome(), Some((100, INVALID)));
    }
}

#[test]
fn duplicates_are_acknowledged_and_not_executed() {
    let mut alone = Alone::new();
    for id in 0..3 {
        alone.end.post_receive(id, vec![entry(1, 0, 8)]);
    }
    let only = Body::SendOnly(Extra::Nothing);
    alone.input(100, only, &[1; 8]);
    alone.input(101, only, &[2; 8]);
    assert_eq!(alone.syndrome(), Some((101, ACKNOWLEDGED)), "one for both");
    for sequence in [100, 101, 99] {
        alone.input_with(sequence, only, &[3; 8], false);
        assert_eq!(alone.syndrome(), Some((101, ACKNOWLEDGED)));
    }
    let received = Ok(CompletionKind::Receive { length: 8 });
    let receives = alone.end.poll(WorkQueue::Receive);
    assert_eq!(receives, [(0, received), (1, received)]);
    assert_eq!(alone.end.host.bytes(1)[..8], [2; 8]);
}

#[test]
fn a_repeated_read_is_answered_again_if_it_is_kept() {
    let mut alone = Alone::new();
    let says_reads = |alone: &mut Alone| {
        let mut numbers = Vec::new();
        while let Some((number, body)) = alone.says() {
            numbers.push((number, body.opcode()));
        }
        numbers
    };
    use legato_transport::wire::Opcode::{
        ReadResponseFirst as First, ReadResponseLast as Last, ReadResponseMiddle as Middle,
        ReadResponseOnly as Only,
    };
    alone.input(100, Body::ReadRequest(at(700)), &[]);
    let whole = [(100, First), (101, Middle), (102, Last)];
    assert_eq!(says_reads(&mut alone), whole);
    alone.input(100, Body::ReadRequest(at(700)), &[]);
    assert_eq!(says_reads(&mut alone), whole);
    // Its later part, at the place and of the length that it has.
    let part = |skipped: u32, length| RemoteHeader {
        address: BASE + u64::from(skipped),
        ..at(length)
    };
    alone.input(101, Body::ReadRequest(part(256, 444)), &[]);
    assert_eq!(says_reads(&mut alone), [(101, First), (102, Last)]);
    alone.input(102, Body::ReadRequest(part(512, 188)), &[]);
    assert_eq!(says_reads(&mut alone), [(102, Only)]);
    for other in [part(256, 445), part(255, 400), part(0, 700)] {
        alone.input(101, Body::ReadRequest(other), &[]);
        assert_eq!(says_reads(&mut alone), []);
    }
    // Four are kept.
    for sequence in 103..107 {
        alone.input(sequence, Body::ReadRequest(at(8)), &[]);
        assert_eq!(says_reads(&mut alone), [(sequence, Only)]);
    }
    alone.input(100, Body::ReadRequest(at(700)), &[]);
    assert_eq!(says_reads(&mut alone), []);
}

#[test]
fn acknowledgements_wait_unless_they_are_asked_for() {
    let mut alone = Alone::new();
    let delay = Policy::IDEAL.acknowledge_delay;
    let write = Body::WriteOnly(at(1), None);
    alone.input_with(100, write, &[1], false);
    assert_eq!(alone.says(), None);
    assert_eq!(alone.end.queue_pair.next_deadline(), Time::ZERO + delay);
    alone.now = Time::ZERO + delay;
    assert_eq!(alone.syndrome(), Some((100, ACKNOWLEDGED)));
    assert_eq!(alone.end.queue_pair.next_deadline(), Time::NEVER);
    for sequence in 101..116 {
        alone.input_with(sequence, write, &[1], false);
        assert_eq!(alone.says(), None);
    }
    alone.input_with(116, write, &[1], false);
    assert_eq!(alone.syndrome(), Some((116, ACKNOWLEDGED)), "the sixteenth");
    alone.input(117, write, &[1]);
    assert_eq!(alone.syndrome(), Some((117, ACKNOWLEDGED)));
}

#[test]
fn ghosts_change_nothing() {
    let mut alone = Alone::new();
    alone.start(SendOperation::RdmaWrite(remote(1, 0)), 600);
    for sequence in [99, 103, 104, 100 + (1 << 23)] {
        for syndrome in [ACKNOWLEDGED, INVALID] {
            alone.input(sequence, Body::Acknowledge(answer(syndrome)), &[]);
        }
        alone.input(sequence, Body::ReadResponseMiddle, &[0; 256]);
        let atomic = Body::AtomicAcknowledge(answer(ACKNOWLEDGED), 1);
        alone.input(sequence, atomic, &[]);
        assert_eq!(alone.end.state(), State::ReadyToSend);
    }
    assert_eq!(alone.failed(), None);
    alone.input(102, Body::Acknowledge(answer(ACKNOWLEDGED)), &[]);
    let written = Ok(CompletionKind::RdmaWrite);
    assert_eq!(alone.end.poll(WorkQueue::Send), [(1, written)]);
}

#[test]
fn wrong_responses_are_bad_responses() {
    let read = SendOperation::RdmaRead(remote(1, 0));
    let write = SendOperation::RdmaWrite(remote(1, 0));
    let add = SendOperation::FetchAndAdd {
        target: remote(1, 0),
        add: 1,
    };
    let good = answer(ACKNOWLEDGED);
    for (operation, length, body, payload) in [
        (write, 8, Body::ReadResponseOnly(good), 8),
        (write, 8, Body::AtomicAcknowledge(good, 1), 0),
        (read, 8, Body::AtomicAcknowledge(good, 1), 0),
        (add, 8, Body::ReadResponseOnly(good), 8),
        (read, 8, Body::ReadResponseOnly(good), 7),
        (read, 8, Body::ReadResponseFirst(good), 8),
        (read, 600, Body::ReadResponseFirst(good), 255),
        (read, 600, Body::ReadResponseOnly(good), 256),
        (read, 600, Body::ReadResponseFirst(answer(INVALID)), 256),
    ] {
        let mut alone = Alone::new();
        alone.start(operation, length);
        alone.input(100, body, &vec![0; payload]);
        let bad = Some(CompletionStatus::BadResponse);
        assert_eq!(alone.failed(), bad, "{operation:?} {body:?}");
        assert_eq!(alone.end.state(), State::Error);
    }
}

#[test]
fn an_acknowledgement_does_not_complete_a_read() {
    let mut alone = Alone::new();
    alone.start(SendOperation::RdmaRead(remote(1, 0)), 600);
    alone.input(102, Body::Acknowledge(answer(ACKNOWLEDGED)), &[]);
    // It implies that the responses are lost: the READ is sent again, once.
    let again = Some((100, Body::ReadRequest(at(600))));
    assert_eq!(alone.says(), again);
    alone.input(102, Body::Acknowledge(answer(ACKNOWLEDGED)), &[]);
    assert_eq!(alone.says(), None);
}

#[test]
fn refusals_have_their_statuses() {
    for (code, status) in [
        (
            NakCode::InvalidRequest,
            CompletionStatus::RemoteInvalidRequest,
        ),
        (NakCode::RemoteAccess, CompletionStatus::RemoteAccess),
        (NakCode::RemoteOperation, CompletionStatus::RemoteOperation),
    ] {
        let mut alone = Alone::new();
        let empty = |id| unsignaled(request(id, SendOperation::Send, vec![]));
        for id in 1..=3 {
            alone.end.post(empty(id));
        }
        while alone.says().is_some() {}
        // The second of three: the first has arrived.
        let refused = Body::Acknowledge(answer(Syndrome::Refused(code)));
        alone.input(101, refused, &[]);
        let sends = alone.end.poll(WorkQueue::Send);
        assert_eq!(sends, [(2, Err(status)), (3, FLUSHED)]);
    }
}

#[test]
fn sequence_errors_count_as_retries() {
    let mut alone = Alone::new();
    alone.start(SendOperation::RdmaWrite(remote(1, 0)), 600);
    let missing = Body::Acknowledge(answer(Syndrome::Refused(NakCode::SequenceError)));
    alone.input(101, missing, &[]);
    assert_eq!(alone.says(), Some((101, Body::WriteMiddle)));
    assert_eq!(alone.says(), Some((102, Body::WriteLast(None))));
    // Of three retries two are left for the timer.
    let mut expiries = 0;
    while alone.end.state() == State::ReadyToSend {
        alone.now = alone.end.queue_pair.next_deadline();
        let end = &mut alone.end;
        end.queue_pair.expire(alone.now, &mut end.host);
        while alone.says().is_some() {}
        expiries += 1;
    }
    assert_eq!(expiries, 3);
    assert_eq!(alone.failed(), Some(CompletionStatus::RetryExceeded));
}

#[test]
fn the_window_bounds_what_is_in_flight() {
    let options = Options {
        policy: Policy {
            window_packets: 8,
            ..Policy::IDEAL
        },
        mtu: PathMtu::Bytes256,
        ..Options::default()
    };
    let mut end = options.end(1, 2, State::ReadyToSend);
    end.host.add(1, 4096, ALL_ACCESS);
    let now = Time::ZERO;
    let mut alone = Alone { end, now };
    let write = SendOperation::RdmaWrite(remote(1, 0));
    alone.end.post(request(1, write, vec![entry(1, 0, 4096)]));
    let mut taken = || std::iter::from_fn(|| alone.says()).count();
    assert_eq!(taken(), 8);
    assert_eq!(taken(), 0);
    alone.input(103, Body::Acknowledge(answer(ACKNOWLEDGED)), &[]);
    assert_eq!(std::iter::from_fn(|| alone.says()).count(), 4);
}

#[test]
fn solicited_messages_wake_their_receiver() {
    let mut alone = Alone::new();
    for id in 0..2 {
        alone.end.post_receive(id, vec![]);
    }
    alone.input(100, Body::SendOnly(Extra::Nothing), &[]);
    assert!(alone.end.host.completions[0].solicited);
    // And the sender's flag is on the message's last packet alone.
    let mut send = request(
        1,
        SendOperation::SendWithImmediate(5),
        vec![entry(1, 0, 300)],
    );
    send.flags = send.flags | SendFlags::SOLICITED;
    alone.end.post(send);
    let mut buffer = [0; 1024];
    let mut flags = Vec::new();
    let end = &mut alone.end;
    while let Some(sent) = end
        .queue_pair
        .transmit(Time::ZERO, &mut end.host, &mut buffer)
    {
        let packet = Packet::parse(&buffer[..sent.length]).unwrap();
        if !matches!(packet.body, Body::Acknowledge(_)) {
            flags.push(packet.base.solicited);
        }
    }
    assert_eq!(flags, [false, true]);
}

#[test]
fn devices_that_flush_less() {
    for (policy, before, after) in [
        (Policy::IDEAL, 2, 4),
        (Policy::IWARP, 2, 2),
        (Policy::EHCA, 0, 0),
    ] {
        let options = Options {
            policy,
            ..Options::default()
        };
        let mut end = options.end(1, 2, State::ReadyToSend);
        let empty = || request(1, SendOperation::Send, vec![]);
        end.post(empty());
        end.post_receive(1, vec![]);
        end.modify(State::Error, &QueuePairAttributes::NONE);
        assert_eq!(end.host.completions.len(), before);
        end.post(empty());
        end.post_receive(1, vec![]);
        assert_eq!(end.host.completions.len(), after);
    }
}

#[test]
fn a_message_half_sent_when_the_peer_is_not_ready_begins_where_it_was_refused() {
    let mut alone = Alone::new();
    alone.start(SendOperation::RdmaWriteWithImmediate(remote(1, 0), 4), 600);
    let timer = legato_verbs::RnrTimer::new(12);
    let not_ready = Body::Acknowledge(answer(Syndrome::ReceiverNotReady(timer)));
    alone.input(102, not_ready, &[]);
    assert_eq!(alone.says(), None);
    let wait = Duration::from_micros(640);
    assert_eq!(alone.end.queue_pair.next_deadline(), Time::ZERO + wait);
    alone.now = Time::ZERO + wait;
    assert_eq!(alone.says(), Some((102, Body::WriteLast(Some(4)))));
}

#[test]
fn a_doubled_refusal_counts_once() {
    let mut alone = Alone::new();
    alone.start(SendOperation::Send, 8);
    let timer = legato_verbs::RnrTimer::new(12);
    let not_ready = Body::Acknowledge(answer(Syndrome::ReceiverNotReady(timer)));
    for _ in 0..10 {
        alone.input(100, not_ready, &[]);
    }
    // While it waits, a missing packet is no news either.
    let missing = Body::Acknowledge(answer(Syndrome::Refused(NakCode::SequenceError)));
    alone.input(100, missing, &[]);
    assert_eq!(alone.says(), None);
    assert_eq!(alone.failed(), None);
    assert_eq!(alone.end.state(), State::ReadyToSend);
}

#[test]
fn after_a_refusal_later_packets_are_silently_dropped() {
    let only = Body::SendOnly(Extra::Nothing);
    let mut alone = Alone::new();
    alone.input(100, only, &[]);
    let refused = alone.syndrome();
    assert!(matches!(
        refused,
        Some((100, Syndrome::ReceiverNotReady(_)))
    ));
    alone.input(101, only, &[]);
    assert_eq!(alone.says(), None);
    alone.end.post_receive(1, vec![]);
    alone.input(100, only, &[]);
    assert_eq!(alone.syndrome(), Some((100, ACKNOWLEDGED)));
    // A duplicate does not push a refusal aside that was not sent so far.
    alone.input(105, only, &[]);
    alone.input(100, only, &[]);
    let missing = Syndrome::Refused(NakCode::SequenceError);
    assert_eq!(alone.syndrome(), Some((101, missing)));
}

#[test]
fn the_answer_to_a_read_acknowledges_what_was_before_it() {
    let mut alone = Alone::new();
    alone.input(100, Body::WriteOnly(at(1), None), &[1]);
    alone.input(101, Body::ReadRequest(at(1)), &[]);
    let said = alone.says();
    assert!(matches!(said, Some((101, Body::ReadResponseOnly(_)))));
    assert_eq!(alone.says(), None);
}

#[test]
fn reads_do_not_widen_the_window() {
    let mut alone = Alone::new();
    alone.end.host.add(2, 1 << 18, ALL_ACCESS);
    let read = SendOperation::RdmaRead(remote(1, 0));
    alone.start(read, 1024);
    let good = answer(ACKNOWLEDGED);
    alone.input(100, Body::ReadResponseFirst(good), &[0; 256]);
    alone.input(101, Body::ReadResponseMiddle, &[0; 256]);
    alone.input(102, Body::ReadResponseMiddle, &[0; 256]);
    alone.input(103, Body::ReadResponseLast(good), &[0; 256]);
    let write = SendOperation::RdmaWrite(remote(1, 0));
    let whole = vec![entry(2, 0, 1 << 18)];
    alone.end.post(request(2, write, whole));
    let sent = std::iter::from_fn(|| alone.says()).count();
    assert_eq!(sent as u32, Policy::IDEAL.window_packets);
}

#[test]
fn numbers_in_use_span_less_than_half_of_all() {
    let mut alone = Alone::new();
    let length = legato_transport::rc::MESSAGE_LENGTH_MAX;
    alone.end.host.add(2, length as usize, ALL_ACCESS);
    let read = SendOperation::RdmaRead(remote(1, 0));
    for id in 0..3 {
        let whole = vec![entry(2, 0, length)];
        alone.end.post(request(id, read, whole));
    }
    // Each of them takes a quarter of the numbers.
    assert!(matches!(alone.says(), Some((100, Body::ReadRequest(_)))));
    assert_eq!(alone.says(), None);
}

#[test]
fn a_refusal_is_told_though_the_error_state_is_asked_for() {
    let mut alone = Alone::new();
    alone.input(100, Body::SendMiddle, &[0; 256]);
    alone.end.modify(State::Error, &QueuePairAttributes::NONE);
    assert_eq!(alone.syndrome(), Some((100, INVALID)));
    assert_eq!(alone.says(), None);
    // Who was in order falls silent.
    let mut alone = Alone::new();
    alone.input(100, Body::WriteOnly(at(1), None), &[1]);
    alone.end.modify(State::Error, &QueuePairAttributes::NONE);
    assert_eq!(alone.says(), None);
}

/// Sequence numbers come again after 2^24 packets; what is kept of a lap before answers nobody.
#[test]
fn v_14_what_is_kept_of_an_earlier_lap_is_not_the_answer_to_a_new_request() {
    let mut alone = Alone::new();
    let add = Body::FetchAdd(AtomicHeader {
        address: BASE,
        key: RemoteKey(1),
        swap_or_add: 1,
        compare: 0,
    });
    let lap = |alone: &mut Alone, begin: u32| {
        let write = Body::WriteOnly(at(0), None);
        for number in begin..(1 << 24) + 100 {
            alone.input_with(number & 0x00FF_FFFF, write, &[], false);
        }
    };
    let answers = |alone: &mut Alone, asked: Body| {
        alone.input(100, asked, &[]);
        let said = alone.says();
        while alone.says().is_some() {}
        said
    };
    let original = |value: u64| move |said: Option<(u32, Body)>| matches!(said, Some((100, Body::AtomicAcknowledge(_, of))) if of == value);
    assert!(original(0)(answers(&mut alone, add)));
    lap(&mut alone, 101);
    assert!(original(1)(answers(&mut alone, add)));
    assert!(
        original(1)(answers(&mut alone, add)),
        "once more, as the answer was lost"
    );
    lap(&mut alone, 101);
    // A READ in the place of the atomic.
    let read = Body::ReadRequest(at(8));
    for _ in 0..2 {
        let said = answers(&mut alone, read);
        assert!(
            matches!(said, Some((100, Body::ReadResponseOnly(_)))),
            "{said:?}"
        );
    }
    assert_eq!(alone.end.host.bytes(1)[..8], 2_u64.to_le_bytes());
}

/// The network's copy of a READ that was answered long ago comes when its region has ended.
#[test]
fn a_late_copy_of_a_read_whose_region_has_ended_ends_nothing_else() {
    let read = Body::ReadRequest(at(8));
    let refused = Some((100, Syndrome::Refused(NakCode::RemoteAccess)));
    let mut alone = Alone::new();
    alone.input(100, read, &[]);
    assert!(matches!(
        alone.says(),
        Some((100, Body::ReadResponseOnly(_)))
    ));
    alone.end.host.regions.clear();
    for _ in 0..2 {
        // Who has lost the answer is to know.
        alone.input(100, read, &[]);
        assert_eq!(alone.syndrome(), refused);
        assert_eq!(alone.says(), None);
    }
    assert_eq!(alone.end.state(), State::ReadyToSend);
    assert_eq!(alone.end.host.events, []);
    // What is acknowledged meanwhile is not forgotten over it.
    alone.end.post_receive(1, vec![]);
    alone.input(101, Body::SendOnly(Extra::Nothing), &[]);
    alone.input(100, read, &[]);
    assert_eq!(alone.syndrome(), refused);
    assert_eq!(alone.syndrome(), Some((101, ACKNOWLEDGED)));

    let mut rxe = Alone::of(Policy::RXE);
    rxe.input(100, read, &[]);
    while rxe.says().is_some() {}
    rxe.end.host.regions.clear();
    rxe.input(100, read, &[]);
    assert_eq!(rxe.syndrome(), refused);
    assert_eq!(rxe.end.state(), State::Error);
}
