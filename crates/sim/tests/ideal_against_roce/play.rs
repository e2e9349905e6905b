//! Plays a script in a world, and writes down what comes of it.

use crate::machines::Pair;
use crate::script::{BATCH, Operation, QUEUE_PAIRS, Request, SLOT, Script, Step, TARGET, Turn};
use crate::side::{RECEIVES, REGION_LENGTH, REQUESTS, Side, TARGET_AT, digest};
use legato_base::{Duration, Random};
use legato_verbs::{
    AccessFlags, PacketSequenceNumber, PathMtu, QueuePairAttributes, QueuePairState,
    ReceiveRequest, RetryCount, RnrTimer, SendFlags, SendOperation, SendRequest, VerbsError,
    WindowBinding, WorkRequestId,
};

/// All that a NIC waits for is over.
const FOR_EVER: Duration = Duration::from_secs(10_000);
/// A request for a connection has come, and is not sent again yet.
const SOON: Duration = Duration::from_millis(1);
struct Play<'a> {
    pair: &'a mut dyn Pair,
    sides: Vec<Side>,
    /// For bytes only.
    random: Random,
    next_id: u64,
    transcript: Vec<String>,
}

pub(crate) fn play(script: &Script, pair: &mut dyn Pair) -> Vec<String> {
    let sides = (0..2).map(|side| Side::new(pair.nic(side))).collect();
    let address = pair.address();
    pair.nic(1).listen(&address).unwrap();
    let mut play = Play {
        pair,
        sides,
        random: Random::from_seed(!script.seed),
        next_id: 0,
        transcript: Vec::new(),
    };
    for turn in &script.turns {
        play.transcript.push(format!("{turn:?}"));
        play.take(turn);
        play.observe();
    }
    play.transcript
}

