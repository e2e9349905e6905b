//! Flows through one link with a queue, in virtual time.

mod queue;

use crate::harness::{ALL_ACCESS, BASE, End, Options, entry, remote, request};
use legato_base::{Duration, Random, Time};
use legato_transport::congestion::{Flight, Path};
use legato_transport::rc::{Policy, Recovery};
use legato_transport::wire::{Body, Packet};
use legato_transport::{PathMtu, WorkQueue};
use legato_verbs::{QueuePairState, SendOperation};
use queue::{AROUND, Frame, Queue};
use std::collections::BTreeMap;

const REGION: u32 = 7;
const REGION_LENGTH: usize = 1 << 20;
/// Requests of a flow under way.
const DEPTH: usize = 4;
/// As annex A17.9.3 leaves to implementations; what NICs do.
const NOTIFICATIONS_APART: Duration = Duration::from_micros(50);

#[derive(Clone, Copy)]
pub(crate) struct Link {
    /// Bits per second.
    pub(crate) rate: u64,
    /// One way, without the queue.
    pub(crate) delay: Duration,
    /// Bytes that wait at most.
    pub(crate) limit: usize,
    /// Packets that find so many bytes are marked.
    pub(crate) mark: Option<usize>,
    /// Lost by chance.
    pub(crate) lost_per_mille: u64,
    pub(crate) mtu: PathMtu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    Write,
}

struct Flow {
    verb: Verb,
    ends: [End; 2],
    length: u32,
    posted: u64,
    begins: Time,
    notified: Time,
    /// Bytes of completed requests.
    done: u64,
}

enum Event {
    /// The frame at the head has left the queue of a direction.
    Sent(usize),
    Arrives(Frame),
    Notified(usize),
}

pub(crate) struct Bottleneck {
    link: Link,
    flows: Vec<Flow>,
    queues: [Queue; 2],
    events: BTreeMap<(Time, u64), Event>,
    serial: u64,
    random: Random,
    buffer: Vec<u8>,
    pub(crate) now: Time,
}

/// What came out in the time that was looked at.
#[derive(Debug)]
#[allow(dead_code, reason = "what is not asserted is printed")]
pub(crate) struct Outcome {
    /// Payload of all flows against what the link could carry.
    pub(crate) utilisation: f64,
    pub(crate) fairness: f64,
    pub(crate) mean_queue: f64,
    pub(crate) most_queue: usize,
    pub(crate) drops: u64,
    pub(crate) marks: u64,
    pub(crate) sent: u64,
    pub(crate) resends: u64,
    pub(crate) timeouts: u64,
    pub(crate) tail_probes: u64,
    pub(crate) rates: Vec<f64>,
}

impl Bottleneck {
    pub(crate) fn new(link: Link, seed: u64) -> Self {
        Self {
            link,
            flows: Vec::new(),
            queues: [Queue::default(), Queue::default()],
            events: BTreeMap::new(),
            serial: 0,
            random: Random::from_seed(seed),
            buffer: vec![0; 8192],
            now: Time::from_nanos(1),
        }
    }

    pub(crate) fn flow(&mut self, verb: Verb, length: u32, begins: Duration) {
        let options = Options {
            policy: Policy {
                recovery: Recovery::Measured,
                ..Policy::IDEAL
            },
            mtu: self.link.mtu,
            resources: 16,
            timeout: 13,
            retry_count: 7,
            ..Options::default()
        };
        let ready = QueuePairState::ReadyToSend;
        let mut ends = [options.end(10, 11, ready), options.end(11, 10, ready)];
        for end in &mut ends {
            end.host.add(REGION, REGION_LENGTH, ALL_ACCESS);
        }
        ends[0].host.path = Some(Path::new(self.link.mtu.bytes()));
        for (at, byte) in ends[1].host.bytes_mut(REGION).iter_mut().enumerate() {
            *byte = (at * 7 % 251) as u8;
        }
        self.flows.push(Flow {
            verb,
            ends,
            length,
            posted: 0,
            begins: Time::ZERO + begins,
            notified: Time::ZERO,
            done: 0,
        });
    }

    fn at(&mut self, at: Time, event: Event) {
        self.serial += 1;
        self.events.insert((at, self.serial), event);
    }

