//! This side of a connection: a NIC, and a shell in the guest. The NIC is mostly the software RoCE one on this
//! side of the link; or the guest's, in a program that runs in the guest itself.

use crate::guest::{Guest, PATIENCE};
use crate::nic::Nic;
use legato_base::{Duration, Time};
use legato_providers::RoceProvider;
#[cfg(feature = "ibverbs")]
use legato_providers::ibverbs::IbverbsProvider;
use legato_verbs::{
    AccessFlags, Address, Completion, CompletionKind, CompletionQueue, CompletionStatus,
    ConnectionEvent, Event, MemoryRegion, ProtectionDomain, QueuePair, QueuePairAttributes,
    QueuePairCapabilities, QueuePairInit, QueuePairState, ROCE_PORT, ReceiveRequest, SendFlags,
    SendOperation, SendRequest, WorkRequestId,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Instant;

pub(crate) const HERE: &str = "10.77.0.1:4791";
pub(crate) const GUEST: &str = "10.77.0.2:4791";

/// Which of the addresses of both sides (`scripts/rdma-guest/beside`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub(crate) fn here(self) -> IpAddr {
        self.pick("10.77.0.1", "fd00:77::1")
    }

    pub(crate) fn there(self) -> IpAddr {
        self.pick("10.77.0.2", "fd00:77::2")
    }

    fn pick(self, ipv4: &str, ipv6: &str) -> IpAddr {
        let text = match self {
            Self::Ipv4 => ipv4,
            Self::Ipv6 => ipv6,
        };
        text.parse().unwrap()
    }

    pub(crate) fn gid_here(self) -> Ipv6Addr {
        gid(self.here())
    }

    pub(crate) fn gid_there(self) -> Ipv6Addr {
        gid(self.there())
    }

    /// Where the guest has it in its table.
    pub(crate) const fn gid_index(self) -> u32 {
        match self {
            Self::Ipv4 => 1,
            Self::Ipv6 => 2,
        }
    }
}

fn gid(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// The port of RoCEv2 at an address.
pub(crate) fn nic_at(ip: IpAddr) -> Address {
    Address::Roce(SocketAddr::new(ip, ROCE_PORT))
}

/// Bytes of the NIC's region.
pub(crate) const REGION: u64 = 4 << 20;
pub(crate) const REQUESTS: u32 = 128;

pub(crate) struct Rig<P = RoceProvider> {
    pub(crate) nic: P,
    pub(crate) guest: Guest,
    /// This side, and where programs of the guest wait for it: all of them do so at IPv4 addresses,
    /// whatever the NIC's is.
    pub(crate) here: IpAddr,
    pub(crate) there: IpAddr,
    pub(crate) region: MemoryRegion,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    events: Vec<Event>,
    completions: Vec<Completion>,
    begun: Instant,
    /// Of every request.
    pub(crate) flags: SendFlags,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::over(Family::Ipv4)
    }

    pub(crate) fn over(family: Family) -> Self {
        let guest = Guest::new();
        let nic = RoceProvider::open(&nic_at(family.here())).unwrap();
        Self::with(nic, guest, [family.here(), Family::Ipv4.there()])
    }
}

#[cfg(feature = "ibverbs")]
impl Rig<IbverbsProvider> {
    /// Of a program in the guest, whose device is the guest's.
    pub(crate) fn in_the_guest(nic: IbverbsProvider) -> Self {
        Self::with(nic, Guest::own(), [Family::Ipv4.there(); 2])
    }
}

