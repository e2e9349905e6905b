//! A NIC at second hand: bytes through slots, and what happens when either half goes.

use crate::far::{Far, proxied};
use crate::peer::{Peer, pattern};
use legato_providers::proxy::{ProxyEnd, connection, refuse};
use legato_providers::{ForeignMemory, Pollable, ProxyProvider, RoceProvider};
use legato_verbs::{
    AccessFlags, Address, AsyncEvent, CompletionKind, CompletionStatus, ConnectionEvent, Event,
    MemoryRegion, Provider, QueuePairCapabilities, QueuePairInit, QueuePairState, ReceiveRequest,
    RemoteAddress, SendFlags, SendOperation, SendRequest, VerbsError, WorkRequestId,
};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use rustix::io::{FdFlags, fcntl_setfd};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const PAGE: usize = 4096;
const HEADER: usize = 64;

/// A page, what stands in front of it at a node, and a byte on each side that nobody may touch.
struct Frame {
    bytes: Box<[u8; HEADER + PAGE + 2]>,
    region: MemoryRegion,
}

impl Frame {
    fn new(near: &mut Peer<ProxyProvider>, content: &[u8]) -> Self {
        let mut bytes = Box::new([0xEE; HEADER + PAGE + 2]);
        bytes[1..=content.len()].copy_from_slice(content);
        let (place, access) = (bytes[1..].as_mut_ptr(), AccessFlags::LOCAL_WRITE);
        let length = (HEADER + PAGE) as u64;
        // SAFETY: the box stays as long as the frame, and the tests read it only while no request
        // that may write it is outstanding.
        let region = unsafe {
            near.provider
                .register_foreign(near.domain, place, length, access)
        };
        let region = region.unwrap();
        Self { bytes, region }
    }

    /// Header and page, as the pager names them.
    fn request(&self, wr_id: u64, operation: SendOperation, flags: SendFlags) -> SendRequest {
        let parts = [(0, HEADER), (HEADER as u64, PAGE)];
        let entries = parts.map(|(offset, length)| self.region.entry(offset, length as u32));
        SendRequest {
            wr_id: WorkRequestId(wr_id),
            operation,
            entries: entries.to_vec(),
            flags,
        }
    }

    /// What is there now, whatever the compiler thinks it knows.
    fn content(&self) -> Vec<u8> {
        let place = self.bytes.as_ptr();
        let all: Vec<u8> = (0..self.bytes.len())
            // SAFETY: inside the box, which nobody writes meanwhile.
            .map(|offset| unsafe { place.add(offset).read_volatile() })
            .collect();
        assert_eq!((all[0], all[all.len() - 1]), (0xEE, 0xEE), "the guards");
        all[1..all.len() - 1].to_vec()
    }
}

fn place(host: &str) -> Address {
    Address::Roce(format!("{host}:4791").parse().unwrap())
}

/// A NIC of this process.
fn direct(host: &str) -> Peer<RoceProvider> {
    Peer::over(RoceProvider::open(&place(host)).unwrap())
}

/// A NIC at second hand.
fn near(host: &str) -> (Peer<ProxyProvider>, Far) {
    let place = place(host);
    let (provider, far) = proxied(move || RoceProvider::open(&place).unwrap());
    (Peer::over(provider), far)
}

/// Connects the two, and returns where the right one's region is.
fn join<L, R>(left: &mut Peer<L>, right: &mut Peer<R>, host: &str) -> RemoteAddress
where
    L: Provider + Pollable,
    R: Provider + Pollable,
{
    let address = Address::Roce(format!("{host}:4900").parse().unwrap());
    let listener = right.provider.listen(&address).unwrap();
    let introduction = left.introduction();
    let connected = left
        .provider
        .connect(left.queue_pair, &address, &introduction);
    connected.unwrap();
    let (mut ready, mut accepted) = ([false; 2], false);
    pump(left, right, |left, right| {
        while let Some(event) = right.events.pop_front() {
            if let Event::Connection(ConnectionEvent::Requested { request, .. }) = event {
                let private = right.introduction();
                right
                    .provider
                    .accept(request, right.queue_pair, &private)
                    .unwrap();
                accepted = true;
            }
            ready[1] |= is_established(&event);
        }
        ready[0] |= left.events.drain(..).any(|event| is_established(&event));
        accepted && ready == [true; 2]
    });
    right.provider.close_listener(listener).unwrap();
    RemoteAddress {
        key: right.region.remote_key,
        address: right.region.address,
    }
}

fn is_established(event: &Event) -> bool {
    matches!(
        event,
        Event::Connection(ConnectionEvent::Established { .. })
    )
}