impl Play<'_> {
    fn note(&mut self, what: &str, result: &Result<(), VerbsError>) {
        self.transcript.push(format!("{what}: {result:?}"));
    }

    fn take(&mut self, turn: &Turn) {
        let (side, place) = (turn.side, turn.queue_pair);
        let queue_pair = self.sides[side].queue_pairs[place];
        match &turn.step {
            Step::Send(requests) => self.send(side, place, requests),
            Step::Receive { lengths, outside } => {
                for &length in lengths {
                    self.receive(side, place, length, *outside);
                }
            }
            Step::Modify(to) => self.modify(side, place, *to, &attributes(*to)),
            Step::Connect { path_mtu, sequence } => {
                let path_mtu = PathMtu::from_code(*path_mtu).unwrap();
                self.connect(place, path_mtu, PacketSequenceNumber::new(*sequence));
            }
            Step::Manage { accepts } => self.manage(place, *accepts),
            Step::Disconnect => {
                let result = self.pair.nic(side).disconnect(queue_pair);
                self.note("disconnect", &result);
            }
            Step::Destroy => {
                let nic = self.pair.nic(side);
                let result = nic.destroy_queue_pair(queue_pair);
                let another = self.sides[side].create_queue_pair(nic, place);
                self.sides[side].queue_pairs[place] = another;
                self.note("destroy", &result);
            }
            Step::PassRegion { access } => self.pass_region(side, *access),
            Step::Arm(arm) => {
                let queue = self.sides[side].queue;
                let armed = self.pair.nic(side).arm_completion_queue(queue, *arm);
                self.transcript.push(format!("arm: {armed:?}"));
            }
            Step::Limit(limit) => {
                let shared = self.sides[side].shared;
                let result = self.pair.nic(side).arm_shared_receive_queue(shared, *limit);
                self.note("limit", &result);
            }
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn send(&mut self, side: usize, place: usize, requests: &[Request]) {
        let queue_pair = self.sides[side].queue_pairs[place];
        let state = self.pair.nic(side).query_queue_pair(queue_pair);
        // What is read must not be sent or read again before it is there.
        let reads =
            |request: &Request| !matches!(request.operation, Operation::Send | Operation::Write);
        let fenced = requests.iter().any(reads) || state != Ok(QueuePairState::ReadyToSend);
        for (index, request) in requests.iter().enumerate() {
            let id = self.id();
            let request = self.request(side, id, index as u64 * u64::from(SLOT), request, fenced);
            let result = self.pair.nic(side).post_send(queue_pair, &request);
            self.note("post", &result);
        }
    }

    fn request(
        &mut self,
        side: usize,
        id: u64,
        slot: u64,
        asked: &Request,
        fenced: bool,
    ) -> SendRequest {
        let bytes: Vec<u8> = (0..SLOT).map(|_| self.random.next_u64() as u8).collect();
        let region = self.sides[side].region;
        let nic = self.pair.nic(side);
        nic.write_region(&region, slot, &bytes).unwrap();
        let at = if asked.outside {
            REGION_LENGTH - 4
        } else {
            slot
        };
        let operation = self.operation(side, id, asked);
        let mut flags = SendFlags::NONE;
        let is_bind = matches!(operation, SendOperation::BindWindow(_));
        let takes_inline = matches!(asked.operation, Operation::Send | Operation::Write);
        for (wanted, flag) in [
            (fenced, SendFlags::FENCE),
            (asked.signaled || is_bind, SendFlags::SIGNALED),
            (asked.solicited, SendFlags::SOLICITED),
            (
                asked.inline && takes_inline && !asked.outside,
                SendFlags::INLINE,
            ),
        ] {
            if wanted {
                flags = flags | flag;
            }
        }
        let has_bytes = !matches!(
            asked.operation,
            Operation::Bind { .. } | Operation::Invalidate
        );
        SendRequest {
            wr_id: WorkRequestId(id),
            operation,
            entries: if has_bytes {
                vec![region.entry(at, asked.length)]
            } else {
                Vec::new()
            },
            flags,
        }
    }

    fn operation(&mut self, side: usize, id: u64, asked: &Request) -> SendOperation {
        let (own, peer) = (&self.sides[side], &self.sides[1 - side]);
        let target = peer.remote(asked.key, asked.offset);
        match asked.operation {
            Operation::Send => SendOperation::Send,
            Operation::SendWithImmediate => SendOperation::SendWithImmediate(id as u32),
            Operation::SendWithInvalidate => SendOperation::SendWithInvalidate(peer.window),
            Operation::Write => SendOperation::RdmaWrite(target),
            Operation::WriteWithImmediate => {
                SendOperation::RdmaWriteWithImmediate(target, id as u32)
            }
            Operation::Read => SendOperation::RdmaRead(target),
            Operation::CompareAndSwap { holds } => SendOperation::CompareAndSwap {
                target,
                compare: if holds {
                    self.word(1 - side, asked.offset)
                } else {
                    id
                },
                swap: id,
            },
            Operation::FetchAndAdd => SendOperation::FetchAndAdd { target, add: id },
            Operation::Invalidate => SendOperation::LocalInvalidate(own.window),
            Operation::Bind { access } => {
                let (window, region) = (own.window, own.region);
                let next = self.pair.nic(side).next_window_key(window);
                let next = next.unwrap_or(window);
                self.sides[side].next_windows.insert(id, next);
                SendOperation::BindWindow(WindowBinding {
                    window,
                    next,
                    region: region.local_key,
                    address: region.address + TARGET_AT,
                    length: u64::from(TARGET),
                    access: AccessFlags::from_bits(access),
                })
            }
        }
    }

    /// What is in a target now.
    fn word(&mut self, side: usize, offset: u64) -> u64 {
        let region = self.sides[side].region;
        let mut bytes = [0; 8];
        let nic = self.pair.nic(side);
        let _ = nic.read_region(&region, TARGET_AT + offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn receive(&mut self, side: usize, place: usize, length: u32, outside: bool) {
        let id = RECEIVES + self.id();
        let own = &mut self.sides[side];
        let number = BATCH as u32 + place as u32 * REQUESTS + own.receives[place] % REQUESTS;
        let at = match outside {
            true => REGION_LENGTH - 4,
            false => u64::from(number) * u64::from(SLOT),
        };
        let request = ReceiveRequest {
            wr_id: WorkRequestId(id),
            entries: vec![own.region.entry(at, length)],
        };
        let nic = self.pair.nic(side);
        let result = match place + 1 == QUEUE_PAIRS {
            true => nic.post_shared_receive(own.shared, &request),
            false => nic.post_receive(own.queue_pairs[place], &request),
        };
        // A place is used again when its receive is over, or would be.
        own.receives[place] += u32::from(result.is_ok());
        self.note("post a receive", &result);
    }

    fn modify(
        &mut self,
        side: usize,
        place: usize,
        to: QueuePairState,
        with: &QueuePairAttributes,
    ) {
        let queue_pair = self.sides[side].queue_pairs[place];
        let result = self.pair.nic(side).modify_queue_pair(queue_pair, to, with);
        self.note("modify", &result);
    }

    /// Both are as new, and in Init.
    fn begin_anew(&mut self, place: usize) {
        for to in [QueuePairState::Reset, QueuePairState::Init] {
            for side in 0..2 {
                self.modify(side, place, to, &attributes(to));
            }
            self.observe();
        }
    }

    fn connect(&mut self, place: usize, path_mtu: PathMtu, sequence: PacketSequenceNumber) {
        self.begin_anew(place);
        for side in 0..2 {
            let peer = self.sides[1 - side].queue_pairs[place];
            let nic = self.pair.nic(1 - side);
            let to_receive = QueuePairAttributes {
                address_vector: Some(nic.port_address()),
                path_mtu: Some(path_mtu),
                destination: Some(nic.queue_pair_number(peer).unwrap()),
                receive_sequence: Some(sequence),
                responder_resources: Some(4),
                rnr_timer: Some(RnrTimer::new(12)),
                ..QueuePairAttributes::NONE
            };
            let to_send = QueuePairAttributes {
                timeout: Some(10),
                retry_count: RetryCount::new(3),
                rnr_retry: Some(2),
                send_sequence: Some(sequence),
                initiator_depth: Some(4),
                ..QueuePairAttributes::NONE
            };
            self.modify(side, place, QueuePairState::ReadyToReceive, &to_receive);
            self.modify(side, place, QueuePairState::ReadyToSend, &to_send);
        }
    }

    fn manage(&mut self, place: usize, accepts: bool) {
        self.begin_anew(place);
        let [near, far] = [0, 1].map(|side| self.sides[side].queue_pairs[place]);
        let address = self.pair.address();
        let result = self.pair.nic(0).connect(near, &address, b"hello");
        self.note("connect", &result);
        self.observe_within(SOON);
        let Some(request) = self.sides[1].asked.take() else {
            return;
        };
        let nic = self.pair.nic(1);
        let result = match accepts {
            true => nic.accept(request, far, b"welcome"),
            false => nic.reject(request, b"no"),
        };
        self.note("answer", &result);
    }

    fn pass_region(&mut self, side: usize, access: u8) {
        let own = &mut self.sides[side];
        let nic = self.pair.nic(side);
        let result = nic.deregister_region(&own.passing);
        if result.is_ok() {
            own.stale = own.passing.remote_key;
            // What peers may write may be written locally (`ibv_reg_mr(3)`).
            let access = AccessFlags::from_bits(access) | AccessFlags::LOCAL_WRITE;
            let made = nic.allocate_region(own.domain, u64::from(TARGET), access);
            own.passing = made.unwrap();
        }
        self.note("deregister", &result);
    }

    /// Lets all happen that can, and writes down what there is to see.
    fn observe(&mut self) {
        self.observe_within(FOR_EVER);
    }

    fn observe_within(&mut self, most: Duration) {
        self.pair.settle(most);
        for side in 0..2 {
            let (nic, own) = (self.pair.nic(side), &mut self.sides[side]);
            let lines = &mut self.transcript;
            own.note_completions(nic, lines);
            own.note_events(nic, lines);
            let states = own
                .queue_pairs
                .iter()
                .map(|pair| nic.query_queue_pair(*pair).unwrap());
            let states: Vec<_> = states.collect();
            let limit = nic.query_shared_receive_queue(own.shared).unwrap();
            lines.push(format!(
                "{side}: {states:?}, limit {limit}, {:?}",
                nic.resource_counts()
            ));
            let memory = [own.region, own.passing].map(|region| digest(nic, &region));
            lines.push(format!("{side}: memory {memory:x?}"));
        }
    }
}

/// What goes with a state that is asked for by itself.
fn attributes(to: QueuePairState) -> QueuePairAttributes {
    match to {
        QueuePairState::Init => QueuePairAttributes::INIT,
        QueuePairState::SendQueueDrain => QueuePairAttributes {
            drained_event: Some(true),
            ..QueuePairAttributes::NONE
        },
        _ => QueuePairAttributes::NONE,
    }
}
