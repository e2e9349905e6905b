//! Packets in, alarms, packets out.

use super::RoceProvider;
use super::around::Around;
use super::carrier::{Congestion, Notice, Refusal};
use super::paths::{self, Heard, Whole};
use super::peers::{PortIndex, answer_to};
use alloc::vec::Vec;
use core::net::IpAddr;
use legato_base::Time;
use legato_transport::adapter::Surroundings as _;
use legato_transport::cm::Gid;

impl RoceProvider {
    pub(super) fn run(&mut self, now: Time) -> Time {
        self.around.now = now;
        let more = self.receive_all();
        if self.addresses.is_due(now) {
            self.heed_addresses();
            self.heed_missing();
        }
        self.try_paths();
        self.sound_alarms();
        self.around.ports.flush();
        self.let_link_go_on();
        self.forget_strangers();
        if more {
            return now;
        }
        let alarm = self.around.alarms.next_deadline();
        alarm.min(self.around.paths.next_deadline())
    }

    /// Handles what has come. True if there may be more: the user sees to its own work first, which a
    /// flood must not keep it from and which waits for the first packet most of the time.
    fn receive_all(&mut self) -> bool {
        let mut more = false;
        for port in 0..self.around.ports.places() {
            self.heed_notices(port);
            if self.around.ports.receive(port, &mut self.inbox) {
                self.handle_inbox(port);
            }
            // What was read may have been a refusal.
            self.heed_notices(port);
            more |= self.inbox.take_perhaps_more();
        }
        more
    }

    /// Takes notices of a port up to now, which are about connections that were asked for up to now.
    pub(super) fn settle(&mut self, port: PortIndex) {
        self.around.ports.settle(port);
        self.heed_notices(port);
    }

    /// Handles what a carrier says of its peers: whoever asked for a connection need not
    /// wait, and long packets go another way. Else whoever does not answer is found by timers.
    fn heed_notices(&mut self, port: PortIndex) {
        while let Some(notice) = self.around.ports.notice(port) {
            let (Notice::Refused { peer, refusal } | Notice::Lost { peer, refusal }) = notice
            else {
                continue;
            };
            if let Refusal::Secret(reason) = refusal {
                if let Some(gid) = self.around.peers.gid(port, peer) {
                    let said = reason.to_bytes();
                    self.adapter.turned_away(&mut self.around, gid, &said);
                }
                continue;
            }
            if matches!(refusal, Refusal::TooLong { .. })
                && let Some(gid) = self.around.peers.gid(port, peer)
            {
                self.around.paths.refused(gid, self.around.now);
            }
            let is_nobody = matches!(refusal, Refusal::Port | Refusal::Host | Refusal::Network);
            if is_nobody && let Some(gid) = self.around.peers.gid(port, peer) {
                self.adapter.nobody_there(&mut self.around, gid);
            }
        }
    }

    /// Tells whose address here is missing, and whose is back.
    fn heed_addresses(&mut self) {
        let ports = &self.around.ports;
        let Some(change) = self.addresses.change(|address| ports.has(address)) else {
            return;
        };
        let Around { ports, peers, .. } = &self.around;
        let address = |peer: &Gid| {
            let (port, _) = peers.address(*peer)?;
            Some(ports.local_address(port)?.ip())
        };
        let talked_to_from = |those: &[IpAddr]| -> Vec<Gid> {
            let all = self.adapter.peers();
            all.filter(|peer| address(peer).is_some_and(|address| those.contains(&address)))
                .collect()
        };
        let lost = talked_to_from(change.missing);
        let regained = talked_to_from(&change.returned);
        self.adapter.address_returned(&mut self.around, &regained);
        self.adapter.address_removed(&mut self.around, &lost);
    }

    fn try_paths(&mut self) {
        let around = &mut self.around;
        if around.paths.next_deadline() <= around.now {
            let used = |gid| self.adapter.has_queue_pair_to(gid);
            let tries = around.paths.tries(used, around.now, &mut around.random);
            for (to, say) in tries {
                around.say(to, say);
            }
        }
    }

    /// Long packets that are missing may be missing for their length.
    fn heed_missing(&mut self) {
        for path in self.adapter.paths() {
            if path.mtu as usize > paths::SHORT {
                let missing = path.counters.losses + path.counters.timeouts;
                self.around.count_missing(path.peer, missing);
            }
        }
    }

    fn handle_inbox(&mut self, port: PortIndex) {
        while let Some(received) = self.inbox.next() {
            let peer = answer_to(received.source);
            let Some(from) = self.around.peers.gid(port, peer) else {
                continue;
            };
            let (adapter, around) = (&mut self.adapter, &mut self.around);
            let whole = if paths::is_own(received.packet) {
                // P-104: nobody else is answered, nor may occupy anything.
                let is_peer = adapter.has_queue_pair_to(from);
                match is_peer.then(|| around.paths.hear(from, received.packet, around.now)) {
                    Some(Heard::Packet(whole)) => Some(whole),
                    Some(Heard::Answer(say)) => {
                        around.say(from, say);
                        continue;
                    }
                    Some(Heard::Nothing) | None => continue,
                }
            } else {
                None
            };
            let packet = whole.as_ref().map_or(received.packet, Whole::packet);
            match received.congestion {
                Congestion::Experienced => adapter.receive_marked(around, from, packet),
                Congestion::None | Congestion::NotTold => adapter.receive(around, from, packet),
            }
            if let Some(whole) = whole {
                around.paths.give_back(whole);
            }
        }
    }

    /// Does what is due, posted requests among it.
    pub(super) fn sound_alarms(&mut self) {
        while let Some(alarm) = self.around.alarms.take_due(self.around.now) {
            self.adapter.alarm(&mut self.around, alarm);
        }
    }

    /// Queue pairs that waited for room send as much as there is.
    fn let_link_go_on(&mut self) {
        while self.around.link_watched && self.around.link_has_room() {
            self.around.link_watched = false;
            self.adapter.link_free(&mut self.around);
            self.around.ports.flush();
        }
    }

    /// Peers and ports that no connection uses, nor its end: what says that is sent until it is
    /// acknowledged.
    fn forget_strangers(&mut self) {
        let adapter = &self.adapter;
        let Around { ports, peers, .. } = &mut self.around;
        ports.close_all_but(|port| {
            let mut used = adapter.peers();
            used.any(|peer| peers.address(peer).is_some_and(|(of, _)| of == port))
        });
        self.around
            .peers
            .forget_all_but(|gid| adapter.peers().any(|peer| peer == gid));
        self.around
            .paths
            .forget_all_but(|gid| adapter.has_queue_pair_to(gid));
    }

    /// True if the user has nothing to do before something comes.
    pub(super) fn may_sleep(&mut self) -> bool {
        self.heed_addresses();
        for port in 0..self.around.ports.places() {
            self.around.ports.before_sleep(port);
            self.heed_notices(port);
        }
        self.sound_alarms();
        self.around.ports.flush();
        !self.adapter.has_work() && self.inbox.is_empty()
    }
}