/// Lets both sides go on until it is so.
fn pump<L, R>(
    left: &mut Peer<L>,
    right: &mut Peer<R>,
    mut until: impl FnMut(&mut Peer<L>, &mut Peer<R>) -> bool,
) where
    L: Provider + Pollable,
    R: Provider + Pollable,
{
    let begun = std::time::Instant::now();
    loop {
        left.progress();
        right.progress();
        if until(left, right) {
            return;
        }
        assert!(begun.elapsed().as_secs() < 60, "it never came to be");
        std::thread::yield_now();
    }
}

fn completes(
    left: &mut Peer<ProxyProvider>,
    right: &mut Peer<RoceProvider>,
    wr_id: u64,
) -> Result<CompletionKind, CompletionStatus> {
    pump(left, right, |left, _| !left.completions.is_empty());
    let done = left.completions.pop_front().unwrap();
    assert_eq!(done.wr_id.0, wr_id);
    done.result
}

#[test]
fn pages_of_memory_that_the_nic_does_not_know_go_and_come_back() {
    let host = "127.0.0.11";
    let (mut left, far) = near("127.0.0.10");
    let mut right = direct(host);
    let remote = join(&mut left, &mut right, host);
    for round in 0..300u64 {
        let content = pattern(round, HEADER + PAGE);
        let mut from = Frame::new(&mut left, &content);
        let write = from.request(1, SendOperation::RdmaWrite(remote), SendFlags::SIGNALED);
        left.provider.post_send(left.queue_pair, &write).unwrap();
        // It has been copied: what is written now goes nowhere.
        from.bytes[1..=HEADER].fill(0x11);
        let written = completes(&mut left, &mut right, 1);
        assert_eq!(written, Ok(CompletionKind::RdmaWrite));
        assert_eq!(right.bytes(0, HEADER + PAGE), content);
        let into = Frame::new(&mut left, &[]);
        // One of two completes in silence, with the other.
        let read = SendOperation::RdmaRead(remote);
        let other = Frame::new(&mut left, &[]);
        for (frame, flags) in [(&other, SendFlags::NONE), (&into, SendFlags::SIGNALED)] {
            let request = frame.request(2, read, flags);
            left.provider.post_send(left.queue_pair, &request).unwrap();
        }
        let busy = left.provider.deregister_region(&into.region);
        assert_eq!(busy, Err(VerbsError::Busy("region")));
        let fetched = completes(&mut left, &mut right, 2);
        assert_eq!(fetched, Ok(CompletionKind::RdmaRead));
        assert_eq!(into.content(), content, "round {round}");
        assert_eq!(other.content(), content, "round {round}");
        for frame in [from, into, other] {
            left.provider.deregister_region(&frame.region).unwrap();
        }
    }
    assert_eq!(left.provider.counters().requests_carried, 3 * 300);
    left.dismantle();
    right.dismantle();
    let ended = far.join();
    assert_eq!((ended.end, ended.leaked), (ProxyEnd::Closed, 0));
}

#[test]
fn a_fetch_that_fails_leaves_its_memory_alone() {
    let host = "127.0.0.13";
    let (mut left, _far) = near("127.0.0.12");
    let mut right = direct(host);
    let remote = join(&mut left, &mut right, host);
    let content = pattern(7, HEADER + PAGE);
    let frame = Frame::new(&mut left, &content);
    let nowhere = RemoteAddress {
        address: remote.address + crate::peer::REGION_LENGTH,
        ..remote
    };
    let read = frame.request(1, SendOperation::RdmaRead(nowhere), SendFlags::SIGNALED);
    left.provider.post_send(left.queue_pair, &read).unwrap();
    let failed = completes(&mut left, &mut right, 1);
    assert_eq!(failed, Err(CompletionStatus::RemoteAccess));
    assert_eq!(frame.content(), content);
    left.provider.deregister_region(&frame.region).unwrap();
}