    /// Calls one end of a flow, and says to its path what is under way.
    fn call(&mut self, flow: usize, end: usize, call: impl FnOnce(&mut End, Time)) {
        let now = self.now;
        let end = &mut self.flows[flow].ends[end];
        let before = end.queue_pair.flight();
        call(end, now);
        account(end, before);
    }

    fn pump(&mut self, flow: usize) {
        self.post(flow);
        for from in [0, 1] {
            loop {
                let mut length = None;
                let mut buffer = std::mem::take(&mut self.buffer);
                self.call(flow, from, |end, now| {
                    let sent = end.queue_pair.transmit(now, &mut end.host, &mut buffer);
                    length = sent.map(|sent| sent.length);
                });
                let frame = length.map(|length| buffer[..length].to_vec());
                self.buffer = buffer;
                let Some(bytes) = frame else { break };
                self.enqueue(Frame {
                    flow,
                    to: 1 - from,
                    marked: false,
                    bytes,
                });
            }
        }
    }

    fn post(&mut self, number: usize) {
        let now = self.now;
        let flow = &mut self.flows[number];
        if now < flow.begins {
            return;
        }
        let polled = flow.ends[0].poll(WorkQueue::Send);
        for (_, result) in polled {
            result.unwrap();
            flow.done += u64::from(flow.length);
            flow.posted -= 1;
        }
        while flow.posted < DEPTH as u64 {
            let target = remote(REGION, 0);
            assert_eq!(target.address, BASE);
            let operation = match flow.verb {
                Verb::Read => SendOperation::RdmaRead(target),
                Verb::Write => SendOperation::RdmaWrite(target),
            };
            let entries = vec![entry(REGION, 0, flow.length)];
            flow.ends[0].post(request(1, operation, entries));
            flow.posted += 1;
        }
    }

    fn enqueue(&mut self, mut frame: Frame) {
        let direction = frame.to;
        let link = self.link;
        let length = frame.bytes.len() + AROUND;
        let is_lost = self.random.ratio(link.lost_per_mille, 1000);
        let queue = &mut self.queues[direction];
        if is_lost {
            return;
        }
        if queue.bytes + length > link.limit {
            queue.drops += 1;
            return;
        }
        if link.mark.is_some_and(|mark| queue.bytes >= mark) {
            frame.marked = true;
            queue.marks += 1;
        }
        queue.change(self.now, length, true);
        queue.frames.push_back(frame);
        if !queue.busy {
            self.begin(direction);
        }
    }

    fn begin(&mut self, direction: usize) {
        let queue = &mut self.queues[direction];
        queue.busy = false;
        if let Some(frame) = queue.frames.front() {
            queue.busy = true;
            let bits = (frame.bytes.len() + AROUND) as u64 * 8;
            let time = Duration::from_nanos(bits * 1_000_000_000 / self.link.rate);
            self.at(self.now + time, Event::Sent(direction));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Sent(direction) => {
                let queue = &mut self.queues[direction];
                let frame = queue.frames.pop_front().unwrap();
                queue.change(self.now, frame.bytes.len() + AROUND, false);
                queue.sent += 1;
                self.at(self.now + self.link.delay, Event::Arrives(frame));
                self.begin(direction);
            }
            Event::Arrives(frame) => self.arrive(&frame),
            Event::Notified(flow) => {
                self.call(flow, 0, |end, now| {
                    end.host.path.as_mut().unwrap().notified(now);
                });
            }
        }
    }

