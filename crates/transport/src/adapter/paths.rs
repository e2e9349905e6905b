//! Paths to peers where congestion is controlled, and what is said about marks on packets
//! (RoCEv2 annex A17.9).

use super::queue_pair::QueuePairRecord;
use super::surroundings::{Flow, Surroundings};
use super::{ChannelAdapter, handle};
use crate::cm::Gid;
use crate::congestion::{Counters, Direction, Path};
use crate::nic::Table;
use crate::wire::{self, BaseHeader, Body, HEADERS_MAX, Packet};
use crate::{PacketSequenceNumber, rc};
use alloc::collections::{BTreeMap, BTreeSet};
use legato_base::Duration;
use legato_verbs::QueuePair;

/// Notifications of a queue pair are at least so far apart: as often as congestion can change. What
/// NICs do by default (DCQCN, Zhu et al., SIGCOMM 2015).
const NOTIFICATIONS_APART: Duration = Duration::from_micros(50);

/// Paths without a queue pair that are remembered.
const UNUSED_MAX: usize = 64;

/// By the peer, whose queue pairs share a path.
#[derive(Debug, Default)]
pub(super) struct Paths {
    by_peer: BTreeMap<Gid, Path>,
    /// Of paths that are no more.
    before: Counters,
}

/// What is known of the path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathState {
    pub peer: Gid,
    /// Bytes that its packets carry at most.
    pub mtu: u32,
    /// Smoothed, of requests and of READs; zero before the first is measured.
    pub round_trips: [Duration; 2],
    /// Packets that may be under way, of requests and of READs.
    pub windows: [u32; 2],
    pub in_flight: [u32; 2],
    /// Is a queue of others taken for granted, and only loss gone by?
    pub competes: [bool; 2],
    pub counters: Counters,
}

impl Paths {
    /// The path of a queue pair that has a peer.
    pub(super) fn of(
        &mut self,
        engine: &rc::QueuePair,
        surroundings: &impl Surroundings,
    ) -> Option<&mut Path> {
        let attributes = engine.query();
        let peer = Gid(attributes.address_vector?.destination);
        let mtu = attributes.path_mtu?.bytes();
        let path = self.by_peer.entry(peer);
        Some(path.or_insert_with(|| match surroundings.is_inside(peer) {
            true => Path::free(mtu),
            false => Path::new(mtu),
        }))
    }

    fn known(&mut self, engine: &rc::QueuePair) -> Option<&mut Path> {
        let vector = engine.query().address_vector?;
        self.by_peer.get_mut(&Gid(vector.destination))
    }

    /// Forgets paths that nobody uses when they are the most: a peer that comes back soon finds its
    /// own as it was.
    fn tidy(&mut self, queue_pairs: &Table<QueuePairRecord>) {
        if self.by_peer.len() <= 2 * queue_pairs.count() as usize + UNUSED_MAX {
            return;
        }
        let all = queue_pairs.iter();
        let vectors = all.filter_map(|(_, record)| record.engine.query().address_vector);
        let used: BTreeSet<Gid> = vectors.map(|vector| Gid(vector.destination)).collect();
        let before = &mut self.before;
        self.by_peer.retain(|peer, path| {
            let stays = used.contains(peer);
            if !stays {
                *before = before.plus(&path.counters);
            }
            stays
        });
    }
}

impl ChannelAdapter {
    pub(super) const fn controls_congestion(&self) -> bool {
        matches!(
            self.objects.policy.transport.recovery,
            rc::Recovery::Measured
        )
    }

    /// A queue pair is gone, and with it what it had under way.
    pub(super) fn leave_path(&mut self, record: &QueuePairRecord) {
        if !self.controls_congestion() {
            return;
        }
        if let Some(path) = self.paths.known(&record.engine) {
            path.account(record.engine.flight(), crate::congestion::Flight::default());
        }
        self.paths.tidy(&self.queue_pairs);
    }

    /// A packet of a connected peer's had been marked on its way, or says that one was.
    pub(super) fn heed_congestion(
        &mut self,
        surroundings: &mut impl Surroundings,
        name: QueuePair,
        packet: &Packet<'_>,
        is_marked: bool,
    ) {
        let now = surroundings.now();
        let Some(record) = self.queue_pairs.get_mut(handle(name)) else {
            return;
        };
        let Some(path) = self.paths.known(&record.engine) else {
            return;
        };
        if packet.body == Body::CongestionNotification {
            path.notified(now);
            return;
        }
        if !is_marked {
            return;
        }
        path.mark_seen(now, is_answer(&packet.body));
        if record
            .notified_at
            .is_some_and(|at| now.since(at) < NOTIFICATIONS_APART)
        {
            return;
        }
        record.notified_at = Some(now);
        path.counters.notifications_sent += 1;
        self.notify(surroundings, name);
    }

    fn notify(&mut self, surroundings: &mut impl Surroundings, name: QueuePair) {
        let Some(record) = self.record(name) else {
            return;
        };
        let attributes = record.engine.query();
        let (Some(destination), Some(vector)) = (attributes.destination, attributes.address_vector)
        else {
            return;
        };
        let base = BaseHeader {
            destination,
            sequence: PacketSequenceNumber::new(0),
            acknowledge: false,
            solicited: false,
            forward_congestion: false,
            // Annex A17.9.3: BECN is set.
            backward_congestion: true,
        };
        let flow = Flow::QueuePair {
            queue_pair: name,
            number: record.engine.number(),
        };
        let mut buffer = surroundings.take_buffer(HEADERS_MAX);
        let body = Body::CongestionNotification;
        let written = wire::encode(&base, &body, buffer.as_mut(), 0, |_| Ok::<_, ()>(()));
        match written {
            Ok(length) => surroundings.send(flow, Gid(vector.destination), buffer, length),
            Err(()) => surroundings.give_buffer(buffer),
        }
    }

    /// What happened on all paths since the adapter was made.
    pub fn congestion_counters(&self) -> Counters {
        let paths = self.paths.by_peer.values();
        paths.fold(self.paths.before, |sum, path| sum.plus(&path.counters))
    }

    /// The paths to peers, where congestion is controlled.
    pub fn paths(&self) -> impl Iterator<Item = PathState> {
        const BOTH: [Direction; 2] = [Direction::Requests, Direction::Answers];
        self.paths.by_peer.iter().map(|(&peer, path)| PathState {
            peer,
            mtu: path.mtu(),
            round_trips: BOTH.map(|it| path.window(it).round_trip()),
            windows: BOTH.map(|it| path.window(it).packets()),
            in_flight: BOTH.map(|it| path.in_flight(it)),
            competes: BOTH.map(|it| path.window(it).competes()),
            counters: path.counters,
        })
    }
}

/// Was its size asked for here?
const fn is_answer(body: &Body) -> bool {
    matches!(
        body,
        Body::ReadResponseFirst(_)
            | Body::ReadResponseMiddle
            | Body::ReadResponseLast(_)
            | Body::ReadResponseOnly(_)
    )
}