/// The peer answers when the queue pair has been reset or destroyed: too late for everybody.
#[test]
fn an_answer_that_comes_too_late_reaches_no_memory() {
    let host = "127.0.0.15";
    let (mut left, far) = near("127.0.0.14");
    for destroy in [false, true] {
        let mut right = direct(host);
        let remote = join(&mut left, &mut right, host);
        right.fill(0, &[0x77; HEADER + PAGE]);
        let content = pattern(9, HEADER + PAGE);
        let frames: Vec<Frame> = (0..8).map(|_| Frame::new(&mut left, &content)).collect();
        for frame in &frames {
            let read = frame.request(1, SendOperation::RdmaRead(remote), SendFlags::SIGNALED);
            left.provider.post_send(left.queue_pair, &read).unwrap();
        }
        let own = left.queue_pair;
        if destroy {
            left.provider.destroy_queue_pair(own).unwrap();
        } else {
            let none = legato_verbs::QueuePairAttributes::NONE;
            let reset = left
                .provider
                .modify_queue_pair(own, QueuePairState::Reset, &none);
            reset.unwrap();
        }
        // The pool of slots has gone with it: what is left is the region of the peer itself.
        let regions = left.provider.resource_counts().memory_regions;
        assert_eq!(regions, 1 + frames.len());
        // It hears of the end in its turn, and answers all before.
        right.event("the end", |event| {
            matches!(
                event,
                Event::Connection(ConnectionEvent::Disconnected { .. })
            )
            .then_some(())
        });
        left.progress();
        assert_eq!(left.completions, []);
        for frame in frames {
            assert_eq!(frame.content(), content);
            left.provider.deregister_region(&frame.region).unwrap();
        }
        right.dismantle();
        if !destroy {
            left.provider.destroy_queue_pair(own).unwrap();
            left.queue_pair = left.create_queue_pair();
            left.provider.modify_to_init(left.queue_pair).unwrap();
        }
    }
    drop(left);
    assert_eq!(far.join().leaked, 0);
}

#[test]
fn what_does_not_fit_or_is_not_carried_is_refused() {
    let (mut left, _far) = near("127.0.0.16");
    let frame = Frame::new(&mut left, &[]);
    let receive = ReceiveRequest {
        wr_id: WorkRequestId(1),
        entries: vec![frame.region.entry(0, 8)],
    };
    let posted = left.provider.post_receive(left.queue_pair, &receive);
    assert!(
        matches!(posted, Err(VerbsError::Unsupported(_))),
        "{posted:?}"
    );
    left.provider.modify_to_error(left.queue_pair).unwrap();
    let mut request = frame.request(1, SendOperation::Send, SendFlags::SIGNALED);
    request.entries = vec![frame.region.entry(0, (HEADER + PAGE) as u32); 2];
    let posted = left.provider.post_send(left.queue_pair, &request);
    assert!(
        matches!(posted, Err(VerbsError::LimitExceeded { .. })),
        "{posted:?}"
    );
    let remote = AccessFlags::REMOTE_READ;
    let place = frame.bytes.as_ptr().cast_mut();
    // SAFETY: it is refused, so nothing is promised.
    let made = unsafe {
        left.provider
            .register_foreign(left.domain, place, 8, remote)
    };
    assert_eq!(made, Err(VerbsError::PermissionDenied));
    let ended = left.provider.destroy_protection_domain(left.domain);
    assert_eq!(ended, Err(VerbsError::Busy("protection domain")));
}

/// Twice as many as a ring has space for, both ways.
#[test]
fn more_requests_than_the_rings_hold_all_complete() {
    const REQUESTS: u32 = 8192;
    let (mut left, far) = near("127.0.0.17");
    let queue = left.provider.create_completion_queue(REQUESTS + 1).unwrap();
    let capabilities = QueuePairCapabilities {
        send_requests_max: 1,
        receive_requests_max: REQUESTS,
        entries_max: 1,
    };
    let init = QueuePairInit::new(left.domain, queue, capabilities);
    let pair = left.provider.create_queue_pair(&init).unwrap();
    left.provider.modify_to_init(pair).unwrap();
    let receive = |number: u32| ReceiveRequest {
        wr_id: WorkRequestId(number.into()),
        entries: vec![left.region.entry(0, 16)],
    };
    for number in 0..REQUESTS {
        left.provider.post_receive(pair, &receive(number)).unwrap();
    }
    let full = left.provider.post_receive(pair, &receive(REQUESTS));
    assert_eq!(full, Err(VerbsError::QueueFull("receive")));
    left.provider.modify_to_error(pair).unwrap();
    let mut completions = Vec::new();
    left.until("all completions", |left| {
        let polled = left
            .provider
            .poll_completion_queue(queue, usize::MAX, &mut completions);
        polled.unwrap();
        (completions.len() >= REQUESTS as usize).then_some(())
    });
    for (number, completion) in completions.iter().enumerate() {
        let flushed = Err(CompletionStatus::WorkRequestFlushed);
        assert_eq!(
            (completion.wr_id.0, completion.result),
            (number as u64, flushed)
        );
    }
    assert_eq!(completions.len(), REQUESTS as usize);
    drop(left);
    assert_eq!(far.join().leaked, 0);
}