impl<P: Nic> Rig<P> {
    fn with(mut nic: P, guest: Guest, [here, there]: [IpAddr; 2]) -> Self {
        let domain = nic.create_protection_domain().unwrap();
        let access = AccessFlags::from_bits(15);
        Self {
            region: nic.allocate_region(domain, REGION, access).unwrap(),
            queue: nic.create_completion_queue(2 * REQUESTS).unwrap(),
            nic,
            guest,
            here,
            there,
            domain,
            events: Vec::new(),
            completions: Vec::new(),
            begun: Instant::now(),
            flags: SendFlags::SIGNALED,
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::ZERO + Duration::from_nanos(self.begun.elapsed().as_nanos() as u64 + 1)
    }

    /// Makes progress until there is something.
    pub(crate) fn wait<T>(
        &mut self,
        what: &str,
        mut probe: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let end = Instant::now() + PATIENCE;
        loop {
            self.turn();
            if let Some(found) = probe(self) {
                return found;
            }
            assert!(
                Instant::now() < end,
                "not {what}: {:?} {:?} {:?} {}",
                self.events,
                self.completions,
                self.guest.lines,
                self.nic.counted()
            );
        }
    }

    fn turn(&mut self) {
        let now = self.now();
        let deadline = self.nic.progress(now);
        let mut is_new = false;
        while let Some(event) = self.nic.poll_event() {
            self.events.push(event);
            is_new = true;
        }
        let into = &mut self.completions;
        let polled = self.nic.poll_completion_queue(self.queue, 64, into);
        is_new |= polled.unwrap() > 0;
        if is_new || !self.nic.set_sleeping(true) {
            return;
        }
        let mut descriptors = Vec::new();
        self.nic.descriptors(&mut descriptors);
        let polled = descriptors.into_iter();
        let mut polled: Vec<_> = polled
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let most = Timespec {
            tv_sec: 0,
            tv_nsec: deadline.since(now).as_nanos().min(1_000_000) as i64,
        };
        poll(&mut polled, Some(&most)).unwrap();
        self.nic.set_sleeping(false);
    }

    pub(crate) fn await_line(&mut self, begin: &str) -> String {
        self.wait(begin, |rig| rig.guest.take(begin))
    }

    pub(crate) fn await_connection_event<T>(
        &mut self,
        what: &str,
        mut pick: impl FnMut(&ConnectionEvent) -> Option<T>,
    ) -> T {
        self.wait(what, |rig| {
            let mut events = rig.events.iter().enumerate();
            let (place, found) = events.find_map(|(place, event)| match event {
                Event::Connection(event) => Some((place, pick(event)?)),
                _ => None,
            })?;
            rig.events.remove(place);
            Some(found)
        })
    }

    /// The next completion.
    pub(crate) fn await_completion(&mut self) -> Completion {
        self.wait("a completion", Self::take_completion)
    }

    pub(crate) fn take_completion(&mut self) -> Option<Completion> {
        (!self.completions.is_empty()).then(|| self.completions.remove(0))
    }

    pub(crate) fn await_success(&mut self) -> (u64, CompletionKind) {
        let completion = self.await_completion();
        (completion.wr_id.0, completion.result.unwrap())
    }

    pub(crate) fn await_failure(&mut self) -> (u64, CompletionStatus) {
        let completion = self.await_completion();
        (completion.wr_id.0, completion.result.unwrap_err())
    }

    /// A queue pair in Init.
    pub(crate) fn queue_pair(&mut self) -> QueuePair {
        let capabilities = QueuePairCapabilities {
            send_requests_max: REQUESTS,
            receive_requests_max: REQUESTS,
            entries_max: 1,
        };
        let init = QueuePairInit::new(self.domain, self.queue, capabilities);
        let queue_pair = self.nic.create_queue_pair(&init).unwrap();
        let attributes = QueuePairAttributes::INIT;
        self.nic
            .modify_queue_pair(queue_pair, QueuePairState::Init, &attributes)
            .unwrap();
        queue_pair
    }

    /// A request with bytes of the region.
    pub(crate) fn post(
        &mut self,
        queue_pair: QueuePair,
        id: u64,
        operation: SendOperation,
        (offset, length): (u64, u32),
    ) {
        let request = SendRequest {
            wr_id: WorkRequestId(id),
            operation,
            entries: vec![self.region.entry(offset, length)],
            flags: self.flags,
        };
        self.nic.post_send(queue_pair, &request).unwrap();
    }

    pub(crate) fn post_receive(
        &mut self,
        queue_pair: QueuePair,
        id: u64,
        (offset, length): (u64, u32),
    ) {
        let request = ReceiveRequest {
            wr_id: WorkRequestId(id),
            entries: vec![self.region.entry(offset, length)],
        };
        self.nic.post_receive(queue_pair, &request).unwrap();
    }

    pub(crate) fn bytes(&self, offset: u64, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        self.nic
            .read_region(&self.region, offset, &mut bytes)
            .unwrap();
        bytes
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.nic.write_region(&self.region, offset, bytes).unwrap();
    }
    /// Nothing came that should not have come.
    pub(crate) fn check_packets(&self) {
        self.nic.check();
    }
}