    fn arrive(&mut self, frame: &Frame) {
        let packet = Packet::parse(&frame.bytes).unwrap();
        let (now, flow) = (self.now, &mut self.flows[frame.flow]);
        if frame.marked && frame.to == 1 {
            if now.since(flow.notified) >= NOTIFICATIONS_APART {
                flow.notified = now;
                self.at(now + self.link.delay, Event::Notified(frame.flow));
            }
        } else if frame.marked {
            let is_answer = !matches!(packet.body, Body::Acknowledge(_));
            let path = flow.ends[0].host.path.as_mut().unwrap();
            path.mark_seen(now, is_answer);
        }
        self.call(frame.flow, frame.to, |end, now| {
            end.queue_pair.input(now, &packet, &mut end.host);
        });
        self.pump(frame.flow);
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        for flow in 0..self.flows.len() {
            self.pump(flow);
        }
        loop {
            let mut next = self.events.keys().next().map_or(Time::NEVER, |key| key.0);
            for flow in &self.flows {
                let timers = flow.ends.iter().map(|end| end.queue_pair.next_deadline());
                next = timers.fold(next, Time::min);
                if flow.begins > self.now {
                    next = next.min(flow.begins);
                }
            }
            if next > end {
                break;
            }
            self.now = self.now.max(next);
            while let Some(first) = self.events.first_entry().filter(|it| it.key().0 <= next) {
                let event = first.remove();
                self.handle(event);
            }
            for number in 0..self.flows.len() {
                for side in [0, 1] {
                    let due = self.flows[number].ends[side].queue_pair.next_deadline();
                    if due <= self.now {
                        self.call(number, side, |end, now| {
                            end.queue_pair.expire(now, &mut end.host);
                        });
                    }
                }
                self.pump(number);
            }
        }
        self.now = end;
    }

    /// Lets the flows get going, and then looks at them for so long.
    pub(crate) fn measure(&mut self, warm_up: Duration, time: Duration) -> Outcome {
        self.run(warm_up);
        for queue in &mut self.queues {
            queue.change(self.now, 0, true);
            (queue.area, queue.most, queue.drops) = (0, 0, 0);
            (queue.marks, queue.sent) = (0, 0);
        }
        let before: Vec<u64> = self.flows.iter().map(|flow| flow.done).collect();
        let resends: Vec<_> = self.counters().collect();
        self.run(time);
        for queue in &mut self.queues {
            queue.change(self.now, 0, true);
        }
        let seconds = time.as_nanos() as f64 / 1e9;
        let bytes = |(flow, before): (&Flow, u64)| (flow.done - before) as f64;
        let rates: Vec<f64> = self.flows.iter().zip(before).map(bytes).collect();
        let rates: Vec<f64> = rates.iter().map(|bytes| bytes * 8.0 / seconds).collect();
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        let directions = |kind| self.flows.iter().any(|flow| flow.verb == kind);
        let ways = [Verb::Read, Verb::Write]
            .into_iter()
            .filter(|it| directions(*it));
        let busiest = self.queues.iter().max_by_key(|queue| queue.area).unwrap();
        let counted: Vec<_> = self.counters().collect();
        let all = |what: fn(&legato_transport::congestion::Counters) -> u64| {
            let sum = |list: &[_]| list.iter().map(what).sum::<u64>();
            sum(&counted) - sum(&resends)
        };
        Outcome {
            utilisation: sum / self.link.rate as f64 / ways.count() as f64,
            fairness: sum * sum / (squares * rates.len() as f64),
            mean_queue: busiest.area as f64 / time.as_nanos() as f64,
            most_queue: busiest.most,
            drops: self.queues.iter().map(|queue| queue.drops).sum(),
            marks: self.queues.iter().map(|queue| queue.marks).sum(),
            sent: self.queues.iter().map(|queue| queue.sent).sum(),
            resends: all(|counters| counters.resends),
            timeouts: all(|counters| counters.timeouts),
            tail_probes: all(|counters| counters.tail_probes),
            rates,
        }
    }

    fn counters(&self) -> impl Iterator<Item = legato_transport::congestion::Counters> {
        let paths = self
            .flows
            .iter()
            .map(|flow| flow.ends[0].host.path.as_ref());
        paths.map(|path| path.unwrap().counters)
    }

    /// Every byte that was read or written is right, and all that was counted as under way is.
    pub(crate) fn check(&self) {
        for flow in &self.flows {
            let [near, far] = &flow.ends;
            let length = flow.length as usize;
            let (near_bytes, far_bytes) = (near.host.bytes(REGION), far.host.bytes(REGION));
            assert!(near_bytes[..length] == far_bytes[..length]);
            let path = near.host.path.as_ref().unwrap();
            let flight = near.queue_pair.flight();
            for direction in [
                legato_transport::congestion::Direction::Requests,
                legato_transport::congestion::Direction::Answers,
            ] {
                assert_eq!(path.in_flight(direction), flight.of(direction));
            }
        }
    }
}

fn account(end: &mut End, before: Flight) {
    let after = end.queue_pair.flight();
    if let Some(path) = &mut end.host.path {
        path.account(before, after);
    }
}