#[test]
fn a_near_half_without_its_far_half_has_no_nic() {
    let host = "127.0.0.19";
    let (mut left, far) = near("127.0.0.18");
    let mut right = direct(host);
    let remote = join(&mut left, &mut right, host);
    left.post_receive(1, 0, 16);
    let content = pattern(3, HEADER + PAGE);
    let frame = Frame::new(&mut left, &content);
    // Nobody answers, because nobody turns the peer.
    for wr_id in [2, 3] {
        let read = frame.request(wr_id, SendOperation::RdmaRead(remote), SendFlags::NONE);
        left.provider.post_send(left.queue_pair, &read).unwrap();
    }
    far.kill();
    let fatal = Event::Async(AsyncEvent::DeviceFatal);
    left.event("the loss of the NIC", |event| {
        (*event == fatal).then_some(())
    });
    let queue_pair = left.queue_pair;
    let removed = Event::Connection(ConnectionEvent::DeviceRemoved { queue_pair });
    left.event("the end of the connection", |event| {
        (*event == removed).then_some(())
    });
    let flushed = Err(CompletionStatus::WorkRequestFlushed);
    for wr_id in [2, 3, 1] {
        let done = left.completion();
        assert_eq!((done.wr_id.0, done.result), (wr_id, flushed));
    }
    assert_eq!(frame.content(), content);
    let gone = Err(VerbsError::DeviceRemoved);
    let read = frame.request(4, SendOperation::RdmaRead(remote), SendFlags::NONE);
    assert_eq!(left.provider.post_send(queue_pair, &read), gone);
    assert_eq!(left.provider.destroy_queue_pair(queue_pair), gone);
    assert_eq!(left.provider.create_protection_domain().err(), gone.err());
    // And it sleeps, instead of waking for ever because the other end is closed.
    assert!(left.provider.set_sleeping(true));
    let mut descriptors = Vec::new();
    left.provider.descriptors(&mut descriptors);
    assert!(descriptors.is_empty());
}

#[test]
fn a_far_half_without_a_nic_says_why() {
    let (socket, far) = connection().unwrap();
    let why = VerbsError::Unsupported("device of that name");
    refuse(far, why);
    assert_eq!(ProxyProvider::open(socket).err(), Some(why));
    let (socket, far) = connection().unwrap();
    drop(far);
    let opened = ProxyProvider::open(socket);
    assert!(
        matches!(opened, Err(VerbsError::System { .. })),
        "{opened:?}"
    );
}

/// What the child has of its parent: the number of a descriptor.
const CHILD_SOCKET: &str = "LEGATO_TEST_PROXY_SOCKET";
const CHILD_HOST: &str = "127.0.0.21";

/// Started by the test below with a socket: the near half of a process that is killed.
#[test]
fn child_near_half() {
    let Ok(number) = std::env::var(CHILD_SOCKET) else {
        return;
    };
    // SAFETY: the parent has left this descriptor open for this process, which owns it alone.
    let socket = unsafe { OwnedFd::from_raw_fd(number.parse().unwrap()) };
    let mut left = Peer::over(ProxyProvider::open(socket).unwrap());
    let address = Address::Roce(format!("{CHILD_HOST}:4900").parse().unwrap());
    let remote = left.connect(&address);
    let frame = Frame::new(&mut left, &[]);
    for wr_id in 0..32 {
        left.post_receive(wr_id, 0, 64);
        let read = frame.request(wr_id, SendOperation::RdmaRead(remote), SendFlags::SIGNALED);
        left.provider.post_send(left.queue_pair, &read).unwrap();
    }
    println!("posted");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_near_half_that_is_killed_leaves_nothing_behind() {
    let mut right = direct(CHILD_HOST);
    let address = Address::Roce(format!("{CHILD_HOST}:4900").parse().unwrap());
    let (socket, far) = crate::far::start(|| RoceProvider::open(&place("127.0.0.20")).unwrap());
    fcntl_setfd(&socket, FdFlags::empty()).unwrap();
    let mut near_half = Command::new(std::env::current_exe().unwrap());
    near_half
        .args(["--exact", "pages::child_near_half", "--nocapture"])
        .env(CHILD_SOCKET, socket.as_raw_fd().to_string())
        .stdout(Stdio::piped());
    // Whoever asks before somebody listens is refused.
    let mut started = None;
    right.serve(&address, || started = Some(near_half.spawn().unwrap()));
    let mut child = started.unwrap();
    drop(socket);
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("posted")));
    child.kill().unwrap();
    child.wait().unwrap();
    let ended = far.join();
    assert_eq!((ended.end, ended.leaked), (ProxyEnd::Closed, 0));
    assert_eq!((ended.left.queue_pairs, ended.left.memory_regions), (0, 0));
    assert_eq!(ended.left.protection_domains, 0);
    assert_eq!(ended.left.completion_queues, 0);
    right.disconnected();
    right.dismantle();
}
