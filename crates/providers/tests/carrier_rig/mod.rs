//! Two carriers, and packets between them.
#![allow(dead_code, reason = "each test uses its part")]

use legato_providers::roce::carrier::{
    Carrier, Counters, DatagramCarrier, Flushed, Inbox, Options, Sealing, SendError, StreamCarrier,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Far more than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) carrier: Carrier,
    pub(crate) inbox: Inbox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Datagram,
    Stream,
}

impl Side {
    pub(crate) fn open(kind: Kind, local: &str, options: &Options) -> Self {
        let local = local.parse().unwrap();
        let carrier = match kind {
            Kind::Datagram => Carrier::Datagram(DatagramCarrier::open(local, options).unwrap()),
            Kind::Stream => Carrier::Stream(StreamCarrier::open(local, options).unwrap()),
        };
        Self {
            carrier,
            inbox: Inbox::new(8),
        }
    }

    /// A stream carrier whose streams are sealed.
    pub(crate) fn sealed(local: &str, options: &Options, sealing: Sealing) -> Self {
        let local = local.parse().unwrap();
        let carrier = StreamCarrier::open_with(local, options, Some(sealing));
        Self {
            carrier: Carrier::Stream(carrier.unwrap()),
            inbox: Inbox::new(8),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.carrier.local_address()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.carrier.counters().plus(self.inbox.counters())
    }

    /// False if there is no room.
    pub(crate) fn send(&mut self, to: SocketAddr, bytes: &[u8]) -> bool {
        let written = self.carrier.send(to, 7, |room| {
            room[..bytes.len()].copy_from_slice(bytes);
            Ok::<_, Infallible>(bytes.len())
        });
        match written {
            Ok(()) => true,
            Err(SendError::Busy) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// What has come up to now.
    pub(crate) fn receive(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut all = Vec::new();
        while self.carrier.receive(&mut self.inbox) {
            while let Some(received) = self.inbox.next() {
                all.push((received.source, received.packet.to_vec()));
            }
        }
        all
    }

    /// Sleeps until there is something to do.
    pub(crate) fn sleep(&self) {
        sleep(&[self]);
    }

    /// Receives until there are `count` packets.
    pub(crate) fn receive_until(&mut self, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
        let end = Instant::now() + PATIENCE;
        let mut all = self.receive();
        while all.len() < count {
            assert!(Instant::now() < end, "{} of {count}: {self:?}", all.len());
            self.sleep();
            all.extend(self.receive());
        }
        all
    }
}

/// Sleeps until one of the sides has something to do.
pub(crate) fn sleep(sides: &[&Side]) {
    let mut descriptors = Vec::new();
    for side in sides {
        side.carrier.descriptors(&mut descriptors);
    }
    let mut polled: Vec<_> = descriptors
        .iter()
        .map(|descriptor| PollFd::new(descriptor, PollFlags::IN))
        .collect();
    let limit = Timespec::try_from(PATIENCE).unwrap();
    let woken = poll(&mut polled, Some(&limit)).unwrap();
    assert!(woken > 0, "nothing wakes {sides:?}");
}

/// Both run until `done` says so.
pub(crate) fn run(a: &mut Side, b: &mut Side, mut done: impl FnMut(&mut Side, &mut Side) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        a.carrier.flush();
        b.carrier.flush();
        if done(a, b) {
            return;
        }
        assert!(Instant::now() < end, "{a:?} {b:?}");
        sleep(&[a, b]);
    }
}

/// Bytes that differ from packet to packet.
pub(crate) fn packet(number: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (number * 31 + at * 7 + at / 251) as u8)
        .collect()
}

/// Sends all in groups that no buffer is too small for, and checks that they come as they went.
pub(crate) fn transfer(from: &mut Side, to: &mut Side, packets: &[Vec<u8>]) {
    let (source, target) = (from.address(), to.address());
    for group in packets.chunks(32) {
        let mut left = group.iter();
        let mut next = left.next();
        let mut arrived = Vec::new();
        run(from, to, |from, to| {
            while let Some(bytes) = next {
                if !from.send(target, bytes) {
                    break;
                }
                next = left.next();
            }
            from.receive();
            let flushed = from.carrier.flush();
            arrived.extend(to.receive());
            next.is_none() && flushed == Flushed::All && arrived.len() >= group.len()
        });
        assert_eq!(arrived.len(), group.len());
        for ((sender, bytes), sent) in arrived.iter().zip(group) {
            assert_eq!(*sender, source);
            assert!(bytes == sent, "{} bytes differ", sent.len());
        }
    }
}

/// Packets with all lengths of payload that are special, in runs and mixed.
pub(crate) fn packets(path_mtu: usize) -> Vec<Vec<u8>> {
    let mut lengths = Vec::new();
    for payload in [
        1, 2, 3, 4, 5, 63, 64, 255, 256, 257, 1000, 1023, 1024, 2048, 4095, 4096,
    ] {
        if payload <= path_mtu {
            lengths.extend([12 + payload; 20]);
            lengths.extend([12, 16 + payload, 12 + payload / 2, 12 + payload]);
        }
    }
    let packets = lengths.iter().enumerate();
    packets
        .map(|(number, length)| packet(number, *length))
        .collect()
}
