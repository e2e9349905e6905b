//! The beginning of connections: who is there, and which one stays when two carriers have
//! connected to each other at the same time.

use super::super::name::{canonical, gid_of};
use super::super::notice::Notice;
use super::connection::{Connection, Stage};
use super::preamble::{PREAMBLE_LENGTH, Preamble};
use super::sealing::{self, ANSWER_LENGTH, ASKING_LENGTH, PROOF_LENGTH, Seal};
use super::{StreamCarrier, Token, set_up};
use core::net::SocketAddr;
use legato_base::wire::proof::Refusal;
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::{self, SocketFlags};

/// Connections accepted by one call at most, so that strangers do not keep packets waiting.
const ACCEPTS_MAX: usize = 16;

impl StreamCarrier {
    pub(super) fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS_MAX {
            let (socket, from) = match net::acceptfrom_with(&self.listener, flags) {
                Ok((socket, Some(from))) => (socket, from),
                Ok((_, None)) | Err(Errno::INTR | Errno::CONNABORTED) => continue,
                // Out of descriptors looks like nobody there: the peer waits in the backlog.
                Err(_) => return,
            };
            let Ok(from) = SocketAddr::try_from(from) else {
                continue;
            };
            if self.table.count() >= self.connections_max {
                // Whoever says nothing for longest makes room; else there is none.
                let stranger = self.table.oldest_stranger();
                if stranger.and_then(|old| self.table.remove(old)).is_none() {
                    continue;
                }
            }
            let from = canonical(from);
            let connection = Connection::new(socket, Stage::Accepted { from }, self.send_slots);
            if set_up(connection.socket.as_fd()).is_ok() {
                // Out of memory: dropped, and the peer tries again.
                let _ = self.table.insert(connection);
            }
        }
    }

    /// The first bytes that a peer says, or None if they are not all there or the connection is done for.
    fn hear_first<const N: usize>(&mut self, token: Token) -> Option<[u8; N]> {
        match self.table.get_mut(token)?.read_first() {
            Ok(bytes) => bytes,
            Err(errno) => {
                self.lose(token, errno);
                None
            }
        }
    }

    /// Sends somebody away who has connected, and says why.
    fn refuse(&mut self, token: Token, reason: Refusal) {
        self.counters.secrets_refused += 1;
        if let Some(connection) = self.table.remove(token) {
            connection.say_last(&sealing::refusal(reason));
        }
    }

    /// What a peer answers to whom we have connected; None if it is not all there or is none.
    fn hear_preamble_of(&mut self, token: Token, peer: SocketAddr) -> Option<Preamble> {
        let first = self.hear_first::<PREAMBLE_LENGTH>(token)?;
        if let Some(reason) = sealing::refused(&first) {
            self.lose_refused(token, peer, reason);
            return None;
        }
        let preamble = match self.sealing.is_some() {
            false => Preamble::from_bytes(&first),
            true => {
                let answer = self.hear_first::<ANSWER_LENGTH>(token)?;
                let connection = self.table.get_mut(token)?;
                let seal = core::mem::replace(&mut connection.seal, Seal::Plain);
                let sealing = self.sealing.as_ref()?;
                sealing.finish(seal, peer, &answer).map(|(preamble, seal)| {
                    connection.seal = seal;
                    preamble
                })
            }
        };
        self.taken(token, preamble)
    }

    /// What somebody says who has connected; None if it is not all there, is none, or was refused.
    /// With keys its answer is ready then.
    fn hear_preamble_from(&mut self, token: Token, from: SocketAddr) -> Option<Preamble> {
        let first = self.hear_first::<PREAMBLE_LENGTH>(token)?;
        let plain = Preamble::from_bytes(&first);
        if self.sealing.is_none() && sealing::asks_for_seal(&first) {
            self.refuse(token, Refusal::NotExpected);
            return None;
        }
        let preamble = match (self.sealing.is_some(), plain) {
            (false, plain) => plain,
            (true, Some(_)) => {
                self.refuse(token, Refusal::Required);
                return None;
            }
            (true, None) if sealing::asks_for_seal(&first) => {
                let asking = self.hear_first::<ASKING_LENGTH>(token)?;
                let own = self.own;
                match self.sealing.as_mut()?.answer(&asking, own) {
                    Ok((preamble, seal, answer)) => {
                        let connection = self.table.get_mut(token)?;
                        connection.seal = seal;
                        connection.greet(answer);
                        Some(preamble)
                    }
                    Err(reason) => {
                        self.refuse(token, reason);
                        return None;
                    }
                }
            }
            (true, None) => None,
        };
        // The address in it is the one that the stream comes from, as whoever connects knows it: of its
        // links nothing is said.
        let preamble = preamble.filter(|preamble| gid_of(preamble.address) == gid_of(from));
        let preamble = preamble.map(|mut preamble| {
            let port = preamble.address.port();
            preamble.address = from;
            preamble.address.set_port(port);
            preamble
        });
        self.taken(token, preamble)
    }

    /// What was read has been a preamble; or it was none, and the stream ends.
    fn taken(&mut self, token: Token, preamble: Option<Preamble>) -> Option<Preamble> {
        match preamble {
            Some(_) => self.table.get_mut(token)?.forget_read(),
            None => self.drop_as_garbage(token),
        }
        preamble
    }

    /// Reads what a peer says to whom we have connected.
    pub(super) fn hear_answer(&mut self, token: Token, peer: SocketAddr) {
        let Some(preamble) = self.hear_preamble_of(token, peer) else {
            return;
        };
        if gid_of(preamble.address) != gid_of(peer) || preamble.address.port() != peer.port() {
            return self.drop_as_garbage(token);
        }
        self.set_open(token, peer, &preamble, true);
    }

    /// Reads what somebody says who has connected from `from`.
    pub(super) fn hear_caller(&mut self, token: Token, from: SocketAddr) {
        let Some(preamble) = self.hear_preamble_from(token, from) else {
            return;
        };
        // The scope of a link-local address, which no preamble knows.
        let mut peer = from;
        peer.set_port(preamble.address.port());
        let to_itself = peer == self.local_address();
        let old = self.table.token_of(peer).filter(|_| !to_itself);
        if old.is_some_and(|old| self.keeps(old, peer, &preamble)) {
            if let Some(connection) = self.table.get_mut(token) {
                connection.stage = Stage::Superseded { peer };
            }
            return;
        }
        if self.sealing.is_some() {
            // A recording of a peer must not end the stream that the peer has.
            if let Some(connection) = self.table.get_mut(token) {
                connection.stage = Stage::Unproved { peer, preamble };
                self.write(token);
            }
            return;
        }
        self.take_over(old, token, peer);
        self.answer(token, peer, &preamble);
    }

    /// Reads what shows that somebody who was answered is no recording (P-84).
    pub(super) fn hear_proof(&mut self, token: Token, peer: SocketAddr, preamble: &Preamble) {
        let Some(proof) = self.hear_first::<PROOF_LENGTH>(token) else {
            return;
        };
        let Some(connection) = self.table.get_mut(token) else {
            return;
        };
        let run = match &mut connection.seal {
            Seal::On(sealed) => sealed.is_proof(&proof).then_some(sealed.run),
            _ => None,
        };
        let Some(run) = run else {
            return self.drop_as_garbage(token);
        };
        connection.forget_read();
        let to_itself = peer == self.local_address();
        let old = self.table.token_of(peer).filter(|_| !to_itself);
        let is_open = old.and_then(|old| self.table.get_mut(old));
        let is_open = is_open.is_some_and(|old| old.is_open());
        if is_open && old.is_some_and(|old| self.keeps(old, peer, preamble)) {
            // Meanwhile this side has connected as well, and been answered.
            self.table.remove(token);
            return;
        }
        if let Some(sealing) = &mut self.sealing {
            sealing.remember(peer, run);
        }
        self.take_over(old, token, peer);
        self.set_open(token, peer, preamble, false);
    }

    /// From now on packets for a peer go by a new connection. Of those with ourselves the other end is
    /// the one that sends.
    fn take_over(&mut self, old: Option<Token>, token: Token, peer: SocketAddr) {
        if let Some(old) = old {
            self.replace(old, token);
        }
        if peer != self.local_address() {
            self.table.set_peer(peer, token);
        }
    }

    /// Whether the connection `old` stays, and a new one that `peer` has made does not.
    ///
    /// Of two that cross, that of the lower address stays: both sides can tell. But a new life
    /// of the peer knows nothing of an old connection, nor does the peer make a second one by itself.
    fn keeps(&mut self, old: Token, peer: SocketAddr, preamble: &Preamble) -> bool {
        let lower = key(self.local_address()) < key(peer);
        match self.table.get_mut(old).map(|old| old.stage) {
            Some(Stage::Connecting { .. } | Stage::Greeting { .. }) => lower,
            Some(Stage::Open { instance, ours, .. }) => {
                lower && ours && instance == preamble.instance
            }
            Some(Stage::Accepted { .. } | Stage::Superseded { .. } | Stage::Unproved { .. })
            | None => false,
        }
    }

    /// Ends `old` for `new`, which gets the packets that wait if none of them is half written.
    fn replace(&mut self, old: Token, new: Token) {
        match self.table.get_mut(old).map(|old| old.is_open()) {
            Some(true) => self.lose(old, Errno::CONNRESET),
            Some(false) => {
                let old = self.table.remove(old);
                if let (Some(old), Some(new)) = (old, self.table.get_mut(new)) {
                    new.output = old.output;
                }
            }
            None => {}
        }
    }

    fn answer(&mut self, token: Token, peer: SocketAddr, preamble: &Preamble) {
        let own = self.own;
        if let Some(connection) = self.table.get_mut(token) {
            connection.greet(own.to_bytes().to_vec());
        }
        self.set_open(token, peer, preamble, false);
    }

    fn set_open(&mut self, token: Token, peer: SocketAddr, preamble: &Preamble, ours: bool) {
        if let Some(connection) = self.table.get_mut(token) {
            connection.stage = Stage::Open {
                peer,
                path_mtu: preamble.path_mtu,
                instance: preamble.instance,
                ours,
            };
            self.counters.connections += 1;
            let path_mtu = preamble.path_mtu;
            self.notices
                .push(Notice::Connected { peer, path_mtu }, &mut self.counters);
            self.write(token);
        }
    }
}

/// The order of carriers that both sides know.
fn key(address: SocketAddr) -> ([u8; 16], u16) {
    (gid_of(address).0, address.port())
}
